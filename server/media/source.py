"""The bytes of a video, from wherever the client says they are."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import BinaryIO, TypeAlias

from server.conversation import (
    Base64Source,
    FrameListSource,
    MediaSource,
    UploadSource,
    UrlSource,
)
from server.errors import FilesUnavailable, InvalidRequest
from server.files.store import FileStore
from server.media.dataurl import read_base64, read_data_url
from server.media.downloads import DownloadCache
from server.media.fetch import Fetcher
from server.media.localfile import LocalFiles
from server.media.memoryfile import MemoryFile, in_memory
from server.media.picturelist import PictureList, pack_pictures
from server.media.remotefile import EncodedVideo
from server.media.sizelimit import SizeLimit
from server.media.webfaults import unreachable
from server.metrics import Metrics
from server.settings import VideoSettings
from server.together import all_of

_Picture: TypeAlias = UrlSource | Base64Source
_PICTURES_AT_ONCE = 8
_READ_BYTES = 1 << 20


class SourceReader:
    """Reads what clients send or point to, within the limits of the settings."""

    def __init__(
        self,
        settings: VideoSettings,
        downloads: DownloadCache | None = None,
        *,
        uploads: FileStore | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Prepare.

        Args:
            settings: limits, and what may be read.
            downloads: what is kept of earlier downloads; by default nothing.
            uploads: where uploaded files are; without it there are none.
            metrics: counts what is downloaded; by default nobody reads them.
        """
        self._uploads = uploads
        self._video_limit = SizeLimit(settings.max_video_bytes)
        self._picture_limit = SizeLimit(settings.max_picture_bytes, "picture")
        self._timeout_seconds = settings.fetch_timeout_seconds
        self._fetcher = (
            Fetcher(settings, downloads, metrics=metrics) if settings.allow_urls else None
        )
        directory = settings.local_directory
        self._local_files = None if directory is None else LocalFiles(directory)

    async def open(self, source: MediaSource, *, param: str) -> EncodedVideo:
        """Returns the encoded video, of which parts may still be at their origin.

        Arguments and errors as for ``read``.
        """
        if self._fetcher is not None and isinstance(source, UrlSource) and source.is_remote:
            return await self._fetcher.open(source.url, self._video_limit, param=param)
        return await self.read(source, param=param)

    async def read(self, source: MediaSource, *, param: str) -> MemoryFile:
        """Returns the encoded video.

        Args:
            source: where it is.
            param: JSON path of the source, for errors.

        Raises:
            InvalidRequest: the source is malformed or of a kind that is not accepted.
            RequestTooLarge: the video has more bytes than the limit.
            VideoUnreachable: the URL could not be retrieved.
            UploadNotFound, FilesUnavailable: there is no such uploaded file.
        """
        match source:
            case UrlSource():
                return await self._from_url(source, self._video_limit, param)
            case Base64Source(text):
                return await read_base64(text, self._video_limit, param=param)
            case FrameListSource(pictures, fps):
                return await self._frames(pictures, fps, param)
            case UploadSource(file_id, owner):
                return await self._upload(file_id, owner, param)

    async def _upload(self, file_id: str, owner: str, param: str) -> MemoryFile:
        if self._uploads is None:
            raise FilesUnavailable(param=param)
        found = self._uploads.get(file_id, owner, param=param)
        if found.num_bytes > self._video_limit.max_bytes:
            raise self._video_limit.exceeded(param)
        file = await self._uploads.open(found, param=param)
        return await asyncio.to_thread(_copied, file)

    async def _frames(self, pictures: Sequence[_Picture], fps: float, param: str) -> MemoryFile:
        """Returns the pictures, a few at a time, as one piece that a decoder takes for a video."""
        few = asyncio.Semaphore(_PICTURES_AT_ONCE)
        total_bytes = 0

        async def read_one(index: int, picture: _Picture) -> bytes:
            nonlocal total_bytes
            async with few:
                data = await self._picture(picture, f"{param}[{index}]")
            total_bytes += len(data)
            if total_bytes > self._video_limit.max_bytes:
                raise self._video_limit.exceeded(param)
            return data

        data = await self._in_time(
            (read_one(index, picture) for index, picture in enumerate(pictures)), param
        )
        return await in_memory([pack_pictures(PictureList(data, fps))])

    async def _picture(self, picture: _Picture, param: str) -> bytes:
        if isinstance(picture, Base64Source):
            file = await read_base64(picture.text, self._picture_limit, param=param)
        else:
            file = await self._from_url(picture, self._picture_limit, param)
        return file.read()

    async def _in_time(
        self, reads: Iterable[Coroutine[None, None, bytes]], param: str
    ) -> list[bytes]:
        """Returns all results within the time for one URL; the first failure ends the others."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await all_of(reads)
        except TimeoutError as error:
            raise unreachable(param) from error

    async def _from_url(self, source: UrlSource, limit: SizeLimit, param: str) -> MemoryFile:
        url, scheme = source.url, source.scheme
        if scheme == "data":
            return await read_data_url(url, limit, param=param)
        if self._fetcher is not None and source.is_remote:
            return await self._fetcher.fetch(url, limit, param=param)
        if self._local_files is not None and scheme == "file":
            return await asyncio.to_thread(self._local_files.read, url, limit, param=param)
        raise InvalidRequest(
            f"This kind of video URL is not accepted. Send {self._accepted()}.",
            param=param,
            code="invalid_video_url",
        )

    def _accepted(self) -> str:
        kinds = ["a data: URL (data:video/mp4;base64,...)"]
        if self._fetcher is not None:
            kinds.append("an http(s) URL")
        if self._local_files is not None:
            kinds.append("a file: URL")
        return " or ".join(kinds)


def _copied(file: BinaryIO) -> MemoryFile:
    """Returns what is in a file, which is closed."""
    with file:
        return MemoryFile.of(iter(lambda: file.read(_READ_BYTES), b""))
