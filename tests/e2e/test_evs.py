"""Pruning removes tokens and nothing else: the quick half of ``make test-evs``."""

import functools

import pytest

from tests.evs.matrix import measure

QUICK = {
    "qwen2_5_vl": ("float32", ["reference", "schedule"]),
    "qwen3_vl": ("float32", ["identity", "reference", "schedule", "mix"]),
    "qwen3_5": ("bfloat16", ["positions"]),
    "nemotron_nano_vl": ("bfloat16", ["reference"]),
}


@functools.cache
def measured(family):
    """Returns what was measured on one family, in one process for all its properties."""
    dtype, names = QUICK[family]
    measurements, fault = measure(family, dtype, names)
    assert not fault, fault
    return measurements


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family in QUICK for name in QUICK[family][1]]
)
def test_what_must_hold_under_pruning_holds(family, name):
    found = [one for one in measured(family) if one["property"] == name]

    assert any(not one["note"] for one in found)
    assert [one for one in found if not one["holds"]] == []
