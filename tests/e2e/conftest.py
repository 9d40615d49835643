"""One real server for all end-to-end tests: real engine, real uvicorn, the demo configuration."""

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from server.demo.clip import CLIP_PATH

ROOT = Path(__file__).parents[2]
START_TIMEOUT_SECONDS = 280


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@dataclass(frozen=True)
class RunningServer:
    """A server process and its address."""

    process: subprocess.Popen
    base_url: str

    def client(self, **options):
        return openai.OpenAI(
            base_url=f"{self.base_url}/v1", api_key="unused", max_retries=0, **options
        )

    def samples(self):
        """Every sample of /metrics by its full name with labels."""
        text = httpx.get(f"{self.base_url}/metrics").text
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def total(self, name):
        """The sum of a metric's samples over all labels."""
        pattern = re.compile(rf"{re.escape(name)}(\{{|$)")
        return sum(value for key, value in self.samples().items() if pattern.match(key))


def launch(*, environ=None, options=()) -> RunningServer:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "server", "serve", "--config", "config/demo.yaml"]
    process = subprocess.Popen(
        [*command, "--port", str(port), *options], cwd=ROOT, env={**os.environ, **(environ or {})}
    )
    return RunningServer(process, f"http://127.0.0.1:{port}")


def wait_until_ready(server: RunningServer) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        assert server.process.poll() is None, "the server ended while loading"
        try:
            if httpx.get(f"{server.base_url}/health/ready", timeout=20).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    pytest.fail(f"not ready after {START_TIMEOUT_SECONDS} s")


def stop(server: RunningServer) -> int:
    server.process.send_signal(signal.SIGTERM)
    try:
        return server.process.wait(60)
    finally:
        server.process.kill()


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    running = launch(environ={"VIDEO_CHAT_VIDEO__ALLOW_PRIVATE_ADDRESSES": "true"})
    try:
        wait_until_ready(running)
        yield running
    finally:
        stop(running)


@pytest.fixture(scope="session")
def clip_url() -> str:
    """The bundled clip as a data URL."""
    return "data:video/mp4;base64," + base64.b64encode(CLIP_PATH.read_bytes()).decode()


def video(url, **hints):
    return {"type": "video_url", "video_url": {"url": url, **hints}}


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}
