"""Containers and codecs that can be accepted, by the names that settings and errors use.

What is missing here is refused on purpose. Playlists, concatenations, session descriptions, image
sequences and devices open other resources; of the rest, a decoder that few people need is one
more that a stranger's bytes reach.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A container or codec, for people and for FFmpeg."""

    label: str
    """What people call it; several formats may share one."""
    ffmpeg_names: tuple[str, ...]
    """Names of the demuxer, or of the decoders, that read it."""


CONTAINERS: Mapping[str, Format] = {
    "mp4": Format("MP4/MOV", ("mov", "mp4", "m4a", "3gp", "3g2", "mj2")),
    "matroska": Format("WebM/MKV", ("matroska", "webm")),
    "avi": Format("AVI", ("avi",)),
    "mpegts": Format("MPEG-TS", ("mpegts",)),
    "mpeg": Format("MPEG-PS", ("mpeg",)),
    "ogg": Format("Ogg", ("ogg",)),
    "flv": Format("FLV", ("flv",)),
    "asf": Format("ASF/WMV", ("asf",)),
    "ivf": Format("IVF", ("ivf",)),
    "h264": Format("raw H.264", ("h264",)),
    "hevc": Format("raw HEVC", ("hevc",)),
    "vvc": Format("raw VVC", ("vvc",)),
    "obu": Format("raw AV1", ("obu",)),
    "m4v": Format("raw MPEG-4", ("m4v",)),
    "mpegvideo": Format("raw MPEG-1/2", ("mpegvideo",)),
    "gif": Format("GIF", ("gif",)),
    "apng": Format("APNG", ("apng",)),
    "png": Format("PNG", ("png_pipe",)),
    "jpeg": Format("JPEG", ("jpeg_pipe",)),
    "webp": Format("WebP", ("webp_pipe",)),
    "bmp": Format("BMP", ("bmp_pipe",)),
}
"""By name. FFmpeg's readers of single pictures (``..._pipe``) read what they are given only."""

CODECS: Mapping[str, Format] = {
    "h264": Format("H.264", ("h264",)),
    "hevc": Format("HEVC", ("hevc",)),
    "vvc": Format("VVC", ("vvc",)),
    "vp8": Format("VP8", ("vp8", "libvpx")),
    "vp9": Format("VP9", ("vp9", "libvpx-vp9")),
    "av1": Format("AV1", ("libdav1d", "av1")),
    "mpeg1video": Format("MPEG-1", ("mpeg1video",)),
    "mpeg2video": Format("MPEG-2", ("mpeg2video",)),
    "mpeg4": Format("MPEG-4", ("mpeg4",)),
    "msmpeg4v1": Format("MS MPEG-4", ("msmpeg4v1",)),
    "msmpeg4v2": Format("MS MPEG-4", ("msmpeg4v2",)),
    "msmpeg4v3": Format("MS MPEG-4", ("msmpeg4",)),
    "h263": Format("H.263", ("h263",)),
    "flv1": Format("FLV1", ("flv",)),
    "wmv1": Format("WMV", ("wmv1",)),
    "wmv2": Format("WMV", ("wmv2",)),
    "wmv3": Format("WMV", ("wmv3",)),
    "vc1": Format("VC-1", ("vc1",)),
    "theora": Format("Theora", ("theora",)),
    "mjpeg": Format("Motion JPEG", ("mjpeg",)),
    "prores": Format("ProRes", ("prores",)),
    "dnxhd": Format("DNxHD", ("dnxhd",)),
    "ffv1": Format("FFV1", ("ffv1",)),
    "gif": Format("GIF", ("gif",)),
    "apng": Format("APNG", ("apng",)),
    "png": Format("PNG", ("png",)),
    "webp": Format("WebP", ("webp",)),
    "bmp": Format("BMP", ("bmp",)),
}
"""By FFmpeg's name of the codec."""

MOVING_WEBP = "animated_webp"
_REFUSED_CONTAINERS = """
    aac ac3 aiff amr ape au bink caf concat dv flac gxf hls image2 live_flv mp3 mxf nut rm roq rtsp
    sdp smk swf tta w64 wav webvtt wtv wv yuv4mpegpipe
"""
_REFUSED_CODECS = f"""
    {MOVING_WEBP} 8bps asv1 asv2 avs cavs cfhd cinepak cljr dirac dvvideo ffvhuff flashsv flashsv2
    fraps g2m h261 hap huffyuv indeo2 indeo3 indeo4 indeo5 jpeg2000 jpegls jpegxl lagarith magicyuv
    mimic msrle msvideo1 mss1 mss2 mszh qtrle rawvideo rpza rv10 rv20 rv30 rv40 screenpresso smc
    snow sp5x speedhq svq1 svq3 tiff truemotion1 truemotion2 tscc tscc2 utvideo v210 v410 vble vp3
    vp4 vp5 vp6 vp6a vp6f vp7 wnv1 zlib zmbv
"""
_OTHER_CONTAINERS = frozenset(_REFUSED_CONTAINERS.split())
_OTHER_CODECS = frozenset(_REFUSED_CODECS.split())
NAMES = frozenset({*CONTAINERS, *CODECS, *_OTHER_CONTAINERS, *_OTHER_CODECS})
"""What an error may say that was found."""


def container_name(demuxer: str) -> str | None:
    """Returns the name of what FFmpeg's demuxer reads, None if it has none here."""
    first = demuxer.partition(",")[0]
    for name, container in CONTAINERS.items():
        if first in container.ffmpeg_names:
            return name
    return first if first in _OTHER_CONTAINERS else None


def codec_name(codec: str) -> str | None:
    """Returns FFmpeg's name of a codec, None if errors may not say it."""
    return codec if codec in CODECS or codec in _OTHER_CODECS else None


def ffmpeg_list(formats: Mapping[str, Format], names: tuple[str, ...]) -> str:
    """Returns some of ``formats`` as FFmpeg takes an allow-list."""
    return ",".join(word for name in names for word in formats[name].ffmpeg_names)


def in_words(formats: Mapping[str, Format], names: tuple[str, ...]) -> str:
    """Returns some of ``formats`` as the end of a sentence: ``MP4/MOV, AVI or GIF``."""
    *others, last = dict.fromkeys(format.label for name, format in formats.items() if name in names)
    return f"{', '.join(others)} or {last}" if others else last
