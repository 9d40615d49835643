import pytest
import torch

from server.evs.positions import (
    NUM_CHANNELS,
    MediaSpan,
    from_channels,
    lay_out,
    to_channels,
    write_retained,
)

TEXT, VIDEO, IMAGE = 1, 8, 9
GRID = torch.tensor([[t, h, w] for t in range(3) for h in range(2) for w in range(2)])
"""Positions of a video of 3 grids of 2x2 tokens, from its own start; extent 3."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_positions_survive_any_float_type(dtype):
    positions = torch.tensor([[0, 255, 256], [257, 301, 1025], [2047, 2049, 65535]])

    channels = to_channels(positions).to(dtype)

    assert channels.shape == (3, NUM_CHANNELS)
    assert torch.equal(positions, from_channels(channels))


def test_text_is_laid_out_around_the_whole_video():
    positions, delta = lay_out(2 + 5 + 3, [MediaSpan(offset=2, length=5, extent=7)])

    assert positions[0].tolist() == [0, 1, 2, 2, 2, 2, 2, 9, 10, 11]
    assert torch.equal(positions[0], positions[2])
    assert 10 + delta == 12  # the first generated token


def test_text_only_is_counted_through():
    positions, delta = lay_out(4, [])

    assert positions[1].tolist() == [0, 1, 2, 3]
    assert delta == 0


def prompt(kept):
    """A prompt of text, a video of which `kept` tokens remain, text, an image, text."""
    ids = [TEXT] * 2 + [VIDEO] * len(kept) + [TEXT] + [IMAGE] * 4 + [TEXT] * 2
    spans = [MediaSpan(2, len(kept), 3), MediaSpan(2 + len(kept) + 1, 4, 2)]
    return torch.tensor(ids), spans


def expected(kept):
    """The unpruned positions of that prompt, without the columns that were pruned."""
    text = [[[i] * 3 for i in (0, 1)], [[5] * 3], [[8] * 3, [9] * 3]]
    video = (GRID[kept] + 2).tolist()
    image = [[6, 6 + h, 6 + w] for h in range(2) for w in range(2)]
    return text[0] + video + text[1] + image + text[2]


def write(ids, positions, blocks, start):
    write_retained(
        ids,
        blocks,
        positions,
        num_computed_tokens=start,
        media_token_ids=(IMAGE, VIDEO),
    )


@pytest.mark.parametrize("kept", [list(range(12)), [0, 1, 2, 3], [0, 1, 2, 3, 9, 11]])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 100])
def test_every_survivor_keeps_its_position_in_chunks_of_any_size(kept, chunk):
    ids, spans = prompt(kept)
    positions, delta = lay_out(len(ids), spans)
    media = [GRID[kept], GRID[:4]]
    blocks = dict(zip([i for i, t in enumerate(ids) if t != TEXT], torch.cat(media), strict=True))

    for start in range(0, len(ids), chunk):
        rows = [blocks[i][None] for i in range(start, min(start + chunk, len(ids))) if i in blocks]
        if rows:
            write(ids, positions, rows, start)

    assert expected(kept) == positions.T.tolist()
    assert len(ids) + delta == 10


def test_writing_twice_writes_the_same():
    ids, spans = prompt([0, 1, 2, 3, 9])
    positions, _ = lay_out(len(ids), spans)
    blocks = [GRID[[0, 1, 2, 3, 9]], GRID[:4]]

    write(ids, positions, blocks, 0)
    once = positions.clone()
    write(ids, positions, blocks, 0)

    assert torch.equal(once, positions)


def test_a_video_at_the_very_start_begins_at_zero():
    ids = torch.tensor([VIDEO] * 12 + [TEXT])
    positions, _ = lay_out(13, [MediaSpan(0, 12, 3)])

    write(ids, positions, [GRID], 0)

    assert GRID.tolist() == positions[:, :12].T.tolist()
    assert positions[:, 12].tolist() == [3, 3, 3]
