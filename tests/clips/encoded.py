"""Pictures as a video, encoded one by one."""

import os
from collections.abc import Iterable
from pathlib import Path

import av

from tests.clips.counter import Picture


def write_h264(path: Path, pictures: Iterable[Picture], *, size: tuple[int, int], fps: int) -> None:
    """Write RGB pictures as H.264 in MP4, the same bytes every time; at once and whole, or not.

    Args:
        path: of the file.
        pictures: shape (height, width, 3) each.
        size: their width and height, even.
        fps: pictures a second.
    """
    unfinished = path.with_suffix(".unfinished")
    with av.open(str(unfinished), "w", format="mp4") as container:
        # One thread, since the encoder decides differently with others.
        options = {"crf": "20", "preset": "veryfast", "threads": "1"}
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    os.replace(unfinished, path)
