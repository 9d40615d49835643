"""What a run of the server leaves behind, and what it must leave alone."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from server.files.directory import RunDirectory

KILLED = """
import os, signal, sys
from pathlib import Path
from server.files.directory import RunDirectory
directory = RunDirectory.create(Path(sys.argv[1]))
(directory.path / "half").write_bytes(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_private_and_gone_in_the_end(tmp_path):
    parent = tmp_path / "a" / "b"
    directory = RunDirectory.create(parent)
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    (directory.path / "file").write_bytes(b"x")
    directory.delete()
    assert list(parent.iterdir()) == []


def test_what_a_killed_run_left_is_deleted_and_what_runs_is_kept(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    first = RunDirectory.create(tmp_path)
    second = RunDirectory.create(tmp_path)
    assert not leftover.exists()
    assert {first.path, second.path} == set(tmp_path.iterdir())
    first.delete()
    second.delete()


def test_nothing_else_is_deleted(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_bytes(b"x")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "other").write_bytes(b"x")
    (shared / "run-file").write_bytes(b"x")
    (shared / "run-link").symlink_to(tmp_path / "elsewhere")
    RunDirectory.create(shared).delete()
    assert {path.name for path in shared.iterdir()} == {"other", "run-file", "run-link"}
    assert (tmp_path / "elsewhere" / "precious").exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_directory_that_others_may_write_to_is_not_used(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError):
        RunDirectory.create(tmp_path)


def test_what_can_not_be_made_is_an_os_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Not a directory"):
        RunDirectory.create(tmp_path / "file" / "x")
    assert len(os.listdir("/proc/self/fd")) == before
