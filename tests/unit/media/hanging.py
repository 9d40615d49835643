"""A decoder that does nothing for ever; light, so that its host starts at once."""

import time
from typing import NoReturn

from server.media.messages import DecodeJob


def hang(job: DecodeJob) -> NoReturn:
    """Take the job and never answer."""
    while True:
        time.sleep(1)
