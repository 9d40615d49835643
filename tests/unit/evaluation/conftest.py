"""Sets of questions about files that nobody looks into, and a server that answers them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.evaluation.fakeserver import FakeServer, running

MP4 = b"\0\0\0\x14ftypisom\0\0\0\0isom"
"""How an MP4 begins; the fake server does not read on."""


@pytest.fixture
def write_set(tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes a set of these lines, and the videos that they name."""

    def write(*lines: dict[str, object] | str, name: str = "set.jsonl") -> Path:
        for line in lines:
            if isinstance(line, dict) and not str(line.get("video", "http:")).startswith("http"):
                video = tmp_path / str(line["video"])
                video.parent.mkdir(exist_ok=True)
                video.write_bytes(MP4 + video.name.encode())
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path = tmp_path / name
        path.write_text("\n".join(texts) + "\n")
        return path

    return write


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A running server; what it answers may be changed at any time."""
    with running(FakeServer()) as server:
        yield server


def item(number: int, **changes: object) -> dict[str, object]:
    """Returns a line of a set: question N about video N, answered by ``A<N>``."""
    line: dict[str, object] = {
        "id": f"i{number}",
        "video": f"v{number}.mp4",
        "question": f"Q{number}?",
        "answers": [f"A{number}"],
        "kind": "odd" if number % 2 else "even",
    }
    return {**line, **changes}
