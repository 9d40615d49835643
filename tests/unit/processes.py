"""The decoder processes of a fork host, as the system shows them."""

from pathlib import Path

from tests.unit.api.stubs import until


def children_of(host):
    """Returns the process ids of a host's decoders that have a job."""
    listing = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text()
    return [int(pid) for pid in listing.split() if _name(pid) == "decoder"]


async def gone(host):
    """Returns when no decoder of a host has a job."""
    await until(lambda: not children_of(host))


def _name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has just ended
