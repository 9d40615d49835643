"""How much uploaded files may take up, in all and per owner. Pure bookkeeping."""

from collections import Counter

from server.errors import FileQuotaExceeded, StorageFull
from server.settings import FileSettings


class Quota:
    """Bytes and files in use. Whoever takes gives back."""

    def __init__(self, settings: FileSettings) -> None:
        self._max_total_bytes = settings.max_total_bytes
        self._max_owner_bytes = settings.max_owner_bytes
        self._max_files = settings.max_files
        self._owner_bytes: Counter[str] = Counter()
        self.num_bytes = 0
        """Bytes in use."""
        self.num_files = 0
        """Files in use, unfinished ones included."""

    def take_file(self) -> None:
        """Count one more file. Raises StorageFull if there are too many."""
        if self.num_files >= self._max_files:
            raise StorageFull(f"The server keeps {self._max_files} files, its limit.")
        self.num_files += 1

    def check(self, owner: str, num_bytes: int) -> None:
        """Returns if there is room for that many bytes more.

        Raises:
            FileQuotaExceeded: not for this owner.
            StorageFull: for nobody.
        """
        if self._owner_bytes[owner] + num_bytes > self._max_owner_bytes:
            raise FileQuotaExceeded(
                f"All your files together would have more than {self._max_owner_bytes} bytes, the "
                "limit. Delete some, or wait until some expire."
            )
        if self.num_bytes + num_bytes > self._max_total_bytes:
            raise StorageFull("The server has no room for more files at the moment.")

    def take(self, owner: str, num_bytes: int) -> None:
        """Count bytes as in use. Raises as ``check`` does, and has counted nothing then."""
        self.check(owner, num_bytes)
        self._owner_bytes[owner] += num_bytes
        self.num_bytes += num_bytes

    def give_back(self, owner: str, num_bytes: int) -> None:
        """Count a file and its bytes as gone."""
        self.num_files -= 1
        self.num_bytes -= num_bytes
        self._owner_bytes[owner] -= num_bytes
        if not self._owner_bytes[owner]:
            del self._owner_bytes[owner]
