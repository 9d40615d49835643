"""The one settings tree: defaults < config file < VIDEO_CHAT_ environment < command line flags.

Nothing else reads the environment and config files. Every field has a docstring, which
``docs/settings.md`` and the error messages use. Unknown keys and wrong values stop the start.
"""

from server.settings.assignments import ENV_PREFIX
from server.settings.files import FileSettings
from server.settings.http import HttpSettings
from server.settings.loading import load_settings
from server.settings.tree import EMBEDDED_MODEL, LogSettings, PruningSettings, Settings
from server.settings.video import VideoSettings

__all__ = [
    "EMBEDDED_MODEL",
    "ENV_PREFIX",
    "FileSettings",
    "HttpSettings",
    "LogSettings",
    "PruningSettings",
    "Settings",
    "VideoSettings",
    "load_settings",
]
