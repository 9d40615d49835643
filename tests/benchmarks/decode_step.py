"""What pruning costs a decode step: ``python -m tests.benchmarks.decode_step``.

Engines that differ in one thing stand side by side, each in its own process, and take turns, so
that whatever else the machine does strikes them all alike. In each round every engine gets the same
requests, and once all of them have been prefilled, a number of decode steps is timed. The result is
the ratio of the medians to that of the engine without pruning.

- ``off``: the engine without pruning.
- ``on``: pruning on, every request at rate 0, so that all prompts are equally long.
- ``upstream``: as ``on``, with vLLM's own model class, which clones and reduces the positions of
  the whole prompt for each request in each step. Only the switch that its CPU runner lacks is set.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

ARMS = ("off", "on", "upstream")
LIMIT = 1.02
"""Highest ratio of ``on`` to ``off``."""


def main() -> int:
    """Print the ratios; returns 0 when that of ``on`` is within the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40, help="decode steps timed in each round")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--frames", type=int, default=84, help="84 make a prompt of 4k tokens")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    arms: dict[str, Connection] = {}
    for arm in ARMS:
        ours, theirs = context.Pipe()
        context.Process(target=_serve, args=(arm, theirs, options), daemon=True).start()
        print(f"{arm}: loading", flush=True)
        prompt_tokens = ours.recv()
        print(f"{arm}: ready, {prompt_tokens} prompt tokens in each request", flush=True)
        arms[arm] = ours
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(options.rounds):
        # In turns, and each time another one first.
        for arm in sorted(ARMS, key=lambda arm: (ARMS.index(arm) + number) % len(ARMS)):
            arms[arm].send("round")
            seconds[arm] += arms[arm].recv()
        medians = ", ".join(f"{arm} {statistics.median(seconds[arm]) * 1e3:.2f} ms" for arm in ARMS)
        print(f"round {number + 1} of {options.rounds}: median step {medians}", flush=True)
    for arm in ARMS:
        arms[arm].send("stop")
    return _report(seconds)


def _report(seconds: dict[str, list[float]]) -> int:
    base = statistics.median(seconds["off"])
    for arm in ARMS[1:]:
        ratio = statistics.median(seconds[arm]) / base
        limit = f", limit {LIMIT}" if arm == "on" else ""
        print(f"{arm} / off: {ratio:.3f} over {len(seconds[arm])} steps{limit}")
    return 0 if statistics.median(seconds["on"]) / base <= LIMIT else 1


def _serve(arm: str, pipe: Connection, options: argparse.Namespace) -> None:
    """Run one engine, in a process of its own."""
    if arm == "upstream":
        os.environ["VLLM_PLUGINS"] = ""
    from server.evs.runner import enable_pruning_on_cpu
    from tests.evs.cases import Case, video
    from tests.evs.engines import Engine
    from tests.families import FAMILIES

    if arm == "upstream":
        enable_pruning_on_cpu()
    family = FAMILIES["qwen2_5_vl"]
    rate = {"video_pruning_rate": None} if arm == "off" else {}
    clip = video(options.frames, width=336, height=224)
    cases = [
        Case(str(number), (clip,), f" what is it number {number}")
        for number in range(options.requests)
    ]
    with Engine(
        family, "float32", enable_prefix_caching=True, max_num_seqs=options.requests, **rate
    ) as engine:
        requests = [case.request(family) for case in cases]
        prompt_tokens = len(_round(engine.llm, requests, 1)[1])
        pipe.send(prompt_tokens)
        while pipe.recv() != "stop":
            pipe.send(_round(engine.llm, requests, options.steps)[0])


def _round(llm: Any, requests: Sequence[Any], num_steps: int) -> tuple[list[float], list[int]]:
    """Returns the seconds of each timed decode step, and the token ids of one prompt."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=num_steps + 200, temperature=0, ignore_eos=True)
    names = [f"{time.monotonic_ns()}-{number}" for number in range(len(requests))]
    engine = llm.llm_engine
    for name, request in zip(names, requests, strict=True):
        engine.add_request(name, request, params)
    prefilled: dict[str, list[int]] = {}
    while len(prefilled) < len(requests):
        prefilled |= {output.request_id: output.prompt_token_ids for output in engine.step()}
    seconds = []
    for _ in range(num_steps):
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return seconds, next(iter(prefilled.values()))


if __name__ == "__main__":
    sys.exit(main())
