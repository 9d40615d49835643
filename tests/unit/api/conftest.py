"""Fixtures for the API's tests."""

import pytest

from tests.unit.api.stubs import StubPipeline


@pytest.fixture
def pipeline() -> StubPipeline:
    return StubPipeline()
