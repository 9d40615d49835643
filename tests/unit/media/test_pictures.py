import numpy as np
import pytest

from server.media.clip import FramePlan
from server.media.colours import WideColours
from server.media.pictures import Orientation, Picture, PictureWriter, on_white


def test_alpha_mixes_with_white():
    picture = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [0, 100, 200, 51]]], np.uint8)
    assert on_white(picture).tolist() == [[[255, 255, 255], [10, 20, 30], [204, 224, 244]]]


def test_an_opaque_picture_keeps_its_values():
    picture = np.full((2, 2, 4), 255, np.uint8)
    picture[..., :3] = 7
    assert (on_white(picture) == 7).all()


def test_a_picture_goes_to_each_of_its_rows():
    out = np.zeros((3, 2, 4, 3), np.uint8)
    writer = PictureWriter(FramePlan((5, 5, 9), 4, 2), out, Orientation())
    assert list(writer.missing) == [5, 9]
    writer.put(5, Picture(np.full((2, 4, 3), 50, np.uint8)))
    assert list(writer.missing) == [9]
    assert out[:, 0, 0, 0].tolist() == [50, 50, 0]


def test_a_picture_of_wide_colours_is_resized_turned_and_toned_down():
    out = np.zeros((1, 8, 4, 3), np.uint8)
    writer = PictureWriter(FramePlan((0,), 4, 8), out, Orientation(quarter_turns=1))
    pixels = np.zeros((16, 32, 3), np.uint16)
    pixels[:, 16:] = 65535
    writer.put(0, Picture(pixels, WideColours("pq", "bt2020")))
    assert (out[0, 0] == 255).all()
    assert (out[0, -1] == 0).all()


def test_there_are_four_quarter_turns():
    with pytest.raises(ValueError, match="4 quarter turns"):
        Orientation(quarter_turns=4)
