"""What can go wrong on the way to a URL, and the one text that clients get for it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import httpcore

from server.errors import InvalidRequest, RequestError, VideoUnreachable
from server.media.sizelimit import SizeLimit

logger = logging.getLogger(__name__)


class MalformedURL(Exception):
    """The URL breaks a rule; the message is for the client."""


class Unreachable(Exception):
    """The URL could not be retrieved; the message is a fixed label for the log."""


class TooLarge(Exception):
    """The body exceeds the limit."""


_NETWORK_FAILURES = (
    Unreachable,
    OSError,  # TimeoutError and ssl.SSLError are some
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
)


class RemoteFileChanged(VideoUnreachable):
    """A file that is read by range is no longer the same, or no longer given out by range.

    ``VideoLoader`` answers it by a download of the whole file.
    """


def unreachable(param: str) -> VideoUnreachable:
    """Returns the error for a URL that could not be retrieved, whatever the reason."""
    return VideoUnreachable(
        "The video URL could not be retrieved. Check that it is publicly reachable, or send the "
        "video as a data: URL.",
        param=param,
    )


def file_changed() -> RemoteFileChanged:
    """Returns the error for a file that has changed; its text is that of every other failure."""
    return RemoteFileChanged(str(unreachable("")))


@contextmanager
def as_request_errors(limit: SizeLimit, *, param: str) -> Iterator[None]:
    """Have what goes wrong in the ``with`` block raised as the client's errors.

    Raises:
        InvalidRequest: the URL is malformed.
        RequestTooLarge: the body has more bytes than the limit.
        VideoUnreachable: anything else; one text, so that nobody can map our network.
    """
    try:
        yield
    except MalformedURL as error:
        raise InvalidRequest(
            f"The video URL is not accepted: {error}. Send a plain http(s) URL.",
            param=param,
            code="invalid_video_url",
        ) from error
    except TooLarge as error:
        raise limit.exceeded(param) from error
    except RequestError as error:
        error.param = error.param or param
        raise
    except _NETWORK_FAILURES as error:
        reason = str(error) if isinstance(error, Unreachable) else type(error).__name__
        logger.info("video URL not retrieved: %s", reason)
        raise unreachable(param) from error
