"""H.264 with a packet for each field: frames are counted, not fields."""

import io
import random

import av
import numpy as np
import pytest

from server.media.bitstreams import NalFormat
from server.media.fieldpairs import FieldPairing, _sequence
from tests.clips.counter import ClipRecipe
from tests.clips.decoded import decoded_frames, probed, reference_frames
from tests.clips.fields import HEIGHT, WIDTH, contained, fields_clip

SIZE = (WIDTH, HEIGHT)


def second_fields(nal_format, extradata, packets):
    pairing = FieldPairing(nal_format, extradata)
    return [pairing.completes(packet) for packet in packets]


KINDS = {
    "raw": lambda clip: clip,
    **{
        f"{container}, {count} a packet": lambda clip, container=container, count=count: contained(
            clip, container, fields_per_packet=count
        )
        for container in ("mpegts", "mp4", "matroska")
        for count in (1, 2)
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_two_fields_are_one_frame(kind):
    source = KINDS[kind](fields_clip(12))
    facts = probed(source)
    assert facts.num_frames == 12
    assert facts.frame_times_seconds == pytest.approx([n / 25 for n in range(12)])
    assert facts.duration_seconds == pytest.approx(12 / 25, abs=0.021)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chosen", [(0,), (5,), (11,), (3, 4, 9)])
def test_a_frame_has_both_of_its_fields(kind, chosen):
    source = KINDS[kind](fields_clip(12))
    reference = reference_frames(source)
    assert len(reference) == 12
    for frame, index in zip(
        decoded_frames(source, frame_indices=chosen, size=SIZE), chosen, strict=True
    ):
        # Fields differ by one; a missing one would be grey or that of another frame.
        assert np.abs(frame.astype(int) - reference[index]).max() <= 2


@pytest.mark.parametrize(
    ("pix_fmt", "options", "may_have_fields"),
    [
        ("yuv420p", "interlaced=1", True),
        ("yuv420p", "interlaced=1:cqm=jvt", True),
        ("yuv444p", "interlaced=1:cqm=jvt", True),
        ("yuv420p10le", "interlaced=1", True),
        ("yuv420p", "cqm=jvt", False),
        ("yuv444p", "keyint=10", False),
    ],
)
def test_a_frame_of_two_mixed_fields_is_no_pair(pix_fmt, options, may_have_fields):
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=25, options={"x264-params": options})
        stream.width, stream.height, stream.pix_fmt = 64, 64, pix_fmt
        for _ in range(6):
            output.mux(stream.encode(av.VideoFrame(64, 64, pix_fmt)))
        output.mux(stream.encode())
    with av.open(io.BytesIO(buffer.getvalue())) as container:
        (stream,) = container.streams.video
        extradata = stream.codec_context.extradata
        packets = [memoryview(bytes(p)) for p in container.demux(stream) if p.size]
    assert _sequence(extradata).may_have_fields is may_have_fields
    assert second_fields(NalFormat.of("h264", extradata), extradata, packets) == [False] * 6


def test_noise_is_no_pair_and_no_error():
    noise = random.Random(7)
    for _ in range(2000):
        extradata = (
            b"\0\0\1" + bytes([noise.choice([7, 0x67])]) + noise.randbytes(noise.randrange(40))
        )
        packets = [
            memoryview(b"\0\0\1\x65" + noise.randbytes(noise.randrange(30))) for _ in range(4)
        ]
        assert len(second_fields(NalFormat(False, 0), extradata, packets)) == 4


def test_a_lost_field_does_not_shift_the_pairs_after_it():
    units = fields_clip(4).split(b"\0\0\0\1")[1:]
    extradata, fields = b"".join(b"\0\0\1" + unit for unit in units[:2]), units[2:]
    packets = [memoryview(b"\0\0\1" + field) for field in fields]
    pairs = second_fields(NalFormat(False, 0), extradata, packets)
    assert pairs == [False, True] * 4
    del packets[1]
    pairs = second_fields(NalFormat(False, 0), extradata, packets)
    assert pairs == [False, *[False, True] * 3]


def test_hevc_has_no_such_fields():
    source = ClipRecipe(
        num_frames=3, codec="libx265", options={"x265-params": "log-level=none"}
    ).encode()
    with av.open(io.BytesIO(source)) as container:
        extradata = container.streams.video[0].codec_context.extradata
    packets = [memoryview(b"\0\0\0\2\x02\1")] * 2
    assert second_fields(NalFormat.of("hevc", extradata), extradata, packets) == [False, False]
