"""The server's end of one decoder process: start it, talk to it, and surely get rid of it."""

import asyncio
import fcntl
import os
import signal
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

from server.errors import Overloaded
from server.media import messages
from server.media.clip import FramePlan, VideoFacts
from server.media.faults import DecodeLimits, video_fault
from server.media.forking import ForkHost
from server.media.frames import SharedFrames
from server.media.memoryfile import NO_MORE_CHANGES_OF_SIZE
from server.media.remotefile import EncodedVideo, RemoteFile
from server.media.supply import Supply

_EXIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DecoderProcess:
    """A running decoder. Owns its file descriptors until ``end``."""

    channel: socket.socket
    pidfd: int
    frames_fd: int
    limits: DecodeLimits
    deadline: float
    """Time of the event loop's clock at which the video has taken too long, but for the time that
    the server took to fetch parts of it."""
    supply: Supply | None = None
    """Gives it the parts of a remote file that it asks for."""

    @classmethod
    async def start(cls, host: ForkHost, source: EncodedVideo, limits: DecodeLimits) -> Self:
        """Returns a decoder that has begun to read ``source``.

        Raises:
            Overloaded: the machine can not start another process.
        """
        deadline = asyncio.get_running_loop().time() + limits.timeout_seconds
        with ExitStack() as until_started, ExitStack() as always:
            frames_fd = os.memfd_create("frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            until_started.callback(os.close, frames_fd)
            channel, theirs = socket.socketpair()
            always.callback(theirs.close)
            until_started.callback(channel.close)
            channel.setblocking(False)
            host.submit(messages.limits_to_bytes(limits), [theirs.fileno(), source.fd, frames_fd])
            theirs.close()
            pidfd = await _receive_pidfd(channel, deadline)
            until_started.pop_all()
        supply = Supply(source) if isinstance(source, RemoteFile) else None
        return cls(channel, pidfd, frames_fd, limits, deadline, supply)

    async def probe(self) -> VideoFacts:
        """Returns what the decoder found out about the video.

        Raises:
            InvalidVideo: there is no usable video, or it exceeds a limit.
        """
        payload = await self._receive("facts")
        try:
            return messages.facts_from_bytes(payload)
        except (ValueError, TypeError, KeyError) as error:
            raise video_fault("video_decode_failed", self.limits) from error

    async def decode(self, plan: FramePlan) -> SharedFrames:
        """Returns the planned frames, not copied.

        Raises:
            InvalidVideo: the video can not be decoded, or exceeds a limit.
        """
        shape = (plan.num_frames, plan.height, plan.width, 3)
        frames_bytes = plan.num_frames * plan.height * plan.width * 3
        self._allot(frames_bytes)
        await self._send(messages.pack("plan", messages.plan_to_bytes(plan)))
        done = await self._receive("done")
        try:
            num_replaced = messages.count_from_bytes(done)
            return SharedFrames(self.frames_fd, shape, num_replaced=num_replaced)
        except ValueError as error:
            raise video_fault("video_decode_failed", self.limits) from error

    def _allot(self, frames_bytes: int) -> None:
        """Give the frames' memory its final size.

        A decoder under a stranger's control could shrink it under our feet later (SIGBUS), or may
        have meddled with it before.
        """
        try:
            os.ftruncate(self.frames_fd, frames_bytes)
            fcntl.fcntl(self.frames_fd, fcntl.F_ADD_SEALS, NO_MORE_CHANGES_OF_SIZE)
        except PermissionError as error:
            raise video_fault("video_decode_failed", self.limits) from error
        if os.fstat(self.frames_fd).st_size != frames_bytes:
            raise video_fault("video_decode_failed", self.limits)

    async def end(self) -> None:
        """Kill the process, close everything, and return when it is gone."""
        with ExitStack() as descriptors:
            descriptors.callback(os.close, self.pidfd)
            self.kill()
            # The kernel may need longer to free a lot of memory; we need not.
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_SECONDS):
                    await _readable(self.pidfd)

    def kill(self) -> None:
        """Kill the process without waiting, and close all but the handle to wait with."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.channel.close()
        os.close(self.frames_fd)

    async def _receive(self, expected: messages.MessageKind) -> bytes:
        """Returns the payload of the next answer, which must be ``expected``."""
        kind, payload = await self._receive_message()
        while kind == "needs" and self.supply is not None:
            await self._give(self.supply, payload)
            kind, payload = await self._receive_message()
        if kind != expected:
            raise video_fault("video_decode_failed", self.limits)
        return payload

    async def _give(self, supply: Supply, needs: bytes) -> None:
        try:
            await supply.give(messages.ranges_from_bytes(needs))
        except ValueError as error:
            raise video_fault("video_decode_failed", self.limits) from error
        await self._send(messages.pack("filled"))

    async def _receive_message(self) -> tuple[messages.MessageKind, bytes]:
        """Returns the kind and the payload of the next message, which must not be a fault."""
        header = await self._receive_exactly(messages.HEADER_BYTES)
        try:
            message = messages.unpack_header(header)
            payload = await self._receive_exactly(message.payload_bytes)
            if message.kind == "fault":
                fault, found = messages.fault_from_bytes(payload)
                raise video_fault(fault, self.limits, found=found)
        except ValueError as error:
            raise video_fault("video_decode_failed", self.limits) from error
        return message.kind, payload

    async def _receive_exactly(self, num_bytes: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        try:
            async with asyncio.timeout_at(self._deadline):
                while len(data) < num_bytes:
                    chunk = await loop.sock_recv(self.channel, num_bytes - len(data))
                    if not chunk:
                        # It crashed, or was killed for the memory it took.
                        raise video_fault("video_decode_failed", self.limits)
                    data += chunk
        except TimeoutError as error:
            raise video_fault("video_too_complex", self.limits) from error
        except ConnectionError as error:
            raise video_fault("video_decode_failed", self.limits) from error
        return bytes(data)

    @property
    def _deadline(self) -> float:
        return self.deadline + (0.0 if self.supply is None else self.supply.seconds_spent)

    async def _send(self, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(self._deadline):
                await loop.sock_sendall(self.channel, message)
        except TimeoutError as error:
            raise video_fault("video_too_complex", self.limits) from error
        except ConnectionError as error:
            raise video_fault("video_decode_failed", self.limits) from error


async def _receive_pidfd(channel: socket.socket, deadline: float) -> int:
    fds: list[int] = []
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout_at(deadline):
            await _readable(channel.fileno())
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    if not fds:
        raise Overloaded("No decoder process can be started at the moment. Try again later.")
    return fds[0]


async def _readable(fd: int) -> None:
    """Return when ``fd`` can be read without waiting, which for a process means that it ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
