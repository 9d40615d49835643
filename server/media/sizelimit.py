"""How many bytes a file of a client's may have."""

from dataclasses import dataclass
from typing import Literal

from server.errors import RequestTooLarge


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """A limit, and what the file that it holds for is called."""

    max_bytes: int
    """Largest file."""
    noun: Literal["video", "picture", "part that is needed of the video"] = "video"
    """The word for the file."""

    def exceeded(self, param: str) -> RequestTooLarge:
        """Returns the error for a file that has more bytes."""
        return RequestTooLarge(
            f"The {self.noun} has more than {self.max_bytes} bytes, the limit. Send a smaller one.",
            param=param,
        )
