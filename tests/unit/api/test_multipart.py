"""Forms with a file in them, however they are cut up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from server.api.errors import UnsupportedMediaType
from server.api.multipart import FormReader, display_name
from server.errors import InvalidRequest

KNOWN = frozenset({"purpose", "other"})
TYPE = "multipart/form-data; boundary=xyz"
Part = tuple[str, bytes]


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    more = "" if filename is None else f'; filename="{filename}"\r\nContent-Type: video/mp4'
    head = f'--xyz\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = b"--xyz--\r\n"


def read(
    body: bytes, *, chunk_bytes: int = 1000, content_type: str = TYPE
) -> tuple[FormReader, bytes]:
    form = FormReader(Headers({"content-type": content_type}), fields=KNOWN)
    chunks = [body[start : start + chunk_bytes] for start in range(0, len(body), chunk_bytes)]
    data = b"".join([form.feed(chunk) for chunk in chunks])
    form.finish()
    return form, data


def refused(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    return caught.value


@given(
    value=st.binary(max_size=300) | st.just(b"\r\n--xy\r\n--xyz\n--xyz-" * 9),
    chunk_bytes=st.integers(1, 200),
    file_first=st.booleans(),
)
def test_the_file_comes_out_as_it_went_in(value: bytes, chunk_bytes: int, file_first: bool) -> None:
    if b"\r\n--xyz" in b"\r\n" + value:
        value = value.replace(b"xyz", b"abc")
    parts = [part("file", value, "ü.mp4"), part("purpose", b"vision")]
    body = b"".join(parts if file_first else parts[::-1]) + END
    form, data = read(body, chunk_bytes=chunk_bytes)
    assert data == value
    assert (form.fields, form.filename) == ({"purpose": "vision"}, "ü.mp4")


def test_what_follows_the_form_is_nothing() -> None:
    _, data = read(part("file", b"abc", "a") + END + b"bye" * 10)
    assert data == b"abc"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        END,
        part("file", b"abc", "a"),
        part("file", b"abc", "a") + b"--xyz",
        part("file", b"abc", "a")[:-2],
        b"--xyz\r\n\r\nabc\r\n" + END,
        b"--xyz\r\nContent-Disposition: form-data\r\n\r\nabc\r\n" + END,
        b"--xyz\r\nBad Header\r\n\r\nabc\r\n" + END,
        b"--xyz\r\n" + b"X: y\r\n" * 100 + b"\r\nabc\r\n" + END,
        b"--xyz\r\nX: " + b"y" * 100_000 + b"\r\n\r\nabc\r\n" + END,
        b"--other\r\n" + part("file", b"abc", "a"),
    ],
    ids=range(12),
)
def test_what_is_no_form_is_a_bad_request(body: bytes) -> None:
    assert refused(body).code in ("invalid_multipart", "unknown_field", "missing_field")


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        (part("file", b"abc", "a" * 5000), "file", "shorter name"),
        (part("file", b"abc", "a" * 500_000), "file", "shorter name"),
        (b"--xyz\r\n" + b"a" * 5000 + b": x\r\n\r\nabc\r\n", "file", "shorter name"),
        (b"--xyz\r\n" + b"X: y\r\n" * 9 + b"\r\nabc\r\n", None, "more than 8 headers"),
    ],
    ids=range(4),
)
def test_headers_of_a_part_above_a_limit_are_told_so(
    body: bytes, param: str | None, reason: str
) -> None:
    error = refused(body + END)
    assert (error.param, error.code) == (param, "invalid_multipart")
    assert reason in str(error)


def test_headers_of_a_part_up_to_the_limits_are_read() -> None:
    many = b"--xyz\r\n" + b"X: y\r\n" * 7
    body = many + part("purpose", b"vision")[len(b"--xyz\r\n") :]
    form, data = read(body + part("file", b"abc", "a" * 4000) + END)
    assert (form.fields, form.filename, data) == ({"purpose": "vision"}, "a" * 255, b"abc")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (part("purpose", b"vision"), "file", "missing_field"),
        (part("fill", b"abc", "a"), "fill", "unknown_field"),
        (part("file", b"a", "a") + part("file", b"b", "b"), "file", "invalid_value"),
        (part("purpose", b"a") * 2, "purpose", "invalid_value"),
        (part("purpose", b"a" * 257), "purpose", "invalid_value"),
        (part("purpose", b"a" * 10_000, "a"), "purpose", "invalid_value"),
    ],
    ids=range(6),
)
def test_a_wrong_field_is_named(body: bytes, param: str, code: str) -> None:
    error = refused(body + END)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "x" * 71,
        "multipart/mixed; boundary=xyz",
        "application/x-www-form-urlencoded",
    ],
)
def test_another_type_of_body_is_not_read(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        read(part("file", b"abc", "a") + END, content_type=content_type)
    with pytest.raises(UnsupportedMediaType):
        FormReader(Headers({"content-type": TYPE, "content-encoding": "gzip"}), fields=KNOWN)


@pytest.mark.parametrize(
    ("given_name", "shown"),
    [
        (b"a.mp4", "a.mp4"),
        (b"", "upload"),
        (b"\0\x01\r\n", "upload"),
        (b"a\r\nX: y.mp4", "aX: y.mp4"),
        ("\u202egp4.mp4 \u2028x".encode(), "gp4.mp4 x"),
        ("ü🎬.mp4".encode(), "ü🎬.mp4"),
        (b"\xff\xfe.mp4", "\ufffd\ufffd.mp4"),
        (b"a" * 70_000 + b".mp4", "a" * 251 + ".mp4"),
    ],
    ids=range(8),
)
def test_a_name_is_fit_to_be_shown(given_name: bytes, shown: str) -> None:
    assert display_name(given_name) == shown
