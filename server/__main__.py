"""``python -m server`` and the console script.

Imports nothing heavy: EngineCore and its workers, which are spawned, import this module again.
"""

import sys

from server.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
