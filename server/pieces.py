"""Large things in pieces, so that one request's bytes do not hold up the others."""

import asyncio
from collections.abc import Sequence

_SLOW_BYTES = 1_000_000


async def joined(pieces: Sequence[bytes]) -> bytes:
    """Returns the pieces as one; off the event loop if they are large.

    Joining lets other threads run meanwhile, unlike most that is done with bytes.
    """
    if sum(map(len, pieces)) < _SLOW_BYTES:
        return b"".join(pieces)
    return await asyncio.to_thread(b"".join, pieces)
