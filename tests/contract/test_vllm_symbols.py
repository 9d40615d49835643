"""Every vLLM name that this project overrides or leans on, so that a new vLLM is a small diff."""

import importlib
import inspect

import pytest
import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import RequestStateStats
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu.mm.rope import RopeState
from vllm.v1.worker.gpu.model_states.mm_pruning import MultiModalPruner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from server.engine import connector
from server.engine.environment import CONNECTOR_NAME
from server.evs import contract
from server.evs.plugin import ARCHITECTURES, METHODS_OF_ARCHITECTURE, SUPPORTED_VLLM

OVERRIDDEN = [
    (CPUModelRunner, "load_model", ["self", "load_dummy_weights"]),
    (
        GPUModelRunner,
        "_gather_mm_embeddings",
        ["self", "scheduler_output", "shift_computed_tokens"],
    ),
    (RopeState, "update_prefill_positions", ["self", "req_idx", "positions", "delta"]),
    (OpenAIServingChat, "render_chat_request", ["self", "request"]),
    (MediaConnector, "fetch_video", ["self", "video_url", "image_mode", "video_processor"]),
    (MediaConnector, "load_from_url", ["self", "url", "media_io", "fetch_timeout"]),
]


@pytest.mark.parametrize(("owner", "name", "parameters"), OVERRIDDEN)
def test_an_overridden_method_has_the_signature_it_was_written_for(owner, name, parameters):
    assert parameters == list(inspect.signature(getattr(owner, name)).parameters)


def test_the_plugin_is_for_the_installed_vllm():
    assert vllm.__version__.split("+")[0] in SUPPORTED_VLLM


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_plugin_offers_a_class_for_each_architecture(architecture):
    """Importing it checks the methods listed in server.evs.contract."""
    ours = getattr(importlib.import_module(ARCHITECTURES[architecture]), architecture)

    assert ours.supports_multimodal_pruning
    assert METHODS_OF_ARCHITECTURE[architecture] == ours.supported_video_pruning_methods
    assert architecture in [base.__name__ for base in ours.__mro__[1:]]


def test_a_method_that_upstream_lost_or_changed_is_named():
    class Upstream:
        def embed_multimodal(self, pixels):
            """Takes something else."""

    with pytest.raises(RuntimeError, match=r"Upstream\.embed_multimodal takes \(pixels\)"):
        contract.require(Upstream, {"embed_multimodal": ["kwargs"]})
    with pytest.raises(RuntimeError, match=r"Upstream\.get_language_model.* is missing"):
        contract.require(Upstream, {"get_language_model": []})


def test_the_pruner_of_model_runner_v2_still_strips_and_recomputes():
    parameters = {
        name: list(inspect.signature(getattr(MultiModalPruner, name)).parameters)
        for name in ("strip", "recompute")
    }

    assert parameters == {
        "strip": ["self", "mm_embeds"],
        "recompute": ["self", "mm_embeds", "input_batch", "req_states"],
    }
    assert "inputs_embeds_size" in inspect.getsource(MultiModalPruner.strip)


def test_the_cpu_runner_still_lacks_the_switch_that_the_plugin_adds():
    source = inspect.getsource(inspect.getmodule(CPUModelRunner))

    assert "is_multimodal_pruning_enabled" not in source
    assert "is_multimodal_pruning_enabled" in inspect.getsource(GPUModelRunner.load_model)


def test_the_runner_still_lays_out_the_batch_for_the_sake_of_pruning():
    source = inspect.getsource(GPUModelRunner._gather_mm_embeddings)

    assert "self.is_multimodal_pruning_enabled and self.uses_mrope" in source
    assert "self._calc_mrope_positions(scheduler_output)" in source


def test_the_serving_class_still_calls_the_generators_that_are_watched():
    source = inspect.getsource(OpenAIServingChat._create_chat_completion)

    assert "self.chat_completion_stream_generator(" in source
    assert "self.chat_completion_full_generator(" in source


def test_rendering_can_still_leave_the_shared_cache_of_media_alone():
    assert "skip_mm_cache" in inspect.signature(OnlineRenderer.render_chat).parameters


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
