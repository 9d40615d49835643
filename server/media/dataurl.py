"""Files that are in the request itself: data: URLs, and base64 alone."""

import asyncio
import binascii
from urllib.parse import unquote_to_bytes

from server.errors import InvalidRequest
from server.media.sizelimit import SizeLimit

_SLOW_DECODE_CHARACTERS = 1_000_000
_MAX_DATA_HEADER_CHARACTERS = 1024
_CHUNK_CHARACTERS = 4 * 250_000
_WHITESPACE = b" \t\r\n\f\v"
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


async def read_data_url(url: str, limit: SizeLimit, *, param: str) -> bytes:
    """Returns the file in a data: URL.

    Raises:
        InvalidRequest: the URL is malformed, or not in base64.
        RequestTooLarge: the file exceeds the limit.
    """
    comma = url.find(",", 0, _MAX_DATA_HEADER_CHARACTERS)
    if comma < 0 or not url[:comma].rstrip().lower().endswith(";base64"):
        raise _malformed_url(param)
    try:
        return await _read(url, comma + 1, limit, param)
    except ValueError as error:
        raise _malformed_url(param) from error


async def read_base64(text: str, limit: SizeLimit, *, param: str) -> bytes:
    """Returns the file that ``text`` stands for.

    Raises:
        InvalidRequest: the text is not base64.
        RequestTooLarge: the file exceeds the limit.
    """
    try:
        return await _read(text, 0, limit, param)
    except ValueError as error:
        raise InvalidRequest(
            f"{param} is not a file in base64. Send its bytes in base64, and nothing else.",
            param=param,
            code="invalid_video_url",
        ) from error


async def _read(text: str, start: int, limit: SizeLimit, param: str) -> bytes:
    # Nothing decodes to less than a quarter of its length, all of it percent-encoded.
    if len(text) - start > 4 * (limit.max_bytes + 3):
        raise limit.exceeded(param)
    if len(text) < _SLOW_DECODE_CHARACTERS:
        return _decode(text[start:], limit, param)
    return await asyncio.to_thread(lambda: _decode(text[start:], limit, param))


def _decode(text: str, limit: SizeLimit, param: str) -> bytes:
    """Returns the bytes of base64 in any dialect. Raises ValueError if it is none."""
    characters = text.encode("ascii")
    if b"%" in characters:
        characters = unquote_to_bytes(characters)
    characters = characters.translate(_FROM_URL_SAFE, _WHITESPACE).rstrip(b"=")
    if len(characters) * 3 // 4 > limit.max_bytes:
        raise limit.exceeded(param)
    return _decode_base64(characters)


def _decode_base64(characters: bytes) -> bytes:
    """Returns the bytes that unpadded base64 stands for; in pieces, so that others can run."""
    padded = characters + b"=" * (-len(characters) % 4)
    return b"".join(
        binascii.a2b_base64(padded[start : start + _CHUNK_CHARACTERS], strict_mode=True)
        for start in range(0, len(padded), _CHUNK_CHARACTERS)
    )


def _malformed_url(param: str) -> InvalidRequest:
    return InvalidRequest(
        "The data: URL is malformed. Send data:video/mp4;base64, followed by the file in base64.",
        param=param,
        code="invalid_video_url",
    )
