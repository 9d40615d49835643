"""A decoder process: one video in, facts and frames out. Forked by ``server.media.forkhost``."""

import errno
import mmap
import os
import socket
import traceback
from collections.abc import Sequence
from functools import partial

import numpy as np

from server.errors import InvalidVideo
from server.media import messages
from server.media.byteranges import ByteRange
from server.media.clip import FramePlan
from server.media.confinement import allow_frames, confine
from server.media.decode import VideoSource
from server.media.faults import VIDEO_FAULTS, VideoFault
from server.media.messages import DecodeJob
from server.media.picturesource import Source, open_source
from server.media.remotefile import has_holes, in_few_requests
from server.media.sourcefile import SparseFile

_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "can't start new thread")
"""Of torch and of Python's threads, which raise no MemoryError."""


def decode_video(job: DecodeJob) -> None:
    """Answer the server until it has its frames, or knows why there are none."""
    try:
        # A file with holes is not mapped.
        is_mapped = not has_holes(job.source_fd)
        source_bytes = os.fstat(job.source_fd).st_size if is_mapped else 0
        confine(job.limits, source_bytes=source_bytes)
        _converse(job)
    except InvalidVideo as error:
        _report(job, _known(error.code), found=error.found)
    except Exception as error:
        if _is_out_of_memory(error):
            _report(job, "video_too_complex")
        else:
            _report(job, "video_decode_failed")
            # Fails where standard error is a file: a decoder may write to none.
            traceback.print_exc()


def _converse(job: DecodeJob) -> None:
    with _opened(job) as video:
        facts = video.probe()
        job.channel.sendall(messages.pack("facts", messages.facts_to_bytes(facts)))
        plan = _receive_plan(job.channel)
        shape = (plan.num_frames, plan.height, plan.width, 3)
        allow_frames(os.fstat(job.frames_fd).st_size)
        frames = np.frombuffer(mmap.mmap(job.frames_fd, 0), np.uint8).reshape(shape)
        num_replaced = video.decode(plan, frames)
        job.channel.sendall(messages.pack("done", messages.count_to_bytes(num_replaced)))


def _opened(job: DecodeJob) -> Source:
    if has_holes(job.source_fd):
        return VideoSource(SparseFile(job.source_fd), job.limits, fetch=partial(_fetch, job))
    source = memoryview(mmap.mmap(job.source_fd, 0, access=mmap.ACCESS_READ))
    return open_source(source, job.limits)


def _fetch(job: DecodeJob, parts: Sequence[ByteRange]) -> None:
    """Return when these parts of the file are there."""
    needs = in_few_requests(parts)
    job.channel.sendall(messages.pack("needs", messages.ranges_to_bytes(needs)))
    header = messages.unpack_header(_receive(job.channel, messages.HEADER_BYTES))
    if header.kind != "filled":
        raise ValueError("not an answer to what was asked for")


def _receive_plan(channel: socket.socket) -> FramePlan:
    header = messages.unpack_header(_receive(channel, messages.HEADER_BYTES))
    return messages.plan_from_bytes(_receive(channel, header.payload_bytes))


def _receive(channel: socket.socket, num_bytes: int) -> bytes:
    data = channel.recv(num_bytes, socket.MSG_WAITALL)
    if len(data) < num_bytes:
        os._exit(0)  # The server has lost interest.
    return data


def _report(job: DecodeJob, fault: VideoFault, *, found: str | None = None) -> None:
    job.channel.sendall(messages.pack("fault", messages.fault_to_bytes(fault, found)))


def _known(code: str) -> VideoFault:
    return next((fault for fault in VIDEO_FAULTS if fault == code), "video_decode_failed")


def _is_out_of_memory(error: Exception) -> bool:
    """Returns whether memory was refused to Python, FFmpeg, torch, a thread or a mapping."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _MEMORY_WORDS)
    return isinstance(error, MemoryError)
