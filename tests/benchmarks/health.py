"""How soon ``/health/live`` answers meanwhile: ``python -m tests.benchmarks.health``.

The application runs in a process of its own, with real sockets and decoder processes and an engine
that answers at once. Eight clients, in another process, send it a clip each as a data: URL, again
and again, every time another file to the server; meanwhile a ninth asks for ``/health/live`` every
20 ms. Exit code 1 when the 99th percentile of its waits is above the limit.
"""

import argparse
import asyncio
import base64
import http.client
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection

from server.conversation import PixelLimits
from server.media.forking import ForkHost
from tests.benchmarks.footage import Footage
from tests.unit.api.stubs import Squares, model_facts
from tests.unit.scripted import CHAT, ScriptedEngine, question, service

NUM_CLIENTS = 8
LIMIT_SECONDS = 0.05
SPACING_SECONDS = 0.02
_PATIENCE_SECONDS = 300


def main() -> int:
    """Print the waits; returns 0 when they keep to the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="how often to ask")
    parser.add_argument("--height", type=int, default=1080, help="of the clip, in pixels")
    parser.add_argument("--seconds", type=int, default=20, help="of the clip")
    parser.add_argument("--padding-mb", type=int, default=0, help="size added to the clip's file")
    options = parser.parse_args()
    clip = Footage("h264", options.height, options.seconds).path().read_bytes()
    clip += _free_box(os.urandom(options.padding_mb * 1_000_000))
    # So that its base64 goes on with that of what follows.
    clip += _free_box(bytes(-(len(clip) + 8) % 3))
    with _process(_serve) as server:
        address = server.recv()
        with _process(_send, address, clip) as senders:
            senders.recv()  # All of them have begun.
            waits = _waits(address, options.requests)
            senders.send("stop")
            statuses = senders.recv()
        server.send("stop")
    return _report(clip, waits, statuses)


def _free_box(content: bytes) -> bytes:
    """Returns what an MP4 file may have at its end without being another video."""
    return (len(content) + 8).to_bytes(4, "big") + b"free" + content


@contextmanager
def _process(task: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run ``task`` in a process of its own, which is told to stop through the connection."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=task, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
        process.join()
    finally:
        process.kill()


def _waits(address: str, num_requests: int) -> list[float]:
    """Returns how long each answer took, in seconds."""
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE_SECONDS)
    waits = []
    due = time.perf_counter()
    for _ in range(num_requests):
        time.sleep(max(0.0, due - time.perf_counter()))
        asked_at = time.perf_counter()
        connection.request("GET", "/health/live")
        connection.getresponse().read()
        waits.append(time.perf_counter() - asked_at)
        due = max(due + SPACING_SECONDS, time.perf_counter())
    connection.close()
    return waits


def _send(control: Connection, address: str, clip: bytes) -> None:
    """Keep as many requests in flight as there are clients, until told to stop."""
    head, tail = json.dumps(question("data:video/mp4;base64,@", num_frames=32)).encode().split(b"@")
    head += base64.b64encode(clip)
    statuses: list[int] = []
    has_ended = threading.Event()
    have_begun = threading.Barrier(NUM_CLIENTS + 1)

    def work(number: int) -> None:
        have_begun.wait()
        count = 0
        while not has_ended.is_set():
            unlike_others = _free_box(number.to_bytes(4, "big") + count.to_bytes(4, "big"))
            connection = http.client.HTTPConnection(address, timeout=_PATIENCE_SECONDS)
            connection.request("POST", CHAT, head + base64.b64encode(unlike_others) + tail)
            statuses.append(connection.getresponse().status)
            connection.close()
            count += 1

    threads = [threading.Thread(target=work, args=[number]) for number in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    have_begun.wait()
    control.send("begun")
    control.recv()
    has_ended.set()
    for thread in threads:
        thread.join()
    control.send(statuses)


class _SmallFrames(Squares):
    """A model that sees frames at a usual size."""

    def frame_size(
        self, *, width: int, height: int, num_frames: int, limits: PixelLimits
    ) -> tuple[int, int]:
        return 448, 252


class _IdleEngine(ScriptedEngine):
    """Looks at no frame."""

    async def complete(self, body, videos, trace):
        answer = await super().complete(body, (), trace)
        trace.video_tokens_after = tuple(video.clip.num_frames for video in videos)
        return answer


def _serve(control: Connection) -> None:
    """Send the address, and serve until told to stop."""

    async def serve() -> None:
        host = ForkHost("server.media.decoder:decode_video")
        await host.start()
        async with service(
            host,
            engine=_IdleEngine(replace(model_facts(), geometry=_SmallFrames())),
            max_concurrent_decodes=NUM_CLIENTS,
            decode_timeout_seconds=_PATIENCE_SECONDS,
        ) as running:
            control.send(running.url.removeprefix("http://"))
            await asyncio.to_thread(control.recv)
        await host.stop()

    asyncio.run(serve())


def _report(clip: bytes, waits: list[float], statuses: list[int]) -> int:
    percentiles = statistics.quantiles(waits, n=100)
    print(
        f"{len(waits)} requests to /health/live while {len(statuses)} videos of "
        f"{len(clip) / 1e6:.1f} MB were decoded, {NUM_CLIENTS} at once: "
        f"p50 {1000 * percentiles[49]:.1f} ms, p99 {1000 * percentiles[98]:.1f} ms, "
        f"max {1000 * max(waits):.1f} ms"
    )
    if set(statuses) != {200}:
        print(f"not every video was answered: {sorted(set(statuses))}")
        return 1
    return 0 if percentiles[98] <= LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
