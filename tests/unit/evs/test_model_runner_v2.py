"""Pruning under vLLM's Model Runner V2; see ``v2_runner`` for what is real about it."""

from collections.abc import Callable, Iterator

import pytest
import torch
from vllm.platforms import current_platform
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.mm import rope
from vllm.v1.worker.gpu.mm.rope import RopeState
from vllm.v1.worker.gpu.model_states.interface import ModelState

from server.evs.arithmetic import ENABLED_AT_RATE_ZERO
from server.evs.plan import MAX_FINGERPRINT, PruningPlan
from server.evs.positions import NUM_CHANNELS
from server.evs.processing import PLAN_FIELD
from server.evs.runner import keep_delta_in_rope_state
from tests.unit.evs.v2_prompts import (
    DEVICE,
    HIDDEN,
    MAX_REQUESTS,
    MAX_TOKENS,
    PROMPTS,
    QWEN2_5,
    QWEN3,
    WORD,
    Family,
    Prompt,
    Video,
    each_family,
    prompt_of,
)
from tests.unit.evs.v2_runner import Runner, Window, model_config_of, model_of, rope_state, state_of


@pytest.fixture(autouse=True)
def kernels_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs V2's kernels in Triton's interpreter on a CPU, for which vLLM switches Triton off."""
    if not current_platform.is_cpu():
        return
    import triton.language
    from triton.runtime.interpreter import InterpretedFunction

    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    for module, name in (
        (buffer_utils, "_apply_write_kernel"),
        (rope, "_prepare_rope_positions_kernel"),
    ):
        monkeypatch.setattr(module, "tl", triton.language)
        monkeypatch.setattr(module, name, InterpretedFunction(getattr(module, name)))


@pytest.fixture
def upstream_update(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """vLLM's own update, in force until the test changes it and again after the test."""
    update = RopeState.update_prefill_positions
    upstream: Callable[..., None] = getattr(update, "__wrapped__", update)
    monkeypatch.setattr(RopeState, "update_prefill_positions", upstream)
    return upstream


@pytest.fixture
def kept_delta(upstream_update: Callable[..., None]) -> None:
    """The plugin's one change to V2, taken back after the test."""
    keep_delta_in_rope_state()


def prompts_of(family: Family, dtype: torch.dtype = torch.float32) -> dict[str, Prompt]:
    return {name: prompt_of(family, parts, dtype) for name, parts in PROMPTS.items()}


@each_family
def test_the_loop_that_counts_positions_here_agrees_with_vllm(family):
    prompt = prompt_of(family, PROMPTS["mixed"], prune=False)

    positions, delta = model_of(family, prunes=False).get_mrope_input_positions(
        prompt.token_ids, prompt.features
    )

    assert [tuple(triple) for triple in positions.T.tolist()] == prompt.positions()
    assert len(prompt.tokens) + delta == prompt.next_position


@each_family
def test_marks_and_positions_survive_the_states_of_several_requests(family):
    state, model = rope_state(), model_of(family)
    prompts = prompts_of(family)
    laid_out = [model.get_mrope_input_positions(p.token_ids, p.features) for p in prompts.values()]

    for index, prompt in enumerate(prompts.values()):
        state.init_prefill_positions(index, model, prompt.token_ids, prompt.features)
    state.apply_staged_writes()

    for index, (positions, delta) in enumerate(laid_out):
        stored = state.read_prefill_positions(index, positions.shape[1])
        assert stored.dtype == torch.int32
        assert stored.tolist() == positions.tolist()
        assert state.prefill_delta.np[index] == delta
    lowest = [int(positions.min()) for positions, _ in laid_out]
    assert lowest == [0, -1 - MAX_FINGERPRINT, -1 - 2**30, -1 - MAX_FINGERPRINT]


@each_family
def test_only_tokens_of_pruned_videos_wait_for_the_encoder(family):
    model = model_of(family)

    for prompt in prompts_of(family).values():
        positions, delta = model.get_mrope_input_positions(prompt.token_ids, prompt.features)
        plans = [
            PruningPlan.from_tensor(f.data[PLAN_FIELD].data) if f.modality == "video" else None
            for f in prompt.features
        ]
        for token, triple in zip(prompt.tokens, positions.T.tolist(), strict=True):
            plan = None if token.medium is None else plans[token.medium]
            if plan is not None and plan.prunes:
                assert max(triple) < 0
            else:
                assert tuple(triple) == token.position
        assert len(prompt.tokens) + delta == prompt.next_position


def test_final_positions_written_back_leave_other_requests_alone(kept_delta):
    state, model = rope_state(), model_of(QWEN3)
    prompts = list(prompts_of(QWEN3).values())
    for index, prompt in enumerate(prompts):
        state.init_prefill_positions(index, model, prompt.token_ids, prompt.features)
    state.apply_staged_writes()
    before = state.prefill_positions.gpu.clone()

    final = torch.tensor(prompts[1].positions(), device=DEVICE).T
    state.update_prefill_positions(1, final, None)

    assert state.read_prefill_positions(1, final.shape[1]).tolist() == final.tolist()
    others = [row for row in range(3 * MAX_REQUESTS) if row not in (3, 4, 5)]
    assert torch.equal(state.prefill_positions.gpu[others], before[others])


def test_the_delta_of_the_layout_outlives_an_update_without_one(kept_delta):
    state, model = rope_state(), model_of(QWEN2_5)
    prompt = prompt_of(QWEN2_5, PROMPTS["mixed"])
    state.init_prefill_positions(2, model, prompt.token_ids, prompt.features)
    state.apply_staged_writes()

    state.update_prefill_positions(2, state.read_prefill_positions(2, 4).long(), None)

    assert state.prefill_delta.np[2] == prompt.next_position - len(prompt.tokens)


def test_a_delta_that_is_given_is_still_taken(kept_delta):
    state = rope_state()

    state.update_prefill_positions(1, torch.zeros(3, 2, dtype=torch.long), 17)

    assert state.prefill_delta.np[1] == 17


def test_without_the_plugins_change_an_update_without_delta_fails_loudly(upstream_update):
    with pytest.raises(TypeError, match="NoneType"):
        rope_state().update_prefill_positions(1, torch.zeros(3, 2, dtype=torch.long), None)


def test_the_change_is_made_once(upstream_update):
    keep_delta_in_rope_state()
    once = RopeState.update_prefill_positions
    keep_delta_in_rope_state()

    assert RopeState.update_prefill_positions is once
    assert once.__wrapped__ is upstream_update


@pytest.mark.parametrize(
    ("chunk", "dtype"),
    [
        (1, torch.float32),
        (3, torch.float32),
        (7, torch.bfloat16),
        (MAX_TOKENS, torch.float32),
    ],
    ids=str,
)
@each_family
def test_every_request_of_a_batch_is_exact_in_chunks_of_any_size(family, chunk, dtype, kept_delta):
    runner, prompts = Runner(family, dtype), prompts_of(family, dtype)
    for name, prompt in prompts.items():
        runner.add(name, prompt)
    given: dict[str, list[Window]] = {name: [] for name in prompts}

    # Requests that are done with their prompt decode beside the others, and all of them at last.
    left = {name: runner.unprefilled(name) for name in prompts}
    while any(count > -2 for count in left.values()):
        windows = runner.step({name: min(chunk, max(1, count)) for name, count in left.items()})
        for name, window in windows.items():
            given[name].append(window)
        left = {name: runner.unprefilled(name) for name in prompts}

    for name, prompt in prompts.items():
        positions = [triple for window in given[name] for triple in window.positions]
        rows = torch.cat([window.rows for window in given[name]])
        num_generated = len(positions) - len(prompt.tokens)
        assert num_generated >= 2
        assert positions == prompt.positions() + decoded(prompt, num_generated)
        assert torch.equal(rows[: len(prompt.tokens)], prompt.rows())
        assert runner.stored_positions(name, prompt) == prompt.positions()


def decoded(prompt: Prompt, count: int) -> list[tuple[int, ...]]:
    """Positions of generated tokens."""
    return [(prompt.next_position + index,) * 3 for index in range(count)]


@pytest.mark.parametrize("chunk", [1, 3, 7, MAX_TOKENS])
@each_family
def test_the_pruner_hands_on_what_is_retained_in_order(family, chunk, kept_delta):
    runner, prompts = Runner(family), prompts_of(family)
    for name, prompt in prompts.items():
        runner.add(name, prompt)

    while left := {name: n for name in prompts if (n := runner.unprefilled(name)) > 0}:
        batch = runner.batch({name: min(chunk, count) for name, count in left.items()})
        runner.state.execute_mm_encoder(runner.encoder_inputs(batch))
        gathered, is_embed = ModelState.gather_mm_embeddings(runner.state, batch)
        cleaned = runner.state.mm_pruner.recompute(gathered, batch, runner.requests)

        expected = [
            token
            for name, start, count in scheduled(batch)
            for token in prompts[name].tokens[start : start + count]
        ]
        rows = [token.row for token in expected if token.medium is not None]
        assert [rows.shape[1] for rows in gathered] == [family.width + NUM_CHANNELS] * len(gathered)
        assert is_embed.tolist() == [token.medium is not None for token in expected]
        assert torch.equal(
            torch.cat([torch.zeros(0, family.width), *(c.cpu() for c in cleaned)]),
            torch.cat([torch.zeros(0, family.width), *(row[None] for row in rows)]),
        )
        assert [c.modality for c in cleaned] == [g.modality for g in gathered]
        runner.finish(batch)

    for name, prompt in prompts.items():
        assert runner.stored_positions(name, prompt) == prompt.positions()


def scheduled(batch: InputBatch) -> Iterator[tuple[str, int, int]]:
    """Yields each request, its computed tokens, and its tokens in the batch."""
    return zip(
        batch.req_ids,
        batch.num_computed_tokens_np.tolist(),
        batch.num_scheduled_tokens.tolist(),
        strict=True,
    )


@each_family
def test_a_chunk_may_end_before_inside_or_behind_a_video_or_inside_its_text(family, kept_delta):
    runner, prompt = Runner(family), prompt_of(family, PROMPTS["mixed"])

    for border in range(1, len(prompt.tokens)):
        runner.add("request", prompt)
        first = runner.step({"request": border})["request"]
        second = runner.step({"request": len(prompt.tokens) - border})["request"]
        runner.remove("request")

        assert first.positions + second.positions == prompt.positions()
        assert torch.equal(torch.cat([first.rows, second.rows]), prompt.rows())


@each_family
def test_a_prefix_found_in_the_cache_may_end_anywhere(family, kept_delta):
    prompt = prompt_of(family, PROMPTS["mixed"])

    for border in range(1, len(prompt.tokens)):
        runner = Runner(family)
        runner.add("request", prompt, num_computed=border)
        given = runner.step({"request": len(prompt.tokens) - border})["request"]

        assert given.positions == prompt.positions()[border:]
        assert torch.equal(given.rows, prompt.rows()[border:])


@pytest.mark.parametrize("num_cached", [0, 20, "all but one"])
@each_family
def test_a_preempted_request_goes_on_where_it_was(family, num_cached, kept_delta):
    runner, prompt = Runner(family), prompt_of(family, PROMPTS["mixed"])
    generated = [WORD, WORD + 1, WORD + 2]
    runner.add("preempted", prompt)
    runner.step({"preempted": 20})
    runner.step({"preempted": len(prompt.tokens) - 20})
    for _ in generated:
        runner.step({"preempted": 1})

    runner.remove("preempted")
    runner.cache.reset_encoder_cache()
    runner.add("takes its slot", prompt_of(family, PROMPTS["other rate"]))
    num_tokens = len(prompt.tokens) + len(generated)
    num_computed = num_tokens - 1 if num_cached == "all but one" else num_cached
    runner.add("preempted", prompt, generated=generated, num_computed=num_computed)
    resumed = runner.step({"preempted": num_tokens - num_computed, "takes its slot": 1})
    after = runner.step({"preempted": 1})

    expected = prompt.positions() + decoded(prompt, len(generated) + 1)
    assert resumed["preempted"].positions + after["preempted"].positions == expected[num_computed:]
    num_rows = len(prompt.tokens) - num_computed
    if num_rows > 0:
        assert torch.equal(resumed["preempted"].rows[:num_rows], prompt.rows()[num_computed:])


def test_tokens_kept_by_vidcom2_keep_their_positions_too(kept_delta):
    video = Video(4, 2, 3, seed=5, rate=0.6, fingerprint=99, method="vidcom2")
    runner, prompt = Runner(QWEN3), prompt_of(QWEN3, [2, video, 2])
    runner.add("request", prompt)

    given = [runner.step({"request": 9}), runner.step({"request": len(prompt.tokens) - 9})]

    assert [p for step in given for p in step["request"].positions] == prompt.positions()
    assert torch.equal(torch.cat([step["request"].rows for step in given]), prompt.rows())


@each_family
def test_a_drafter_is_given_plain_embeddings_one_token_ahead(family, kept_delta):
    runner, prompt = Runner(family), prompt_of(family, PROMPTS["mixed"])
    runner.add("request", prompt)

    while (left := runner.unprefilled("request")) > 0:
        batch = runner.batch({"request": min(3, left)})
        runner.forward(batch)
        stored = runner.stored_positions("request", prompt)
        drafted, is_embed = runner.state.gather_mm_embeddings(batch, draft_lookahead=1)

        ((_, start, count),) = scheduled(batch)
        ahead = prompt.tokens[start + 1 : start + count + 1]
        features = [
            repr(None) if t.medium is None else prompt.features[t.medium].identifier for t in ahead
        ]
        is_known = [name in runner.cache.encoder_outputs for name in features]
        rows = [t.row[:HIDDEN] for t, known in zip(ahead, is_known, strict=True) if known]
        assert is_embed.tolist()[: len(ahead)] == is_known
        assert not is_embed[len(ahead) :].any()
        assert [list(d.shape[1:]) for d in drafted] == [[HIDDEN]] * len(drafted)
        assert sum(len(d) for d in drafted) == len(rows)
        if rows:
            assert torch.equal(torch.cat(drafted).cpu(), torch.stack(rows))
        assert runner.stored_positions("request", prompt) == stored
        runner.finish(batch)


@each_family
def test_stripping_leaves_what_a_drafter_adds_up_with_text_embeddings(family):
    """So deepstack columns go with the channels: no drafter of vLLM takes them."""
    pruner = state_of(family).mm_pruner
    rows = torch.arange(2.0 * (family.width + NUM_CHANNELS)).view(2, -1)
    rows.modality = "video"

    (stripped,) = pruner.strip([rows])

    assert model_config_of(family).get_inputs_embeds_size() == HIDDEN
    assert torch.equal(stripped, rows[:, :HIDDEN])
    assert stripped.modality == "video"


@pytest.mark.parametrize("rate", [ENABLED_AT_RATE_ZERO, 0.5])
@each_family
def test_an_engine_that_prunes_has_a_pruner(family, rate):
    pruner = state_of(family, rate=rate).mm_pruner

    assert isinstance(pruner.model, family.model_class)


@pytest.mark.parametrize("rate", [None, 0.0])
@each_family
def test_an_engine_that_does_not_prune_has_none(family, rate):
    assert state_of(family, rate=rate).mm_pruner is None
