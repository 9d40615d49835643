"""What engines in this process do inside: recorded, and otherwise left alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class SeenPositions:
    """Positions of the last prompt that had a pruned video, and what they should have been."""

    walks: list[Any] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)
    found: torch.Tensor | None = None
    start: int = -1

    @property
    def num_misplaced(self) -> int:
        """Tokens of the video whose position is not exactly the unpruned one."""
        walk, kept = self.walks[-1], self.kept[-1]
        is_video = torch.from_numpy(walk.is_video)
        places = torch.cat([is_video.nonzero().flatten()[kept], (~is_video).nonzero().flatten()])
        expected = torch.from_numpy(walk.relative)[places.sort().values] + self.start
        assert self.found is not None
        found = self.found[:, self.start : self.start + len(expected)].T
        return int((found != expected).any(dim=1).sum())

    @property
    def largest(self) -> int:
        """The largest position of the prompt."""
        assert self.found is not None
        return int(self.found.max())


@contextmanager
def positions() -> Iterator[SeenPositions]:
    """Record the positions of one prompt with one pruned video."""
    from server.evs import mrope, rows

    seen = SeenPositions()
    upstream_rows, upstream_indices = mrope.retained_rows, rows.retained_indices
    upstream_write = mrope.positions.write_retained

    def retained_rows(embeddings: Any, text: Any, walk: Any, *args: Any, **kwargs: Any) -> Any:
        seen.walks.append(walk)
        return upstream_rows(embeddings, text, walk, *args, **kwargs)

    def retained_indices(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.kept.append(upstream_indices(*args, **kwargs))
        return seen.kept[-1]

    def write_retained(channels: Any, prompt: torch.Tensor, **kwargs: Any) -> None:
        if seen.start < 0:
            seen.start = int((prompt[0] < 0).nonzero()[0])
        upstream_write(channels, prompt, **kwargs)
        seen.found = prompt.clone()

    mrope.retained_rows, rows.retained_indices = retained_rows, retained_indices
    mrope.positions.write_retained = write_retained
    try:
        yield seen
    finally:
        mrope.retained_rows, rows.retained_indices = upstream_rows, upstream_indices
        mrope.positions.write_retained = upstream_write


@contextmanager
def preemptions() -> Iterator[list[str]]:
    """Record which requests the scheduler takes the memory of."""
    from vllm.v1.core.sched.scheduler import Scheduler

    seen: list[str] = []
    upstream = Scheduler._preempt_request

    def preempt(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(request.request_id)
        return upstream(self, request, *args, **kwargs)

    Scheduler._preempt_request = preempt
    try:
        yield seen
    finally:
        Scheduler._preempt_request = upstream


@contextmanager
def encoder_runs(engine: Any) -> Iterator[list[int]]:
    """Record each run of the video encoder."""
    seen: list[int] = []
    core = engine.llm.llm_engine.engine_core.engine_core
    model = core.model_executor.driver_worker.worker.model_runner.get_model()
    upstream = model.embed_multimodal

    def embed_multimodal(**kwargs: Any) -> Any:
        seen.append(len(seen))
        return upstream(**kwargs)

    model.embed_multimodal = embed_multimodal
    try:
        yield seen
    finally:
        del model.embed_multimodal
