"""Frame sizes and token counts: what the real processors do with real frames is the measure."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from vllm.transformers_utils.processors.nano_nemotron_vl import NanoNemotronVLProcessor

from server.conversation import PixelLimits
from server.engine.geometry import NemotronGeometry, ProcessorGeometry, geometry_of
from server.errors import ConfigurationError, InvalidVideo

PROCESSORS = {
    "qwen2": Qwen2VLVideoProcessor(cap_pixels_per_frame=False),
    "qwen2, small": Qwen2VLVideoProcessor(
        size={"shortest_edge": 4 * 28**2, "longest_edge": 96 * 28**2}, cap_pixels_per_frame=False
    ),
    "qwen3": Qwen3VLVideoProcessor(cap_pixels_per_frame=False),
    "qwen3, as released": Qwen3VLVideoProcessor(
        size={"shortest_edge": 4096, "longest_edge": 25165824}, cap_pixels_per_frame=False
    ),
    "qwen3, small": Qwen3VLVideoProcessor(
        size={"shortest_edge": 4 * 32**2, "longest_edge": 96 * 32**2}, cap_pixels_per_frame=False
    ),
    "qwen3, capped": Qwen3VLVideoProcessor(
        size={"shortest_edge": 4096, "longest_edge": 250000}, cap_pixels_per_frame=True
    ),
}
ORDINARY_SIZES = [(320, 240), (200, 100), (31, 40)]
NARROW_SIZES = [(90, 900), (10, 300), (1500, 12)]
FRAME_COUNTS = [2, 3, 5, 16]


def processed(processor, width, height, num_frames):
    """Returns (grids, width, height) of what a processor makes of such frames."""
    frames = np.zeros((num_frames, height, width, 3), np.uint8)
    outputs = processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    grids, rows, columns = outputs["video_grid_thw"][0].tolist()
    return grids, columns * processor.patch_size, rows * processor.patch_size


def frame_size(geometry, width, height, num_frames, **limits):
    return geometry.frame_size(
        width=width, height=height, num_frames=num_frames, limits=PixelLimits(**limits)
    )


def tokens(geometry, size, num_frames, rate=0.0, method="evs"):
    return geometry.video_tokens(
        width=size[0],
        height=size[1],
        num_frames=num_frames,
        pruning_rate=rate,
        pruning_method=method,
    )


@pytest.mark.parametrize("name", PROCESSORS)
def test_ordinary_frames_get_the_size_that_the_processor_gives_them(name):
    geometry = ProcessorGeometry(PROCESSORS[name])
    for (width, height), num_frames in itertools.product(ORDINARY_SIZES, FRAME_COUNTS):
        size = frame_size(geometry, width, height, num_frames)
        assert processed(PROCESSORS[name], width, height, num_frames)[1:] == size


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_processor_leaves_planned_frames_as_they_are_and_makes_the_tokens_foretold(name):
    processor, geometry = PROCESSORS[name], ProcessorGeometry(PROCESSORS[name])
    edge = processor.patch_size * processor.merge_size
    for (width, height), num_frames in itertools.product(
        ORDINARY_SIZES + NARROW_SIZES, FRAME_COUNTS
    ):
        size = frame_size(geometry, width, height, num_frames)
        grids, *found = processed(processor, *size, num_frames)
        assert tuple(found) == size
        assert tokens(geometry, size, num_frames).before == grids * size[0] * size[1] // edge**2


def test_a_single_frame_is_for_those_who_take_it():
    assert frame_size(ProcessorGeometry(PROCESSORS["qwen2"]), 64, 64, 1)
    with pytest.raises(InvalidVideo, match="no video of fewer than 2 frames"):
        frame_size(ProcessorGeometry(PROCESSORS["qwen3"]), 64, 64, 1)


@pytest.mark.parametrize("name", PROCESSORS)
def test_an_extreme_aspect_ratio_is_refused(name):
    with pytest.raises(InvalidVideo, match="aspect ratio"):
        frame_size(ProcessorGeometry(PROCESSORS[name]), 9000, 32, 4)


def test_the_fewest_tokens_depend_on_the_method():
    geometry = ProcessorGeometry(PROCESSORS["qwen3"])
    assert tokens(geometry, (320, 320), 8, 0.99, "evs").after == 100
    assert tokens(geometry, (320, 320), 8, 0.99, "vidcom2").after == 4


# --- limits


@pytest.mark.parametrize("name", PROCESSORS)
@given(
    width=st.integers(40, 2000),
    shape=st.floats(0.2, 5),
    num_frames=st.integers(2, 64),
    max_pixels=st.none() | st.integers(1, 2_000_000),
    min_pixels=st.none() | st.integers(1, 2_000_000),
    total_pixels=st.none() | st.integers(1, 50_000_000),
    max_side=st.none() | st.integers(1, 3000),
)
@settings(max_examples=20, deadline=None)
def test_limits_are_kept_as_far_as_the_processor_leaves_the_size_alone(
    name, width, shape, num_frames, max_pixels, min_pixels, total_pixels, max_side
):
    processor, geometry = PROCESSORS[name], ProcessorGeometry(PROCESSORS[name])
    edge, height = processor.patch_size * processor.merge_size, max(40, round(width * shape))

    def sized(**limits):
        found = frame_size(geometry, width, height, num_frames, **limits)
        assert geometry._resized(*found, num_frames) == found
        return found

    upper = {"max_pixels": max_pixels, "total_pixels": total_pixels, "max_side": max_side}
    limited = sized(min_pixels=min_pixels, **upper)
    least, largest = sized(max_pixels=1), sized(min_pixels=2**40)
    step = edge * (sum(limited) + edge)  # what one token more on both sides makes

    most = PixelLimits(**upper).most_pixels(num_frames)
    # Only at the least size that the model takes may an upper limit be broken.
    is_least = math.prod(limited) <= math.prod(least) + step
    assert is_least or math.prod(limited) <= most
    assert is_least or max(limited) <= (max_side or math.inf)
    raised = math.prod(sized(min_pixels=min_pixels))
    assert raised >= min(min_pixels or 1, math.prod(largest)) - step


@pytest.mark.parametrize("max_pixels", [12 * 28**2, 30_000, 50_000, 96 * 28**2, 10**6])
@pytest.mark.parametrize("size", [*ORDINARY_SIZES, (1920, 1080)])
def test_a_limited_size_is_what_the_processor_makes_with_that_limit(size, max_pixels):
    processor = PROCESSORS["qwen2, small"]
    kept = min(max_pixels, processor.size["longest_edge"])
    told = Qwen2VLVideoProcessor(
        size={**dict(processor.size), "longest_edge": kept}, cap_pixels_per_frame=False
    )
    found = frame_size(ProcessorGeometry(processor), *size, 4, max_pixels=max_pixels)
    assert found == processed(told, *size, 4)[1:]


def test_the_clip_as_a_whole_can_be_limited():
    geometry = ProcessorGeometry(PROCESSORS["qwen2, small"])
    width, height = frame_size(geometry, 1920, 1080, 8, total_pixels=160_000)
    assert 8 * width * height <= 160_000
    assert (width, height) == frame_size(geometry, 1920, 1080, 8, max_pixels=20_000)


def test_what_the_model_can_not_keep_ends_at_its_own_limit():
    processor = PROCESSORS["qwen2, small"]
    geometry = ProcessorGeometry(processor)
    assert frame_size(geometry, 320, 320, 4, max_pixels=1) == (56, 56)
    assert frame_size(geometry, 320, 320, 4, min_pixels=10**9) == (252, 252)
    # An upper limit goes before the lower one.
    both = frame_size(geometry, 320, 240, 4, min_pixels=60_000, total_pixels=80_000)
    assert both[0] * both[1] <= 20_000


def test_small_frames_are_enlarged_to_the_fewest_pixels():
    geometry = ProcessorGeometry(PROCESSORS["qwen2, small"])
    width, height = frame_size(geometry, 112, 84, 4, min_pixels=30_000)
    assert 30_000 <= width * height <= 50_000
    assert width / height == pytest.approx(4 / 3, rel=0.2)


CLIPS = [(1080, 1920), (300, 300), (1000, 100), (64, 48)]
SMALL = [name for name in PROCESSORS if "small" in name or "released" in name]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", CLIPS)
@pytest.mark.parametrize("num_frames", [2, 16])
def test_the_least_size_that_is_found_keeps_a_limit_of_that_size(name, size, num_frames):
    geometry = ProcessorGeometry(PROCESSORS[name])
    least = frame_size(geometry, *size, num_frames, max_pixels=1)
    pixels = math.prod(least)
    assert frame_size(geometry, *size, num_frames, max_pixels=pixels) == least
    assert frame_size(geometry, *size, num_frames, total_pixels=pixels * num_frames) == least
    # And none above it is broken, though the size in the shape of the video would be larger.
    for limit in range(pixels, 3 * pixels, pixels // 3):
        found = frame_size(geometry, *size, num_frames, max_pixels=limit)
        assert math.prod(found) <= limit
        assert geometry._resized(*found, num_frames) == found


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", CLIPS)
def test_the_shortest_side_that_is_found_keeps_a_limit_of_that_length(name, size):
    geometry = ProcessorGeometry(PROCESSORS[name])
    narrowest = frame_size(geometry, *size, 2, max_side=1)
    for max_side in range(max(narrowest), 3 * max(narrowest), max(narrowest) // 2):
        assert max(frame_size(geometry, *size, 2, max_side=max_side)) <= max_side
    # With a limit on the pixels, too, following one message after another comes to an end.
    pixels = math.prod(frame_size(geometry, *size, 2, max_pixels=1))
    side = max(frame_size(geometry, *size, 2, max_pixels=pixels, max_side=1))
    both = frame_size(geometry, *size, 2, max_pixels=pixels, max_side=side)
    assert math.prod(both) <= pixels
    assert max(both) <= side


@pytest.mark.parametrize(
    ("max_pixels", "expected"),
    [(1, (56, 56)), (3136, (56, 56)), (4000, (56, 56)), (4704, (56, 84)), (6272, (56, 84))],
)
def test_a_portrait_clip_is_squeezed_rather_than_refused(max_pixels, expected):
    geometry = ProcessorGeometry(PROCESSORS["qwen2, small"])
    assert frame_size(geometry, 1080, 1920, 2, max_pixels=max_pixels) == expected


@pytest.mark.parametrize("name", PROCESSORS)
@given(
    width=st.integers(40, 1500),
    shape=st.floats(0.1, 10),
    num_frames=st.integers(2, 16),
    min_pixels=st.integers(1, 500_000),
    max_pixels=st.none() | st.integers(1, 500_000),
)
@settings(max_examples=8, deadline=None)
def test_a_lower_limit_never_makes_frames_smaller(
    name, width, shape, num_frames, min_pixels, max_pixels
):
    geometry, height = ProcessorGeometry(PROCESSORS[name]), max(40, round(width * shape))
    without = frame_size(geometry, width, height, num_frames, max_pixels=max_pixels)
    found = frame_size(
        geometry, width, height, num_frames, max_pixels=max_pixels, min_pixels=min_pixels
    )
    assert math.prod(found) >= math.prod(without)
    assert math.prod(found) <= max(max_pixels or math.inf, math.prod(without))


@pytest.mark.parametrize("min_pixels", [72_000, 100_000, 300_000])
def test_a_lower_limit_beyond_the_models_own_changes_nothing(min_pixels):
    geometry = ProcessorGeometry(PROCESSORS["qwen2, small"])
    assert frame_size(geometry, 1080, 1920, 2) == (196, 364)
    assert frame_size(geometry, 1080, 1920, 2, min_pixels=min_pixels) == (196, 364)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("qwen2", True), ("qwen2, small", True), ("qwen3", False), ("qwen3, as released", False)],
)
def test_it_is_known_whether_a_processor_limits_frames_or_clips(name, expected):
    assert ProcessorGeometry(PROCESSORS[name]).limits_each_frame is expected


# --- Nemotron


class _Tokenizer:
    def encode(self, text, add_special_tokens):
        return [1]


def nemotron(**vision):
    """vLLM's own processor over a stand-in for the model's configuration."""
    config = SimpleNamespace(
        force_image_size=128,
        patch_size=16,
        downsample_ratio=0.5,
        use_thumbnail=True,
        norm_mean=[0.5] * 3,
        norm_std=[0.5] * 3,
        dtype=torch.float32,
        vision_config=SimpleNamespace(args={}, **vision),
    )
    return NanoNemotronVLProcessor(config, _Tokenizer(), max_model_len=1024)


NEMOTRONS = {
    "squares": nemotron(),
    "squares, two frames a step": nemotron(video_temporal_patch_size=2),
    "squares of patches": nemotron(video_target_num_patches=50),
    "patches": nemotron(video_target_num_patches=100, video_maintain_aspect_ratio=True),
    "pixels": nemotron(video_target_img_size=200, video_maintain_aspect_ratio=True),
}


@pytest.mark.parametrize("name", NEMOTRONS)
def test_nemotron_leaves_planned_frames_as_they_are_and_makes_the_tokens_foretold(name):
    processor, geometry = NEMOTRONS[name], geometry_of(NEMOTRONS[name])
    config, steps = processor.config, processor.video_temporal_patch_size
    assert isinstance(geometry, NemotronGeometry)
    assert geometry.temporal_patch_size == steps
    for (width, height), num_frames in itertools.product(ORDINARY_SIZES, [1, 2, 5]):
        planned = frame_size(geometry, width, height, num_frames)
        video = np.zeros((num_frames, planned[1], planned[0], 3), np.uint8)
        with torch.compiler.set_stance("force_eager"):
            (pixels,) = processor._videos_to_pixel_values_lst([video])
        assert tuple(pixels.shape) == (num_frames, 3, planned[1], planned[0])
        # As the processor counts them.
        per_grid = int((planned[0] * planned[1] // config.patch_size**2) * 0.5**2)
        grids = -(-num_frames // steps)
        assert tokens(geometry, planned, num_frames).before == per_grid * grids


@pytest.mark.parametrize("name", ["squares", "squares of patches"])
def test_nemotron_frames_get_the_size_that_the_processor_gives_them(name):
    processor = NEMOTRONS[name]
    with torch.compiler.set_stance("force_eager"):
        (pixels,) = processor._videos_to_pixel_values_lst([np.zeros((1, 90, 160, 3), np.uint8)])
    size = frame_size(geometry_of(processor), 160, 90, 1)
    assert tuple(pixels.shape[-2:]) == size[::-1]


@pytest.mark.parametrize("name", NEMOTRONS)
def test_nemotron_sizes_are_not_for_the_client_to_choose(name):
    geometry = geometry_of(NEMOTRONS[name])
    assert frame_size(geometry, 160, 90, 4, max_pixels=1) == frame_size(geometry, 160, 90, 4)
    assert not geometry.limits_each_frame


def test_nemotron_prunes_to_one_whole_grid():
    geometry = geometry_of(NEMOTRONS["squares"])
    assert tokens(geometry, (128, 128), 4, 0.5).after == 32
    assert tokens(geometry, (128, 128), 4, 0.99).after == 16


# --- which of them


def test_the_kind_of_processor_decides_the_geometry():
    qwen = SimpleNamespace(video_processor=PROCESSORS["qwen3"])
    assert isinstance(geometry_of(qwen), ProcessorGeometry)
    with pytest.raises(ConfigurationError, match="SimpleNamespace"):
        geometry_of(SimpleNamespace())
