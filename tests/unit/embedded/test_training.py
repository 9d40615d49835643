import numpy as np
import pytest
import torch

from server.embedded import passes, pointing, training, views
from server.embedded.answering import Answerer
from server.embedded.architecture import build_model, build_processor, write_checkpoint
from server.embedded.batches import BatchMaker
from server.embedded.muon import orthogonalised
from server.embedded.reading import read
from server.embedded.turns import Prompts
from server.embedded.views import LABELS, NO_LABEL
from server.evs.arithmetic import retained_tokens


@pytest.fixture(scope="module")
def processor():
    return build_processor()


@pytest.fixture(scope="module")
def model(processor):
    model = build_model(processor.tokenizer, seed=2)
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    return model


def maker(processor, **options):
    options = {"seed": 1, "clips": 2, "questions_per_clip": 3, "steps": 100, **options}
    return BatchMaker(processor.tokenizer, **options)


def test_a_batch_follows_from_seed_and_step(processor):
    first, again, other = (maker(processor).batch(step) for step in (40, 40, 41))

    assert torch.equal(first.patches, again.patches)
    assert torch.equal(first.turn_ids, again.turn_ids)
    assert first.rate == again.rate != other.rate


def test_processes_have_clips_of_one_length_but_other_clips(processor):
    first, second = (maker(processor).batch(40, process) for process in (0, 1))

    assert first.grid[0] == second.grid[0]
    assert not torch.equal(first.turn_ids, second.turn_ids)


def test_the_rate_decides_how_many_tokens_stay_and_the_first_grid_does(processor, model):
    batch = maker(processor).batch(40)
    with torch.no_grad():
        tokens = passes.video_tokens(model, views.normalised(batch.patches), batch.grid)
    num_grids, total = batch.grid[0], tokens.merged.shape[1]

    for rate in (0.0, 0.5, 0.9):
        kept = passes.kept_tokens(tokens, num_grids=num_grids, rate=rate)
        count = retained_tokens(tokens_per_grid=total // num_grids, num_grids=num_grids, rate=rate)
        assert kept.shape == (2, count)
        assert torch.equal(
            kept[:, : total // num_grids], torch.arange(total // num_grids).expand(2, -1)
        )


def test_a_question_does_not_see_the_others(processor, model):
    batch = next(
        batch
        for batch in map(maker(processor).batch, range(40, 90))
        if int(batch.question.max()) > 1
    )
    with torch.no_grad():
        tokens = passes.video_tokens(model, views.normalised(batch.patches), batch.grid)
        before = read(model, batch, tokens).turns
        batch.turn_ids[batch.question == 1] = 5
        after = read(model, batch, tokens).turns

    others = batch.question > 1
    torch.testing.assert_close(after[others], before[others])
    assert not torch.allclose(after[batch.question == 1], before[batch.question == 1])


def test_only_what_is_named_by_shape_alone_is_pointed_at(processor):
    asked = [
        ("What colour is the triangle?", "Red."),
        ("Which way does the red circle move?", "Left."),
        ("which color does the cross have", "There is no such object."),
    ]
    turns = Prompts(processor.tokenizer).turns(asked, is_dialogue=False)

    places = np.flatnonzero(turns.pointed)

    shapes = [LABELS["shape"][number] for number in turns.pointed[places]]
    assert shapes == ["triangle", "cross"]
    said = processor.tokenizer.convert_ids_to_tokens(turns.labels[places].tolist())
    assert said == ["Red", "There"]
    assert turns.question[places].tolist() == [1, 3]


@pytest.mark.parametrize("rate", [0.0, 0.75])
def test_a_step_along_the_pointing_loss_finds_more(processor, model, rate):
    from copy import deepcopy
    from dataclasses import replace

    learner = deepcopy(model)
    finder = maker(processor, clips=4, questions_per_clip=8, finds_shapes=True)
    batch = replace(finder.batch(50), rate=rate)
    assert batch.pointed.any()

    def missed():
        tokens = passes.video_tokens(learner, views.normalised(batch.patches), batch.grid)
        return pointing.loss(learner, batch, read(learner, batch, tokens))

    loss, before = missed()
    loss.backward()
    with torch.no_grad():
        for parameter in learner.parameters():
            if parameter.grad is not None:
                parameter -= 0.05 * parameter.grad
    _, after = missed()
    assert 0 < before < after < 1


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.75])
def test_training_computes_what_transformers_answers_with(processor, model, tmp_path, rate):
    from dataclasses import replace

    write_checkpoint(model, processor, tmp_path)
    answerer = Answerer(tmp_path)
    answerer.model.load_state_dict(model.state_dict())
    rng = np.random.default_rng(0)
    from server.embedded.scenes import random_scene

    view = views.sampled(random_scene(rng, size=(160, 120), duration_seconds=5))
    made = maker(processor, clips=1)
    batch = replace(made._assembled(rng, [view], rate, None, False))
    frames = view.scene.frames(view.frame_indices)
    batch.patches[0] = torch.from_numpy(views.patches(views.pictures(view)))

    with torch.no_grad():
        tokens = passes.video_tokens(model, views.normalised(batch.patches), batch.grid)
        states = read(model, batch, tokens).turns
        chosen = model.lm_head(states)[0].argmax(dim=-1)
    first = (batch.question[0] == 1).nonzero().flatten()
    ids = batch.turn_ids[0, first]
    asked = ids[: int((batch.labels[0, first] == NO_LABEL).long().argmin()) + 1]
    question = processor.tokenizer.decode(asked).partition("<|im_end|>")[0]
    answer = answerer.answer(answerer.watch(view, frames, rate=rate), question)

    said = processor.tokenizer.encode(answer, add_special_tokens=False)
    assert said[0] == int(chosen[len(asked) - 1])


def test_orthogonalised_matrices_have_singular_values_near_one():
    generator = torch.Generator().manual_seed(1)
    for shape in ((3, 8, 20), (2, 20, 8)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=generator)))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_the_learning_rate_rises_stays_and_falls():
    rates = [training.schedule(step, steps=100, warmup=10) for step in (0, 9, 50, 69, 85, 99)]

    assert rates == pytest.approx([0.1, 1.0, 1.0, 1.0, 0.5, 1 / 30])


def test_a_few_steps_lower_the_loss(processor, model):
    heads = training.both_heads()
    optimisers = training.Optimisers(model, heads, rates=training.Rates(), steps=100, warmup=2)
    batch = maker(processor, clips=3).batch(1)
    seen = []
    for step in range(6):
        loss, figures = training.losses(model, heads, batch)
        loss.backward()
        optimisers.step(step)
        seen.append(float(loss.detach()))

    assert seen[-1] < 0.8 * seen[0]
    assert set(figures) == {"colour", "shape", "direction", "change", "second"} | {
        "answers",
        "language",
        "heads",
    }
