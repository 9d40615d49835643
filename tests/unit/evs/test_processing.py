"""The processor half, on real processors of two families: what each video becomes in a prompt."""

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.cache.base import MultiModalProcessorOnlyCache

from server.engine.environment import prepare_environment
from server.evs.arithmetic import ENABLED_AT_RATE_ZERO
from server.evs.plan import PruningPlan
from server.evs.plugin import register
from server.evs.processing import PLAN_FIELD
from tests.evs.cases import IMAGE_VIDEO, ONE, TWO, Case, video
from tests.families import FAMILIES, checkpoint

TOKENS = {"qwen2_5_vl": 144, "qwen3_vl": 120}
"""Of the clip of ONE, before pruning."""


@pytest.fixture(scope="module", autouse=True)
def plugin():
    prepare_environment(log_level="error")
    register()


def config_of(family, rate=ENABLED_AT_RATE_ZERO, **arguments):
    arguments = {"dtype": "float32", "max_model_len": 4096, **arguments}
    model = str(checkpoint(family))
    return AsyncEngineArgs(model, video_pruning_rate=rate, **arguments).create_model_config()


@pytest.fixture(scope="module", params=TOKENS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def config(family):
    return config_of(family)


def process(family, config, case, kwargs=None, cache=None):
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    request = case.request(FAMILIES[family])
    items = processor.info.parse_mm_data(request["multi_modal_data"])
    given = request.get("mm_processor_kwargs") if kwargs is None else kwargs
    return processor(request["prompt"], items, hf_processor_mm_kwargs=given or {}, cache=cache)


def plans(output):
    return [PruningPlan.from_tensor(item[PLAN_FIELD].data) for item in output["mm_kwargs"]["video"]]


def test_the_placeholder_shrinks_by_what_is_removed(family, config):
    whole = process(family, config, ONE.at(0.0))
    half = process(family, config, ONE.at(0.5))

    removed = len(whole["prompt_token_ids"]) - len(half["prompt_token_ids"])
    assert removed == TOKENS[family] // 2
    assert [plan.num_retained for plan in plans(half)] == [TOKENS[family] // 2]


def test_at_rate_zero_the_prompt_is_that_of_an_engine_without_pruning(family, config):
    unpruned = process(family, config_of(family, rate=None), TWO)
    whole = process(family, config, TWO.at(0.0))

    assert unpruned["prompt_token_ids"] == whole["prompt_token_ids"]
    for ours, theirs in zip(
        whole["mm_placeholders"]["video"], unpruned["mm_placeholders"]["video"], strict=True
    ):
        assert (ours.offset, ours.length) == (theirs.offset, theirs.length)
        assert ours.get_num_embeds() == theirs.get_num_embeds()


def test_every_video_has_its_own_rate_and_none_means_the_engines(family):
    config = config_of(family, rate=0.5)
    output = process(family, config, TWO, {"video_pruning_rate": [0.75, None]})

    assert [plan.choice.rate for plan in plans(output)] == [0.75, 0.5]


def test_a_rate_is_part_of_a_videos_identity_and_not_of_an_images(family, config):
    outputs = [process(family, config, IMAGE_VIDEO.at(rate)) for rate in (0.5, 0.5, 0.75)]

    videos = [output["mm_hashes"]["video"][0] for output in outputs]
    images = [output["mm_hashes"]["image"][0] for output in outputs]
    assert videos[0] == videos[1] != videos[2]
    assert images[0] == images[1] == images[2]
    assert len({plans(output)[0].fingerprint for output in outputs}) == 2


def test_cached_and_new_videos_of_one_prompt_keep_their_rates(family, config):
    cache = MultiModalProcessorOnlyCache(config)
    process(family, config, TWO.at(0.5, 0.75), cache=cache)
    mixed = process(family, config, TWO.at(0.9, 0.75), cache=cache)
    fresh = process(family, config, TWO.at(0.9, 0.75))

    assert plans(mixed) == plans(fresh)
    assert mixed["prompt_token_ids"] == fresh["prompt_token_ids"]
    assert mixed["mm_hashes"] == fresh["mm_hashes"]


def test_what_is_said_for_videos_only_counts_too(family, config):
    output = process(family, config, ONE, {"videos_kwargs": {"video_pruning_rate": 0.75}})

    assert plans(output)[0].choice.rate == 0.75


@pytest.mark.parametrize("rate", [1, -0.1, float("nan"), "half", True, [0.5, 0.5], []])
def test_a_wrong_rate_is_refused_by_name(family, config, rate):
    with pytest.raises(ValueError, match="video_pruning_rate"):
        process(family, config, ONE, {"video_pruning_rate": rate})


def test_a_method_that_the_family_lacks_is_refused():
    config = config_of("qwen2_5_vl")

    with pytest.raises(ValueError, match="video_pruning_method must be one of 'evs' here"):
        process("qwen2_5_vl", config, ONE, {"video_pruning_method": "vidcom2"})


def test_an_engine_started_without_pruning_refuses_rates_and_takes_zero(family):
    config = config_of(family, rate=None)

    assert process(family, config, ONE.at(0.0))["prompt_token_ids"]
    with pytest.raises(ValueError, match="needs an engine started with a video_pruning_rate"):
        process(family, config, ONE.at(0.5))


def test_a_rate_among_the_engines_processor_options_is_refused(family):
    config = config_of(family, mm_processor_kwargs={"video_pruning_rate": 0.5})

    with pytest.raises(ValueError, match="is an argument of the engine"):
        process(family, config, ONE)


def test_positions_beyond_the_models_table_are_refused(family):
    """Wide and short: few tokens are left, and every grid still pushes by its width."""
    config = config_of(
        family,
        hf_overrides={"text_config": {"max_position_embeddings": 1024}},
        max_model_len=1024,
    )
    clip = video(60, width=1568, height=32, fps=0.05)
    fits = Case("one", (clip,)).at(0.99)
    beyond = Case("several", (clip,) * 4).at(0.99)
    cache = MultiModalProcessorOnlyCache(config)

    assert process(family, config, fits, cache=cache)["prompt_token_ids"]
    for _ in range(2):  # the second time from the cache
        with pytest.raises(ValueError, match="exceed the 4096 that the model's position table has"):
            process(family, config, beyond, cache=cache)


def test_to_an_image_alone_a_rate_means_nothing(family, config):
    only_image = Case("image", (IMAGE_VIDEO.media[0],))
    with_rate = process(family, config, only_image, {"video_pruning_rate": 0.5})
    without = process(family, config, only_image)

    assert list(with_rate["mm_kwargs"]) == ["image"]
    assert with_rate["mm_hashes"] == without["mm_hashes"]
    assert with_rate["prompt_token_ids"] == without["prompt_token_ids"]
