"""Which bytes a Range header asks for."""

import pytest
from starlette.exceptions import HTTPException

from server.api.download import Span, requested_span


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", Span(0, 1)),
        ("bytes=0-", Span(0, 100)),
        ("bytes=10-19", Span(10, 20)),
        ("bytes=99-", Span(99, 100)),
        ("bytes=50-1000", Span(50, 100)),
        ("bytes=-1", Span(99, 100)),
        ("bytes=-1000", Span(0, 100)),
        ("Bytes = 5-9 ", Span(5, 10)),
    ],
)
def test_one_part_is_taken(header: str, span: Span) -> None:
    assert requested_span(header, 100) == span


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes=-",
        "bytes=",
        "bytes=5-4",
        "bytes=a-b",
        "bytes=1-2,4-5",
        "bytes=" + ",".join(["0-1"] * 10_000),
        "bytes=\u0661-\u0662",
        "bytes=" + "9" * 10_000 + "-",
        "items=0-5",
        "bytes=--5",
    ],
    ids=range(12),
)
def test_everything_else_is_ignored(header: str | None) -> None:
    assert requested_span(header, 100) is None


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=9999999-", "bytes=-0", "bytes=100-200"])
def test_a_part_beyond_the_end_is_refused(header: str) -> None:
    with pytest.raises(HTTPException) as caught:
        requested_span(header, 100)
    assert caught.value.status_code == 416
    assert caught.value.headers == {"content-range": "bytes */100"}
