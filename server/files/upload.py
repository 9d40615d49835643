"""A file on its way in: written as it comes, gone without a trace unless it is finished."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from server.errors import RequestTooLarge, StorageFull
from server.files.quota import Quota

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_WRITE_BYTES = 1 << 20
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Upload:
    """One file being written. ``FileStore.upload`` yields it and ends it."""

    def __init__(self, path: Path, owner: str, quota: Quota, *, max_bytes: int) -> None:
        self.path = path
        """Where it is written to."""
        self.owner = owner
        """Whose file it is."""
        self.num_bytes = 0
        """Bytes received so far, all of them counted in the quota."""
        self.is_kept = False
        """Whether it is finished, and the store's from now on."""
        self._quota = quota
        self._max_bytes = max_bytes
        self._waiting = bytearray()
        self._fd: int | None = None

    async def write(self, data: bytes) -> None:
        """Append ``data``.

        Raises:
            RequestTooLarge: the file has more bytes than one may have.
            FileQuotaExceeded, StorageFull: there is no room for it.
        """
        if self.num_bytes + len(data) > self._max_bytes:
            raise RequestTooLarge(
                f"The file has more than {self._max_bytes} bytes, the limit. Send a smaller one.",
                param="file",
            )
        self._quota.take(self.owner, len(data))
        self.num_bytes += len(data)
        self._waiting += data
        if len(self._waiting) >= _WRITE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write what waits. Raises StorageFull if the disk has no room for it."""
        await _in_thread(self._write_waiting)

    def _write_waiting(self) -> None:
        try:
            if self._fd is None:
                self._fd = os.open(self.path, _NEW_FILE, 0o600)
            rest = memoryview(bytes(self._waiting))
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            logger.warning("no room for uploaded files: %s", error.strerror)
            raise StorageFull("The server has no room for more files at the moment.") from error
        self._waiting.clear()

    def close(self) -> None:
        """Close the file; it stays where it is."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Returns the result of ``work``; when cancelled, not before it has ended.

    A descriptor must not be closed, and its number taken by another file, while a thread writes.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise
