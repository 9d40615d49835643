"""Allow-lists of containers and codecs, through decoder processes, with clips of each kind."""

import io
from contextlib import ExitStack

import av
import pytest

from server.errors import InvalidVideo
from server.formats import CODECS, CONTAINERS
from server.media import messages
from server.media.faults import DecodeLimits, video_fault
from server.media.forkhost import _MAX_MESSAGE_BYTES
from server.media.memoryfile import MemoryFile
from tests.clips.counter import ClipRecipe
from tests.clips.decoded import LIMITS
from tests.clips.flat import flat_clip
from tests.clips.pictures import encoded_counter

# Container and codec by our names, and how to make a clip of them.
MADE = {
    ("mp4", "h264"): ClipRecipe(num_frames=8),
    ("mp4", "hevc"): ClipRecipe(
        num_frames=8, codec="libx265", options={"x265-params": "log-level=none"}
    ),
    ("mp4", "av1"): ClipRecipe(num_frames=4, codec="libsvtav1", options={"preset": "12"}),
    ("matroska", "h264"): ClipRecipe(num_frames=8, container="matroska"),
    ("matroska", "vp8"): ClipRecipe(num_frames=8, container="webm", codec="libvpx"),
    ("matroska", "vp9"): ClipRecipe(num_frames=8, container="webm", codec="libvpx-vp9"),
    ("mpegts", "mpeg2video"): ClipRecipe(num_frames=8, container="mpegts", codec="mpeg2video"),
    ("avi", "mpeg4"): ClipRecipe(num_frames=8, container="avi", codec="mpeg4"),
    ("avi", "msmpeg4v3"): ClipRecipe(num_frames=8, container="avi", codec="msmpeg4"),
    ("flv", "flv1"): ClipRecipe(num_frames=8, container="flv", codec="flv"),
    ("h264", "h264"): ClipRecipe(num_frames=8, container="h264"),
}

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def clips():
    prores = flat_clip((64, 512, 512), pix_fmt="yuv422p10le", codec="prores_ks", container="mov")
    return {
        **{kind: recipe.encode() for kind, recipe in MADE.items()},
        ("mp4", "prores"): prores,
        ("png", "png"): encoded_counter(1, codec="png"),
    }


async def _probe(pool, source):
    async with pool.open(MemoryFile.of(source)) as video:
        return await video.probe()


async def _refusal(pool, source):
    with pytest.raises(InvalidVideo) as caught:
        await _probe(pool, source)
    return caught.value


async def test_what_is_listed_is_accepted(make_pool, clips):
    for (container, codec), source in clips.items():
        pool = make_pool(containers=[container], codecs=[codec])
        assert (await _probe(pool, source)).num_frames >= 1


async def test_a_container_that_is_not_listed_is_named(make_pool, clips):
    for (container, _), source in clips.items():
        others = [name for name in CONTAINERS if name != container]
        error = await _refusal(make_pool(containers=others), source)
        assert error.code == "unsupported_container"
        assert str(error).startswith(
            f"The container format is {container}, which is not accepted. Send "
        )


async def test_a_codec_that_is_not_listed_is_named(make_pool, clips):
    for (_, codec), source in clips.items():
        others = [name for name in CODECS if name != codec]
        error = await _refusal(make_pool(codecs=others), source)
        assert error.code == "unsupported_codec"
        assert str(error).startswith(f"The video codec is {codec}, which is not accepted. Send ")


async def test_an_error_says_what_is_accepted(make_pool, clips):
    pool = make_pool(containers=["mp4"], codecs=["h264", "vp9"])
    error = await _refusal(pool, clips["mp4", "prores"])
    assert str(error) == "The video codec is prores, which is not accepted. Send H.264 or VP9."
    error = await _refusal(pool, clips["avi", "mpeg4"])
    assert str(error) == "The container format is avi, which is not accepted. Send MP4/MOV."


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (b"ffconcat version 1.0\nfile ok.mp4\n", "concat"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(100), "wav"),
        (
            b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nc=IN IP4 127.0.0.1\r\nm=video 1 RTP/AVP 96\r\n",
            "sdp",
        ),
    ],
)
async def test_a_container_that_can_not_be_accepted_is_named(make_pool, source, found):
    error = await _refusal(make_pool(), source)
    assert str(error).startswith(f"The container format is {found}, which is not accepted. Send ")


async def test_the_stream_whose_codec_is_listed_is_taken(make_pool, clips):
    source = _together(clips["mp4", "h264"], clips["avi", "mpeg4"])
    for codec in ("h264", "mpeg4"):
        assert (await _probe(make_pool(codecs=[codec]), source)).codec == codec


def _together(*sources):
    """Returns an MKV file with the video streams of several files."""
    buffer = io.BytesIO()
    with ExitStack() as opened, av.open(buffer, "w", format="matroska") as output:
        streams = [opened.enter_context(av.open(io.BytesIO(s))).streams.video[0] for s in sources]
        copies = [output.add_stream_from_template(stream) for stream in streams]
        for stream, copy in zip(streams, copies, strict=True):
            for packet in stream.container.demux(stream):
                if packet.size:
                    packet.stream = copy
                    output.mux(packet)
    return buffer.getvalue()


def test_a_frame_of_a_list_that_is_a_video_is_named():
    error = video_fault("unsupported_container", LIMITS, found="mp4")
    assert str(error) == (
        "A frame of a list is mp4, which is not accepted there. Send PNG, JPEG or WebP."
    )


def test_limits_reach_the_decoder_whole():
    assert messages.limits_from_bytes(messages.limits_to_bytes(LIMITS)) == LIMITS
    few = DecodeLimits(1, 2, 3, 4.5, 5, containers=("mp4",), codecs=("vp9", "h264"))
    assert messages.limits_from_bytes(messages.limits_to_bytes(few)) == few
    assert len(messages.limits_to_bytes(LIMITS)) < _MAX_MESSAGE_BYTES


@pytest.mark.parametrize("found", [None, "prores", "concat"])
def test_a_fault_reaches_the_server_with_what_was_found(found):
    payload = messages.fault_to_bytes("unsupported_codec", found)
    assert messages.fault_from_bytes(payload) == ("unsupported_codec", found)


@pytest.mark.parametrize(
    "payload", [b"", b"oops", b"no_frames <script>", b"unsupported_codec h264 x", b"\xff"]
)
def test_a_fault_in_other_words_is_refused(payload):
    with pytest.raises(ValueError):  # noqa: PT011
        messages.fault_from_bytes(payload)
