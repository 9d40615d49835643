"""The stopwatch of one request: from the client's first byte to the first token.

Stages are consecutive and cover the whole interval, so they add up to the time to first token by
construction. All times are CLOCK_MONOTONIC, which vLLM's EngineCore process shares with this one.
"""

import time
from typing import Literal, get_args

Stage = Literal["receive", "fetch", "decode", "preprocess", "queue", "prefill"]
STAGES: tuple[Stage, ...] = get_args(Stage)


class Stopwatch:
    """Marks the end of each stage of one request, in order."""

    def __init__(self, first_byte_at: float | None = None) -> None:
        self.first_byte_at = time.monotonic() if first_byte_at is None else first_byte_at
        self._stage_ended_at: dict[Stage, float] = {}

    def end(self, stage: Stage, at: float | None = None) -> None:
        """Note that ``stage`` ended, now or ``at`` a monotonic time. The first call counts.

        A time before the end of an earlier stage is moved up to it: stages do not overlap.
        """
        if stage in self._stage_ended_at:
            return
        before = max(self._stage_ended_at.values(), default=self.first_byte_at)
        self._stage_ended_at[stage] = max(before, time.monotonic() if at is None else at)

    @property
    def time_to_first_token_seconds(self) -> float | None:
        """Seconds from the first byte of the request to the first token, None before it."""
        first_token_at = self._stage_ended_at.get("prefill")
        return None if first_token_at is None else first_token_at - self.first_byte_at

    @property
    def stage_seconds(self) -> dict[Stage, float]:
        """Seconds that each stage took, in order; one that has not ended took 0."""
        seconds: dict[Stage, float] = {}
        before = self.first_byte_at
        for stage in STAGES:
            ended_at = self._stage_ended_at.get(stage, before)
            seconds[stage] = ended_at - before
            before = ended_at
        return seconds
