"""What a decoder process and the server say to each other.

::

    decoder                         server
            -- facts | fault -->
            <-- plan ----------
            -- done | fault --->

``done`` says how many frames had to be replaced by a neighbour. Before it answers, a decoder whose
file has holes may say ``needs``, which parts it must have; the server says ``filled`` then.

The server does not trust the decoder, which has read a stranger's file: messages are plain numbers
and closed sets, checked on arrival; nothing is ever unpickled.
"""

import json
import socket
import struct
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import starmap
from typing import Any, Literal, get_args

from server.formats import NAMES
from server.media.byteranges import ByteRange, joined
from server.media.clip import FramePlan, VideoFacts
from server.media.faults import VIDEO_FAULTS, DecodeLimits, VideoFault

MAX_PAYLOAD_BYTES = 64_000_000
"""No message is larger; a million frame times take 8 MB."""

MessageKind = Literal["facts", "fault", "plan", "done", "needs", "filled"]
_KINDS: tuple[MessageKind, ...] = get_args(MessageKind)
_HEADER = struct.Struct("!BI")
_COUNT = struct.Struct("!I")
HEADER_BYTES = _HEADER.size
_MAX_RANGES = 1 << 16
_RANGE_BYTES = 16


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """What a decoder process is given."""

    channel: socket.socket
    """Connection to the server; it speaks the messages above."""
    source_fd: int
    """The encoded video, read-only; it may have holes (``server.media.remotefile``)."""
    frames_fd: int
    """Where the frames go. The server gives it its size before it sends the plan."""
    limits: DecodeLimits
    """What the video may cost."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first bytes of a message."""

    kind: MessageKind
    payload_bytes: int


def pack(kind: MessageKind, payload: bytes = b"") -> bytes:
    """Returns a message ready to be sent."""
    return _HEADER.pack(_KINDS.index(kind), len(payload)) + payload


def unpack_header(header: bytes) -> Header:
    """Returns what follows ``header``.

    Raises:
        ValueError: no message starts like this.
    """
    kind, payload_bytes = _HEADER.unpack(header)
    if kind >= len(_KINDS) or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ValueError("not a message header")
    return Header(_KINDS[kind], payload_bytes)


def facts_to_bytes(facts: VideoFacts) -> bytes:
    """Returns ``facts`` as a line of JSON followed by the frame times as doubles."""
    scalars = {
        "container": facts.container,
        "codec": facts.codec,
        "width": facts.width,
        "height": facts.height,
        "rotation_degrees": facts.rotation_degrees,
        "duration_seconds": facts.duration_seconds,
        "keyframe_indices": facts.keyframe_indices,
    }
    return json.dumps(scalars).encode() + b"\n" + array("d", facts.frame_times_seconds).tobytes()


def facts_from_bytes(payload: bytes) -> VideoFacts:
    """Returns the facts that ``facts_to_bytes`` packed.

    Raises:
        ValueError, TypeError, KeyError: it did not.
    """
    scalars, _, times = payload.partition(b"\n")
    frame_times_seconds = array("d")
    frame_times_seconds.frombytes(times)
    fields = json.loads(scalars)
    fields["keyframe_indices"] = tuple(int(index) for index in fields["keyframe_indices"])
    return VideoFacts(frame_times_seconds=tuple(frame_times_seconds), **fields)


def plan_to_bytes(plan: FramePlan) -> bytes:
    """Returns ``plan`` as JSON."""
    return json.dumps(asdict(plan)).encode()


def plan_from_bytes(payload: bytes) -> FramePlan:
    """Returns the plan that ``plan_to_bytes`` packed."""
    fields = json.loads(payload)
    return FramePlan(tuple(fields["frame_indices"]), fields["width"], fields["height"])


def count_to_bytes(num_replaced: int) -> bytes:
    """Returns the number of frames that hold the picture of a neighbour."""
    return _COUNT.pack(num_replaced)


def count_from_bytes(payload: bytes) -> int:
    """Returns the number that ``count_to_bytes`` packed.

    Raises:
        ValueError: it did not.
    """
    if len(payload) != _COUNT.size:
        raise ValueError("not a count")
    return int(_COUNT.unpack(payload)[0])


def ranges_to_bytes(ranges: Sequence[ByteRange]) -> bytes:
    """Returns ranges as pairs of numbers."""
    return array("Q", [edge for part in ranges for edge in (part.start, part.end)]).tobytes()


def ranges_from_bytes(payload: bytes) -> list[ByteRange]:
    """Returns what ``ranges_to_bytes`` packed, in order and apart.

    Raises:
        ValueError: it did not, or there are too many.
    """
    if len(payload) > _MAX_RANGES * _RANGE_BYTES:
        raise ValueError("too many ranges")
    edges = array("Q")
    edges.frombytes(payload)
    return joined(starmap(ByteRange, zip(edges[::2], edges[1::2], strict=True)))


def fault_to_bytes(fault: VideoFault, found: str | None) -> bytes:
    """Returns a fault, and the name of the format that was found where it is about that."""
    return " ".join([fault, *([found] if found else [])]).encode()


def fault_from_bytes(payload: bytes) -> tuple[VideoFault, str | None]:
    """Returns what ``fault_to_bytes`` packed.

    Raises:
        ValueError: the fault or the name is not one of the closed sets.
    """
    fault, _, found = payload.decode("ascii").partition(" ")
    if found and found not in NAMES:
        raise ValueError("not the name of a format")
    names: tuple[str, ...] = VIDEO_FAULTS
    return VIDEO_FAULTS[names.index(fault)], found or None


def limits_to_bytes(limits: DecodeLimits) -> bytes:
    """Returns ``limits`` as JSON."""
    return json.dumps(asdict(limits)).encode()


def limits_from_bytes(payload: bytes) -> DecodeLimits:
    """Returns the limits that ``limits_to_bytes`` packed."""
    fields: dict[str, Any] = json.loads(payload)
    for name in ("containers", "codecs"):
        fields[name] = tuple(fields[name])
    return DecodeLimits(**fields)
