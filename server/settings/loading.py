"""Settings from everywhere: defaults < config file < environment < command line flags.

This module is the only reader of the environment.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from server.errors import ConfigurationError
from server.settings.assignments import (
    environment_assignments,
    file_assignments,
    flag_assignments,
    merge,
)
from server.settings.faults import one_line
from server.settings.tree import Settings


def load_settings(
    config_path: Path | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Returns the settings from a YAML file, the environment and flags, later ones winning.

    Args:
        config_path: YAML file with the same tree as ``Settings``; None means no file.
        flags: nested mapping from the command line; None values are left out.
        environ: environment to read; the process's own by default.

    Raises:
        ConfigurationError: a file can not be read, or a key or value is wrong. One line.
    """
    environ = os.environ if environ is None else environ
    assignments = [
        *(file_assignments(config_path) if config_path else ()),
        *environment_assignments(environ),
        *flag_assignments(flags or {}),
    ]
    try:
        return Settings(**merge(assignments))
    except ValidationError as error:
        raise ConfigurationError(one_line(error, assignments)) from error
