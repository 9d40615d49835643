"""What must hold, one function for each property; each yields measurements and their limits."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from server.evs.plan import PruningPlan
from server.evs.plugin import METHODS_OF_ARCHITECTURE
from tests.evs import spies
from tests.evs.cases import (
    IDENTITY,
    IN_16_BITS,
    LONGEST,
    ONE,
    PRUNED,
    TEXT,
    TWO,
    UNPRUNED,
    Case,
    image,
    still,
    video,
)
from tests.evs.engines import Answer, Engine, distances
from tests.evs.reference import NemotronReference, Reference
from tests.families import Family, speculator, video_token_id
from tests.families.parts import Vocabulary

FLOAT32_TOLERANCE = 1e-3
"""In logprob; a position off by one moves them by tenths."""
BFLOAT16_STEP = 2**-4
"""Between one logit above 8 and the next; a single rounding that falls otherwise."""
CHUNKS = (48, 160)
NO_PREFIX_CACHE = "vLLM's prefix cache does not run for it on a CPU (mamba_mixer2.py)"
NGRAM = {
    **{"method": "ngram", "num_speculative_tokens": 3},
    **{"prompt_lookup_min": 1, "prompt_lookup_max": 2},
}
ACCEPTED = ("ngram", "draft_model")
"""Speculators that must be right now and then; a random head need not."""
EMBEDDED = ("mtp",)
"""Speculators that vLLM hands the rows of images and videos; the others read tokens only."""


@dataclass(frozen=True)
class Measurement:
    """One comparison of one property."""

    name: str
    value: float
    limit: float
    at_least: bool = False
    """Whether ``limit`` must be exceeded: a control, which shows that the check can fail."""

    is_note: bool = False
    """Whether ``name`` only says what could not be measured, and why."""

    @classmethod
    def note(cls, text: str) -> Self:
        """Returns what stands beside the cell instead of a comparison."""
        return cls(text, 0, 0, is_note=True)

    @property
    def holds(self) -> bool:
        """Whether it is within its limit."""
        return self.value > self.limit if self.at_least else self.value <= self.limit


class Bench:
    """One family in one dtype, with the answers that several properties share."""

    def __init__(self, family: Family, dtype: str) -> None:
        self.family = family
        self.dtype = dtype

    def engine(self, **arguments: Any) -> Engine:
        """Returns an engine that starts when entered."""
        return Engine(self.family, self.dtype, **arguments)

    @functools.cached_property
    def pruned(self) -> Sequence[Case]:
        """The cases held against the reference and under every schedule."""
        cases = PRUNED if "float32" in self.family.dtypes else IN_16_BITS
        if "vidcom2" not in METHODS_OF_ARCHITECTURE[self.family.architecture]:
            return cases
        return [*cases, ONE.at(0.5, method="vidcom2"), TWO.at(0.9, 0.25, method="vidcom2")]

    @functools.cached_property
    def noisy(self) -> Sequence[Case]:
        """The cases that show what an engine's own rounding changes."""
        return [case for case in IDENTITY if case.name != LONGEST.name]

    @functools.cached_property
    def unpruned(self) -> list[Answer]:
        """Of an engine without pruning."""
        with self.engine(video_pruning_rate=None) as engine:
            return engine.ask(IDENTITY)

    @functools.cached_property
    def whole(self) -> list[Answer]:
        """Of prompts prefilled at once, in one batch."""
        with self.engine() as engine:
            return engine.ask(self.pruned)

    @functools.cached_property
    def tolerance(self) -> float:
        """In logprob: in 16 bits twice what chunks change on an engine without pruning."""
        if self.dtype == "float32":
            return FLOAT32_TOLERANCE
        noise = [0.0]
        with self.engine(video_pruning_rate=None) as engine:
            whole = engine.ask(self.noisy)
            noise += distances(whole, engine.ask(self.noisy, alone=True)).values()
        for chunk in CHUNKS:
            arguments = {"video_pruning_rate": None, "max_num_batched_tokens": chunk}
            with self.engine(**arguments) as engine:
                noise += distances(whole, engine.ask(self.noisy)).values()
        return 2 * max(noise)


def identity(bench: Bench) -> Iterator[Measurement]:
    """At rate 0 the same answers as an engine without pruning."""
    with bench.engine() as engine:
        found = engine.ask(IDENTITY)
    for case, value in distances(bench.unpruned, found).items():
        yield Measurement(case, value, bench.tolerance)


def reference(bench: Bench) -> Iterator[Measurement]:
    """At every rate the answers of EVS in plain transformers.

    In float32 transformers has its own vision tower. In 16 bits it is given what the engine's tower
    made, since rounding in another one chooses other tokens, and the limit is twice the distance
    of prompts of which nothing is removed.
    """
    cases, unpruned = bench.pruned, UNPRUNED
    if not bench.family.has_mrope:
        # Its reference has no picture of its own, only what the tower made of videos.
        cases, unpruned = (
            [case for case in some if len(case.videos) == len(case.media)]
            for some in (cases, unpruned)
        )
        right: Any = NemotronReference(bench.family, bench.dtype)
    else:
        right = Reference(bench.family, bench.dtype)
    in_16_bits = bench.dtype != "float32"
    asked = [*unpruned, *cases] if in_16_bits else cases
    found, features = _answers_and_features(bench, asked)
    given = features if in_16_bits else [None] * len(asked)
    measured = distances([*map(right.answer, asked, given)], found)
    limit = bench.tolerance
    if in_16_bits:
        limit = max(limit, 2 * max(measured[case.name] for case in unpruned))
    for case in cases:
        yield Measurement(case.name, measured[case.name], limit)
    if bench.family.has_mrope:
        wrong = Reference(bench.family, bench.dtype, misplaced=1)
        displaced = distances([*map(wrong.answer, asked, given)], found)
        if in_16_bits:
            # Not every prompt notices one position more than rounding; that some do is the control.
            displaced = {"the worst": max(displaced.values())}
        for name, value in displaced.items():
            yield Measurement(f"{name}, one position off", value, limit, at_least=True)


def _answers_and_features(
    bench: Bench, cases: Sequence[Case]
) -> tuple[list[Answer], list[dict[str, list[torch.Tensor]]]]:
    """Returns answers, and what the engine's tower made of each prompt's media."""
    answers, features = [], []
    with bench.engine() as engine:
        for case in cases:
            engine.forget_media()
            with spies.tower(engine) as seen:
                answers += engine.ask([case])
            features.append(seen)
    return answers, features


def positions(bench: Bench) -> Iterator[Measurement]:
    """Every position is, as an integer, that of the engine without pruning."""
    if not bench.family.has_mrope:
        yield Measurement.note("its attention has no positions")
        return
    video_token = video_token_id(bench.family.name)
    minutes = Case("600 grids", (video(1200, seed=12, width=64, height=64),)).at(0.75)
    cases = [*bench.pruned, minutes]
    with bench.engine(video_pruning_rate=None) as engine:
        with spies.laid_out_prompts() as states:
            engine.ask([case.at(None) for case in cases], alone=True, max_tokens=1)
        expected = [spies.laid_out(state) for state in states]
    with (
        bench.engine() as engine,
        spies.laid_out_prompts() as states,
        spies.retentions() as kept,
    ):
        for case, unpruned in zip(cases, expected, strict=True):
            engine.ask([case], max_tokens=1)
            found = spies.laid_out(states[-1])
            wanted = _surviving(unpruned, found.plans, kept, video_token)
            misplaced = int((wanted != found.positions).any(dim=0).sum())
            yield Measurement(f"{case.name}, misplaced tokens", misplaced, 0)
            text = [_text_ids(prompt, video_token) for prompt in (unpruned, found)]
            yield Measurement(f"{case.name}, other text", int(text[0] != text[1]), 0)
            if not any(plan.prunes for plan in found.plans):
                other = int(unpruned.token_ids != found.token_ids)
                yield Measurement(f"{case.name}, another prompt", other, 0)
            drift = len(found.token_ids) + found.delta - len(unpruned.token_ids) - unpruned.delta
            yield Measurement(f"{case.name}, misplaced answer", abs(drift), 0)
    yield Measurement("largest position", int(found.positions.max()), 1000, at_least=True)


def _surviving(
    unpruned: spies.LaidOut,
    plans: Sequence[PruningPlan],
    kept: Mapping[int, torch.Tensor],
    video_token: int,
) -> torch.Tensor:
    """Returns the unpruned prompt's positions without the columns that were pruned."""
    is_video = torch.tensor(unpruned.token_ids) == video_token
    places = is_video.nonzero().flatten()
    survives = torch.ones(len(unpruned.token_ids), dtype=torch.bool)
    for plan in plans:
        own, places = places[: plan.num_video_tokens], places[plan.num_video_tokens :]
        if plan.prunes:
            survives[own] = False
            survives[own[kept[plan.fingerprint]]] = True
    return unpruned.positions[:, survives]


def _text_ids(prompt: spies.LaidOut, video_token: int) -> list[int]:
    """Returns what is not a video token, as penalties see it: in no order."""
    return sorted(token for token in prompt.token_ids if token != video_token)


def schedule(bench: Bench) -> Iterator[Measurement]:
    """Alone, in chunks, from the prefix cache, after preemption: the same answers."""
    limit, whole = bench.tolerance, bench.whole

    def compared(name: str, found: list[Answer]) -> Iterator[Measurement]:
        for case, value in distances(whole, found).items():
            yield Measurement(f"{name}, {case}", value, limit)

    with bench.engine() as engine:
        yield from compared("alone", engine.ask(bench.pruned, alone=True))
    for chunk in CHUNKS:
        with bench.engine(max_num_batched_tokens=chunk) as engine:
            yield from compared(f"chunks of {chunk}", engine.ask(bench.pruned))
    if not bench.family.has_prefix_cache:
        yield Measurement.note(NO_PREFIX_CACHE)
    else:
        with bench.engine(enable_prefix_caching=True, max_num_batched_tokens=96) as engine:
            engine.ask(bench.pruned)
            yield from compared("prefix cache", engine.ask(bench.pruned))
    with bench.engine(**bench.family.scarce_memory) as engine, spies.preemptions() as seen:
        yield from compared("preemption", engine.ask(bench.pruned))
    yield Measurement("preemptions", len(seen), 0, at_least=True)


def dialogue(bench: Bench) -> Iterator[Measurement]:
    """Another question, and a longer dialogue, about a video that the prefix cache knows."""
    if not bench.family.has_prefix_cache:
        yield Measurement.note(NO_PREFIX_CACHE)
        return
    first = ONE.at(0.75)
    longer = f"{first.question}<|im_end|>\n<|im_start|>assistant\n red ball<|im_end|>\n"
    later = [
        Case("another question", first.media, " where does it go"),
        Case("a longer dialogue", first.media, f"{longer}<|im_start|>user\n and then"),
        Case("a second video", (*first.media, video(8, seed=4)), " and this").at(0.75, 0.5),
    ]
    with bench.engine() as engine:
        expected = engine.ask(later)
    with bench.engine(enable_prefix_caching=True) as engine:
        engine.ask([first])
        found = engine.ask(later)
    for case, value in distances(expected, found).items():
        yield Measurement(case, value, bench.tolerance)


def mix(bench: Bench) -> Iterator[Measurement]:
    """Rates never share what they must not, and the same rate shares what it can."""
    caching = {"enable_prefix_caching": bench.family.has_prefix_cache}
    with bench.engine(**caching) as engine, spies.encoder_runs(engine) as runs:
        for rate, expected in ((0.5, 1), (0.5, 1), (0.75, 2), (0.5, 2), (0.75, 2), (0.0, 3)):
            engine.ask([ONE.at(rate)], max_tokens=1)
            yield Measurement(f"encoder runs after {rate}", abs(len(runs) - expected), 0)
        mixed = [ONE.at(0.0), ONE.at(0.5), ONE.at(0.75), TWO.at(0.5, 0.75)]
        together = engine.ask(mixed)
    with bench.engine() as engine:
        separate = engine.ask(mixed, alone=True)
    for case, value in distances(separate, together).items():
        yield Measurement(f"rates in one batch, {case}", value, bench.tolerance)


def speculation(bench: Bench) -> Iterator[Measurement]:
    """Speculative decoding: the same greedy tokens as without, and positions that stay.

    N-grams find something in answers of few words only. In 16 bits the kernels that verify drafts
    round otherwise than those that make one token; the limit is twice what that does unpruned.
    """
    for method, reason in bench.family.unspeculated.items():
        yield Measurement.note(f"{method}: {reason}")
    if not bench.family.speculators:
        return
    cases = [TEXT, *bench.pruned]
    expected, placed, _ = _speculated(bench, cases)
    for method in bench.family.speculators:
        config = _speculator(bench.family, method)
        limit = bench.tolerance
        if bench.dtype != "float32":
            plain = {"video_pruning_rate": None}
            without, _, _ = _speculated(bench, bench.noisy, **plain)
            itself, _, _ = _speculated(bench, bench.noisy, speculative_config=config, **plain)
            own = max(distances(without, itself).values())
            limit = max(limit, 2 * own, BFLOAT16_STEP)
        found, positions, drafts = _speculated(bench, cases, speculative_config=config)
        for case, value in distances(expected, found).items():
            yield Measurement(f"{method}, {case}", value, limit)
        pairs = zip(placed, positions, strict=True)
        moved = sum(int((ours != theirs).sum()) for ours, theirs in pairs)
        yield Measurement(f"{method}, moved positions", moved, 0)
        yield Measurement(f"{method}, proposed drafts", drafts.proposed, 0, at_least=True)
        if method in ACCEPTED:
            yield Measurement(f"{method}, accepted drafts", drafts.accepted, 0, at_least=True)
        if method in EMBEDDED and bench.family.has_mrope:
            yield Measurement(f"{method}, media it was given", drafts.embedded, 0, at_least=True)


def _speculator(family: Family, method: str) -> dict[str, Any]:
    """Returns the engine's ``speculative_config``."""
    if method == "ngram":
        return NGRAM
    model = str(speculator(family.name, method))
    return {"method": method, "model": model, "num_speculative_tokens": 3}


def _speculated(
    bench: Bench, cases: Sequence[Case], **arguments: Any
) -> tuple[list[Answer], list[torch.Tensor], spies.Drafts]:
    """Returns longer answers, in any and in few words, the prompts' positions, and what drafted."""
    few = Vocabulary().word_ids[:3]
    arguments.setdefault("max_num_batched_tokens", CHUNKS[-1])
    with (
        bench.engine(**arguments) as engine,
        spies.drafts() as drafts,
        spies.laid_out_prompts() as states,
    ):
        answers = engine.ask(cases, max_tokens=16)
        answers += [
            replace(answer, case=f"{answer.case}, few words")
            for answer in engine.ask(cases, max_tokens=16, allowed_token_ids=few)
        ]
    return answers, [state.mrope_positions.clone() for state in states], drafts


SWEEP_FRAMES = (1, 2, 3, 15, 16, 31, 32, 768)
SWEEP_EDGES = (28, 56, 224, 1280)
SWEEP_RATES = (0.0, 0.5, 0.9, 0.99)


def never_dead(bench: Bench) -> Iterator[Measurement]:
    """Frames by sizes by rates by orders on one engine: every prompt is answered."""
    answered, asked = 0, 0
    with bench.engine(max_model_len=32768, kv_cache_memory_bytes=600 << 20) as engine:
        for num_frames in SWEEP_FRAMES:
            for edge in SWEEP_EDGES:
                if num_frames * edge * edge > 16 * 1280 * 1280:
                    continue  # more than a prompt holds, and minutes of a CPU
                size = {"width": edge, "height": max(28, edge // 2)}
                clip = video(num_frames, **size) if num_frames > 1 else still(**size)
                orders = [(clip,), (image(), clip), (clip, image()), (clip, video(2))]
                cases = [
                    Case(f"{num_frames} x {edge}", media).at(rate)
                    for rate in SWEEP_RATES
                    for media in (orders if num_frames <= 16 and edge <= 224 else orders[:1])
                ]
                asked += len(cases)
                answered += sum(len(a.tokens) == 2 for a in engine.ask(cases, max_tokens=2))
    yield Measurement(f"unanswered of {asked}", asked - answered, 0)


PROPERTIES = {
    "identity": identity,
    "reference": reference,
    "positions": positions,
    "schedule": schedule,
    "dialogue": dialogue,
    "mix": mix,
    "speculation": speculation,
    "never dead": never_dead,
}
