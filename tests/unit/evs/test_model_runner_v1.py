"""Model Runner V1's own bookkeeping of positions in steps with and without media. No model."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from server.evs.positions import PrunedSpan, lay_out, write_retained
from server.evs.runner import lay_out_marks_alone
from tests.unit.evs.test_positions import FIRST, channels

PROMPT = 10
"""Tokens of each prompt; the second one's are a video of 6 between 2 and 2 words."""
KEPT = [0, 1, 2, 3, 9, 11]


class Runner:
    """One request that decodes with two drafts, and one whose video is prefilled."""

    use_async_spec_decode = uses_mrope = is_multimodal_pruning_enabled = True
    _gather_mm_embeddings = GPUModelRunner._gather_mm_embeddings
    _calc_mrope_positions = GPUModelRunner._calc_mrope_positions

    def __init__(self) -> None:
        video = lay_out(PROMPT, [PrunedSpan(2, len(KEPT), extent=3, fingerprint=FIRST)])
        self.requests = {
            "decoding": request(*lay_out(PROMPT, []), num_computed=PROMPT + 4, features=[]),
            "prefilled": request(*video, num_computed=0, features=[feature(2, len(KEPT))]),
        }
        self.input_batch = SimpleNamespace(
            req_ids=list(self.requests),
            num_computed_tokens_cpu=np.array([PROMPT + 4, 0]),
        )
        self.model = SimpleNamespace(recompute_mrope_positions=self._recompute)
        self.recomputed = 0
        # The buffer on the device is another tensor than the host's, as on a GPU.
        self.mrope_positions = CpuGpuBuffer(3, 64, dtype=torch.int64, device=torch.device("cpu"))

    def _get_encoder_output_from_cache(self, mm_hash: str) -> torch.Tensor:
        return channels(KEPT, FIRST)

    def _recompute(self, *, multimodal_embeddings, mrope_positions, num_computed_tokens, **_):
        self.recomputed += 1
        if multimodal_embeddings:
            write_retained(
                multimodal_embeddings, mrope_positions, num_computed_tokens=num_computed_tokens
            )
        return multimodal_embeddings, mrope_positions, 0


def request(positions, delta, *, num_computed, features):
    return SimpleNamespace(
        mrope_positions=positions,
        mrope_position_delta=delta,
        prompt_token_ids=[0] * PROMPT,
        prompt_embeds=None,
        num_computed_tokens=num_computed,
        mm_features=features,
    )


def feature(offset, length):
    place = SimpleNamespace(
        offset=offset,
        length=length,
        is_embed=None,
        get_embeds_indices_in_range=lambda start, end: (start, end),
    )
    return SimpleNamespace(mm_position=place, identifier="hash", modality="video")


@pytest.fixture
def wrapped(monkeypatch):
    monkeypatch.setattr(
        GPUModelRunner, "_gather_mm_embeddings", GPUModelRunner._gather_mm_embeddings
    )
    lay_out_marks_alone()
    monkeypatch.setattr(Runner, "_gather_mm_embeddings", GPUModelRunner._gather_mm_embeddings)


def test_rejected_drafts_move_the_next_positions_back_while_a_video_gets_its_own(wrapped):
    runner = Runner()
    scheduled = {"decoding": 3, "prefilled": PROMPT}
    output = SimpleNamespace(num_scheduled_tokens=scheduled, total_num_scheduled_tokens=13)
    # What _prepare_inputs does: the host's positions, moved back by the two rejected drafts.
    runner._calc_mrope_positions(output)
    on_device = runner.mrope_positions.gpu
    on_device.copy_(runner.mrope_positions.cpu)
    on_device[:, :3] -= 2

    runner._gather_mm_embeddings(output)

    assert on_device[0, :3].tolist() == [12, 13, 14]
    placed = runner.requests["prefilled"].mrope_positions
    assert (placed >= 0).all()
    assert torch.equal(on_device[:, 3:13], placed)


@pytest.mark.parametrize(
    ("num_computed", "shift"), [(PROMPT, 0), (PROMPT + 5, 0), (2 + len(KEPT), 0), (7, 1)]
)
def test_a_step_without_media_leaves_positions_to_the_runner(wrapped, num_computed, shift):
    runner = Runner()
    runner.requests["prefilled"].num_computed_tokens = num_computed
    output = SimpleNamespace(
        num_scheduled_tokens={"decoding": 1, "prefilled": 1}, total_num_scheduled_tokens=2
    )
    runner.mrope_positions.gpu[:, :2] = 77

    rows, places = runner._gather_mm_embeddings(output, shift)

    assert rows == []
    assert not places.any()
    assert runner.recomputed == 0
    assert runner.is_multimodal_pruning_enabled
    assert (runner.mrope_positions.gpu[:, :2] == 77).all()


def test_one_token_of_a_video_is_media(wrapped):
    runner = Runner()
    runner.requests["prefilled"].num_computed_tokens = 1 + len(KEPT)
    output = SimpleNamespace(
        num_scheduled_tokens={"decoding": 1, "prefilled": 1}, total_num_scheduled_tokens=2
    )

    rows, places = runner._gather_mm_embeddings(output)

    assert [len(row) for row in rows] == [1]
    assert places.tolist() == [False, True]
    assert runner.recomputed == len(runner.requests)


def test_pruning_stays_on_after_a_step_that_failed(wrapped, monkeypatch):
    runner = Runner()
    runner.requests["prefilled"].num_computed_tokens = PROMPT
    output = SimpleNamespace(
        num_scheduled_tokens={"decoding": 1, "prefilled": 1},
        total_num_scheduled_tokens="not a number",
    )

    with pytest.raises(TypeError):
        runner._gather_mm_embeddings(output)

    assert runner.is_multimodal_pruning_enabled
