"""What training computes by itself equals what the processor and transformers make of a clip."""

import numpy as np
import pytest
import torch

from server.embedded import passes, views
from server.embedded.answering import Answerer
from server.embedded.architecture import (
    PATCH_PIXELS,
    build_model,
    build_processor,
    write_checkpoint,
)
from server.embedded.heldout import held_out
from server.embedded.scenes import SIZES, random_scene
from server.embedded.turns import Prompts


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint")
    processor = build_processor()
    write_checkpoint(build_model(processor.tokenizer, seed=3), processor, directory)
    return Answerer(directory)


def view_of(size, seconds=4.0):
    scene = random_scene(np.random.default_rng(9), size=size, duration_seconds=seconds)
    return views.sampled(scene)


def processed(answerer, view, text="Is anything moving?"):
    return answerer.inputs(view, view.scene.frames(view.frame_indices), text)


@pytest.mark.parametrize("size", SIZES)
def test_patches_are_those_of_the_processor(answerer, size):
    view = view_of(size)
    inputs = processed(answerer, view)

    patches = views.patches(views.pictures(view))

    assert torch.equal(views.normalised(torch.from_numpy(patches)), inputs["pixel_values_videos"])
    width, height = views.frame_size(*size)
    grid = [view.num_grids, height // PATCH_PIXELS, width // PATCH_PIXELS]
    assert inputs["video_grid_thw"].tolist() == [grid]


@pytest.mark.parametrize("seconds", [1.0, 4.0, 30.0])
def test_a_prompt_has_the_tokens_and_positions_of_transformers(answerer, seconds):
    view = view_of((320, 180), seconds)
    inputs = processed(answerer, view, "Is anything moving?")
    positions, _ = answerer.model.model.get_rope_index(
        inputs["input_ids"],
        inputs["mm_token_type_ids"],
        video_grid_thw=inputs["video_grid_thw"],
    )

    prompts = Prompts(answerer.processor.tokenizer)
    opening = prompts.opening(view.timestamps, 3, 6)
    turns = prompts.turns([("Is anything moving?", "Yes.")], is_dialogue=False)

    ids = np.concatenate([opening.token_ids, turns.token_ids])
    whole = np.concatenate(
        [opening.positions.T, np.tile(turns.offsets + opening.extent, (3, 1))], axis=1
    )
    length = inputs["input_ids"].shape[1]
    assert ids[:length].tolist() == inputs["input_ids"][0].tolist()
    assert whole[:, :length].tolist() == positions[:, 0].tolist()
    told = answerer.processor.tokenizer.decode(ids[length:])
    assert told == "Yes.<|im_end|>"
    assert turns.labels[length - 1 - len(opening.token_ids) : -1].tolist() == ids[length:].tolist()


def test_the_tower_computes_what_that_of_transformers_does(answerer):
    inputs = processed(answerer, view_of((192, 144)))
    grid = inputs["video_grid_thw"]
    with torch.no_grad():
        theirs = answerer.model.model.get_video_features(inputs["pixel_values_videos"], grid)
        ours = passes.video_tokens(
            answerer.model, inputs["pixel_values_videos"][None], tuple(grid[0].tolist())
        )

    torch.testing.assert_close(ours.merged[0], theirs.pooler_output[0], atol=1e-4, rtol=1e-4)
    (level,) = ours.deepstack
    torch.testing.assert_close(level[0], theirs.deepstack_features[0][0], atol=1e-4, rtol=1e-4)


def test_an_answer_is_that_of_generate(answerer):
    clip = held_out(12)
    frames = clip.scene.frames(clip.view.frame_indices)
    text = clip.questions[0].text
    inputs = answerer.inputs(clip.view, frames, text)
    with torch.no_grad():
        ids = answerer.model.generate(**inputs, do_sample=False, max_new_tokens=8)[0]

    answer = answerer.answer(answerer.watch(clip.view, frames), text)

    expected = answerer.processor.tokenizer.decode(
        ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    assert expected
    assert answer.startswith(expected)
