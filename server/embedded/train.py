"""``python -m server.embedded.train``: train the embedded model, or go on where it was stopped."""

import argparse
import time
from pathlib import Path
from typing import Any

DEFAULT_DIRECTORY = Path.home() / ".cache" / "video-chat-server" / "training"


def main() -> None:
    """Train as the command line says."""
    import torch

    from server.embedded.heldout import HELD_OUT_SEED

    parser = _parser()
    options = parser.parse_args()
    if not 0 <= options.seed < HELD_OUT_SEED:
        parser.error(f"--seed must be in [0, {HELD_OUT_SEED}): others are for held-out clips")
    options.directory.mkdir(parents=True, exist_ok=True)
    (options.directory / "store").unlink(missing_ok=True)
    # One thread each: many small operations would wait for one another's threads.
    torch.multiprocessing.spawn(_train, args=(options,), nprocs=options.processes, daemon=True)


def _train(process: int, options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=(options.directory / "store").absolute().as_uri(),
        rank=process,
        world_size=options.processes,
    )
    Training(process, options).run()
    torch.distributed.destroy_process_group()


class Training:
    """A training and its directory: ``state.pt`` to go on from, ``checkpoint/`` to serve."""

    def __init__(self, process: int, options: argparse.Namespace) -> None:
        import torch

        from server.embedded import training
        from server.embedded.architecture import build_model, build_processor, token_ids
        from server.embedded.batches import BatchMaker

        self._process = process
        self._options = options
        self._processor = build_processor()
        tokenizer = self._processor.tokenizer
        self._model = build_model(tokenizer, seed=options.seed)
        self._model.generation_config.eos_token_id = token_ids(tokenizer)["<|im_end|>"]
        self._heads = training.both_heads()
        self._optimisers = training.Optimisers(
            self._model,
            self._heads,
            rates=training.Rates(options.matrix_rate, options.rest_rate),
            steps=options.steps,
            warmup=options.warmup,
        )
        self._maker = BatchMaker(
            tokenizer,
            seed=options.seed,
            clips=options.clips,
            questions_per_clip=options.questions,
            steps=options.steps,
            finds_shapes=options.find_shapes,
        )
        self._average = training.Average(self._model)
        self._first_step = 0
        if options.resume:
            self._load(torch.load(self._state_path, weights_only=False))

    @property
    def _state_path(self) -> Path:
        return Path(self._options.directory / "state.pt")

    def run(self) -> None:
        """Train to the last step, and write the checkpoint."""
        from tqdm import tqdm

        is_first = self._process == 0
        shown: dict[str, float] = {}
        written_at = time.monotonic()
        steps = range(self._first_step, self._options.steps)
        with tqdm(
            total=self._options.steps,
            initial=self._first_step,
            mininterval=10,
            disable=not is_first,
        ) as bar:
            for step in steps:
                figures = self._step(step)
                shown = {k: 0.97 * shown.get(k, v) + 0.03 * v for k, v in figures.items()}
                bar.update()
                bar.set_postfix({k: f"{v:.3f}" for k, v in shown.items()}, refresh=False)
                if is_first and time.monotonic() - written_at > self._options.save_seconds:
                    self._save(step + 1)
                    written_at = time.monotonic()
        if is_first:
            self._save(self._options.steps)

    def _step(self, step: int) -> dict[str, float]:
        from server.embedded import training

        batch = self._maker.batch(step, self._process)
        loss, figures = training.losses(
            self._model, self._heads, batch, finds_shapes=self._options.find_shapes
        )
        loss.backward()
        training.share_gradients([*self._model.parameters(), *self._heads.parameters()])
        self._optimisers.step(step)
        self._average.follow()
        return figures

    def _save(self, next_step: int) -> None:
        from server.embedded import training
        from server.embedded.architecture import write_checkpoint

        training.save_state(
            self._state_path,
            step=next_step,
            model=self._model.state_dict(),
            heads=self._heads.state_dict(),
            optimisers=self._optimisers.state(),
            average=self._average.state(),
        )
        averaged = self._average.averaged(self._model)
        write_checkpoint(averaged, self._processor, self._options.directory / "checkpoint")

    def _load(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._heads.load_state_dict(state["heads"])
        self._average.load(state["average"])
        if not self._options.fresh_schedule:
            self._first_step = state["step"]
            if not self._options.fresh_optimisers:
                self._optimisers.load(state["optimisers"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m server.embedded.train", description=__doc__)
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument("--steps", type=int, default=4000, help="batches in all")
    parser.add_argument("--clips", type=int, default=8, help="clips in a process's batch")
    parser.add_argument("--questions", type=int, default=8, help="questions about each clip")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=60, help="steps")
    parser.add_argument("--matrix-rate", type=float, default=3e-3)
    parser.add_argument("--rest-rate", type=float, default=1.5e-3)
    parser.add_argument("--save-seconds", type=float, default=240)
    parser.add_argument(
        "--find-shapes",
        action="store_true",
        help="ask more about objects named by shape, and pull attention to them",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the directory's state")
    parser.add_argument(
        "--fresh-schedule",
        action="store_true",
        help="with --resume: take the weights alone, and start at step 0",
    )
    parser.add_argument(
        "--fresh-optimisers",
        action="store_true",
        help="with --resume: forget what the optimisers have gathered",
    )
    return parser


if __name__ == "__main__":
    main()
