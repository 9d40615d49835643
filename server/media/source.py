"""The bytes of a video, from wherever the client says they are."""

from server.conversation import Base64Source, MediaSource, UrlSource
from server.errors import InvalidRequest
from server.media.dataurl import read_base64, read_data_url
from server.media.fetch import Fetcher
from server.media.sizelimit import SizeLimit
from server.settings import VideoSettings


class SourceReader:
    """Reads what clients send or point to, within the limits of the settings."""

    def __init__(self, settings: VideoSettings) -> None:
        self._video_limit = SizeLimit(settings.max_video_bytes)
        self._fetcher = Fetcher(settings) if settings.allow_urls else None

    async def read(self, source: MediaSource, *, param: str) -> bytes:
        """Returns the encoded video.

        Args:
            source: where it is.
            param: JSON path of the source, for errors.

        Raises:
            InvalidRequest: the source is malformed or of a kind that is not accepted.
            RequestTooLarge: the video has more bytes than the limit.
            VideoUnreachable: the URL could not be retrieved.
        """
        match source:
            case UrlSource(url):
                return await self._from_url(url, self._video_limit, param)
            case Base64Source(text):
                return await read_base64(text, self._video_limit, param=param)

    async def _from_url(self, url: str, limit: SizeLimit, param: str) -> bytes:
        scheme = url[:6].partition(":")[0].lower()
        if scheme == "data":
            return await read_data_url(url, limit, param=param)
        if self._fetcher is not None and scheme in ("http", "https"):
            return await self._fetcher.fetch(url, limit, param=param)
        raise InvalidRequest(
            f"This kind of video URL is not accepted. Send {self._accepted()}.",
            param=param,
            code="invalid_video_url",
        )

    def _accepted(self) -> str:
        kinds = ["a data: URL (data:video/mp4;base64,...)"]
        if self._fetcher is not None:
            kinds.append("an http(s) URL")
        return " or ".join(kinds)
