"""A server of our own as a child process, spoken to over HTTP like any other."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_TIMEOUT_SECONDS = 600.0
STOP_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ChildServer:
    """A running server process."""

    process: subprocess.Popen[bytes]
    base_url: str
    """Without a path."""

    @property
    def exit_code(self) -> int | None:
        """How the process ended, None while it runs."""
        return self.process.returncode

    def wait_until_ready(self) -> bool:
        """Returns whether the server became ready; prints what it waits for meanwhile."""
        started_at, shown = time.monotonic(), ""
        while (waited := time.monotonic() - started_at) < START_TIMEOUT_SECONDS:
            if self.process.poll() is not None:
                print(f"\nthe server ended with exit code {self.exit_code}", flush=True)
                return False
            ready, reason = _readiness(self.base_url)
            if ready:
                print(f"\nready after {waited:.0f} s\n", flush=True)
                return True
            if reason != shown:
                print(f"\nwaiting: {reason} ", end="", flush=True)
                shown = reason
            print(".", end="", flush=True)
            time.sleep(1)
        print(f"\nnot ready after {START_TIMEOUT_SECONDS:.0f} s", flush=True)
        return False


@contextmanager
def child_server(config: Path | None, *, model: str | None = None) -> Iterator[ChildServer]:
    """Yields a server that has been started on a free port of loopback; stops it at the end."""
    port = _free_port()
    command = [sys.executable, "-m", "server", "serve", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--log-level", "warning"]
    command += ["--config", str(config)] if config else []
    command += ["--model", model] if model else []
    print(f"$ {' '.join(['video-chat-server', *command[3:]])}", flush=True)
    process = subprocess.Popen(command)
    try:
        yield ChildServer(process, f"http://127.0.0.1:{port}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _readiness(base_url: str) -> tuple[bool, str]:
    try:
        response = httpx.get(f"{base_url}/health/ready", timeout=15)
    except httpx.TransportError:
        return False, "the server process is starting"
    if response.status_code == 200:
        return True, ""
    return False, response.json()["error"]["message"]
