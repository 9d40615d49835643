"""The bytes of a video, from wherever the client says they are."""

import asyncio
import binascii
from urllib.parse import unquote_to_bytes

from server.errors import InvalidRequest, RequestTooLarge
from server.media.downloads import DownloadCache
from server.media.fetch import Fetcher
from server.settings import VideoSettings

_ACCEPTED = "a data: URL (data:video/mp4;base64,...) or an http(s) URL"
_ACCEPTED_WITHOUT_URLS = "a data: URL (data:video/mp4;base64,...)"
_SLOW_DECODE_CHARACTERS = 1_000_000
_MAX_DATA_HEADER_CHARACTERS = 1024
_CHUNK_CHARACTERS = 4 * 250_000
_WHITESPACE = b" \t\r\n\f\v"
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class SourceReader:
    """Reads videos from data: and http(s) URLs, within the limits of the settings."""

    def __init__(self, settings: VideoSettings, downloads: DownloadCache | None = None) -> None:
        self._max_bytes = settings.max_video_bytes
        self._fetcher = Fetcher(settings, downloads) if settings.allow_urls else None

    async def read(self, url: str, *, param: str) -> bytes:
        """Returns the encoded video.

        Args:
            url: as the client sent it.
            param: JSON path of the URL, for errors.

        Raises:
            InvalidRequest: the URL is malformed or of a kind that is not accepted.
            RequestTooLarge: the video has more bytes than the limit.
            VideoUnreachable: the URL could not be retrieved.
        """
        scheme = url[:6].partition(":")[0].lower()
        if scheme == "data":
            if len(url) < _SLOW_DECODE_CHARACTERS:
                return self._from_data_url(url, param)
            return await asyncio.to_thread(self._from_data_url, url, param)
        if self._fetcher is not None and scheme in ("http", "https"):
            return await self._fetcher.fetch(url, param=param)
        accepted = _ACCEPTED if self._fetcher is not None else _ACCEPTED_WITHOUT_URLS
        raise InvalidRequest(
            f"This kind of video URL is not accepted. Send {accepted}.",
            param=param,
            code="invalid_video_url",
        )

    def _from_data_url(self, url: str, param: str) -> bytes:
        comma = url.find(",", 0, _MAX_DATA_HEADER_CHARACTERS)
        header = url[:comma].rstrip().lower()
        if comma < 0 or not header.endswith(";base64"):
            raise _malformed(param)
        # Nothing decodes to less than a quarter of its length, all of it percent-encoded.
        if len(url) - comma - 1 > 4 * (self._max_bytes + 3):
            raise self._too_large(param)
        try:
            payload = url[comma + 1 :].encode("ascii")
            if b"%" in payload:
                payload = unquote_to_bytes(payload)
            payload = payload.translate(_FROM_URL_SAFE, _WHITESPACE).rstrip(b"=")
            if len(payload) * 3 // 4 > self._max_bytes:
                raise self._too_large(param)
            return _decode_base64(payload)
        except (UnicodeEncodeError, binascii.Error) as error:
            raise _malformed(param) from error

    def _too_large(self, param: str) -> RequestTooLarge:
        return RequestTooLarge(
            f"The video has more than {self._max_bytes} bytes, the limit. Send a smaller file.",
            param=param,
        )


def _decode_base64(characters: bytes) -> bytes:
    """Returns the bytes that unpadded base64 stands for; in pieces, so that others can run."""
    padded = characters + b"=" * (-len(characters) % 4)
    return b"".join(
        binascii.a2b_base64(padded[start : start + _CHUNK_CHARACTERS], strict_mode=True)
        for start in range(0, len(padded), _CHUNK_CHARACTERS)
    )


def _malformed(param: str) -> InvalidRequest:
    return InvalidRequest(
        "The data: URL is malformed. Send data:video/mp4;base64, followed by the file in base64.",
        param=param,
        code="invalid_video_url",
    )
