"""Everything that is served, for the application and for tests of the wire alone."""

from server.api import chat, files, health, models

ROUTERS = (chat.router, files.router, models.router, health.router)
