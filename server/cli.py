"""The command line: ``serve``, ``demo``, ``eval``, ``settings``.

Heavy imports wait until they are needed.
"""

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

    evaluation = commands.add_parser(
        "eval", help="ask a running server a set of questions about videos, at several rates"
    )
    evaluation.set_defaults(command=_evaluate)
    _add_evaluation_options(evaluation)

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


def _add_evaluation_options(parser: argparse.ArgumentParser) -> None:
    # None is left to the defaults of EvaluationOptions, which is imported when it is needed.
    add = parser.add_argument
    add("--set", type=Path, required=True, dest="questions", metavar="FILE", help="JSONL file")
    add("--out", type=Path, metavar="DIR", help="where the report goes (docs/results)")
    add("--base-url", metavar="URL", help="of any OpenAI API (http://127.0.0.1:8000/v1)")
    add("--model", metavar="NAME", help="the first one that the server lists by default")
    add("--api-key", metavar="KEY", help="by default the first of http.api_keys, if there are any")
    add("--serve", action="store_true", default=None, help="start a server of our own, and stop it")
    add("--config", type=Path, metavar="FILE", help="YAML file with settings, for --serve and keys")
    add("--rates", type=float, nargs="+", metavar="RATE", help="pruning rates (0 .25 .5 .75 .9)")
    add("--limit", type=int, metavar="N", help="ask only the first N questions")
    add("--concurrency", type=int, metavar="N", help="requests at a time (1)")
    add("--max-tokens", type=int, metavar="N", help="of an answer (64)")
    add("--timeout", type=float, dest="timeout_seconds", metavar="SECONDS", help="a request (300)")
    add(
        "--cold",
        action=argparse.BooleanOptionalAction,
        help="make each MP4 new to every cache, so that rates compare (on)",
    )
    add(
        "--control",
        choices=["none", "shuffled", "wrong-clip"],
        help="a run that must fail: shuffled clips from FILE-shuffled, or another item's clip",
    )
    add("--restart", action="store_true", default=None, help="forget the answers that are there")


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


def _evaluate(options: argparse.Namespace) -> int:
    from server.evaluation.command import EvaluationOptions, evaluate

    given = {name: value for name, value in vars(options).items() if value is not None}
    del given["command"]
    if "rates" in given:
        given["rates"] = tuple(given["rates"])
    return evaluate(EvaluationOptions(**given))


def _print_settings(options: argparse.Namespace) -> int:
    from server.reference import settings_as_markdown, settings_as_yaml

    print(settings_as_markdown() if options.format == "markdown" else settings_as_yaml(), end="")
    return 0
