"""Decoders that do what a broken or hostile file could make FFmpeg do."""

import contextlib
import fcntl
import mmap
import os
import signal
import time
from collections.abc import Callable

from server.media import messages
from server.media.byteranges import ByteRange
from server.media.clip import VideoFacts
from server.media.decoder import decode_video
from server.media.messages import DecodeJob

FACTS = VideoFacts(
    container="mp4",
    codec="h264",
    width=160,
    height=96,
    rotation_degrees=0,
    frame_times_seconds=(0.0,),
    duration_seconds=1.0,
)


def decode_or_misbehave(job: DecodeJob) -> None:
    """Do what the source names, or decode it if it names nothing."""
    with mmap.mmap(job.source_fd, 0, access=mmap.ACCESS_READ) as source:
        deed = DEEDS.get(source[:32].rstrip(b"\0"))
    if deed is None:
        decode_video(job)
    else:
        deed(job)


def _crash(job: DecodeJob) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(job: DecodeJob) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def _hang_with_a_plan(job: DecodeJob) -> None:
    job.channel.sendall(messages.pack("facts", messages.facts_to_bytes(FACTS)))
    job.channel.recv(1)
    _hang(job)


def _end_silently(job: DecodeJob) -> None:
    pass


def _send_half_a_message(job: DecodeJob) -> None:
    job.channel.sendall(messages.pack("facts", bytes(1000))[:100])


def _send_garbage(job: DecodeJob) -> None:
    job.channel.sendall(bytes([255]) * 1000)


def _send_wrong_facts(job: DecodeJob) -> None:
    job.channel.sendall(messages.pack("facts", b'{"width": -1}\n123'))


def _answer_out_of_turn(job: DecodeJob) -> None:
    job.channel.sendall(messages.pack("done"))


def _seal_the_frames(job: DecodeJob) -> None:
    fcntl.fcntl(job.frames_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    job.channel.sendall(messages.pack("facts", messages.facts_to_bytes(FACTS)))
    job.channel.recv(1)


def _shrink_the_frames_later(job: DecodeJob) -> None:
    facts = messages.facts_to_bytes(FACTS)
    job.channel.sendall(messages.pack("facts", facts))
    job.channel.recv(1)
    with contextlib.suppress(PermissionError):
        os.ftruncate(job.frames_fd, 0)
    job.channel.sendall(messages.pack("done", messages.count_to_bytes(0)))


def _replace_more_than_all(job: DecodeJob) -> None:
    job.channel.sendall(messages.pack("facts", messages.facts_to_bytes(FACTS)))
    job.channel.recv(1)
    job.channel.sendall(messages.pack("done", messages.count_to_bytes(1000)))


def _count_nothing(job: DecodeJob) -> None:
    job.channel.sendall(messages.pack("facts", messages.facts_to_bytes(FACTS)))
    job.channel.recv(1)
    job.channel.sendall(messages.pack("done"))


def _report_unknown_fault(job: DecodeJob) -> None:
    job.channel.sendall(messages.pack("fault", b"<script>"))


def _ask_for(payload: bytes, times: int = 1) -> Callable[[DecodeJob], None]:
    def deed(job: DecodeJob) -> None:
        for _ in range(times):
            job.channel.sendall(messages.pack("needs", payload))
            job.channel.recv(messages.HEADER_BYTES)
        _hang(job)

    return deed


def _ask_for_all(job: DecodeJob) -> None:
    num_bytes = os.fstat(job.source_fd).st_size
    _ask_for(messages.ranges_to_bytes([ByteRange(0, num_bytes)]))(job)


_FAR = messages.ranges_to_bytes([ByteRange(1 << 40, 1 << 41)])
_NEAR = messages.ranges_to_bytes([ByteRange(0, 100)])

DEEDS = {
    b"ask for nothing": _ask_for(b""),
    b"ask for garbage": _ask_for(b"garbage"),
    b"ask behind the end": _ask_for(_FAR),
    b"ask too often": _ask_for(_NEAR, times=100),
    b"ask for all": _ask_for_all,
    b"crash": _crash,
    b"hang": _hang,
    b"hang with a plan": _hang_with_a_plan,
    b"end silently": _end_silently,
    b"half a message": _send_half_a_message,
    b"garbage": _send_garbage,
    b"wrong facts": _send_wrong_facts,
    b"out of turn": _answer_out_of_turn,
    b"seal": _seal_the_frames,
    b"shrink": _shrink_the_frames_later,
    b"too many replaced": _replace_more_than_all,
    b"no count": _count_nothing,
    b"unknown fault": _report_unknown_fault,
}
