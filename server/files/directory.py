"""A directory for one run of the server: private, its own, and empty when it begins."""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PREFIX = "run-"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A directory below one that several servers of a user may share.

    Each run locks its own. What a run leaves behind that was killed is no longer locked, and is
    deleted when the next one begins.
    """

    path: Path
    """Where it is; only this user may enter it."""
    fd: int
    """Holds the lock."""

    @classmethod
    def create(cls, parent: Path) -> Self:
        """Returns a new directory, after what earlier runs left in ``parent`` is gone.

        Raises:
            OSError: it can not be made, or others may write to ``parent``.
        """
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as opened:
            parent_fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, parent_fd)
            facts = os.fstat(parent_fd)
            if facts.st_uid != os.geteuid() or facts.st_mode & _WRITABLE_BY_OTHERS:
                raise PermissionError("other users own it or may write to it")
            # One at a time, so that nobody takes a new directory for a leftover.
            fcntl.flock(parent_fd, fcntl.LOCK_EX)
            _delete_leftovers(parent)
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            fd = os.open(path, _OPEN)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(path, fd)

    def delete(self) -> None:
        """Delete the directory and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.fd)


def _delete_leftovers(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), ExitStack() as opened:
            fd = os.open(path, _OPEN)
            opened.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is in use
            shutil.rmtree(path)
