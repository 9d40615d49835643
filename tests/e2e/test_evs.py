"""Pruning removes tokens and nothing else, whatever the schedule; held against transformers."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.e2e.conftest import ROOT

SCHEDULES = [
    "batched",
    "chunks of 48",
    "chunks of 160",
    "prefix cache",
    "prefix cache, chunks of 96",
    "preemption",
]
TOLERANCE = 1e-3
"""In logprob, float32; the model is so peaky that a position off by one moves them by tenths."""


@pytest.fixture(scope="module")
def runs():
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.evs_runs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_same(expected, found):
    assert [answer["tokens"] for answer in expected] == [answer["tokens"] for answer in found]
    for ours, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(ours["logprobs"], theirs["logprobs"], atol=TOLERANCE)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_answer_does_not_depend_on_the_schedule(runs, schedule):
    assert_same(runs["alone"], runs[schedule])


def test_the_answer_is_that_of_evs_in_plain_transformers(runs):
    assert_same(runs["transformers"], runs["alone"])


def test_rates_make_a_difference_at_all(runs):
    one_video = [tuple(answer["tokens"]) for answer in runs["alone"][:5]]

    assert len(set(one_video)) > 1
