"""Long clips for benchmarks, made once and kept: a zoom with moving test pictures and noise."""

import hashlib
import inspect
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.filter import Graph

FRAMES_PER_SECOND = 30
_ENCODERS = {
    "h264": ("libx264", "mp4", {}),
    "hevc": ("libx265", "mp4", {"x265-params": "log-level=error"}),
    "vp9": ("libvpx-vp9", "webm", {"deadline": "realtime", "cpu-used": "6", "b": "3M"}),
    "av1": ("libsvtav1", "mp4", {"preset": "10", "svtav1-params": "keyint=250"}),
}


@dataclass(frozen=True)
class Footage:
    """A clip of synthetic pictures, encoded as its encoder does by default (groups up to 250)."""

    codec: str
    height: int
    seconds: int
    repeated: int = 1
    """How often the pictures are shown one after the other, by copying packets."""

    def __str__(self) -> str:
        return f"{self.codec} {self.height}p {self.seconds * self.repeated} s"

    def path(self) -> Path:
        """Returns the clip, which is made if it is not there yet."""
        _, container, _ = _ENCODERS[self.codec]
        length = f"{self.seconds}s-x{self.repeated}"
        name = f"{self.codec}-{self.height}p-{length}-{_fingerprint()}.{container}"
        path = _directory() / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f".{os.getpid()}-{name}")
            if self.repeated > 1:
                one = Footage(self.codec, self.height, self.seconds).path()
                _repeat(one, unfinished, container, self.repeated)
            else:
                self._encode(unfinished)
            unfinished.replace(path)
        return path

    def _encode(self, path: Path) -> None:
        encoder, container, options = _ENCODERS[self.codec]
        width = self.height * 16 // 9
        total = self.seconds * FRAMES_PER_SECOND
        with av.open(str(path), "w", format=container) as output:
            stream: Any = output.add_stream(encoder, rate=FRAMES_PER_SECOND, options=options)
            stream.width, stream.height, stream.pix_fmt = width, self.height, "yuv420p"
            stream.codec_context.thread_count = 0
            for number, frame in enumerate(_pictures(width, self.height, total)):
                output.mux(stream.encode(frame))
                if number % FRAMES_PER_SECOND == 0:
                    _progress(f"{self}: encoding, {number // FRAMES_PER_SECOND} s")
            output.mux(stream.encode())
        _progress(f"{self}: made\n")


def _pictures(width: int, height: int, count: int) -> Iterator[av.VideoFrame]:
    """Yields a slow zoom, a quarter of it covered by moving test pictures, all of it noisy."""
    rate = FRAMES_PER_SECOND
    graph = Graph()
    half = f"size={width // 2}x{height // 2}:rate={rate}"
    zoom = graph.add("mandelbrot", f"{half}:maxiter=256:end_pts=2000")
    large = graph.add("scale", f"{width}:{height}")
    test = graph.add("testsrc2", half)
    both = graph.add("overlay", f"x={width // 4}:y={height // 4}")
    noise = graph.add("noise", "alls=3:allf=t")
    form = graph.add("format", "yuv420p")
    sink = graph.add("buffersink")
    zoom.link_to(large)
    large.link_to(both, 0, 0)
    test.link_to(both, 0, 1)
    both.link_to(noise)
    noise.link_to(form)
    form.link_to(sink)
    graph.configure()
    for number in range(count):
        frame: Any = sink.pull()
        frame.pts, frame.time_base = number, Fraction(1, rate)
        yield frame


def _fingerprint() -> str:
    """Returns what changes when the pictures do."""
    return hashlib.sha256(inspect.getsource(_pictures).encode()).hexdigest()[:8]


def _repeat(one: Path, path: Path, container: str, times: int) -> None:
    with av.open(str(path), "w", format=container) as output:
        copied: Any = None
        for number in range(times):
            with av.open(str(one)) as source:
                stream = source.streams.video[0]
                copied = copied or output.add_stream_from_template(stream)
                shift = number * int(source.duration / av.time_base / stream.time_base)
                for packet in source.demux(stream):
                    if packet.size:
                        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                        packet.stream = copied
                        output.mux(packet)


def _directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "video-chat-server" / "footage"


def _progress(text: str) -> None:
    print(f"\r{text}", end="", file=sys.stderr, flush=True)
