"""Starting and stopping as an operator sees it."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.e2e.conftest import ROOT, launch, stop, wait_until_ready


def processes_of(parent):
    """Command lines of all descendants of a process."""
    table = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in table.splitlines()]
    family, found = {parent}, []
    for pid, ppid, *arguments in rows:
        if int(ppid) in family:
            family.add(int(pid))
            found.append((int(pid), " ".join(arguments)))
    return found


def first_answer(url):
    """The first answer of a server that is not listening yet."""
    for _ in range(600):
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(url, timeout=20)
        time.sleep(0.2)
    raise AssertionError(f"nothing listens at {url}")


def is_alive(pid):
    """Whether a process runs; one that has ended and was not collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def survivors(family, *, patience_seconds=5):
    """Those of ``family`` that outlive their parent; helpers that watch a pipe need a moment."""
    deadline = time.monotonic() + patience_seconds
    while alive := [member for member in family if is_alive(member[0])]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return alive


def test_term_ends_the_server_and_every_process_of_it():
    server = launch()
    try:
        live = first_answer(f"{server.base_url}/health/live")
        not_ready = httpx.get(f"{server.base_url}/health/ready", timeout=20)
        wait_until_ready(server)
        family = processes_of(server.process.pid)
    finally:
        exit_code = stop(server)

    assert live.status_code == 200
    assert not_ready.status_code == 503
    assert {"message", "type", "param", "code"} == set(not_ready.json()["error"])
    assert any("VLLM" in arguments for _, arguments in family)
    assert exit_code == 0
    assert survivors(family) == []


def test_a_wrong_engine_argument_stops_the_start_with_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "server", "serve", "--config", "config/demo.yaml", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "VIDEO_CHAT_ENGINE__MAX_MODEL_LENGTH": "5"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )

    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert "max_model_length" in last
    assert "max_model_len" in last.replace("max_model_length", "")
