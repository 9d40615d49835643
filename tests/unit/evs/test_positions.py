import pytest
import torch

from server.evs.positions import (
    NUM_CHANNELS,
    PrunedSpan,
    WholeSpan,
    lay_out,
    to_channels,
    write_retained,
)
from server.evs.walks import image_grid

GRID = torch.tensor([[t, h, w] for t in range(3) for h in range(2) for w in range(2)])
"""Positions of a video of 3 grids of 2x2 tokens, from its own start; extent 3."""
KEPT = [0, 1, 2, 3, 9, 11]
FIRST, SECOND = 7, 2**31 - 1


def channels(kept, fingerprint, dtype=torch.float32):
    return to_channels(GRID[kept], fingerprint=fingerprint).to(dtype)


def pruned(offset, kept=KEPT, fingerprint=FIRST):
    return PrunedSpan(offset, len(kept), extent=3, fingerprint=fingerprint)


def test_text_is_laid_out_around_the_unpruned_video():
    positions, delta = lay_out(2 + 5 + 3, [PrunedSpan(2, 5, extent=7, fingerprint=1)])

    assert positions[0, :2].tolist() == [0, 1]
    assert positions[2, 7:].tolist() == [9, 10, 11]
    assert 10 + delta == 12  # the first generated token


def test_text_only_is_counted_through():
    positions, delta = lay_out(4, [])

    assert positions[1].tolist() == [0, 1, 2, 3]
    assert delta == 0


def test_images_and_whole_videos_are_final_at_once():
    positions, delta = lay_out(6, [WholeSpan(1, image_grid(2, 2))])

    assert positions.T.tolist() == [
        [0, 0, 0],
        *[[1, 1 + h, 1 + w] for h in range(2) for w in range(2)],
        [3, 3, 3],
    ]
    assert 6 + delta == 4


def test_what_the_encoder_has_not_decided_can_not_be_taken_for_a_position():
    positions, _ = lay_out(10, [pruned(2)])

    assert (positions[:, 2:8] < 0).all()
    assert (positions[:, [0, 1, 8, 9]] >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("storage", [torch.int64, torch.int32])
def test_positions_survive_any_float_type(dtype, storage):
    far = torch.tensor([[0, 255, 256], [257, 301, 1025], [2047, 2049, 65535], [2**24 - 1, 0, 9]])
    positions, _ = lay_out(6, [PrunedSpan(1, 4, extent=2**24, fingerprint=SECOND)])
    positions = positions.to(storage)

    rows = to_channels(far, fingerprint=SECOND).to(dtype)
    write_retained([rows], positions, num_computed_tokens=0)

    assert rows.shape == (4, NUM_CHANNELS)
    assert (far + 1).tolist() == positions[:, 1:5].T.tolist()


TEXTS_AND_VIDEOS = [pruned(2), pruned(9, kept=[0, 1, 2, 3], fingerprint=SECOND)]
"""Two texts, a video, a text, another video, two texts: 15 tokens."""
WHOLE_PROMPT = [
    *[[i] * 3 for i in (0, 1)],
    *(GRID[KEPT] + 2).tolist(),
    [5] * 3,
    *(GRID[:4] + 6).tolist(),
    *[[i] * 3 for i in (9, 10)],
]


def rows_of_prompt():
    """The channels of each prompt token that has a row, by its index."""
    rows = torch.cat([channels(KEPT, FIRST), channels([0, 1, 2, 3], SECOND)])
    places = [*range(2, 8), *range(9, 13)]
    return dict(zip(places, rows, strict=True))


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 100])
@pytest.mark.parametrize("lookahead", [0, 1])
def test_every_survivor_keeps_its_position_in_chunks_of_any_size(chunk, lookahead):
    positions, delta = lay_out(15, TEXTS_AND_VIDEOS)
    rows = rows_of_prompt()

    for start in range(0, 15, chunk):
        write(positions, [rows[i] for i in range(start, start + chunk) if i in rows], start)
        if lookahead:
            # vLLM's drafter asks with rows shifted by one, and the same number of computed tokens.
            shifted = range(start + 1, start + chunk + 1)
            write(positions, [rows[i] for i in shifted if i in rows], start)

    assert positions.T.tolist() == WHOLE_PROMPT
    assert 15 + delta == 11


def write(positions, rows, start):
    if rows:
        write_retained([torch.stack(rows)], positions, num_computed_tokens=start)


def test_writing_twice_writes_the_same():
    positions, _ = lay_out(15, TEXTS_AND_VIDEOS)
    rows = list(rows_of_prompt().values())

    write(positions, rows, 0)
    write(positions, rows, 0)

    assert positions.T.tolist() == WHOLE_PROMPT


def test_rows_in_any_order_find_their_places():
    positions, _ = lay_out(15, TEXTS_AND_VIDEOS)

    write(positions, list(reversed(rows_of_prompt().values())), 0)

    assert positions.T.tolist() == WHOLE_PROMPT


def test_a_prefix_that_was_never_computed_does_not_mislead_the_rest():
    positions, _ = lay_out(15, TEXTS_AND_VIDEOS)
    rows = rows_of_prompt()

    write(positions, [rows[i] for i in range(5, 15) if i in rows], 5)

    assert positions[:, 5:].T.tolist() == WHOLE_PROMPT[5:]


def test_the_same_video_twice_without_text_between_starts_anew():
    positions, _ = lay_out(13, [pruned(0), pruned(6)])

    write_retained([channels(KEPT, FIRST)] * 2, positions, num_computed_tokens=0)

    assert positions.T.tolist() == [
        *GRID[KEPT].tolist(),
        *(GRID[KEPT] + 3).tolist(),
        [6] * 3,
    ]


def test_rows_of_a_medium_kept_whole_write_nothing():
    positions, _ = lay_out(10, [pruned(2)])
    before = positions.clone()

    write_retained([torch.zeros(6, NUM_CHANNELS)], positions, num_computed_tokens=0)

    assert torch.equal(before, positions)


def test_no_rows_are_no_trouble():
    positions, _ = lay_out(10, [pruned(2)])
    before = positions.clone()

    write_retained([torch.zeros(0, NUM_CHANNELS)], positions, num_computed_tokens=0)

    assert torch.equal(before, positions)
