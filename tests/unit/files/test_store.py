"""Uploaded files, from their first byte to their end."""

import asyncio
import os
import subprocess
import sys

import pytest

from server.errors import (
    FileQuotaExceeded,
    FilesUnavailable,
    InvalidRequest,
    Overloaded,
    RequestTooLarge,
    StorageFull,
    UploadNotFound,
)
from server.files.store import FileStore
from server.metrics import Metrics
from server.settings import FileSettings

BODY = b"video" * 1000


class Clock:
    def __init__(self):
        self.seconds = 1_000_000.5

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def make_store(tmp_path, clock):
    stores = []

    async def make(*, sweep_seconds=30.0, metrics=None, **settings):
        chosen = FileSettings(directory=str(tmp_path), **settings)
        store = FileStore(chosen, metrics=metrics, now=clock, sweep_seconds=sweep_seconds)
        await store.start()
        stores.append(store)
        return store

    yield make
    for store in stores:
        await store.stop()
    assert list(tmp_path.iterdir()) == []


async def uploaded(store, body=BODY, *, owner="me", seconds=None, chunk_bytes=700):
    async with store.upload(owner) as upload:
        for start in range(0, len(body), chunk_bytes):
            await upload.write(body[start : start + chunk_bytes])
        return await store.keep(
            upload, filename="a.mp4", purpose="vision", expires_after_seconds=seconds
        )


def on_disk(tmp_path):
    return [path for run in tmp_path.iterdir() for path in run.iterdir()]


@pytest.mark.anyio
@pytest.mark.parametrize("num_bytes", [1, 699, 700, 701, 1 << 20, (1 << 20) + 1, 3_000_000])
async def test_a_file_is_read_as_it_was_written(make_store, num_bytes):
    store = await make_store()
    body = os.urandom(num_bytes)
    file = await uploaded(store, body, chunk_bytes=70_000)
    with await store.open(store.get(file.id, "me")) as opened:
        assert opened.read() == body
    assert (file.num_bytes, store.num_bytes) == (num_bytes, num_bytes)


@pytest.mark.anyio
async def test_ids_can_not_be_guessed_and_say_nothing_of_the_path(make_store, tmp_path):
    store = await make_store()
    files = [await uploaded(store) for _ in range(20)]
    assert len({file.id for file in files}) == 20
    assert all(len(file.id) == len("file-") + 32 for file in files)
    names = {path.name for path in on_disk(tmp_path)}
    assert len(names) == 20
    assert not any(name in file.id for name in names for file in files)
    assert {path.stat().st_mode & 0o777 for path in on_disk(tmp_path)} == {0o600}


@pytest.mark.anyio
async def test_a_file_is_its_owners(make_store):
    store = await make_store()
    file = await uploaded(store, owner="me")
    assert store.get(file.id, "me") == file
    with pytest.raises(UploadNotFound) as foreign:
        store.get(file.id, "you", param="p")
    with pytest.raises(UploadNotFound) as missing:
        store.get("file-0", "you", param="p")
    assert str(foreign.value) == str(missing.value)
    assert foreign.value.param == "p"
    with pytest.raises(UploadNotFound):
        await store.delete(file.id, "you")
    assert store.files("you") == []
    assert store.files("me") == [file]


@pytest.mark.anyio
async def test_a_deleted_file_is_read_to_its_end_by_who_has_it_open(make_store, tmp_path):
    store = await make_store()
    file = await uploaded(store)
    with await store.open(file) as opened:
        await store.delete(file.id, "me")
        assert on_disk(tmp_path) == []
        assert opened.read() == BODY
    assert store.num_bytes == 0
    with pytest.raises(UploadNotFound) as late:
        await store.open(file, param="p")
    assert late.value.param == "p"
    with pytest.raises(UploadNotFound):
        await store.delete(file.id, "me")


@pytest.mark.anyio
async def test_two_deletes_at_once_delete_once(make_store):
    store = await make_store()
    file = await uploaded(store)
    results = await asyncio.gather(
        store.delete(file.id, "me"), store.delete(file.id, "me"), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), UploadNotFound]
    assert store.num_bytes == 0


@pytest.mark.anyio
async def test_an_expired_file_is_gone_at_its_second_and_its_bytes_when_swept(
    make_store, clock, tmp_path
):
    store = await make_store(default_expiry_seconds=100)
    file, longer = await uploaded(store), await uploaded(store, seconds=200)
    assert (file.created_at, file.expires_at) == (1_000_000, 1_000_100)
    assert longer.expires_at == 1_000_200
    clock.seconds = 1_000_099.9
    await store.sweep()
    assert store.get(file.id, "me") == file
    clock.seconds = 1_000_100.0
    with pytest.raises(UploadNotFound):
        store.get(file.id, "me")
    assert store.files("me") == [longer]
    assert len(on_disk(tmp_path)) == 2
    await store.sweep()
    assert len(on_disk(tmp_path)) == 1
    assert store.num_bytes == len(BODY)


@pytest.mark.anyio
async def test_what_is_kept_and_what_is_gone_is_told(make_store, clock):
    metrics = Metrics()
    sample = metrics.registry.get_sample_value
    store = await make_store(metrics=metrics, default_expiry_seconds=100)
    first, *_ = [await uploaded(store) for _ in range(3)]
    assert sample("videochat_files") == 3
    assert sample("videochat_files_bytes") == 3 * len(BODY)
    await store.delete(first.id, "me")
    with pytest.raises(UploadNotFound):
        await store.delete(first.id, "me")
    clock.seconds += 101
    assert sample("videochat_files") == 2
    await store.sweep()
    await store.sweep()
    gone = "videochat_file_deletions_total"
    assert sample(gone, {"reason": "deleted"}) == 1
    assert sample(gone, {"reason": "expired"}) == 2
    assert (sample("videochat_files"), sample("videochat_files_bytes")) == (0, 0)


@pytest.mark.anyio
async def test_expired_files_are_swept_by_themselves(make_store, clock, tmp_path):
    store = await make_store(sweep_seconds=0.01, default_expiry_seconds=100)
    await uploaded(store)
    clock.seconds += 101
    async with asyncio.timeout(5):
        while on_disk(tmp_path):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert store.num_bytes == 0


@pytest.mark.anyio
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_an_upload_that_ends_early_leaves_nothing(make_store, tmp_path, error):
    store = await make_store(max_concurrent_uploads=1, max_files=1)

    async def fail():
        async with store.upload("me") as upload:
            await upload.write(bytes(2_000_000))
            assert len(on_disk(tmp_path)) == 1
            raise error

    with pytest.raises(error):
        await fail()
    assert on_disk(tmp_path) == []
    assert store.num_bytes == 0
    assert store.files("me") == []
    await uploaded(store)


@pytest.mark.anyio
async def test_an_upload_cancelled_while_it_writes_leaves_nothing(make_store, tmp_path):
    store = await make_store()

    async def pour():
        async with store.upload("me") as upload:
            while True:
                await upload.write(bytes(1 << 20))

    for _ in range(5):
        task = asyncio.create_task(pour())
        while not on_disk(tmp_path):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert on_disk(tmp_path) == []
    assert store.num_bytes == 0


@pytest.mark.anyio
async def test_an_unfinished_file_can_not_be_found(make_store):
    store = await make_store()
    async with store.upload("me") as upload:
        await upload.write(BODY)
        assert store.files("me") == []


@pytest.mark.anyio
async def test_an_empty_file_is_refused(make_store):
    store = await make_store()
    with pytest.raises(InvalidRequest) as caught:
        await uploaded(store, b"")
    assert caught.value.param == "file"


@pytest.mark.anyio
async def test_a_file_has_a_limit(make_store, tmp_path):
    store = await make_store(max_file_bytes=len(BODY))
    await uploaded(store)
    with pytest.raises(RequestTooLarge):
        await uploaded(store, BODY + b"x")
    assert len(on_disk(tmp_path)) == 1


@pytest.mark.anyio
async def test_an_owner_has_a_quota_that_deleting_frees(make_store):
    store = await make_store(max_owner_bytes=2 * len(BODY))
    first = await uploaded(store)
    await uploaded(store)
    with pytest.raises(FileQuotaExceeded):
        await uploaded(store, b"x")
    await uploaded(store, owner="you")
    await store.delete(first.id, "me")
    await uploaded(store)
    assert store.num_bytes == 3 * len(BODY)


@pytest.mark.anyio
async def test_unfinished_uploads_count_towards_the_quota(make_store):
    store = await make_store(max_owner_bytes=2 * len(BODY))
    async with store.upload("me") as first, store.upload("me") as second:
        await first.write(BODY)
        await second.write(BODY)
        with pytest.raises(FileQuotaExceeded):
            await second.write(b"x")


@pytest.mark.anyio
async def test_all_files_have_a_quota(make_store):
    store = await make_store(max_total_bytes=2 * len(BODY), max_files=3)
    await uploaded(store)
    await uploaded(store, BODY[:-1], owner="you")
    await uploaded(store, b"x", owner="she")
    with pytest.raises(StorageFull):
        await uploaded(store, b"x", owner="he")


@pytest.mark.anyio
async def test_there_is_a_most_number_of_files(make_store):
    store = await make_store(max_files=2)
    first = await uploaded(store)
    await uploaded(store)
    with pytest.raises(StorageFull):
        await uploaded(store)
    await store.delete(first.id, "me")
    await uploaded(store)


@pytest.mark.anyio
async def test_what_is_announced_too_large_is_refused_at_once(make_store):
    store = await make_store(max_owner_bytes=1000, max_total_bytes=2000)
    with pytest.raises(FileQuotaExceeded):
        async with store.upload("me", expected_bytes=1001):
            pytest.fail("not reached")


@pytest.mark.anyio
async def test_too_many_uploads_at_once_are_told_to_come_back(make_store):
    store = await make_store(max_concurrent_uploads=1)
    async with store.upload("me"):
        with pytest.raises(Overloaded):
            await uploaded(store)
    await uploaded(store)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "settings",
    [{"enabled": False}, {"directory": "/proc/nothing"}, {"directory": "/dev/null/x"}],
    ids=range(3),
)
async def test_without_a_directory_there_are_no_files(settings):
    store = FileStore(FileSettings(**settings))
    await store.start()
    with pytest.raises(FilesUnavailable):
        await uploaded(store)
    for use in (lambda: store.get("file-0", "me"), lambda: store.files("me")):
        with pytest.raises(FilesUnavailable):
            use()
    await store.stop()


FULL_DISK = """
import asyncio, resource, sys
from server.errors import StorageFull
from server.files.store import FileStore
from server.settings import FileSettings

async def main():
    store = FileStore(FileSettings(directory=sys.argv[1]))
    await store.start()
    # To the store it is the same as a full disk: the kernel takes no more bytes.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
    for _ in range(3):
        try:
            async with store.upload("me") as upload:
                for _ in range(40):
                    await upload.write(bytes(100_000))
        except StorageFull:
            print("full", store.num_bytes)
    await store.stop()

asyncio.run(main())
"""


def test_a_full_disk_is_named_and_the_half_file_gone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "full 0\n" * 3
    assert "no room for uploaded files" in done.stderr
    assert list(tmp_path.iterdir()) == []
