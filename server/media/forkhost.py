"""The process that decoder processes are forked from: ``python -m server.media.forkhost``.

It has FFmpeg and torch loaded and no threads, so decoders share that memory, and one is always
forked ahead, so that a video need not wait for it. ``multiprocessing`` has such a server too, but
one per process, which vLLM may configure for itself; its children run the main module again,
inherit the environment with its secrets, and talk pickle. This one belongs to its ``DecoderPool``,
knows nothing, and ends with the pool.

Each message on the control socket is one job: limits as JSON, and three file descriptors.
"""

import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from server.media.confinement import die_with_parent, name_process
from server.media.messages import DecodeJob, limits_from_bytes

READY = b"ready"
FDS_PER_JOB = 3
_MAX_MESSAGE_BYTES = 4096
_PARENT_CHECK_SECONDS = 5.0


def main(control_fd: int, parent_pid: int, task_path: str) -> None:
    """Serve jobs until the server closes the control socket or dies.

    Args:
        control_fd: a sequenced-packet socket.
        parent_pid: the server's process.
        task_path: ``module:function`` that is called with each job, in its own process.
    """
    name_process("decoder-host")
    # Ctrl-C goes to the whole foreground group; the server decides when decoding ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The kernel reaps the decoders.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    control.settimeout(_PARENT_CHECK_SECONDS)
    module, _, function = task_path.partition(":")
    task = getattr(importlib.import_module(module), function)
    # A collection in a decoder would look at, and so copy, all that it shares with this process.
    gc.collect()
    gc.freeze()
    spare = _Spare.forked(task, control)
    control.send(READY)
    while True:
        try:
            message, fds, _, _ = socket.recv_fds(control, _MAX_MESSAGE_BYTES, FDS_PER_JOB)
        except TimeoutError:
            if os.getppid() != parent_pid:
                return
            continue
        if not message:
            return
        if spare is None or not spare.takes(message, fds):
            late = _Spare.forked(task, control)
            if late is not None:
                late.takes(message, fds)
        # Before the next one is forked, which would keep them open. If nobody took them, this is
        # how the server learns it.
        for fd in fds:
            os.close(fd)
        spare = _Spare.forked(task, control)


@dataclass(frozen=True, slots=True)
class _Spare:
    """A forked process that waits for its job."""

    channel: socket.socket

    @classmethod
    def forked(cls, task: Callable[[DecodeJob], None], control: socket.socket) -> Self | None:
        """Returns a new one, None if the machine has no room for it."""
        host_pid = os.getpid()
        with ExitStack() as until_forked:
            try:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                until_forked.callback(ours.close)
                until_forked.callback(theirs.close)
                pid = os.fork()
            except OSError:
                return None
            until_forked.pop_all()
        if not pid:
            try:
                die_with_parent(host_pid)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                ours.close()
                _wait_and_run(task, theirs)
            finally:
                # Never return into the host's loop, and skip the interpreter's clean-up.
                os._exit(0)
        theirs.close()
        return cls(ours)

    def takes(self, message: bytes, fds: list[int]) -> bool:
        """Hand over a job; returns False if the process has died. To be called once."""
        with self.channel:
            try:
                socket.send_fds(self.channel, [message], fds)
            except OSError:
                return False
        return True


def _wait_and_run(task: Callable[[DecodeJob], None], channel: socket.socket) -> None:
    with channel:
        message, fds, _, _ = socket.recv_fds(channel, _MAX_MESSAGE_BYTES, FDS_PER_JOB)
    if message:
        name_process("decoder")
        _run(task, message, fds)


def _run(task: Callable[[DecodeJob], None], message: bytes, fds: list[int]) -> None:
    channel_fd, source_fd, frames_fd = fds
    channel = socket.socket(fileno=channel_fd)
    # With it the server can kill exactly this process, whatever becomes of its number.
    socket.send_fds(channel, [b"p"], [os.pidfd_open(os.getpid())])
    task(DecodeJob(channel, source_fd, frames_fd, limits_from_bytes(message)))


def _end_all() -> None:
    """Kill what is still running, and return when it is gone."""
    me = os.getpid()
    # The kernel would kill them when we end; but then nobody may be there to reap them.
    for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    # With SIGCHLD ignored, waiting ends with an error once there is no child left.
    with suppress(ChildProcessError):
        os.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    _end_all()
    # Nothing is left to be saved, and taking torch down in order takes a second.
    os._exit(0)
