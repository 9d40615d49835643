"""Frames in shared memory: who can change them, and when they go."""

import math
import os
import time
import warnings

import numpy as np
import pytest
import torch

from server.media.frames import SharedFrames

SHAPE = (2, 3, 4, 3)


def make_frames(shape=SHAPE):
    fd = os.memfd_create("frames-of-a-test")
    os.write(fd, bytes(range(72)) if shape == SHAPE else bytes(math.prod(shape)))
    shared = SharedFrames(fd, shape)
    os.close(fd)
    return shared


@pytest.fixture
def frames():
    return make_frames()


def test_a_view_has_the_frames(frames):
    view = frames.view()
    assert view.shape == SHAPE
    assert view.flags.c_contiguous
    assert view.tobytes() == bytes(range(72))
    assert frames.num_bytes == 72


def test_what_one_consumer_writes_no_other_sees(frames):
    first, second = frames.view(), frames.view()
    first[:] = 0
    assert second.tobytes() == frames.view().tobytes() == bytes(range(72))


def test_torch_takes_a_view_without_a_warning(frames):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = torch.from_numpy(frames.view())
    np.testing.assert_array_equal(tensor.numpy(), frames.view())


def test_the_memory_goes_with_the_last_view():
    frames = make_frames()
    view = frames.view()
    del frames
    assert view.sum() == sum(range(72))
    assert _memory_files() > 0
    del view
    assert _memory_files() == 0


def test_large_memory_goes_too():
    frames = make_frames(shape=(2, 1000, 1000, 3))
    assert _memory_files() > 0
    del frames
    while _memory_files():  # in a thread; the test's own timeout ends it
        time.sleep(0.01)


def _memory_files():
    """Returns how many descriptors and mappings of this process lead to a test's frames."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the listing itself
            continue
    with open("/proc/self/maps") as maps:
        return sum("frames-of-a-test" in entry for entry in [*links, *maps])
