"""From settings to vLLM's configuration, on the embedded model: it prunes, by EVS only."""

import pytest

from server.demo.model import ensure_model
from server.engine.arguments import create_vllm_config
from server.engine.environment import prepare_environment
from server.errors import ConfigurationError
from server.settings import PruningSettings, Settings

ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 8192}


@pytest.fixture(scope="module", autouse=True)
def quiet_vllm():
    prepare_environment(log_level="error")


def config_of(**pruning):
    settings = Settings(engine=ENGINE, pruning=PruningSettings(**pruning))
    return create_vllm_config(settings, str(ensure_model()))


def test_the_engine_gets_the_defaults_and_the_server_the_methods():
    config, methods = config_of(default_rate=0.5)

    chosen = config.model_config.multimodal_config
    assert (chosen.video_pruning_rate, chosen.video_pruning_method) == (0.5, "evs")
    assert methods == ("evs",)


def test_pruning_is_on_at_a_default_rate_of_zero():
    config, _ = config_of(default_rate=0.0)

    assert config.model_config.multimodal_config.video_pruning_rate > 0


def test_a_default_method_that_the_model_lacks_stops_the_start_with_the_cure():
    with pytest.raises(ConfigurationError, match=r"default_method is vidcom2.*set it to evs$"):
        config_of(default_method="vidcom2")


def test_pipeline_stages_can_not_be_pruned_for():
    engine = {**ENGINE, "pipeline_parallel_size": 2}
    settings = Settings(engine=engine, pruning=PruningSettings(default_rate=0.5))

    with pytest.raises(ConfigurationError, match="in several pipeline stages has no video pruning"):
        create_vllm_config(settings, str(ensure_model()))


@pytest.mark.parametrize(
    ("argument", "cure"),
    [
        ("video_pruning_rate", "pruning.default_rate"),
        ("video_pruning_method", "pruning.default_method"),
    ],
)
def test_engine_arguments_with_a_setting_of_their_own_name_it(argument, cure):
    with pytest.raises(ConfigurationError, match=f"set {cure} instead"):
        create_vllm_config(Settings(engine={argument: 1}), "unused")
