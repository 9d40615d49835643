"""The server's end of the fork host, the process that decoder processes come from."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from server.errors import InternalFault, Overloaded
from server.media.forkhost import READY

_START_SECONDS = 120.0
_STOP_SECONDS = 5.0
_ENVIRONMENT = {
    # No thread may exist when the host forks, and no decoder needs a GPU or a secret.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # Each further arena of glibc reserves 64 MiB of the address space by which a decoder's memory
    # is limited; how many there are depends on where the kernel put things and on timing.
    "MALLOC_ARENA_MAX": "1",
}


class ForkHost:
    """Starts processes from a warm template. Never forks the server, which has threads."""

    def __init__(self, task_path: str) -> None:
        """Prepare; no process runs before ``start``.

        Args:
            task_path: ``module:function`` run in each process with a ``DecodeJob``.
        """
        self._task_path = task_path
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Process id, None while not running."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Return when the host has loaded everything and can fork.

        Raises:
            InternalFault: it ended or took too long; its standard error says why.
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs:
            self._process = await asyncio.to_thread(_spawn, theirs.fileno(), self._task_path)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_SECONDS):
                ready = await loop.sock_recv(self._control, len(READY))
        except (TimeoutError, ConnectionError):
            ready = b""
        if ready != READY:
            await self.stop()
            raise InternalFault("the decoder processes can not be started")

    async def stop(self) -> None:
        """End the host and every process that came from it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            await asyncio.to_thread(_reap, self._process)
            self._process = None

    def submit(self, message: bytes, fds: Sequence[int]) -> None:
        """Have a process forked for one job; it gets copies of ``fds``.

        Raises:
            Overloaded: the host does not keep up, or is gone.
        """
        try:
            if self._control is None:
                raise ConnectionError("the host is not running")
            socket.send_fds(self._control, [message], fds)
        except OSError as error:
            raise Overloaded("No decoder process can be started at the moment.") from error

    @property
    def is_running(self) -> bool:
        """Whether the host process exists."""
        return self._process is not None and self._process.poll() is None


def _spawn(control_fd: int, task_path: str) -> "subprocess.Popen[bytes]":
    import_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    arguments = [str(control_fd), str(os.getpid()), task_path]
    return subprocess.Popen(
        # -P: the working directory is no place to import from, unless the server does so too.
        [sys.executable, "-P", "-m", "server.media.forkhost", *arguments],
        env={**_ENVIRONMENT, "PYTHONPATH": import_path},
        stdin=subprocess.DEVNULL,
        pass_fds=[control_fd],
    )


def _reap(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
