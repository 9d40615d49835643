"""``make demo``: start the server, ask it about the bundled clip at three rates, stop it.

The server is a child process of its own, spoken to over HTTP like any other, with the official
``openai`` client, so that what is shown is what a user gets.
"""

import base64
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from server.demo.clip import CLIP_PATH
from server.settings import load_settings
from server.timing import STAGES

RATES = (0.0, 0.5, 0.75)
QUESTION = "describe what moves in the video"
START_TIMEOUT_SECONDS = 600.0
STOP_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer and what the server said about it."""

    text: str
    metrics: dict[str, Any]


def run_demo(config: Path | None, *, model: str | None = None) -> int:
    """Returns the exit code: 0 when every answer came and the server stopped cleanly."""
    keys = load_settings(config).http.api_keys
    api_key = keys[0].get_secret_value() if keys else "unused"
    port = _free_port()
    command = [sys.executable, "-m", "server", "serve", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--log-level", "warning"]
    command += ["--config", str(config)] if config else []
    command += ["--model", model] if model else []
    print(f"$ {' '.join(['video-chat-server', *command[3:]])}", flush=True)
    with _process(command) as server:
        base_url = f"http://127.0.0.1:{port}"
        if not _wait_until_ready(server, base_url):
            return 1
        answers = {rate: _ask(base_url, rate, api_key) for rate in RATES}
        print("\nstopping the server", flush=True)
    print(_table(answers))
    print(f"server stopped with exit code {server.returncode}", flush=True)
    return server.returncode


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command)
    try:
        yield process
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


def _wait_until_ready(server: subprocess.Popen[bytes], base_url: str) -> bool:
    """Returns whether the server became ready; prints what it waits for meanwhile."""
    started_at, shown = time.monotonic(), ""
    while (waited := time.monotonic() - started_at) < START_TIMEOUT_SECONDS:
        if server.poll() is not None:
            print(f"\nthe server ended with exit code {server.returncode}", flush=True)
            return False
        ready, reason = _readiness(base_url)
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


def _readiness(base_url: str) -> tuple[bool, str]:
    try:
        response = httpx.get(f"{base_url}/health/ready", timeout=15)
    except httpx.TransportError:
        return False, "the server process is starting"
    if response.status_code == 200:
        return True, ""
    return False, response.json()["error"]["message"]


def _ask(base_url: str, rate: float, api_key: str) -> Answer:
    """Ask about the clip at ``rate``, printing the answer as it streams."""
    from openai import OpenAI

    video = base64.b64encode(CLIP_PATH.read_bytes()).decode()
    client = OpenAI(base_url=f"{base_url}/v1", api_key=api_key)
    # Any, because the SDK has no type for video parts.
    messages: Any = [
        {
            "role": "user",
            "content": [
                {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{video}"}},
                {"type": "text", "text": QUESTION},
            ],
        }
    ]
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=messages,
        max_tokens=24,
        temperature=0,
        stream=True,
        extra_body={"video_pruning_rate": rate},
    )
    print(f"video_pruning_rate={rate}: ", end="", flush=True)
    text = ""
    metrics: dict[str, Any] = {}
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            print(choice.delta.content or "", end="", flush=True)
        metrics = getattr(chunk, "metrics", None) or metrics
    print("\n", flush=True)
    return Answer(text, metrics)


def _table(answers: dict[float, Answer]) -> str:
    """Returns the comparison of the answers, a row each."""
    header = ["rate", "video tokens", "TTFT ms", *(f"{stage} ms" for stage in STAGES)]
    rows = [header]
    for rate, answer in answers.items():
        (video,) = answer.metrics["videos"]
        stages = answer.metrics["stages_ms"]
        rows.append(
            [
                f"{rate:g}",
                f"{video['tokens_before']} → {video['tokens_after']}",
                f"{answer.metrics['time_to_first_token_ms']:.1f}",
                *(f"{stages[stage]:.1f}" for stage in STAGES),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
