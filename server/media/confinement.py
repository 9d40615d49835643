"""What a decoder process takes away from itself before it reads a stranger's bytes."""

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

from server.media.faults import DecodeLimits

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_FIRST_TO_BE_KILLED = 800
_OPEN_FILES = 64
_NICENESS = 5
"""The server, which decodes nothing itself, should not wait for those who do."""


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, or end now if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def name_process(name: str) -> None:
    """Have lists of processes show this one by a name of at most 15 letters."""
    Path("/proc/self/comm").write_text(name)


def confine(limits: DecodeLimits, *, source_bytes: int) -> None:
    """Bound memory and CPU time, and forbid writing files; for the rest of this process's life."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.nice(_NICENESS)
    # When memory runs out, the kernel should take the decoder, not the server.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_TO_BE_KILLED))
    cpu_seconds = int(limits.timeout_seconds * limits.threads) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    _set_address_space(_address_space_bytes() + limits.memory_bytes + source_bytes)


def allow_frames(frame_bytes: int) -> None:
    """Raise the memory limit by the frames for the model, which the server has accounted for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    _set_address_space(soft + frame_bytes)


def _set_address_space(limit_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
