"""``python -m server`` and the console script.

Imports nothing heavy: a decoder process that is spawned imports this module again.
"""

import sys

from server.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
