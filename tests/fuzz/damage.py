"""Ways to damage a file: blindly, and where its container keeps sizes, types and counts."""

import random
import re
import struct
from collections.abc import Callable

Damage = Callable[[bytearray, random.Random], None]

_TELLING_NUMBERS = (0, 1, 2, 7, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_BOX = re.compile(
    rb"ftyp|moov|mvhd|trak|tkhd|edts|elst|mdia|mdhd|hdlr|minf|vmhd|dinf|dref|stbl|stsd|avc1|avcC|"
    rb"hev1|hvcC|mp4v|esds|stts|ctts|stss|stsc|stsz|stco|co64|moof|mfhd|traf|tfhd|tfdt|trun|mfra|"
    rb"sidx|mdat|free|udta|meta"
)
_CHUNK = re.compile(rb"RIFF|LIST|hdrl|avih|strl|strh|strf|movi|idx1|00dc|JUNK|IHDR|IDAT|IEND|PLTE")
_ELEMENT = re.compile(
    rb"\x1a\x45\xdf\xa3|\x18\x53\x80\x67|\x11\x4d\x9b\x74|\x15\x49\xa9\x66|\x16\x54\xae\x6b|"
    rb"\x1f\x43\xb6\x75|\x1c\x53\xbb\x6b|\x2a\xd7\xb1|\xae|\xe0|\xb0|\xba|\xa3|\xa0|\xe7|\x86"
)
_HEADER_BYTES = 1024


def damaged(data: bytes, seed: str) -> tuple[bytes, str]:
    """Returns a file with one to three damages, and their names; equal seeds give equal files."""
    dice = random.Random(seed)
    mutated = bytearray(data)
    names = []
    for _ in range(dice.choice((1, 1, 2, 3))):
        name = dice.choice(sorted(DAMAGES))
        if mutated:
            DAMAGES[name](mutated, dice)
        names.append(name)
    return bytes(mutated), "+".join(names)


def _flip_bits(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice((1, 2, 8, 64))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _flip_header_bits(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice((1, 2, 8))):
        data[dice.randrange(min(len(data), _HEADER_BYTES))] ^= 1 << dice.randrange(8)


def _cut_end(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def _cut_piece(data: bytearray, dice: random.Random) -> None:
    start, end = _stretch(data, dice)
    del data[start:end]


def _swap_blocks(data: bytearray, dice: random.Random) -> None:
    size = min(dice.choice((4, 16, 188, 512, 4096)), len(data) // 2)
    first = dice.randrange(len(data) - 2 * size + 1)
    second = dice.randrange(first + size, len(data) - size + 1)
    one, other = data[first : first + size], data[second : second + size]
    data[first : first + size], data[second : second + size] = other, one


def _insert_noise(data: bytearray, dice: random.Random) -> None:
    place = dice.randrange(len(data) + 1)
    data[place:place] = dice.randbytes(dice.choice((1, 3, 16, 200, 5000)))


def _repeat_piece(data: bytearray, dice: random.Random) -> None:
    start, end = _stretch(data, dice)
    place = dice.randrange(len(data) + 1)
    data[place:place] = data[start:end] * dice.choice((1, 2, 20))


def _fill_piece(data: bytearray, dice: random.Random) -> None:
    start, end = _stretch(data, dice)
    data[start:end] = bytes([dice.choice((0, 0xFF, 0x47))]) * (end - start)


def _write_header_number(data: bytearray, dice: random.Random) -> None:
    """Overwrite a count, size or rate somewhere near the start or the end, where headers are."""
    form = dice.choice((">B", ">H", "<H", ">I", "<I", ">Q", "<Q"))
    place = dice.randrange(min(len(data), _HEADER_BYTES))
    if dice.random() < 0.5:
        place = len(data) - 1 - place
    _write(data, place, form, dice)


def _edit_size(data: bytearray, dice: random.Random) -> None:
    """Overwrite the size of a box, chunk or element."""
    match dice.choice((_BOX, _CHUNK, _ELEMENT)):
        case pattern if (found := _any_match(pattern, data, dice)) is None:
            _write_header_number(data, dice)
        case pattern if pattern is _BOX:
            _write(data, found.start() - 4, ">I", dice)
        case pattern if pattern is _CHUNK:
            is_png = found.group() in (b"IHDR", b"IDAT", b"IEND", b"PLTE")
            _write(
                data, found.start() - 4 if is_png else found.end(), dice.choice("<>") + "I", dice
            )
        case _:
            _write(data, found.end(), dice.choice((">B", ">I", ">Q")), dice)


def _edit_type(data: bytearray, dice: random.Random) -> None:
    """Give a box or chunk the type of another one, or none that exists."""
    found = _any_match(dice.choice((_BOX, _CHUNK)), data, dice)
    other = _any_match(_BOX, data, dice)
    if found is not None:
        name = other.group() if other and dice.random() < 0.7 else dice.randbytes(4)
        data[found.start() : found.end()] = name


def _edit_count(data: bytearray, dice: random.Random) -> None:
    """Overwrite one of the first numbers in a box, chunk or element: counts, rates and sizes."""
    found = _any_match(dice.choice((_BOX, _CHUNK, _ELEMENT)), data, dice)
    if found is not None:
        _write(data, found.end() + 4 * dice.randrange(8), dice.choice((">I", "<I", ">H")), dice)


def _move_box(data: bytearray, dice: random.Random) -> None:
    """Take a box away, or put a second one somewhere."""
    found = _any_match(_BOX, data, dice)
    if found is None or found.start() < 4:
        return
    start = found.start() - 4
    (size,) = struct.unpack_from(">I", data, start)
    box = data[start : start + min(size, 100_000)]
    if dice.random() < 0.5:
        del data[start : start + len(box)]
    else:
        data[start:start] = box


DAMAGES: dict[str, Damage] = {
    "bits": _flip_bits,
    "header bits": _flip_header_bits,
    "cut end": _cut_end,
    "cut piece": _cut_piece,
    "swap": _swap_blocks,
    "noise": _insert_noise,
    "repeat": _repeat_piece,
    "fill": _fill_piece,
    "number": _write_header_number,
    "size": _edit_size,
    "type": _edit_type,
    "count": _edit_count,
    "box": _move_box,
}


def _stretch(data: bytearray, dice: random.Random) -> tuple[int, int]:
    start = dice.randrange(len(data))
    return start, min(len(data), start + dice.choice((1, 4, 32, 188, 1000, 10_000)))


def _any_match(
    pattern: re.Pattern[bytes], data: bytearray, dice: random.Random
) -> re.Match[bytes] | None:
    found = list(pattern.finditer(bytes(data)))
    return dice.choice(found) if found else None


def _write(data: bytearray, place: int, form: str, dice: random.Random) -> None:
    size = struct.calcsize(form)
    if 0 <= place <= len(data) - size:
        number = dice.choice((*_TELLING_NUMBERS, dice.getrandbits(32)))
        (old,) = struct.unpack_from(form, data, place)
        number = dice.choice((number, number, old + 1, old - 1, 2 * old))
        struct.pack_into(form, data, place, number % (1 << 8 * size))
