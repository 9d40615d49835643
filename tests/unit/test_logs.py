"""Log output: one line per record, the request's id in it, nothing forged by a client's text."""

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import pytest

from server.logs import configure_logging, request_id, request_id_bound
from server.settings import LogSettings

NAMES = ("", "uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "httpcore", "vllm")


@pytest.fixture
def stderr() -> Iterator[io.StringIO]:
    """Stands for standard error; the process's logging is put back afterwards."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(log, log.level, log.handlers[:], log.propagate) for log in loggers]
    yield io.StringIO()
    for log, level, handlers, propagate in before:
        log.setLevel(level)
        log.handlers[:] = handlers
        log.propagate = propagate


def configure(stderr: io.StringIO, **settings: Any) -> None:
    with redirect_stderr(stderr):  # the handler keeps the stream that it finds here
        configure_logging(LogSettings(**settings))


def test_text_is_one_line_with_time_level_logger_and_fields(stderr: io.StringIO) -> None:
    configure(stderr)
    logging.getLogger("server.app").info("served %s", "clip", extra={"status": 200})

    time, rest = stderr.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == "INFO server.app served clip status=200\n"


def test_records_carry_the_id_of_their_request(stderr: io.StringIO) -> None:
    configure(stderr)
    with request_id_bound("req-1"):
        logging.getLogger("server.app").info("inside")
    logging.getLogger("server.app").info("outside")

    inside, outside = stderr.getvalue().splitlines()
    assert "server.app [req-1] inside" in inside
    assert "[req-1]" not in outside
    assert request_id.get() is None


def test_concurrent_requests_keep_their_ids_apart(stderr: io.StringIO) -> None:
    configure(stderr, format="json")

    async def serve(identity: str) -> None:
        with request_id_bound(identity):
            await asyncio.sleep(0)
            logging.getLogger("server.app").info(identity)

    async def both() -> None:
        await asyncio.gather(serve("a"), serve("b"))

    asyncio.run(both())
    events = [json.loads(line) for line in stderr.getvalue().splitlines()]
    assert [
        (event["request_id"], event["message"])
        for event in events
        if event["logger"] == "server.app"
    ] == [("a", "a"), ("b", "b")]


def test_json_is_one_object_per_record(stderr: io.StringIO) -> None:
    configure(stderr, format="json")
    with request_id_bound("req-2"):
        logging.getLogger("server.app").warning("slow\n%s", 1, extra={"seconds": 2.5, "level": 9})

    (line,) = stderr.getvalue().splitlines()
    event = json.loads(line)
    del event["time"]
    assert event == {
        "level": "warning",
        "logger": "server.app",
        "request_id": "req-2",
        "message": "slow\n1",
        "seconds": 2.5,
    }


@pytest.mark.parametrize("separator", ["\n", "\r", "\x1b[2K", "\x85", "\u2028", "\x00"])
def test_text_of_a_client_can_not_forge_a_line(stderr: io.StringIO, separator: str) -> None:
    configure(stderr)
    text = f"x{separator}2026-01-01T00:00:00.000Z ERROR server.app forged"
    with request_id_bound(f"id{separator}"):
        logging.getLogger("server.app").info("model %s", text, extra={"name_given": text})

    assert len(stderr.getvalue().splitlines()) == 1
    assert separator not in stderr.getvalue().removesuffix("\n")


def test_a_trace_is_indented_below_its_record(stderr: io.StringIO) -> None:
    configure(stderr)
    try:
        raise ValueError("first\nINFO forged")
    except ValueError:
        logging.getLogger("server.app").exception("failed")

    first, *others = stderr.getvalue().splitlines()
    assert first.endswith("ERROR server.app failed")
    assert others[-1] == "    INFO forged"
    assert all(line.startswith("    ") for line in others)


def test_a_trace_is_a_field_in_json(stderr: io.StringIO) -> None:
    configure(stderr, format="json")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("server.app").exception("failed")

    event = json.loads(stderr.getvalue())
    assert event["trace"].endswith("ValueError: wrong")


def test_the_level_applies_to_us_to_uvicorn_and_to_vllm(stderr: io.StringIO) -> None:
    configure(stderr, level="warning")
    for name in ("server.app", "uvicorn.error", "vllm.engine"):
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)
        assert logging.getLogger(name).isEnabledFor(logging.WARNING)
    logging.getLogger("uvicorn.error").warning("once")

    assert len(stderr.getvalue().splitlines()) == 1


def test_the_access_log_is_off_and_client_urls_are_not_logged(stderr: io.StringIO) -> None:
    configure(stderr)
    logging.getLogger("uvicorn.access").info("GET /")
    logging.getLogger("httpx").info("HTTP Request: GET https://example.org/clip?signature=1")

    assert stderr.getvalue() == ""


def test_the_handler_of_vllm_stays(stderr: io.StringIO) -> None:
    handler = logging.StreamHandler(io.StringIO())
    logging.getLogger("vllm").addHandler(handler)
    configure(stderr)

    assert handler in logging.getLogger("vllm").handlers


def test_importing_configures_nothing() -> None:
    code = "import logging, server.logs; assert not logging.getLogger().handlers"

    subprocess.run([sys.executable, "-c", code], check=True)
