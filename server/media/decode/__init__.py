"""FFmpeg's door: the only package that imports PyAV. It runs inside a decoder process.

``containers`` opens files and reads packets, ``decoders`` turns packets into frames; ``fields``,
``colours`` and ``shapes`` make of frames what a player shows; ``video`` decides which packets are
needed. Only ``VideoSource`` is for others.
"""

from server.media.decode.video import VideoSource

__all__ = ["VideoSource"]
