"""Pruning removes tokens and nothing else: the quick half of ``make test-evs``."""

import pytest

from tests.evs.matrix import measure

QUICK = {
    "qwen2_5_vl": ("float32", ["reference", "schedule"]),
    "qwen3_vl": ("float32", ["identity", "reference", "schedule", "mix"]),
    "qwen3_5": ("bfloat16", ["positions"]),
    "nemotron_nano_vl": ("bfloat16", ["reference"]),
}


@pytest.fixture(scope="module")
def measured(request):
    dtype, names = QUICK[request.param]
    measurements, fault = measure(request.param, dtype, names)
    assert not fault, fault
    return measurements


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("measured", "name"),
    [(family, name) for family, (_, names) in QUICK.items() for name in names],
    indirect=["measured"],
)
def test_what_must_hold_under_pruning_holds(measured, name):
    found = [one for one in measured if one["property"] == name]

    assert any(not one["note"] for one in found)
    assert [one for one in found if not one["holds"]] == []
