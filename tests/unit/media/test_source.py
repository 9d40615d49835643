import base64
import hashlib
from urllib.parse import quote, unquote

import pytest

from server.conversation import Base64Source, UrlSource
from server.errors import InvalidRequest, RequestTooLarge
from server.media.source import SourceReader
from server.settings import VideoSettings

BYTES = bytes(range(256)) * 3
ENCODED = base64.b64encode(BYTES).decode()

pytestmark = pytest.mark.anyio


async def read(url, **settings):
    source = url if isinstance(url, Base64Source) else UrlSource(url)
    file = await SourceReader(VideoSettings(**settings)).read(source, param="messages[0]")
    assert file.digest == hashlib.sha256(file.read()).digest()
    return file.read()


@pytest.mark.parametrize(
    "url",
    [
        "data:video/mp4;base64," + ENCODED,
        "DATA:VIDEO/MP4;BASE64," + ENCODED,
        "data:;base64," + ENCODED,
        "data:video/mp4;codecs=avc1;base64," + ENCODED,
        "data:video/mp4;base64," + quote(ENCODED, safe=""),
        "data:video/mp4;base64,\n" + "\r\n".join([ENCODED[:76], ENCODED[76:]]) + " ",
        "data:video/mp4;base64," + base64.urlsafe_b64encode(BYTES).decode(),
        "data:video/mp4;base64," + ENCODED.rstrip("="),
    ],
)
async def test_data_urls_are_read(url):
    assert await read(url) == BYTES


@pytest.mark.parametrize("num_bytes", [0, 1, 2, 3, 749_999, 750_000, 750_001, 2_000_000])
async def test_data_urls_of_any_length_are_read(num_bytes):
    data = (BYTES * (num_bytes // len(BYTES) + 1))[:num_bytes]
    assert await read("data:video/mp4;base64," + base64.b64encode(data).decode()) == data


LARGE = BYTES * 1400
LARGE_ENCODED = base64.b64encode(LARGE[:-1]).decode()  # with padding


@pytest.mark.parametrize(
    "text",
    [
        LARGE_ENCODED,
        LARGE_ENCODED.rstrip("="),
        LARGE_ENCODED[:-1] + " \n" * 300_000 + "=\n",
        "\r\n".join(LARGE_ENCODED[i : i + 76] for i in range(0, len(LARGE_ENCODED), 76)),
        "".join(f"%{ord(character):02x}" for character in LARGE_ENCODED),
        "%2b" + "+%2B" * 2 * 250_000 + "+",
    ],
    ids=["plain", "no padding", "space in the padding", "lines", "escaped", "half escaped"],
)
async def test_large_base64_of_any_dialect_is_read(text):
    found = await read("data:video/mp4;base64," + text)
    plain = unquote(text).rstrip("=\r\n ")
    assert found == base64.b64decode(plain + "=" * (-len(plain) % 4))


@pytest.mark.parametrize(
    "text",
    [
        LARGE_ENCODED + "A",
        LARGE_ENCODED + LARGE_ENCODED,
        LARGE_ENCODED[:799_998] + "==" + LARGE_ENCODED,
        LARGE_ENCODED[:-3] + "*",
        LARGE_ENCODED + " " * 300_000 + "A",
        "é" + LARGE_ENCODED,
    ],
    ids=["more", "twice", "padding where a piece ends", "no letter", "more after space", "accent"],
)
async def test_large_base64_that_is_none_is_named(text):
    with pytest.raises(InvalidRequest) as caught:
        await read("data:video/mp4;base64," + text)
    assert caught.value.code == "invalid_video_url"


async def test_large_base64_is_not_decoded_beyond_the_limit():
    with pytest.raises(RequestTooLarge):
        await read("data:video/mp4;base64," + LARGE_ENCODED, max_video_bytes=len(LARGE) - 2)
    url = "data:video/mp4;base64," + LARGE_ENCODED
    assert await read(url, max_video_bytes=len(LARGE) - 1) == LARGE[:-1]


@pytest.mark.parametrize(
    "url",
    [
        "data:video/mp4;base64",
        "data:video/mp4," + ENCODED,
        "data:" + "x" * 2000 + ";base64," + ENCODED,
        "data:video/mp4;base64,AAA*",
        "data:video/mp4;base64,A",
        "data:video/mp4;base64,AA=A",
        "data:video/mp4;base64,ÄÖÜ",
        "data:video/mp4;base64,\ud800",
        "data:video/mp4;base64,%zz",
    ],
)
async def test_malformed_data_urls_are_named(url):
    with pytest.raises(InvalidRequest) as caught:
        await read(url)
    assert caught.value.code == "invalid_video_url"
    assert caught.value.param == "messages[0]"


@pytest.mark.parametrize(
    "text",
    [ENCODED, quote(ENCODED, safe=""), ENCODED.rstrip("="), "\n".join([ENCODED[:3], ENCODED[3:]])],
)
async def test_base64_alone_is_read(text):
    assert await read(Base64Source(text)) == BYTES


@pytest.mark.parametrize("text", ["A", "AAA*", "https://example.com/a.mp4", "ÄÖÜ", "\ud800", "a,b"])
async def test_what_is_not_base64_is_named(text):
    with pytest.raises(InvalidRequest) as caught:
        await read(Base64Source(text))
    assert (caught.value.param, caught.value.code) == ("messages[0]", "invalid_video_url")


async def test_base64_alone_has_the_same_limit():
    assert await read(Base64Source(ENCODED), max_video_bytes=len(BYTES)) == BYTES
    with pytest.raises(RequestTooLarge):
        await read(Base64Source(ENCODED), max_video_bytes=len(BYTES) - 1)


@pytest.mark.parametrize("encode", [lambda text: text, lambda text: quote(text, safe="")])
async def test_the_size_limit_holds_exactly(encode):
    url = "data:video/mp4;base64," + encode(ENCODED)
    assert await read(url, max_video_bytes=len(BYTES)) == BYTES
    with pytest.raises(RequestTooLarge) as caught:
        await read(url, max_video_bytes=len(BYTES) - 1)
    assert str(len(BYTES) - 1) in str(caught.value)
    assert caught.value.param == "messages[0]"


async def test_a_huge_data_url_is_refused_before_it_is_copied():
    with pytest.raises(RequestTooLarge):
        await read("data:;base64," + "%41" * 100_000, max_video_bytes=1000)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "video.mp4",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://example.com/a.mp4",
        "clip:0",
        "gopher://127.0.0.1/",
        "//example.com/a.mp4",
        "concat:a|b",
        " https://example.com/a.mp4",
    ],
)
async def test_other_schemes_are_refused_and_the_accepted_named(url):
    with pytest.raises(InvalidRequest) as caught:
        await read(url)
    assert caught.value.code == "invalid_video_url"
    assert "data:" in str(caught.value)
    assert "http" in str(caught.value)


async def test_urls_can_be_switched_off():
    with pytest.raises(InvalidRequest) as caught:
        await read("https://example.com/a.mp4", allow_urls=False)
    assert "http" not in str(caught.value)
    assert await read("data:;base64," + ENCODED, allow_urls=False) == BYTES
