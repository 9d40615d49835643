"""Finds the part of an MP4 file that tells where each of its packets is, and reads that first."""

from server.media.boxes import FIRST_KINDS, HEADER_BYTES, Box, kinds_in
from server.media.byteranges import ByteRange
from server.media.remotefile import RemoteFile

_MAX_BOXES = 16
_MAX_MOOV_BYTES = 64_000_000
_READ_AHEAD_BYTES = 1 << 18
"""Read with a header that is not there yet: at the end of a file it is most of what follows."""


def may_have_table(first_bytes: bytes) -> bool:
    """Returns whether a file that begins like this may be an MP4 file."""
    return first_bytes[4:8] in FIRST_KINDS


async def read_table(file: RemoteFile) -> bool:
    """Read the table of packets; returns whether there is one for the whole file.

    Fragmented files have many small ones instead.

    Raises:
        RemoteFileChanged, VideoUnreachable, Overloaded: it can not be read.
    """
    position = 0
    for _ in range(_MAX_BOXES):
        box = await _box_at(file, position)
        if box is None or (position == 0 and box.kind not in FIRST_KINDS) or box.kind == b"moof":
            return False
        if box.kind == b"moov":
            return await _is_table(file, box)
        position = box.end
    return False


async def _is_table(file: RemoteFile, moov: Box) -> bool:
    num_bytes = moov.end - moov.content
    if not 0 < num_bytes <= min(_MAX_MOOV_BYTES, file.origin.max_bytes):
        return False
    # The header behind it tells demuxers where the packets begin.
    end = min(moov.end + HEADER_BYTES, file.num_bytes)
    await file.fill([ByteRange(moov.start, end)])
    return b"mvex" not in kinds_in(file.peek(moov.content, num_bytes))


async def _box_at(file: RemoteFile, position: int) -> Box | None:
    header = min(HEADER_BYTES, file.num_bytes - position)
    if header <= 0:
        return None
    if not file.holds(ByteRange(position, position + header)):
        end = min(position + _READ_AHEAD_BYTES, file.num_bytes)
        await file.fill([ByteRange(position, end)])
    return Box.parse(file.peek(position, header), position, end_of_parent=file.num_bytes)
