from types import SimpleNamespace

import numpy as np
import torch

from server.evs import qwen2_5_vl
from server.evs.walks import Skeleton, contiguous_walk, interleaved_walk

START, VIDEO, END = 1, 8, 2
SKELETON = Skeleton.of(
    np.array([5, 6, START, VIDEO, END, 7, START, VIDEO, END]), video_token_id=VIDEO
)


def test_grids_without_text_move_in_time_as_the_clip_does():
    walk = contiguous_walk(3, 2, 2, t_factor=1.5)

    assert walk.relative[:, 0].tolist() == [0] * 4 + [1] * 4 + [3] * 4
    assert walk.relative[:4, 1:].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert walk.extent == 4
    assert walk.is_video.all()


def test_a_wide_grid_reaches_further_than_its_time():
    assert contiguous_walk(2, 1, 9, t_factor=1.0).extent == 9


def test_every_grid_starts_behind_its_timestamp():
    walk = interleaved_walk(SKELETON, 2, 3)

    assert walk.relative[:3].tolist() == [[0] * 3, [1] * 3, [2] * 3]
    assert walk.relative[3:9].tolist() == [[3, 3 + h, 3 + w] for h in range(2) for w in range(3)]
    assert walk.relative[9:12].tolist() == [[6] * 3, [7] * 3, [8] * 3]
    assert walk.relative[12].tolist() == [9, 9, 9]
    assert walk.relative[-1].tolist() == [12] * 3
    assert walk.extent == 13
    assert walk.is_video.sum() == 12


def test_a_whole_video_has_its_tokens_where_its_grids_are():
    ids = SKELETON.placeholder(tokens_per_grid=2, num_retained=4)

    assert ids == [5, 6, START, VIDEO, VIDEO, END, 7, START, VIDEO, VIDEO, END]


def test_a_pruned_video_keeps_its_text_and_its_number_of_tokens():
    ids = SKELETON.placeholder(tokens_per_grid=2, num_retained=3)

    assert ids == [5, 6, START, VIDEO, VIDEO, VIDEO, END, 7, START, END]


def test_a_family_without_text_has_tokens_only():
    skeleton = Skeleton.without_text(3, video_token_id=VIDEO)

    assert skeleton.placeholder(tokens_per_grid=4, num_retained=5) == [VIDEO] * 5
    assert skeleton.text_ids.tolist() == []


def test_embeddings_without_their_time_have_a_second_a_grid():
    vision_config = SimpleNamespace(tokens_per_second=2, spatial_merge_size=2)
    config = SimpleNamespace(vision_config=vision_config)
    untimed = {"video_grid_thw": torch.tensor([3, 4, 4])}
    timed = {**untimed, "second_per_grid_ts": torch.tensor(1.0)}
    walks = [qwen2_5_vl.walk(fields, config) for fields in (untimed, timed)]

    assert [walk.relative[-1].tolist() for walk in walks] == [[4, 1, 1]] * 2
