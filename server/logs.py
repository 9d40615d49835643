"""Log output: one line per event on standard error, as text or as JSON, with the request's id.

Importing this module does nothing; ``configure_logging`` is called once, by the command line.
"""

import contextvars
import json
import logging
import logging.config
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from server.settings import LogSettings

request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)
"""Id of the request being served in this context; every record made in it carries the id."""


@contextmanager
def request_id_bound(value: str) -> Iterator[None]:
    """Records made inside the ``with`` block carry ``value`` as their request id."""
    token = request_id.set(value)
    try:
        yield
    finally:
        request_id.reset(token)


def configure_logging(settings: LogSettings) -> None:
    """Send this process's logs to standard error, as the settings say.

    vLLM brings its own handler, to which only the level is applied. uvicorn's access log is off:
    the server writes one line per request itself, with what matters about a video.
    """
    level = settings.level.upper()
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"request_id": {"()": _RequestIdFilter}},
            "formatters": {"text": {"()": _TextFormatter}, "json": {"()": _JsonFormatter}},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": settings.format,
                    "filters": ["request_id"],
                }
            },
            "root": {"level": level, "handlers": ["stderr"]},
            "loggers": {
                "uvicorn": {"level": level, "handlers": [], "propagate": True},
                "uvicorn.error": {"level": "NOTSET", "handlers": [], "propagate": True},
                "uvicorn.access": {"level": "CRITICAL", "handlers": [], "propagate": False},
                # They log whole URLs, with the queries in which signatures and tokens travel.
                "httpx": {"level": "WARNING"},
                "httpcore": {"level": "WARNING"},
                # It warns of every malformed form, which the answer names already.
                "python_multipart": {"level": "ERROR"},
            },
        }
    )
    # Not by dictConfig, which would take away the handler that vLLM may have set up already.
    logging.getLogger("vllm").setLevel(level)


class _RequestIdFilter(logging.Filter):
    """Lets every record pass, and notes the request id on it."""

    def filter(self, record: logging.LogRecord) -> bool:
        vars(record).setdefault("request_id", request_id.get())
        return True


class _TextFormatter(logging.Formatter):
    """``2026-11-30T06:22:35.123Z INFO server.app [req-1] message key=value``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _extra_fields(record).items())
        identity = f" [{bound}]" if (bound := getattr(record, "request_id", None)) else ""
        line = f"{record.levelname} {record.name}{identity} {record.getMessage()}{fields}"
        # A stack trace has newlines of its own; they are indented, so that no line looks like a
        # record that is none.
        trace = "".join(f"\n    {_escaped(text)}" for text in _trace(record).splitlines())
        return f"{_time(record)} {_escaped(line)}{trace}"


class _JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "request_id": getattr(record, "request_id", None),
            "message": record.getMessage(),
        }
        event |= {key: value for key, value in _extra_fields(record).items() if key not in event}
        if trace := _trace(record):
            event["trace"] = trace
        return json.dumps(event, default=str)


_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "asctime",
    "color_message",  # uvicorn's copy of the message for terminals
    "message",
    "request_id",
    "taskName",
    "vllm_process_name",  # set on every record by vLLM
}


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns what the caller passed as ``extra``."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    formatter = logging.Formatter()
    trace = formatter.formatException(record.exc_info) if record.exc_info else ""
    stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    return "\n".join(text for text in (trace, stack) if text)


def _escaped(text: str) -> str:
    """Returns ``text`` with control characters and line separators spelt out.

    Strings that clients choose end up in messages; a newline must not forge a second record.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
