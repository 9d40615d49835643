"""What engines in this process do inside: recorded, and otherwise left alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch


@dataclass(frozen=True)
class LaidOut:
    """One prompt as the runner computed it."""

    token_ids: list[int]
    positions: torch.Tensor
    """Shape (3, N), after the whole prompt was prefilled."""
    delta: int
    """Of the answer's positions."""
    plans: list[Any]
    """Of its videos, in order; empty without the plugin."""


@contextmanager
def laid_out_prompts() -> Iterator[list[Any]]:
    """Record the state of each request that gets positions; see ``laid_out``."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    seen: list[Any] = []
    upstream = GPUModelRunner._init_mrope_positions

    def init(self: Any, state: Any) -> None:
        upstream(self, state)
        seen.append(state)

    with patch.object(GPUModelRunner, "_init_mrope_positions", init):
        yield seen


def laid_out(state: Any) -> LaidOut:
    """Returns what a recorded state holds by now."""
    from server.evs.plan import PruningPlan
    from server.evs.processing import PLAN_FIELD

    features = sorted(state.mm_features, key=lambda feature: feature.mm_position.offset)
    plans = [
        PruningPlan.from_tensor(feature.data[PLAN_FIELD].data)
        for feature in features
        if feature.modality == "video" and PLAN_FIELD in feature.data
    ]
    return LaidOut(
        token_ids=list(state.prompt_token_ids),
        positions=state.mrope_positions.clone(),
        delta=int(state.mrope_position_delta),
        plans=plans,
    )


@contextmanager
def retentions() -> Iterator[dict[int, torch.Tensor]]:
    """Record which tokens each pruned video keeps: their indices, by the video's fingerprint."""
    from server.evs import rows

    seen: dict[int, torch.Tensor] = {}
    upstream = rows.retained_indices

    def retained_indices(embeddings: Any, *, num_grids: int, plan: Any) -> torch.Tensor:
        seen[plan.fingerprint] = upstream(embeddings, num_grids=num_grids, plan=plan)
        return seen[plan.fingerprint]

    with patch.object(rows, "retained_indices", retained_indices):
        yield seen


@contextmanager
def tower(engine: Any) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Record what the vision tower makes of each image and video, before any pruning."""
    seen: dict[str, list[torch.Tensor]] = {"image": [], "video": []}
    model = model_of(engine)
    names = {"_process_image_input": "image", "_process_video_input": "video"}
    if not hasattr(model, "recompute_mrope_positions") or not hasattr(model, "visual"):
        # Nemotron makes prompts of its videos in _process_video_input itself.
        names = {"_process_image_input": "video"}
    spied = {name: _recorded(getattr(model, name), seen[kind]) for name, kind in names.items()}
    with patch.multiple(model, **spied):
        yield seen


def _recorded(upstream: Any, seen: list[torch.Tensor]) -> Any:
    def process(media: Any) -> Any:
        features = upstream(media)
        seen.extend(rows.reshape(-1, rows.shape[-1]) for rows in features)
        return features

    return process


def model_of(engine: Any) -> Any:
    """Returns the model of an engine in this process."""
    core = engine.llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner.get_model()


@contextmanager
def preemptions() -> Iterator[list[str]]:
    """Record which requests the scheduler takes the memory of."""
    from vllm.v1.core.sched.scheduler import Scheduler

    seen: list[str] = []
    upstream = Scheduler._preempt_request

    def preempt(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(request.request_id)
        return upstream(self, request, *args, **kwargs)

    with patch.object(Scheduler, "_preempt_request", preempt):
        yield seen


@contextmanager
def encoder_runs(engine: Any) -> Iterator[list[int]]:
    """Record each run of the encoder."""
    seen: list[int] = []
    model = model_of(engine)
    upstream = model.embed_multimodal

    def embed_multimodal(**kwargs: Any) -> Any:
        seen.append(len(seen))
        return upstream(**kwargs)

    with patch.object(model, "embed_multimodal", embed_multimodal):
        yield seen


@dataclass
class Drafts:
    """What a speculator drafted and what of it the engine took."""

    proposed: int = 0
    accepted: int = 0
    embedded: int = 0
    """Images and videos, chunk by chunk, whose rows the drafter was given."""


@contextmanager
def drafts() -> Iterator[Drafts]:
    """Count drafted tokens, and the media whose rows go to the drafter, one token ahead."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    seen = Drafts()
    make, gather = Scheduler.make_spec_decoding_stats, GPUModelRunner._gather_mm_embeddings

    def make_stats(self: Any, stats: Any, **numbers: Any) -> Any:
        seen.proposed += numbers["num_draft_tokens"]
        seen.accepted += numbers["num_accepted_tokens"]
        return make(self, stats, **numbers)

    def gather_rows(self: Any, output: Any, shift_computed_tokens: int = 0) -> Any:
        rows, places = gather(self, output, shift_computed_tokens)
        seen.embedded += len(rows) if shift_computed_tokens else 0
        return rows, places

    with (
        patch.object(Scheduler, "make_spec_decoding_stats", make_stats),
        patch.object(GPUModelRunner, "_gather_mm_embeddings", gather_rows),
    ):
        yield seen
