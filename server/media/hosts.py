"""Which hosts the operator lets this server fetch videos from."""

from collections.abc import Iterable


class HostList:
    """Names of hosts, or of domains as ``*.example.com``. Without any, every host is allowed."""

    def __init__(self, names: Iterable[str]) -> None:
        """Prepare.

        Args:
            names: in lower case and ASCII.
        """
        names = tuple(names)
        self._allows_all = not names
        self._hosts = frozenset(name for name in names if not name.startswith("*."))
        self._domains = tuple(name[1:] for name in names if name.startswith("*."))

    def allows(self, host: str) -> bool:
        """Returns whether ``host`` is on the list: by its name, or below a domain of it.

        Args:
            host: in ASCII, as it will be looked up.
        """
        name = host.lower().removesuffix(".")
        return self._allows_all or name in self._hosts or name.endswith(self._domains)
