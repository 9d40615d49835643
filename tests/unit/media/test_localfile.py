"""What file: URLs lead to, and what they must never lead to."""

import contextlib
import os
import socket
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from server.conversation import UrlSource
from server.errors import InvalidRequest, RequestTooLarge
from server.media.localfile import LocalFiles
from server.media.sizelimit import SizeLimit
from server.media.source import SourceReader
from server.settings import VideoSettings

BODY = b"video" * 100


@pytest.fixture
def videos(tmp_path):
    """A directory open to clients, beside one that is not."""
    (tmp_path / "open" / "deep").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "open" / "a.mp4").write_bytes(BODY)
    (tmp_path / "open" / "deep" / "b ü.mp4").write_bytes(BODY)
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    (tmp_path / "open-not").mkdir()
    (tmp_path / "open-not" / "key").write_bytes(b"secret")
    return tmp_path / "open"


def read(directory, path, *, max_bytes=10_000):
    url = path if path.startswith("file:") else "file://" + quote(path)
    return LocalFiles(str(directory)).read(url, SizeLimit(max_bytes), param="p").read()


def refusal(directory, path):
    with pytest.raises(InvalidRequest) as caught:
        read(directory, path)
    assert (caught.value.param, caught.value.code) == ("p", "invalid_video_url")
    return str(caught.value)


def test_files_below_the_directory_are_read(videos):
    assert read(videos, f"{videos}/a.mp4") == BODY
    assert read(videos, f"{videos}/deep/b ü.mp4") == BODY
    assert read(videos, f"file://localhost{videos}/.//deep/./b ü.mp4") == BODY
    assert read(videos, f"file:{videos}/a.mp4") == BODY


def test_a_link_to_the_directory_itself_is_the_operators(videos, tmp_path):
    (tmp_path / "link").symlink_to(videos)
    assert read(tmp_path / "link", f"{tmp_path}/link/a.mp4") == BODY


@pytest.mark.parametrize(
    "path",
    [
        "{videos}",
        "{videos}/",
        "{videos}/deep",
        "{videos}/missing.mp4",
        "{videos}/a.mp4/b",
        "{videos}/../secret/key",
        "{videos}/deep/../../secret/key",
        "{videos}-not/key",
        "/etc/passwd",
        "file:///etc/passwd",
        "file://{videos}/..%2fsecret%2fkey",
        "file://{videos}/%2e%2e/secret/key",
        "file://{videos}/a.mp4%00",
        "file://{videos}/%ff%fe",
        "file://{videos}/a.mp4?x",
        "file://{videos}/a.mp4#x",
        "file://example.com{videos}/a.mp4",
        "file://[::1{videos}/a.mp4",
        "file:a.mp4",
        "file:",
        "file:////etc/passwd",
        "file://{videos}/" + "a" * 5000,
    ],
)
def test_everything_else_gets_one_text(videos, path):
    assert refusal(videos, path.format(videos=videos)) == refusal(videos, "/etc/passwd")


@pytest.mark.parametrize("target", ["secret/key", "open/a.mp4"])
def test_links_are_not_followed(videos, target):
    (videos / "link.mp4").symlink_to(videos.parent / target)
    (videos / "linked").symlink_to((videos.parent / target).parent)
    refusal(videos, f"{videos}/link.mp4")
    refusal(videos, f"{videos}/linked/{Path(target).name}")


def test_what_is_not_a_regular_file_is_not_read_and_does_not_block(videos):
    os.mkfifo(videos / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(videos / "s"))
        refusal(videos, f"{videos}/pipe")
        refusal(videos, f"{videos}/s")
    assert "secret" not in refusal(Path("/dev"), "/dev/zero")


def test_a_file_is_read_up_to_the_limit(videos):
    assert read(videos, f"{videos}/a.mp4", max_bytes=len(BODY)) == BODY
    with pytest.raises(RequestTooLarge):
        read(videos, f"{videos}/a.mp4", max_bytes=len(BODY) - 1)


def test_a_file_that_the_kernel_calls_empty_is_counted_while_it_is_read():
    with pytest.raises(RequestTooLarge):
        read(Path("/proc/self"), "/proc/self/status", max_bytes=10)


def test_swapping_a_directory_for_a_link_never_shows_the_secret(videos):
    deep, elsewhere = videos / "deep", videos / "elsewhere"
    (deep / "key").write_bytes(BODY)
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            deep.rename(elsewhere)
            deep.symlink_to(videos.parent / "secret")
            deep.unlink()
            elsewhere.rename(deep)

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = set()
    try:
        for _ in range(2000):
            try:
                seen.add(read(videos, f"{videos}/deep/key"))
            except InvalidRequest:
                seen.add(None)
    finally:
        stop.set()
        swapper.join()
    assert seen <= {BODY, None}


def test_nothing_is_left_open(videos):
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a.mp4", "deep", "missing", "deep/b ü.mp4"):
        with contextlib.suppress(InvalidRequest):
            read(videos, f"{videos}/{path}")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.anyio
async def test_without_a_directory_file_urls_are_refused(videos):
    url = UrlSource(f"file://{videos}/a.mp4")
    assert (
        await SourceReader(VideoSettings(local_directory=str(videos))).read(url, param="p")
    ).read() == BODY
    with pytest.raises(InvalidRequest) as caught:
        await SourceReader(VideoSettings()).read(url, param="p")
    assert "file:" not in str(caught.value)
