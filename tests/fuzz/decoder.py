"""A decoder that says on standard error when it crashes. Imported by the fork host."""

import faulthandler

from server.media.decoder import decode_video
from server.media.messages import DecodeJob


def decode_aloud(job: DecodeJob) -> None:
    """Decode a video as always; a crash leaves a trace."""
    faulthandler.enable()
    decode_video(job)
