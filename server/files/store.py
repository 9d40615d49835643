"""Files that clients upload to refer to them later: kept on disk for a while, known in memory.

Nothing outlives the process. A file is one owner's, who is known by a digest of an API key; others
get the same answer as for a file that does not exist. Names from clients are never used as paths.

A file is deleted by taking its name away: who has it open reads it to its end.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from server.errors import FilesUnavailable, InvalidRequest, Overloaded, UploadNotFound
from server.files.directory import RunDirectory
from server.files.quota import Quota
from server.files.upload import Upload
from server.meters import DeletionReason
from server.metrics import Metrics
from server.settings import FileSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What is known about one file."""

    id: str
    """Name for clients; it can not be guessed."""
    owner: str
    """Whose it is."""
    filename: str
    """What the client calls it; for display only."""
    purpose: str
    """What the client wants it for."""
    num_bytes: int
    """Its size."""
    created_at: int
    """When it was complete, in Unix seconds."""
    expires_at: int
    """From when on it is gone, in Unix seconds."""
    path: Path
    """Where it lies."""


class FileStore:
    """Keeps uploaded files within the quotas of the settings."""

    def __init__(
        self,
        settings: FileSettings,
        *,
        metrics: Metrics | None = None,
        now: Callable[[], float] = time.time,
        sweep_seconds: float = 30.0,
    ) -> None:
        """Prepare; nothing is written before ``start``.

        Args:
            settings: where, how much and for how long.
            metrics: counts what is kept and what is deleted; by default nobody reads them.
            now: the time in Unix seconds.
            sweep_seconds: how often expired files are deleted; nobody finds them even before.
        """
        self._settings = settings
        self._sweep_seconds = sweep_seconds
        self._now = now
        self._quota = Quota(settings)
        self._files: dict[str, StoredFile] = {}
        self._directory: RunDirectory | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._num_uploads = 0
        self._meter = (Metrics() if metrics is None else metrics).files
        self._meter.watch(num_files=lambda: len(self._files), num_bytes=lambda: self.num_bytes)

    async def start(self) -> None:
        """Make the directory and begin to delete what expires.

        Without a directory that can be written, every other method raises FilesUnavailable.
        """
        if not self._settings.enabled:
            return
        try:
            parent = _parent(self._settings)
            self._directory = await asyncio.to_thread(RunDirectory.create, parent)
        except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows the home directory
            logger.warning("files can not be uploaded, set files.directory: %s", error)
            return
        self._sweeping = asyncio.create_task(self._sweep_for_ever())

    async def stop(self) -> None:
        """Delete all files."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})
        self._files.clear()
        directory, self._directory = self._directory, None
        if directory is not None:
            await asyncio.to_thread(directory.delete)

    @property
    def is_available(self) -> bool:
        """Whether files can be uploaded."""
        return self._directory is not None

    @property
    def num_bytes(self) -> int:
        """Bytes of all files, unfinished ones included."""
        return self._quota.num_bytes

    @asynccontextmanager
    async def upload(self, owner: str, *, expected_bytes: int = 0) -> AsyncIterator[Upload]:
        """Yields a file to write to. Unless ``keep`` is called, it is gone at the end.

        Args:
            owner: whose file it will be.
            expected_bytes: how many the client announces, to refuse early what does not fit.

        Raises:
            FilesUnavailable: the server keeps no files.
            FileQuotaExceeded, StorageFull: there is no room.
            Overloaded: too many files are being uploaded.
        """
        directory = self._available()
        if self._num_uploads >= self._settings.max_concurrent_uploads:
            raise Overloaded("Too many files are being uploaded. Try again later.")
        self._quota.check(owner, expected_bytes)
        self._quota.take_file()
        self._num_uploads += 1
        path = directory.path / secrets.token_hex(16)
        upload = Upload(path, owner, self._quota, max_bytes=self._settings.max_file_bytes)
        try:
            yield upload
        finally:
            upload.close()
            self._num_uploads -= 1
            if not upload.is_kept:
                self._quota.give_back(owner, upload.num_bytes)
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def keep(
        self, upload: Upload, *, filename: str, purpose: str, expires_after_seconds: int | None
    ) -> StoredFile:
        """Returns the finished file, which can be found from now on.

        Raises:
            InvalidRequest: it is empty.
            StorageFull: the disk has no room for the rest of it.
        """
        if not upload.num_bytes:
            raise InvalidRequest("The file is empty. Send one with a video in it.", param="file")
        await upload.flush()
        created_at = int(self._now())
        lifetime_seconds = expires_after_seconds or self._settings.default_expiry_seconds
        file = StoredFile(
            id=f"file-{secrets.token_hex(16)}",
            owner=upload.owner,
            filename=filename,
            purpose=purpose,
            num_bytes=upload.num_bytes,
            created_at=created_at,
            expires_at=created_at + lifetime_seconds,
            path=upload.path,
        )
        self._files[file.id] = file
        upload.is_kept = True
        return file

    def get(self, file_id: str, owner: str, *, param: str | None = None) -> StoredFile:
        """Returns what is known about a file.

        Raises:
            FilesUnavailable: the server keeps no files.
            UploadNotFound: there is no such file of this owner.
        """
        self._available()
        file = self._files.get(file_id)
        if file is None or file.owner != owner or file.expires_at <= self._now():
            raise UploadNotFound(param=param)
        return file

    def files(self, owner: str) -> list[StoredFile]:
        """Returns an owner's files, the oldest first."""
        self._available()
        now = self._now()
        return [f for f in self._files.values() if f.owner == owner and f.expires_at > now]

    async def open(self, file: StoredFile, *, param: str | None = None) -> BinaryIO:
        """Returns a file open for reading, which deleting it does not disturb.

        Raises:
            UploadNotFound: it has been deleted meanwhile.
        """
        with _existing(param):
            return await asyncio.to_thread(file.path.open, "rb")

    async def delete(self, file_id: str, owner: str, *, param: str | None = None) -> None:
        """Delete a file. Raises as ``get`` does."""
        await self._forget(self.get(file_id, owner, param=param), "deleted")

    async def sweep(self) -> None:
        """Delete what has expired."""
        now = self._now()
        for file in [f for f in self._files.values() if f.expires_at <= now]:
            await self._forget(file, "expired")

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await self.sweep()
            except OSError:
                logger.exception("expired files could not be deleted")

    async def _forget(self, file: StoredFile, reason: DeletionReason) -> None:
        if self._files.pop(file.id, None) is None:
            return
        self._meter.gone(reason)
        self._quota.give_back(file.owner, file.num_bytes)
        with suppress(FileNotFoundError):
            await asyncio.to_thread(os.unlink, file.path)

    def _available(self) -> RunDirectory:
        if self._directory is None:
            raise FilesUnavailable
        return self._directory


@contextmanager
def _existing(param: str | None) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UploadNotFound(param=param) from error


def _parent(settings: FileSettings) -> Path:
    if settings.directory is not None:
        return Path(settings.directory)
    return Path.home() / ".cache" / "video-chat-server" / "files"
