import numpy as np
import pytest

from server.media.colours import WideColours


def grey(colours, value):
    return colours.to_sdr(np.full((1, 2, 3), value, np.float32))[0, 1].tolist()


@pytest.mark.parametrize("transfer", ["pq", "hlg", "sdr"])
@pytest.mark.parametrize("primaries", ["bt709", "bt2020", "p3"])
def test_black_stays_black_white_stays_white_and_greys_stay_grey(transfer, primaries):
    colours = WideColours(transfer, primaries)
    assert grey(colours, 0.0) == [0, 0, 0]
    assert grey(colours, 1.0) == [255, 255, 255]
    for value in (0.2, 0.5, 0.7):
        assert np.ptp(grey(colours, value)) <= 1


@pytest.mark.parametrize("transfer", ["pq", "hlg", "sdr"])
def test_brighter_is_never_darker(transfer):
    ramp = np.repeat(np.linspace(0, 1, 1000, dtype=np.float32)[None, :, None], 3, axis=2)
    shown = WideColours(transfer, "bt2020").to_sdr(ramp).astype(int)
    assert (np.diff(shown, axis=1) >= 0).all()
    assert np.diff(shown, axis=1).max() <= 4


def test_values_beyond_the_scale_which_resizing_can_give_are_cut():
    for colours in (WideColours("pq", "bt2020"), WideColours("sdr", "p3")):
        assert grey(colours, -0.1) == [0, 0, 0]
        assert grey(colours, 1.1) == [255, 255, 255]


def test_hues_stay_where_highlights_are_pressed():
    colours = WideColours("pq", "bt709")
    bright = np.array([[[0.75, 0.6, 0.4]]], np.float32)
    red, green, blue = colours.to_sdr(bright)[0, 0] / 255
    light = np.array([red, green, blue]) ** 2.4
    nits = 10_000 * (
        np.maximum(bright[0, 0] ** (1 / 78.84375) - 0.8359375, 0)
        / (18.8515625 - 18.6875 * bright[0, 0] ** (1 / 78.84375))
    ) ** (1 / 0.1593017578125)
    assert light / light.max() == pytest.approx(nits / nits.max(), abs=0.01)
