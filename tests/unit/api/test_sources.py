"""In which shapes a video part says where its video is."""

import json
from typing import Any

import pytest

from server.api.wire import parse_chat_request
from server.conversation import (
    Base64Source,
    FrameListSource,
    SamplingWish,
    UploadSource,
    UrlSource,
    VideoRequest,
)
from server.errors import InvalidRequest
from server.settings import Settings, VideoSettings
from tests.unit.api.stubs import model_facts

URL = "https://example.com/a.mp4"
DATA = "data:video/mp4;base64,AAAA"
UPLOADED = UploadSource("file-1", "")
HERE = "messages[0].content[0]"


def found(part: dict[str, Any], settings: Settings | None = None) -> VideoRequest:
    raw = json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()
    (video,) = parse_chat_request(raw, settings or Settings(), model_facts()).videos
    return video


@pytest.mark.parametrize(
    ("part", "source", "field"),
    [
        ({"type": "video_url", "video_url": {"url": URL}}, UrlSource(URL), "video_url.url"),
        ({"type": "video_url", "video_url": URL}, UrlSource(URL), "video_url"),
        ({"video_url": URL}, UrlSource(URL), "video_url"),
        ({"type": "video", "video": URL}, UrlSource(URL), "video"),
        ({"type": "video", "video": DATA}, UrlSource(DATA), "video"),
        ({"type": "video", "video": {"url": URL}}, UrlSource(URL), "video.url"),
        (
            {"type": "input_video", "input_video": {"url": URL}},
            UrlSource(URL),
            "input_video.url",
        ),
        (
            {"type": "input_video", "input_video": {"data": "AAAA"}},
            Base64Source("AAAA"),
            "input_video.data",
        ),
        (
            {"type": "input_video", "input_video": {"data": DATA}},
            UrlSource(DATA),
            "input_video.data",
        ),
        ({"type": "input_video", "video_url": URL}, UrlSource(URL), "video_url"),
        ({"type": "input_video", "video_url": {"url": URL}}, UrlSource(URL), "video_url.url"),
        (
            {"type": "file", "file": {"file_data": DATA, "filename": "a.mp4"}},
            UrlSource(DATA),
            "file.file_data",
        ),
        ({"type": "file", "file": {"file_data": "AAAA"}}, Base64Source("AAAA"), "file.file_data"),
        ({"type": "file", "file": {"file_id": "file-1"}}, UPLOADED, "file.file_id"),
        ({"type": "video_url", "video_url": {"file_id": "file-1"}}, UPLOADED, "video_url.file_id"),
        ({"type": "video_url", "file_id": "file-1"}, UPLOADED, "file_id"),
    ],
    ids=range(16),
)
def test_every_shape_gives_the_source_and_its_path(
    part: dict[str, Any], source: object, field: str
) -> None:
    video = found(part)
    assert (video.source, video.param) == (source, f"{HERE}.{field}")


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "video"}, "video"),
        ({"type": "video", "video": None}, "video"),
        ({"type": "video", "video": ""}, "video"),
        ({"type": "video", "video": 5}, "video"),
        ({"type": "video", "video_url": URL}, "video_url"),
        ({"type": "video_url", "video": URL}, "video"),
        ({"type": "input_video"}, "input_video"),
        ({"type": "input_video", "input_video": {}}, "input_video.url"),
        ({"type": "input_video", "input_video": {"url": URL, "data": DATA}}, "input_video.data"),
        ({"type": "input_video", "input_video": {"url": URL}, "video_url": URL}, "video_url"),
        ({"type": "input_video", "input_video": {"data": ""}}, "input_video.data"),
        ({"type": "file"}, "file"),
        ({"type": "file", "file": DATA}, "file"),
        ({"type": "file", "file": {"filename": "a.mp4"}}, "file.file_id"),
        ({"type": "file", "file": {"file_id": "file-1", "file_data": DATA}}, "file.file_data"),
        ({"type": "file", "file": {"file_id": ""}}, "file.file_id"),
        ({"type": "video_url", "video_url": URL, "file_id": "file-1"}, "file_id"),
        ({"type": "video_url", "file_id": 5}, "file_id"),
        ({"type": "file", "file": {"file_data": 5}}, "file.file_data"),
        ({"type": "file", "file": {"url": URL}}, "file.url"),
        ({"type": "video_url", "video_url": URL, "uuid": 5}, "uuid"),
        ({"type": "video_url", "video_url": URL, "uuid": "x" * 257}, "uuid"),
        ({"type": "video_url", "video_url": None, "uuid": "clip-1"}, "video_url"),
    ],
    ids=range(23),
)
def test_a_part_without_one_clear_source_is_refused(part: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        found(part)
    assert caught.value.param == f"{HERE}.{field}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"file_data": DATA, "num_frames": 8}, "num_frames": 16},
        {"type": "input_video", "input_video": {"url": URL, "num_frames": 8}},
        {"type": "video", "video": URL, "num_frames": 8},
    ],
    ids=range(3),
)
def test_hints_lie_in_the_object_or_beside_it(part: dict[str, Any]) -> None:
    assert found(part).sampling.num_frames == 8


@pytest.mark.parametrize(
    ("part", "field", "message"),
    [
        ({"type": "video_url", "video_url": 1}, "video_url", "is 1; it must be a string or an ob"),
        ({"type": "video_url", "video_url": []}, "video_url", "a list; it must be a string or an"),
        ({"type": "input_video", "input_video": True}, "input_video", "must be a string or an obj"),
        ({"type": "input_video", "video_url": 1}, "video_url", "it must be a string or an object"),
        ({"type": "video", "video": 1}, "video", "must be a string, an object or a list of string"),
        ({"type": "file", "file": "x"}, "file", '"x"; it must be an object.'),
        ({"type": "video", "video": []}, "video", "has 0 frames; it must have 1 to 1024. Send a U"),
        (
            {"type": "input_video", "input_video": {"data": None}},
            "input_video.data",
            "is missing or null; it must be where the video is, or give url.",
        ),
        (
            {"type": "file", "file": {"file_data": None}},
            "file.file_data",
            "is missing or null; it must be where the video is, or give file_id.",
        ),
        (
            {"type": "input_video", "video_url": None},
            "video_url",
            "is missing or null; it must be where the video is, or give input_video.",
        ),
        ({"type": "video", "video": ["https://a/b.jpg"], "fps": 1e-9}, "fps", "at least 0.00001"),
        ({"type": "video", "video": ["https://a/b.jpg"], "sample_fps": 1e-9}, "sample_fps", "0.00"),
    ],
)
def test_the_message_names_what_was_sent_and_what_is_taken(
    part: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        found(part)
    assert caught.value.param == f"{HERE}.{field}"
    assert message in str(caught.value)


def test_the_rate_of_a_request_that_dates_a_list_is_the_one_to_blame() -> None:
    part = {"type": "video", "video": ["https://a/b.jpg"]}
    body = {"messages": [{"role": "user", "content": [part]}], "video_metadata": {"fps": 1e-9}}
    with pytest.raises(InvalidRequest, match=r"at least 0\.00001 for a list") as caught:
        parse_chat_request(json.dumps(body).encode(), Settings(), model_facts())
    assert caught.value.param == "video_metadata.fps"


def test_a_uuid_changes_nothing() -> None:
    part = {"type": "video_url", "video_url": {"url": URL}}
    assert found({**part, "uuid": "clip-1"}) == found({**part, "uuid": None}) == found(part)


def test_a_video_does_not_print_what_the_client_sent() -> None:
    video = found({"type": "file", "file": {"file_data": "QUFBQUFB"}})
    assert "QUFB" not in repr(video)
    assert "secret" not in repr(found({"video_url": URL + "?secret"}))


JPEGS = "data:video/jpeg;base64,"


@pytest.mark.parametrize(
    ("part", "pictures", "field"),
    [
        (
            {"type": "video", "video": [URL, DATA]},
            (UrlSource(URL), UrlSource(DATA)),
            "video",
        ),
        (
            {"type": "video_url", "video_url": {"url": JPEGS + "AAAA,BBBB"}},
            (Base64Source("AAAA"), Base64Source("BBBB")),
            "video_url.url",
        ),
        ({"video_url": JPEGS + "AAAA"}, (Base64Source("AAAA"),), "video_url"),
        ({"video_url": "DATA:Video/JPEG; BASE64,AAAA"}, (Base64Source("AAAA"),), "video_url"),
        (
            {"type": "file", "file": {"file_data": JPEGS + "AAAA,BBBB"}},
            (Base64Source("AAAA"), Base64Source("BBBB")),
            "file.file_data",
        ),
    ],
    ids=range(5),
)
def test_a_list_of_frames_is_a_video(part: dict[str, Any], pictures: object, field: str) -> None:
    video = found(part)
    assert isinstance(video.source, FrameListSource)
    assert (video.source.pictures, video.source.fps) == (pictures, 2.0)
    assert video.param == f"{HERE}.{field}"
    assert video.sampling == SamplingWish(num_frames=len(video.source.pictures))


@pytest.mark.parametrize("url", ["data:video/jpegs;base64,A,B", "data:video/mp4;base64,A,B"])
def test_another_type_of_data_is_one_file(url: str) -> None:
    assert found({"video_url": url}).source == UrlSource(url)


def test_the_rate_of_a_list_dates_its_frames_and_takes_none_away() -> None:
    video = found({"type": "video", "video": [URL] * 7, "fps": 0.5})
    assert isinstance(video.source, FrameListSource)
    assert (video.source.fps, video.sampling) == (0.5, SamplingWish(num_frames=7))
    assert found({"type": "video", "video": [URL] * 7, "num_frames": 4}).sampling.num_frames == 4
    assert found({"type": "video", "video": [URL] * 7, "num_frames": 9}).sampling.num_frames == 7


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "video", "video": []}, "video"),
        ({"type": "video", "video": [URL] * 4}, "video"),
        ({"type": "video", "video": [URL, 5]}, "video[1]"),
        ({"type": "video", "video": [URL, ""]}, "video[1]"),
        ({"type": "video", "video": [[URL]]}, "video[0]"),
        ({"type": "video", "video": [URL], "fps": 1e-9}, "fps"),
        ({"type": "video_url", "video_url": [URL]}, "video_url"),
        ({"video_url": JPEGS}, "video_url"),
        ({"video_url": JPEGS + "AAAA,,AAAA"}, "video_url"),
        ({"video_url": JPEGS + "AAAA,AAAA,AAAA,AAAA"}, "video_url"),
    ],
    ids=range(10),
)
def test_malformed_lists_are_refused(part: dict[str, Any], field: str) -> None:
    settings = Settings(video=VideoSettings(max_list_frames=3))
    with pytest.raises(InvalidRequest) as caught:
        found(part, settings)
    assert caught.value.param == f"{HERE}.{field}"
