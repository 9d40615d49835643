"""FFmpeg's door: the only package that imports PyAV. It runs inside a decoder process.

``containers`` opens files and reads packets, ``decoders`` turns packets into frames; ``fields``,
``colours`` and ``shapes`` make of frames what a player shows; ``video`` decides which packets are
needed; ``webp`` decodes the pictures of moving WebP files. Only what is named below is for others.
"""

from server.media.decode.video import VideoSource
from server.media.decode.webp import decoded_webp

__all__ = ["VideoSource", "decoded_webp"]
