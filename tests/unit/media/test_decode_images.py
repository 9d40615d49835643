"""Pictures that move, and pictures that do not: one-frame videos."""

import io

import av
import numpy as np
import pytest
from PIL import Image, ImageSequence

from server.errors import InvalidVideo
from tests.clips.counter import counter_picture
from tests.clips.decoded import decoded_frames, probed

SIZE = (60, 40)
DURATIONS_MS = [100, 50, 200, 30, 100, 100]
STILLS = ["JPEG", "PNG", "WEBP", "BMP", "GIF"]


def moving_pictures():
    """Returns pictures, transparent but for a block that moves and leaves no trace."""
    pictures = []
    for number in range(len(DURATIONS_MS)):
        values = np.zeros((*SIZE[::-1], 4), np.uint8)
        values[5:15, 5 * number : 5 * number + 10] = (255, 40 * number, 0, 255)
        pictures.append(Image.fromarray(values))
    return pictures


def animation(kind, **options):
    first, *others = moving_pictures()
    buffer = io.BytesIO()
    first.save(buffer, kind, save_all=True, append_images=others, duration=DURATIONS_MS, **options)
    return buffer.getvalue()


def on_white_by_pillow(source):
    """Returns each picture of an animation over white, as Pillow composes it."""
    with Image.open(io.BytesIO(source)) as image:
        return [
            np.array(
                Image.alpha_composite(
                    Image.new("RGBA", SIZE, (255, 255, 255, 255)), frame.convert("RGBA")
                ).convert("RGB")
            )
            for frame in ImageSequence.Iterator(image)
        ]


def still(kind, picture, **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "disposal"), [*(("GIF", n) for n in range(4)), *(("PNG", n) for n in range(3))]
)
@pytest.mark.parametrize("chosen", [(0, 1, 2, 3, 4, 5), (3,), (1, 5)])
def test_an_animation_is_a_video(kind, disposal, chosen):
    source = animation(kind, disposal=disposal)
    facts = probed(source)
    starts = np.cumsum([0, *DURATIONS_MS[:-1]]) / 1000
    assert facts.frame_times_seconds == pytest.approx(starts.tolist(), abs=1e-6)
    assert facts.duration_seconds == pytest.approx(sum(DURATIONS_MS) / 1000, abs=1e-6)
    assert (facts.width, facts.height) == SIZE
    expected = on_white_by_pillow(source)
    frames = decoded_frames(source, frame_indices=chosen, size=SIZE)
    for frame, index in zip(frames, chosen, strict=True):
        np.testing.assert_array_equal(frame, expected[index])


@pytest.mark.parametrize("blend", [0, 1])
def test_parts_of_an_apng_are_laid_over_what_was_there(blend):
    source = animation("PNG", disposal=0, blend=blend)
    expected = on_white_by_pillow(source)
    for index in range(len(expected)):
        (frame,) = decoded_frames(source, frame_indices=[index], size=SIZE)
        np.testing.assert_array_equal(frame, expected[index])


def test_what_follows_the_last_picture_of_a_gif_is_no_frame():
    comment = b"\x21\xfe\x05hello\x00"
    source = animation("GIF", disposal=2)
    assert source[-1:] == b";"
    assert probed(source[:-1] + comment + b";").num_frames == len(DURATIONS_MS)


def test_a_moving_webp_is_named():
    with pytest.raises(InvalidVideo) as caught:
        probed(animation("WEBP"))
    assert caught.value.code == "unsupported_codec"


@pytest.mark.parametrize("kind", STILLS)
def test_a_picture_is_a_video_of_one_frame(kind):
    values = counter_picture(9, 160, 96)
    source = still(kind, Image.fromarray(values))
    facts = probed(source)
    assert (facts.num_frames, facts.width, facts.height) == (1, 160, 96)
    assert facts.duration_seconds > 0
    (frame,) = decoded_frames(source, frame_indices=[0], size=(160, 96))
    if kind in ("PNG", "BMP"):
        np.testing.assert_array_equal(frame, values)
    assert np.abs(frame.astype(int) - values).mean() < 8


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA", "L", "1", "I;16"])
def test_pictures_of_any_mode_decode(mode):
    grey = Image.fromarray(np.full((40, 60), 100, np.uint8))
    if mode == "I;16":
        picture, options = Image.fromarray(np.full((40, 60), 100 * 257, np.uint16)), {}
    elif mode == "P":
        picture, options = Image.new("P", (60, 40), 3), {"transparency": 3}
        picture.putpalette([100] * 768)
    elif mode == "PA":
        picture, options = grey.convert("LA"), {}
        picture.putalpha(0)
    else:
        picture, options = grey.convert(mode), {}
    (frame,) = decoded_frames(still("PNG", picture, **options), frame_indices=[0], size=SIZE)
    expected = {"P": 255, "PA": 255, "1": None}.get(mode, 100)
    if expected is not None:
        assert np.abs(frame.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_says_which_way_is_up(kind, orientation):
    values = np.zeros((40, 60, 3), np.uint8)
    values[:20, :30] = 255
    values[20:, :30] = 128
    exif = Image.Exif()
    exif[274] = orientation
    source = still(kind, Image.fromarray(values), exif=exif)
    facts = probed(source)
    (frame,) = decoded_frames(source, frame_indices=[0], size=(facts.width, facts.height))
    corners = frame[[5, 5, -6, -6], [5, -6, 5, -6], 0].astype(int)
    # Top left, top right, bottom left, bottom right; EXIF 2.32, table 6.
    expected = {
        1: (255, 0, 128, 0),
        2: (0, 255, 0, 128),
        3: (0, 128, 0, 255),
        4: (128, 0, 255, 0),
        5: (255, 128, 0, 0),
        6: (128, 255, 0, 0),
        7: (0, 0, 128, 255),
        8: (0, 0, 255, 128),
    }[orientation]
    assert np.abs(corners - expected).max() < 12
    assert (facts.width, facts.height) == ((60, 40) if orientation < 5 else (40, 60))


def test_of_several_streams_the_moving_one_is_taken():
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        poster, film = (output.add_stream(codec, rate=25) for codec in ("mjpeg", "libx264"))
        poster.width, poster.height, poster.pix_fmt = 320, 240, "yuvj420p"
        film.width, film.height, film.pix_fmt = 160, 96, "yuv420p"
        poster.disposition, film.disposition = av.stream.Disposition.default, 0
        output.mux(poster.encode(av.VideoFrame(320, 240, "yuvj420p")))
        output.mux(poster.encode())
        for number in range(5):
            picture = counter_picture(number, 160, 96)
            output.mux(film.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(film.encode())
    facts = probed(buffer.getvalue())
    assert (facts.num_frames, facts.width, facts.codec) == (5, 160, "h264")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_picture_cut_short_is_a_picture_or_a_named_fault(kind, share):
    source = still(kind, Image.fromarray(counter_picture(9, 160, 96)))
    part = source[: int(len(source) * share)]
    assert _outcome(part) in (1, "invalid_video", "video_decode_failed", "no_frames")


def _outcome(source):
    """Returns the number of frames, or the fault."""
    try:
        return probed(source).num_frames
    except InvalidVideo as error:
        return error.code
