"""Valid files of each kind, small enough that a mutation is likely to hit something that counts."""

import io

from PIL import Image

from server.media.picturelist import PictureList, pack_pictures
from tests.clips.counter import ClipRecipe, counter_picture
from tests.clips.pictures import encoded_counter

_SIZE = {"width": 128, "height": 64, "num_frames": 16}
_GROUPS = {"g": "6"}
_RECIPES = {
    "mp4-h264": ClipRecipe(**_SIZE, options=_GROUPS),
    "mp4-hevc": ClipRecipe(
        **_SIZE, codec="libx265", options={"x265-params": "keyint=6:log-level=none"}
    ),
    "mp4-fragments": ClipRecipe(
        **_SIZE,
        options=_GROUPS,
        container_options={"movflags": "frag_keyframe+empty_moov+default_base_moof"},
    ),
    "mov-rotated": ClipRecipe(**_SIZE, container="mov", codec="mpeg4", rotation=90),
    "webm-vp9": ClipRecipe(
        **_SIZE, container="webm", codec="libvpx-vp9", options={"deadline": "realtime"} | _GROUPS
    ),
    "mkv-h264": ClipRecipe(**_SIZE, container="matroska", options=_GROUPS),
    "ts-h264": ClipRecipe(**_SIZE, container="mpegts", options=_GROUPS),
    "avi-mpeg4": ClipRecipe(**_SIZE, container="avi", codec="mpeg4", options=_GROUPS),
}


def originals() -> dict[str, bytes]:
    """Returns a file of each kind, by its name."""
    files = {name: recipe.encode() for name, recipe in _RECIPES.items()}
    files["gif"] = _animation("GIF")
    files["webp"] = _animation("WEBP")
    pngs = [encoded_counter(number, width=128, height=64, codec="png") for number in range(4)]
    files["png-list"] = pack_pictures(PictureList(pngs, 2.0))
    return files


def _animation(kind: str) -> bytes:
    buffer = io.BytesIO()
    first, *others = [Image.fromarray(counter_picture(number, 128, 64)) for number in range(8)]
    first.save(buffer, kind, save_all=True, append_images=others, duration=100)
    return buffer.getvalue()
