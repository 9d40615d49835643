"""The command line: ``serve``, ``demo``, ``settings``. Heavy imports wait until they are needed."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from server.errors import ConfigurationError

PROGRAM = "video-chat-server"
EXIT_CONFIGURATION = 2
"""Exit code for wrong settings or arguments, as argparse has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` name. Returns the process's exit code."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except ConfigurationError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="OpenAI-compatible video chat with pruning per request."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version(PROGRAM)}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the server until SIGTERM or Ctrl-C")
    serve.set_defaults(command=_serve)
    _add_model_options(serve)
    _add_listening_options(serve)

    demo = commands.add_parser("demo", help="run the server, ask it about a clip, and stop it")
    demo.set_defaults(command=_demo)
    _add_model_options(demo)

    settings = commands.add_parser("settings", help="print every setting with its default")
    settings.set_defaults(command=_print_settings)
    settings.add_argument("--format", choices=["yaml", "markdown"], default="yaml")
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    parser.add_argument("--model", metavar="DIR_OR_NAME", help="model, as vLLM takes it")


def _add_listening_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to bind")
    parser.add_argument("--port", type=int, help="TCP port to bind; 0 lets the system choose")
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")


def _serve(options: argparse.Namespace) -> int:
    from server.logs import configure_logging
    from server.settings import load_settings

    flags: dict[str, Any] = {
        "model": options.model,
        "http": {"host": options.host, "port": options.port},
        "log": {"level": options.log_level},
    }
    settings = load_settings(options.config, flags=flags)
    configure_logging(settings.log)
    from server.app import run  # after logging is set up, because vLLM logs while it is imported

    return run(settings)


def _demo(options: argparse.Namespace) -> int:
    from server.demo.run import run_demo

    return run_demo(options.config, model=options.model)


def _print_settings(options: argparse.Namespace) -> int:
    from server.reference import settings_as_markdown, settings_as_yaml

    print(settings_as_markdown() if options.format == "markdown" else settings_as_yaml(), end="")
    return 0
