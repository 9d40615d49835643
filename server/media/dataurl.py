"""Files that are in the request itself: data: URLs, and base64 alone."""

import asyncio
import binascii
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from urllib.parse import unquote_to_bytes

from server.errors import InvalidRequest
from server.media.memoryfile import MemoryFile, MemoryFileWriter
from server.media.sizelimit import SizeLimit

_SLOW_DECODE_CHARACTERS = 1_000_000
_MAX_DATA_HEADER_CHARACTERS = 1024
_PIECE_CHARACTERS = 200_000
_WHITESPACE = b" \t\r\n\f\v"
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


async def read_data_url(url: str, limit: SizeLimit, *, param: str) -> MemoryFile:
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


async def read_base64(text: str, limit: SizeLimit, *, param: str) -> MemoryFile:
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


async def _read(text: str, start: int, limit: SizeLimit, param: str) -> MemoryFile:
    # Nothing decodes to less than a quarter of its length, all of it percent-encoded.
    if len(text) - start > 4 * (limit.max_bytes + 3):
        raise limit.exceeded(param)
    if len(text) < _SLOW_DECODE_CHARACTERS:
        return _decode(text, start, limit, param)
    return await asyncio.get_running_loop().run_in_executor(
        _slow_decodes(), partial(_decode, text, start, limit, param)
    )


@cache
def _slow_decodes() -> ThreadPoolExecutor:
    """Returns one thread for all: several would take turns with each other and with the server."""
    return ThreadPoolExecutor(1, thread_name_prefix="base64")


def _decode(text: str, start: int, limit: SizeLimit, param: str) -> MemoryFile:
    """Returns the bytes of base64 in any dialect. Raises ValueError if it is none.

    In pieces: each call holds up every other thread.
    """
    with MemoryFileWriter() as writer:
        for characters in _in_fours(_plain_characters(text, start)):
            writer.write(binascii.a2b_base64(characters, strict_mode=True))
            if writer.num_bytes > limit.max_bytes:
                raise limit.exceeded(param)
        return writer.sealed()


def _plain_characters(text: str, start: int) -> Iterator[bytes]:
    """Yields what is in the alphabet of base64, piece by piece, without escapes and padding."""
    held, is_ended = b"", False
    for place in range(start, len(text), _PIECE_CHARACTERS):
        piece = held + text[place : place + _PIECE_CHARACTERS].encode("ascii")
        # An escape may lie across two pieces.
        cut = max(piece.find(b"%", max(len(piece) - 2, 0)), 0) or len(piece)
        is_last = place + _PIECE_CHARACTERS >= len(text)
        held = b"" if is_last else piece[cut:]
        piece = piece if is_last else piece[:cut]
        if b"%" in piece:
            piece = unquote_to_bytes(piece)
        piece = piece.translate(_FROM_URL_SAFE, _WHITESPACE)
        characters = piece.rstrip(b"=")
        if characters and is_ended:
            raise ValueError("more after the padding")
        is_ended = is_ended or len(characters) < len(piece)
        yield characters


def _in_fours(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same characters in pieces that stand for whole bytes, the last one padded."""
    rest = b""
    for piece in pieces:
        characters = rest + piece
        whole = len(characters) // 4 * 4
        yield characters[:whole]
        rest = characters[whole:]
    if b"=" in rest:
        raise ValueError("padding in the middle")
    yield rest + b"=" * (-len(rest) % 4)


def _malformed_url(param: str) -> InvalidRequest:
    return InvalidRequest(
        "The data: URL is malformed. Send data:video/mp4;base64, followed by the file in base64.",
        param=param,
        code="invalid_video_url",
    )
