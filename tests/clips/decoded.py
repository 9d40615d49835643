"""Frames of a clip, decoded in this process: by our decoder, and by the simplest possible one."""

import io
from collections.abc import Sequence

import av
import numpy as np
from numpy.typing import NDArray

from server.media.clip import FramePlan, VideoFacts
from server.media.decode import VideoSource
from server.media.faults import DecodeLimits
from server.media.sourcefile import SourceFile

LIMITS = DecodeLimits(
    max_pixels=16_777_216,
    max_frames=20_000,
    memory_bytes=2_000_000_000,
    timeout_seconds=60,
    threads=2,
)


def decoded_frames(
    source: bytes,
    *,
    frame_indices: Sequence[int],
    size: tuple[int, int],
    limits: DecodeLimits = LIMITS,
) -> NDArray[np.uint8]:
    """Returns RGB frames of (width, height) ``size`` as our decoder gives them."""
    plan = FramePlan(tuple(frame_indices), *size)
    frames = np.zeros((plan.num_frames, plan.height, plan.width, 3), np.uint8)
    with VideoSource(SourceFile(source), limits) as video:
        video.probe()
        video.decode(plan, frames)
    return frames


def probed(source: bytes, limits: DecodeLimits = LIMITS) -> VideoFacts:
    """Returns what our decoder says about a clip."""
    with VideoSource(SourceFile(source), limits) as video:
        return video.probe()


def reference_frames(source: bytes) -> list[NDArray[np.uint8]]:
    """Returns every frame of the first video stream, upright, with no cleverness at all."""
    with av.open(io.BytesIO(source)) as container:
        return [
            np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
            for frame in container.decode(video=0)
        ]


def packet_places(source: bytes | bytearray) -> list[tuple[int, int]]:
    """Returns (position, size) of each packet of the first video stream, in decode order."""
    with av.open(io.BytesIO(bytes(source))) as container:
        return [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
