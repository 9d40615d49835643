"""The ways from an encoded video to frames that benchmarks compare, each in a process of its own.

- ``ours``: a decoder process from the pool, with its limits, started for each video.
- ``keyframe``: the same, taking the keyframes nearest to the times asked for.
- ``opencv``: vLLM's default loader.
- ``torchcodec``: vLLM's other loader for CPUs, in its exact mode.
- ``null``: FFmpeg alone on the packets that ours needs, in the same threads; frames are dropped.
- ``our-pixels``, ``vllm-pixels``: all the way from base64 to what the model takes, by this server
  and by vLLM; Qwen2-VL's processor makes the last step of both.
"""

import asyncio
import base64
import ctypes
import gc
import hashlib
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import numpy as np
import psutil

from server.media.memoryfile import MemoryFile


def started(names: Iterable[str], libraries: Path) -> "dict[str, Arm]":
    """Returns those of the arms that work on this machine."""
    _link_libraries(libraries)
    context = multiprocessing.get_context("spawn")
    arms: dict[str, Arm] = {}
    for name in names:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(name, theirs), daemon=True)
        path = {"LD_LIBRARY_PATH": str(libraries)} if name == "torchcodec" else {}
        with patch.dict(os.environ, path):
            process.start()
        fault = ours.recv()
        if fault:
            print(f"{name}: left out, {fault}", flush=True)
        else:
            arms[name] = Arm(ours, process.pid or 0)
    return arms


def _link_libraries(directory: Path) -> None:
    """Give PyAV's FFmpeg the names under which TorchCodec looks for one.

    So both use the same FFmpeg, also where the system has none.
    """
    for library in (Path(av.__file__).parents[1] / "av.libs").iterdir():
        (directory / library.name).symlink_to(library)
        if found := re.fullmatch(r"(lib(?:av|sw)[a-z]+)-[0-9a-f]+\.so\.(\d+)\..*", library.name):
            (directory / f"{found[1]}.so.{found[2]}").symlink_to(library)


class Arm:
    """The benchmark's end of one process."""

    def __init__(self, pipe: Connection, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid

    def decode(self, path: Path, num_frames: int) -> "Run":
        """Returns what came of one run."""
        self._pipe.send((str(path), num_frames))
        run: Run = self._pipe.recv()
        return run

    def peak_bytes(self, path: Path, num_frames: int) -> int:
        """Returns what a run takes at most, beyond what its processes held before."""
        with _Watch(self._pid) as children:
            run = self.decode(path, num_frames)
        return run.rise_bytes + run.shared_bytes + children.rise_bytes

    def stop(self) -> None:
        self._pipe.send(None)


@dataclass(frozen=True)
class Run:
    """What an arm reports of one video."""

    seconds: float
    rise_bytes: int
    """Peak of the arm's own process above what it held before."""
    shared_bytes: int = 0
    """Frames in memory that belongs to no process."""
    num_frames: int = 0
    fields: Any = None
    """Brightness of 4 x 4 fields of each frame, of shape (num_frames, 4, 4, 3); of what the model
    takes a digest."""
    fault: str = ""

    def shows_the_same(self, other: "Run") -> bool:
        """Whether the frames are the same but for size and rounding."""
        if self.fields is None:
            return True
        if isinstance(self.fields, str):
            return bool(self.fields == other.fields)
        return self.num_frames == other.num_frames and bool(
            np.abs(self.fields - other.fields).max() < 4
        )


class _Watch:
    """Measures the children of a process in the background. Memory that is shared counts once.

    Memory files count elsewhere: the source was there before, the frames are known.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._before = self._peak = self._now()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def rise_bytes(self) -> int:
        return self._peak - self._before

    def _measure(self) -> None:
        while not self._stop.wait(0.003):
            self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        total = 0
        for process in self._root.children(recursive=True):
            try:
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                sizes = {key: int(kib) for key, kib in re.findall(r"(\w+): +(\d+) kB", rollup)}
                total += 1024 * (sizes["Pss"] - sizes["Pss_Shmem"])
            except (OSError, KeyError):
                continue  # it has just ended
        return total


def _serve(arm: str, pipe: Connection) -> None:
    """Decode what the benchmark asks for, in a process of its own."""
    try:
        decode = _MAKERS[arm]()
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send("")
    while (asked := pipe.recv()) is not None:
        path, num_frames = asked
        pipe.send(_measured(decode, _source(arm, Path(path).read_bytes()), num_frames))


def _source(arm: str, data: bytes) -> Any:
    """Returns an encoded video in the form in which it has arrived at an arm."""
    if arm.endswith("-pixels"):
        return base64.b64encode(data).decode()
    return MemoryFile.of(data) if arm in ("ours", "keyframe") else data


def _measured(decode: Callable[[Any, int], Any], data: Any, num_frames: int) -> Run:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier runs left behind is not to be used for nothing
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status_bytes("VmRSS")
    started = time.perf_counter()
    try:
        frames = decode(data, num_frames)
    except Exception as error:
        return Run(time.perf_counter() - started, 0, fault=f"{type(error).__name__}: {error}"[:80])
    seconds = time.perf_counter() - started
    rise_bytes = _status_bytes("VmHWM") - before
    if frames is None:
        return Run(seconds, rise_bytes)
    if isinstance(data, str):
        digest = hashlib.sha256(frames.numpy().tobytes()).hexdigest()
        return Run(seconds, rise_bytes, num_frames=num_frames, fields=digest)
    shared_bytes = frames.nbytes if isinstance(data, MemoryFile) else 0
    return Run(seconds, rise_bytes, shared_bytes, len(frames), _fields(frames))


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{key}:")]
    return int(line.split()[1]) * 1024


def _fields(frames: Any) -> Any:
    frames = np.asarray(frames)
    count, height, width, _ = frames.shape
    fields = frames[:, : height // 4 * 4, : width // 4 * 4].reshape(
        count, 4, height // 4, 4, width // 4, 3
    )
    return fields.mean(axis=(2, 4))


def _theirs(backend: str) -> Callable[[bytes, int], Any]:
    from vllm.multimodal.video import VideoBackend

    if backend == "torchcodec":
        import torchcodec.decoders  # noqa: F401 - to know at once whether it finds FFmpeg

    def decode(data: bytes, num_frames: int) -> Any:
        frames, _ = VideoBackend.load_bytes(data, num_frames=num_frames, backend=backend)
        if len(frames) == 0:
            raise LookupError("no frames")
        return frames

    return decode


def _pool() -> tuple[asyncio.AbstractEventLoop, Callable[..., Any]]:
    """Returns a loop, and what decodes in it at the size that the processor would choose."""
    from transformers import Qwen2VLVideoProcessor

    from server.conversation import PixelLimits
    from server.engine.geometry import ProcessorGeometry
    from server.media.clip import FramePlan
    from server.media.workers import DecoderPool
    from server.settings import VideoSettings

    geometry = ProcessorGeometry(Qwen2VLVideoProcessor())
    pool = DecoderPool(VideoSettings())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(pool.start())

    async def decoded(file: MemoryFile, num_frames: int, *, keyframes: bool = False) -> Any:
        async with pool.open(file) as decoder:
            facts = await decoder.probe()
            indices = np.linspace(0, facts.num_frames - 1, num_frames, dtype=int)
            if keyframes:
                keys = np.array(facts.keyframe_indices)
                indices = keys[np.abs(keys[:, None] - indices).argmin(axis=0)]
            width, height = geometry.frame_size(
                width=facts.width,
                height=facts.height,
                num_frames=num_frames,
                limits=PixelLimits(),
            )
            plan = FramePlan(tuple(indices.tolist()), width, height)
            return (await decoder.decode(plan)).view()

    return loop, decoded


def _ours(*, keyframes: bool = False) -> Callable[[MemoryFile, int], Any]:
    loop, decoded = _pool()

    def decode(file: MemoryFile, num_frames: int) -> Any:
        return loop.run_until_complete(decoded(file, num_frames, keyframes=keyframes))

    return decode


def _our_pixels() -> Callable[[str, int], Any]:
    from server.media.dataurl import read_base64
    from server.media.sizelimit import SizeLimit

    loop, decoded = _pool()
    processed = _processor()

    async def arrived(text: str, num_frames: int) -> Any:
        file = await read_base64(text, SizeLimit(1 << 30), param="video")
        return await decoded(file, num_frames)

    return lambda text, num_frames: processed(loop.run_until_complete(arrived(text, num_frames)))


def _vllm_pixels() -> Callable[[str, int], Any]:
    from vllm.multimodal.media import ImageMediaIO, VideoMediaIO

    processed = _processor()

    def pixels(text: str, num_frames: int) -> Any:
        media = VideoMediaIO(ImageMediaIO(), num_frames=num_frames).load_base64("video/mp4", text)
        frames, _ = media.media
        return processed(frames)

    return pixels


def _processor() -> Callable[[Any], Any]:
    from transformers import Qwen2VLVideoProcessor

    processor = Qwen2VLVideoProcessor()

    def processed(frames: Any) -> Any:
        batch = processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
        return batch["pixel_values_videos"]

    return processed


def _null() -> Callable[[bytes, int], None]:
    from server.media.clip import FramePlan
    from server.media.decode import VideoSource
    from server.media.faults import DecodeLimits
    from server.media.pictures import Orientation, PictureWriter
    from server.media.sourcefile import SourceFile

    class DroppedFrames(VideoSource):
        def _write_span(
            self, span: Any, packets: Any, writer: Any, decoder: Any, pictures: Any
        ) -> None:
            for _ in self._exact_frames(span, packets, decoder):
                pass

        def drop(self, plan: FramePlan, out: Any) -> None:
            self._write_spans(PictureWriter(plan, out, Orientation()))

    cores = len(os.sched_getaffinity(0))
    limits = DecodeLimits(2**24, 200_000, 2**31, 600, cores)

    def decode(data: bytes, num_frames: int) -> None:
        with DroppedFrames(SourceFile(data), limits) as video:
            facts = video.probe()
            indices = np.linspace(0, facts.num_frames - 1, num_frames, dtype=int).tolist()
            video.drop(FramePlan(tuple(indices), 28, 28), np.empty((num_frames, 28, 28, 3), "u1"))

    return decode


_MAKERS: dict[str, Callable[[], Callable[[Any, int], Any]]] = {
    "ours": _ours,
    "keyframe": lambda: _ours(keyframes=True),
    "opencv": lambda: _theirs("opencv"),
    "torchcodec": lambda: _theirs("torchcodec"),
    "null": _null,
    "our-pixels": _our_pixels,
    "vllm-pixels": _vllm_pixels,
}
