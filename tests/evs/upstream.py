"""The faults of vLLM 0.32.0's own pruning, each in its smallest form.

``python -m tests.evs.upstream`` shows them all.

Each runs in a process of its own, without this project's plugin. The CPU runner's missing switch is
the first of them; the others are what one meets once it is set.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

RESULT = "SEEN "


def main() -> int:
    """Print what is seen for each fault."""
    if len(sys.argv) > 1:
        print(RESULT + FAULTS[sys.argv[1]](), flush=True)
        return 0
    for name in FAULTS:
        command = [sys.executable, "-m", "tests.evs.upstream", name]
        environment = {**os.environ, "VLLM_PLUGINS": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
        errors = [line for line in done.stderr.splitlines() if "Error: " in line]
        seen = lines[-1].removeprefix(RESULT) if lines else "the engine dies: " + _tail(errors)
        print(f"- {name}: {seen}", flush=True)
    return 0


def _tail(errors: list[str]) -> str:
    return errors[-1].split("] ")[-1].strip() if errors else "without a word"


def _engine(
    name: str, dtype: str = "float32", *, rate: float | None = 0.5, **arguments: Any
) -> Any:
    from tests.evs.engines import Engine
    from tests.families import FAMILIES

    return Engine(FAMILIES[name], dtype, video_pruning_rate=rate, **arguments)


def _switched_on() -> None:
    from server.evs.runner import enable_pruning_on_cpu

    enable_pruning_on_cpu()


def _cpu_runner() -> str:
    from tests.evs.cases import ONE

    with _engine("qwen2_5_vl") as engine:
        engine.ask([ONE])
    return "an answer"


def _qwen3_5() -> str:
    from tests.evs.cases import ONE

    _switched_on()
    with _engine("qwen3_5", "bfloat16") as engine:
        engine.ask([ONE])
    return "an answer"


def _two_videos() -> str:
    from tests.evs.cases import TWO

    _switched_on()
    with _engine("qwen2_5_vl") as engine:
        engine.ask([TWO])
    return "an answer"


def _rate_zero() -> str:
    from server.evs.arithmetic import ENABLED_AT_RATE_ZERO
    from tests.evs.cases import ONE
    from tests.evs.engines import distance

    _switched_on()
    with _engine("qwen3_vl", rate=None) as engine:
        (expected,) = engine.ask([ONE])
    with _engine("qwen3_vl", rate=ENABLED_AT_RATE_ZERO) as engine:
        (found,) = engine.ask([ONE])
    return f"logprobs differ by {distance(expected, found):.2g} though nothing is removed"


def _prefix_cache() -> str:
    from tests.evs.cases import ONE
    from tests.evs.engines import distance

    _switched_on()
    with _engine("qwen3_vl", enable_prefix_caching=True) as engine:
        (first,), (second,) = engine.ask([ONE]), engine.ask([ONE])
    return f"the same request twice: logprobs differ by {distance(first, second):.2g}"


def _chunks() -> str:
    from tests.evs.cases import ONE
    from tests.evs.engines import distance

    _switched_on()
    with _engine("qwen3_vl") as engine:
        (whole,) = engine.ask([ONE])
    with _engine("qwen3_vl", max_num_batched_tokens=48) as engine:
        (chunked,) = engine.ask([ONE])
    return f"chunks of 48 against whole: logprobs differ by {distance(whole, chunked):.2g}"


def _last_position(rate: float | None, fps: float, dtype: str = "float32") -> tuple[int, int]:
    """Returns the position of the last prompt token, and the largest time of the video's."""
    from tests.evs import spies
    from tests.evs.cases import Case, video
    from tests.families import video_token_id

    case = Case("clip", (video(16, fps=fps),))
    with _engine("qwen2_5_vl", dtype, rate=rate) as engine, spies.laid_out_prompts() as states:
        engine.ask([case], max_tokens=1)
    state = states[-1]
    positions = state.mrope_positions
    is_video = [token == video_token_id("qwen2_5_vl") for token in state.prompt_token_ids]
    return int(positions[0, -1]), int(positions[0][is_video].max() - positions[0][is_video].min())


def _text_after_a_clip() -> str:
    from server.evs.arithmetic import ENABLED_AT_RATE_ZERO

    _switched_on()
    expected, _ = _last_position(None, fps=2.0)
    found, _ = _last_position(ENABLED_AT_RATE_ZERO, fps=2.0)
    return f"nothing removed, yet the last token stands at {found} and not at {expected}"


def _four_frames_a_second() -> str:
    from server.evs.arithmetic import ENABLED_AT_RATE_ZERO

    _switched_on()
    _, expected = _last_position(None, fps=4.0)
    _, found = _last_position(ENABLED_AT_RATE_ZERO, fps=4.0)
    return f"8 grids of half a second span {found} steps in time and not {expected}"


def _rate_of_a_request() -> str:
    from tests.evs.cases import ONE

    _switched_on()
    lengths = []
    with _engine("qwen2_5_vl") as engine:
        requests = [case.request(engine.family) for case in (ONE, ONE.at(0.0), ONE.at(0.9))]
        for request in requests:
            (output,) = engine.llm.generate([request], use_tqdm=False)
            lengths.append(len(output.prompt_token_ids))
    return f"prompts at the engine's 0.5, at 0.0 and at 0.9 have {lengths} tokens"


def _sixteen_bits() -> str:
    from tests.evs import spies
    from tests.evs.cases import Case, video

    _switched_on()
    case = Case("long", (video(600, width=56, height=56),))
    with _engine("qwen2_5_vl", "bfloat16") as engine, spies.laid_out_prompts() as states:
        engine.ask([case], max_tokens=1)
    times = states[-1].mrope_positions[0]
    late = sorted({int(time) for time in times if time > 300})[:6]
    return f"times of 300 grids, one apart when unpruned, beyond 300: {late}"


FAULTS: dict[str, Callable[[], str]] = {
    "CPU runner, rate 0.5": _cpu_runner,
    "Qwen3.5, one video": _qwen3_5,
    "Qwen2.5-VL, two videos": _two_videos,
    "Qwen3-VL, rate 0 against no pruning": _rate_zero,
    "Qwen3-VL, prefix cache": _prefix_cache,
    "Qwen3-VL, chunked prefill": _chunks,
    "Qwen2.5-VL, text after a clip": _text_after_a_clip,
    "Qwen2.5-VL, 4 frames a second": _four_frames_a_second,
    "Qwen2.5-VL, a rate of one's own": _rate_of_a_request,
    "Qwen2.5-VL, bfloat16": _sixteen_bits,
}

if __name__ == "__main__":
    sys.exit(main())
