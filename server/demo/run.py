"""``make demo``: start the server, ask it about the bundled clip at three rates, stop it.

The server is a child process of its own, spoken to over HTTP like any other, with the official
``openai`` client, so that what is shown is what a user gets.
"""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.childserver import child_server
from server.demo.clip import CLIP_PATH
from server.settings import load_settings
from server.timing import STAGES

RATES = (0.0, 0.5, 0.75)
QUESTION = "describe what moves in the video"


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer and what the server said about it."""

    text: str
    metrics: dict[str, Any]


def run_demo(config: Path | None, *, model: str | None = None) -> int:
    """Returns the exit code: 0 when every answer came and the server stopped cleanly."""
    keys = load_settings(config).http.api_keys
    api_key = keys[0].get_secret_value() if keys else "unused"
    with child_server(config, model=model) as server:
        if not server.wait_until_ready():
            return 1
        answers = {rate: _ask(server.base_url, rate, api_key) for rate in RATES}
        print("\nstopping the server", flush=True)
    print(_table(answers))
    print(f"server stopped with exit code {server.exit_code}", flush=True)
    return 1 if server.exit_code is None else server.exit_code


def _ask(base_url: str, rate: float, api_key: str) -> Answer:
    """Ask about the clip at ``rate``, printing the answer as it streams."""
    from openai import OpenAI

    video = base64.b64encode(CLIP_PATH.read_bytes()).decode()
    client = OpenAI(base_url=f"{base_url}/v1", api_key=api_key)
    # Any, because the SDK has no type for video parts.
    messages: Any = [
        {
            "role": "user",
            "content": [
                {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{video}"}},
                {"type": "text", "text": QUESTION},
            ],
        }
    ]
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=messages,
        max_tokens=24,
        temperature=0,
        stream=True,
        extra_body={"video_pruning_rate": rate},
    )
    print(f"video_pruning_rate={rate}: ", end="", flush=True)
    text = ""
    metrics: dict[str, Any] = {}
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            print(choice.delta.content or "", end="", flush=True)
        metrics = getattr(chunk, "metrics", None) or metrics
    print("\n", flush=True)
    return Answer(text, metrics)


def _table(answers: dict[float, Answer]) -> str:
    """Returns the comparison of the answers, a row each."""
    header = ["rate", "video tokens", "TTFT ms", *(f"{stage} ms" for stage in STAGES)]
    rows = [header]
    for rate, answer in answers.items():
        (video,) = answer.metrics["videos"]
        stages = answer.metrics["stages_ms"]
        rows.append(
            [
                f"{rate:g}",
                f"{video['tokens_before']} → {video['tokens_after']}",
                f"{answer.metrics['time_to_first_token_ms']:.1f}",
                *(f"{stages[stage]:.1f}" for stage in STAGES),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
