"""Every fault this server names, as one tree. No HTTP numbers here: ``server.api.errors`` has them.

::

    VideoChatError
    ├── ConfigurationError          the operator can fix it; stops the start
    ├── RequestError                the client can fix it; carries param and code
    │   ├── InvalidRequest          a field is missing, unknown, malformed or contradictory
    │   ├── Unauthenticated         the API key is missing or not one of this server's
    │   ├── ModelNotFound           the model named is not served here
    │   ├── RequestTimeout          the headers or the body arrive too slowly
    │   ├── HeadersTooLarge         the request line and headers exceed a limit
    │   ├── UploadNotFound          no uploaded file of this client has that id
    │   ├── FilesUnavailable        this server keeps no uploaded files
    │   ├── RequestTooLarge         the body or a video exceeds a byte limit
    │   ├── FileQuotaExceeded       a client's uploaded files would have too many bytes
    │   ├── InvalidVideo            the bytes arrived but no usable video is in them
    │   ├── VideoUnreachable        a video URL could not be retrieved (one text for every cause)
    │   └── ContextLengthExceeded   prompt and video tokens do not fit the model
    ├── StorageFull                 there is no room for more uploaded files
    ├── Overloaded                  a bounded queue is full; retry later
    ├── EngineUnavailable           the engine is loading, stopping or dead
    └── InternalFault               a bug of ours; the details are in the log
"""


class VideoChatError(Exception):
    """Base of every error raised on purpose."""


class ConfigurationError(VideoChatError):
    """The settings are wrong or contradict each other; the message is one line for the operator."""


class RequestError(VideoChatError):
    """The client sent something that can not be served and can be corrected.

    The message says what was found, what the rule is, and how to cure it.
    """

    code = "invalid_request"
    """Stable machine-readable reason, one of a closed set."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        """JSON path of the offending field, such as ``messages[0].content[1].video_url.url``."""
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    """A field is missing, unknown, malformed or contradicts another one."""

    code = "invalid_value"


class Unauthenticated(RequestError):
    """The request has no API key, or one that is not valid here; one text for both."""

    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__(
            "This server needs an API key, and the request has none that is valid. Send "
            "Authorization: Bearer, a space and the key."
        )


class ModelNotFound(RequestError):
    """The request names a model that is not served here."""

    code = "model_not_found"


class RequestTimeout(RequestError):
    """The headers or the body of the request arrive too slowly."""

    code = "request_timeout"


class HeadersTooLarge(RequestError):
    """The request line and headers have too many bytes or too many headers."""

    code = "headers_too_large"


class UploadNotFound(RequestError):
    """No uploaded file of this client has that id; one text for those that others have."""

    code = "file_not_found"

    def __init__(self, *, param: str | None = None) -> None:
        super().__init__(
            "There is no such file, or it has expired. Upload it with POST /v1/files.", param=param
        )


class FilesUnavailable(RequestError):
    """This server keeps no uploaded files."""

    code = "files_unavailable"

    def __init__(self, *, param: str | None = None) -> None:
        super().__init__(
            "This server keeps no uploaded files. Send the video as a data: URL.", param=param
        )


class RequestTooLarge(RequestError):
    """The request body, or one video in it, exceeds a byte limit."""

    code = "request_too_large"


class FileQuotaExceeded(RequestError):
    """A client's uploaded files would have more bytes than one client may keep."""

    code = "file_quota_exceeded"


class InvalidVideo(RequestError):
    """The bytes arrived, but no usable video could be decoded from them."""

    code = "invalid_video"
    found: str | None = None
    """Name (of ``server.formats``) of a container or codec that is not accepted, if known."""


class VideoUnreachable(RequestError):
    """A video URL could not be retrieved.

    One text for every cause, so that the server can not be used to scan a network.
    """

    code = "video_url_unreachable"


class ContextLengthExceeded(RequestError):
    """Prompt and video tokens do not fit into the model's context."""

    code = "context_length_exceeded"


class StorageFull(VideoChatError):
    """There is no room for more uploaded files, by the server's limits or on its disk."""


class Overloaded(VideoChatError):
    """A bounded queue is full; the request was not started and may be retried."""

    def __init__(self, message: str, *, retry_after_seconds: int = 2) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class EngineUnavailable(VideoChatError):
    """The engine is still loading, is stopping, or has died."""


class InternalFault(VideoChatError):
    """Something went wrong that the client can not fix."""
