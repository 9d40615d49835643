"""Every vLLM name that this project overrides or leans on, so that a new vLLM is a small diff."""

import inspect

import pytest
import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.model_executor.models import qwen2_5_vl
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from vllm.multimodal.processing.processor import BaseMultiModalProcessor
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import RequestStateStats
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from server.engine import connector
from server.engine.environment import CONNECTOR_NAME
from server.evs import models
from server.evs.plugin import ARCHITECTURES, SUPPORTED_VLLM

OVERRIDDEN = [
    (BaseMultiModalProcessor, "_get_mm_hashes", ["self", "inputs"]),
    (
        BaseMultiModalProcessor,
        "_get_cache_missing_processor_kwargs",
        ["self", "inputs", "mm_is_cached"],
    ),
    (BaseMultiModalProcessor, "_apply_hf_processor_main", ["self", "mm_items", "hf_kwargs"]),
    (
        BaseMultiModalProcessor,
        "_get_mm_fields_config",
        ["self", "hf_inputs", "hf_processor_mm_kwargs"],
    ),
    (
        BaseMultiModalProcessor,
        "_get_prompt_updates",
        ["self", "mm_items", "hf_processor_mm_kwargs", "out_mm_kwargs"],
    ),
    (qwen2_5_vl.Qwen2_5_VLForConditionalGeneration, "embed_multimodal", ["self", "kwargs"]),
    (
        qwen2_5_vl.Qwen2_5_VLForConditionalGeneration,
        "get_mrope_input_positions",
        ["self", "input_tokens", "mm_features"],
    ),
    (
        qwen2_5_vl.Qwen2_5_VLForConditionalGeneration,
        "recompute_mrope_positions",
        ["self", "input_ids", "multimodal_embeddings", "mrope_positions", "num_computed_tokens"],
    ),
    (CPUModelRunner, "load_model", ["self", "load_dummy_weights"]),
    (OpenAIServingChat, "render_chat_request", ["self", "request"]),
    (MediaConnector, "fetch_video", ["self", "video_url", "image_mode", "video_processor"]),
    (MediaConnector, "load_from_url", ["self", "url", "media_io", "fetch_timeout"]),
]


@pytest.mark.parametrize(("owner", "name", "parameters"), OVERRIDDEN)
def test_an_overridden_method_has_the_signature_it_was_written_for(owner, name, parameters):
    assert parameters == list(inspect.signature(getattr(owner, name)).parameters)


def test_the_plugin_is_for_the_installed_vllm():
    assert vllm.__version__.split("+")[0] in SUPPORTED_VLLM


def test_the_plugin_offers_a_class_for_each_architecture():
    for architecture in ARCHITECTURES:
        ours = getattr(models, architecture)

        assert ours.supports_multimodal_pruning


@pytest.mark.parametrize(
    "name",
    [
        "_parse_and_validate_multimodal_inputs",
        "_process_image_input",
        "_process_video_input",
        "iter_mm_grid_thw",
    ],
)
def test_the_model_still_has_what_the_overrides_call(name):
    assert callable(getattr(qwen2_5_vl.Qwen2_5_VLForConditionalGeneration, name))


def test_the_cpu_runner_still_lacks_the_switch_that_the_plugin_adds():
    source = inspect.getsource(inspect.getmodule(CPUModelRunner))

    assert "is_multimodal_pruning_enabled" not in source
    assert "is_multimodal_pruning_enabled" in inspect.getsource(GPUModelRunner.load_model)


def test_the_serving_class_still_calls_the_generators_that_are_watched():
    source = inspect.getsource(OpenAIServingChat._create_chat_completion)

    assert "self.chat_completion_stream_generator(" in source
    assert "self.chat_completion_full_generator(" in source


def test_the_engine_still_reports_when_it_queued_and_scheduled():
    stats = RequestStateStats()

    assert 0.0 == stats.queued_ts == stats.scheduled_ts == stats.first_token_ts


def test_shutting_down_still_takes_a_timeout():
    assert "timeout" in inspect.signature(AsyncLLM.shutdown).parameters


def test_engine_arguments_still_have_the_names_that_are_owned():
    names = set(inspect.signature(AsyncEngineArgs).parameters)

    assert {"model", "served_model_name", "video_pruning_rate", "video_pruning_method"} <= names


def test_the_connector_is_the_one_registered():
    loaded = MEDIA_CONNECTOR_REGISTRY.load(CONNECTOR_NAME)

    assert type(loaded) is connector.ClipConnector
