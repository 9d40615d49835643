"""Moving WebP files: against Pillow, which composes them by libwebp, and against damage."""

import io
import struct
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageSequence

from server.errors import InvalidVideo
from server.media.clip import FramePlan
from server.media.memoryfile import MemoryFile
from server.media.picturelist import PictureList, pack_pictures
from server.media.picturesource import open_source
from tests.clips.decoded import LIMITS

SIZE = (60, 40)
DURATIONS_MS = [100, 50, 200, 30, 100, 100]
DISPOSED, NOT_BLENDED = 1, 2


def picture(number, size=SIZE, alpha=255):
    """Returns a picture with a block that depends on the number, and glass beside it."""
    values = np.zeros((*size[::-1], 4), np.uint8)
    values[2:12, 3 * number : 3 * number + 10] = (255, 40 * number, 0, alpha)
    values[14:18, 2 * number : 2 * number + 8] = (0, 0, 255, 100)
    return Image.fromarray(values)


def by_pillow(**options):
    """Returns an animation whose frames Pillow has cut down to what changes."""
    first, *others = [picture(number) for number in range(len(DURATIONS_MS))]
    buffer = io.BytesIO()
    first.save(
        buffer, "WEBP", save_all=True, append_images=others, duration=DURATIONS_MS, **options
    )
    return buffer.getvalue()


def chunk(kind, content):
    return struct.pack("<4sI", kind, len(content)) + content + bytes(len(content) % 2)


def three_bytes(*numbers):
    return b"".join(number.to_bytes(3, "little") for number in numbers)


def frame(image, *, left=0, top=0, duration_ms=100, flags=0, **options):
    """Returns the ANMF chunk that shows a picture."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", **{"lossless": True, "exact": True, **options})
    still = buffer.getvalue()[12:]
    if still.startswith(b"VP8X"):
        still = still[18:]
    width, height = image.size
    head = three_bytes(left // 2, top // 2, width - 1, height - 1, duration_ms) + bytes([flags])
    return chunk(b"ANMF", head + still)


def animation(*frames, size=SIZE):
    width, height = size
    canvas = chunk(b"VP8X", bytes([0x12, 0, 0, 0]) + three_bytes(width - 1, height - 1))
    # A background that nobody shows.
    body = b"WEBP" + canvas + chunk(b"ANIM", bytes([9, 9, 9, 9, 0, 0])) + b"".join(frames)
    return chunk(b"RIFF", body)


def on_white(source):
    """Returns each picture as Pillow composes it, over white."""
    white = Image.new("RGBA", SIZE, "white")
    with Image.open(io.BytesIO(source)) as image:
        return [
            np.array(Image.alpha_composite(white, each.convert("RGBA")).convert("RGB"))
            for each in ImageSequence.Iterator(image)
        ]


def probed(source, limits=LIMITS):
    with open_source(memoryview(source), limits) as video:
        return video.probe()


def decoded(source, chosen, size=SIZE):
    """Returns the frames, and how many of them another one stands in for."""
    frames = np.zeros((len(chosen), size[1], size[0], 3), np.uint8)
    with open_source(memoryview(source), LIMITS) as video:
        video.probe()
        num_replaced = video.decode(FramePlan(tuple(chosen), *size), frames)
    return frames, num_replaced


def fault(source, limits=LIMITS):
    with pytest.raises(InvalidVideo) as caught:
        probed(source, limits)
    return caught.value.code


def mixed():
    """Returns an animation with every way to place, blend and dispose."""
    small = (20, 20)
    return animation(
        frame(picture(0)),
        frame(picture(1, small, 128), left=10, top=6, flags=DISPOSED),
        frame(picture(1, small, 200), left=30, top=20, flags=NOT_BLENDED),
        frame(picture(3, alpha=90), flags=NOT_BLENDED),
        frame(picture(2, small), left=40, top=0, flags=DISPOSED | NOT_BLENDED),
        frame(picture(4, alpha=30), flags=DISPOSED),
        frame(picture(0, small, 77), left=2, top=2),
    )


ANIMATIONS = {
    "lossless": by_pillow(lossless=True, exact=True),
    "smallest": by_pillow(lossless=True, exact=True, minimize_size=True),
    "whole frames": by_pillow(lossless=True, exact=True, kmax=1),
    "by hand": mixed(),
}


@pytest.mark.parametrize("name", ANIMATIONS)
@pytest.mark.parametrize("chosen", [range(6), (3,), (1, 5), (0, 0, 4)])
def test_frames_are_as_libwebp_composes_them(name, chosen):
    source = ANIMATIONS[name]
    expected = on_white(source)
    frames, num_replaced = decoded(source, list(chosen))
    assert num_replaced == 0
    for found, index in zip(frames, chosen, strict=True):
        # Where one glass lies over another, rounding differs.
        np.testing.assert_allclose(found.astype(int), expected[index], atol=2)
        assert (found != 255).any()


def test_lossy_pictures_keep_their_alpha():
    source = by_pillow(lossless=False, quality=95)
    expected = on_white(source)
    frames, _ = decoded(source, range(6))
    for found, wanted in zip(frames, expected, strict=True):
        # libwebp smoothes chroma where FFmpeg repeats it.
        assert np.abs(found.astype(int) - wanted).mean() < 4
        assert (found[30:] == 255).all()


def test_times_are_the_durations():
    facts = probed(ANIMATIONS["lossless"])
    starts = np.cumsum([0, *DURATIONS_MS[:-1]]) / 1000
    assert facts.frame_times_seconds == pytest.approx(starts.tolist(), abs=1e-9)
    assert facts.duration_seconds == pytest.approx(sum(DURATIONS_MS) / 1000)
    assert (facts.width, facts.height, facts.codec) == (*SIZE, "webp")
    hurried = animation(*(frame(picture(n), duration_ms=ms) for n, ms in enumerate((0, 10, 11))))
    assert probed(hurried).frame_times_seconds == pytest.approx((0, 0.1, 0.2))
    assert probed(hurried).duration_seconds == pytest.approx(0.211)


def test_keyframes_are_those_that_show_nothing_of_others():
    assert probed(mixed()).keyframe_indices == (0, 3, 6)
    blank = [frame(picture(n, (20, 20)), left=2 * n, flags=DISPOSED) for n in range(4)]
    assert probed(animation(*blank)).keyframe_indices == (0, 1, 2, 3)
    assert probed(animation(*[frame(picture(n)) for n in range(3)])).keyframe_indices == (0,)


def test_frames_are_resized():
    frames, _ = decoded(ANIMATIONS["lossless"], [2, 4], size=(28, 56))
    assert frames.shape == (2, 56, 28, 3)
    assert len({found.tobytes() for found in frames}) == 2


def spoilt(number, source_frames):
    """Returns an animation in which the picture of one frame is garbage."""
    frames = list(source_frames)
    frames[number] = frames[number][:40] + bytes([0xAA]) * (len(frames[number]) - 40)
    return animation(*frames)


WHOLE = [frame(picture(number), flags=NOT_BLENDED) for number in range(5)]


@pytest.mark.parametrize(("number", "stand_in"), [(0, 1), (2, 1), (4, 3)])
def test_a_damaged_picture_is_replaced_by_its_neighbour_and_counted(number, stand_in):
    expected = on_white(animation(*WHOLE))
    frames, num_replaced = decoded(spoilt(number, WHOLE), range(5))
    assert num_replaced == 1
    np.testing.assert_array_equal(frames[number], expected[stand_in])
    others = [index for index in range(5) if index != number]
    np.testing.assert_array_equal(frames[others], [expected[index] for index in others])


def test_a_damaged_picture_that_is_wanted_alone_is_replaced_too():
    expected = on_white(animation(*WHOLE))
    frames, num_replaced = decoded(spoilt(0, WHOLE), [0])
    assert num_replaced == 1
    np.testing.assert_array_equal(frames[0], expected[1])


def test_a_file_that_is_cut_ends_where_it_is_cut():
    source = animation(*WHOLE)
    cut = source[: len(source) - len(WHOLE[4]) // 2]
    assert probed(cut).num_frames == 4
    assert probed(source + b"more" * 100).num_frames == 5


def test_a_frame_outside_the_canvas_or_of_another_size_is_damage():
    outside = animation(WHOLE[0], frame(picture(1), left=2, flags=NOT_BLENDED))
    assert decoded(outside, [0, 1])[1] == 1
    lying = bytearray(WHOLE[1])
    lying[14] -= 1  # the width in the frame's head
    assert decoded(animation(WHOLE[0], bytes(lying)), [0, 1])[1] == 1


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (animation(), "no_frames"),
        (animation(WHOLE[0][:30]), "no_frames"),
        (animation(chunk(b"ANMF", bytes(16))), "video_decode_failed"),
        (spoilt(0, WHOLE[:1]), "video_decode_failed"),
        (animation(WHOLE[0])[:24], "invalid_video"),
        (b"RIFX" + animation(*WHOLE)[4:], "invalid_video"),
        (animation(*WHOLE, size=(1 << 24, 1 << 24)), "video_resolution_too_large"),
    ],
    ids=range(7),
)
def test_what_can_not_be_used_is_named(source, code):
    assert fault(source) == code


def test_it_is_no_frame_of_a_list():
    listed = pack_pictures(PictureList([animation(*WHOLE)], 2.0))
    assert fault(listed) == "unsupported_codec"


def test_limits_hold():
    source = animation(*WHOLE)
    exact = replace(LIMITS, max_frames=5, max_pixels=SIZE[0] * SIZE[1])
    assert probed(source, exact).num_frames == 5
    assert fault(source, replace(exact, max_frames=4)) == "video_too_long"
    assert fault(source, replace(exact, max_pixels=2399)) == "video_resolution_too_large"
    assert fault(source, replace(LIMITS, containers=("mp4", "gif"))) == "unsupported_container"
    assert fault(source, replace(LIMITS, codecs=("h264",))) == "unsupported_codec"


@pytest.mark.parametrize("seed", range(40))
def test_damage_anywhere_is_a_clip_or_a_named_fault(seed):
    dice = np.random.default_rng(seed)
    source = bytearray(ANIMATIONS["by hand"] if seed % 2 else by_pillow(quality=50))
    for position in dice.integers(12, len(source), 1 + seed % 8):
        source[position] = dice.integers(256)
    try:
        count = probed(bytes(source)).num_frames
        _, num_replaced = decoded(bytes(source), [0, count - 1], size=(28, 28))
    except InvalidVideo:
        return
    assert 0 <= num_replaced <= 2


@pytest.mark.anyio
async def test_a_decoder_process_decodes_it(make_pool):
    source = ANIMATIONS["lossless"]
    async with make_pool().open(MemoryFile.of(source)) as video:
        facts = await video.probe()
        frames = (await video.decode(FramePlan((0, 5), *SIZE))).view()
    assert facts.num_frames == 6
    np.testing.assert_array_equal(frames, decoded(source, [0, 5])[0])
