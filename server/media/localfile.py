"""Files of this machine under the one directory that the operator has opened to clients."""

import os
import stat
from contextlib import ExitStack
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from server.errors import InvalidRequest
from server.media.memoryfile import MemoryFile, MemoryFileWriter
from server.media.sizelimit import SizeLimit

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_READ_BYTES = 1 << 20


class _Refused(Exception):
    """The URL leads to nothing that may be read."""


class LocalFiles:
    """Reads file: URLs below one directory.

    A path is walked name by name from a descriptor of the directory, and no symbolic link in it is
    followed, so what is checked is what is read, whatever is renamed meanwhile.
    """

    def __init__(self, directory: str) -> None:
        """Prepare.

        Args:
            directory: absolute path, as clients write it; links in it are the operator's.
        """
        self._directory = PurePosixPath(directory)

    def read(self, url: str, limit: SizeLimit, *, param: str) -> MemoryFile:
        """Returns the file; may wait for a disk.

        Raises:
            InvalidRequest: there is no regular file below the directory that can be read; one text
                for every cause, so that nobody can explore the disk.
            RequestTooLarge: the file exceeds the limit.
        """
        try:
            with ExitStack() as descriptors:
                fd = self._open(_names_below(url, self._directory), descriptors)
                return _contents(fd, limit, param)
        except (_Refused, OSError, ValueError) as error:  # a null byte is a ValueError
            raise InvalidRequest(
                "The file: URL does not lead to a file that this server may read. Send the "
                "absolute path of a regular file below its directory for clients' files, without "
                "symbolic links.",
                param=param,
                code="invalid_video_url",
            ) from error

    def _open(self, names: tuple[str, ...], descriptors: ExitStack) -> int:
        here = os.open(self._directory, _STEP & ~os.O_NOFOLLOW)
        descriptors.callback(os.close, here)
        for index, name in enumerate(names):
            flags = _FILE if index == len(names) - 1 else _STEP
            here = os.open(name, flags, dir_fd=here)
            descriptors.callback(os.close, here)
        if not stat.S_ISREG(os.fstat(here).st_mode):
            raise _Refused
        return here


def _names_below(url: str, directory: PurePosixPath) -> tuple[str, ...]:
    """Returns the names on the way from the directory to the file that ``url`` names."""
    parts = urlsplit(url)
    if parts.netloc.lower() not in ("", "localhost") or parts.query or parts.fragment:
        raise _Refused
    path = PurePosixPath(unquote(parts.path, errors="strict"))
    if not path.is_relative_to(directory):
        raise _Refused
    names = path.relative_to(directory).parts
    if not names or ".." in names:
        raise _Refused
    return names


def _contents(fd: int, limit: SizeLimit, param: str) -> MemoryFile:
    """Returns what can be read from ``fd``. It may grow meanwhile, so the bytes are counted."""
    if os.fstat(fd).st_size > limit.max_bytes:
        raise limit.exceeded(param)
    with MemoryFileWriter() as writer:
        while chunk := os.read(fd, _READ_BYTES):
            writer.write(chunk)
            if writer.num_bytes > limit.max_bytes:
                raise limit.exceeded(param)
        return writer.sealed()
