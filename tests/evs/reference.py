"""EVS in plain transformers: the whole prompt's embeddings and positions, minus the pruned columns.

Nothing of this project takes part; VidCom2 is defined by vLLM's function.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.evs.cases import Case, Medium
from tests.evs.engines import NUM_TOKENS, TOP, Answer
from tests.families import Family, checkpoint


@dataclass(frozen=True)
class _Prompt:
    """What is left of a prompt: one column for each token."""

    columns: torch.Tensor
    """Embeddings, widened by deepstack features where the family has them. Shape (N, width)."""
    positions: torch.Tensor
    """Of the unpruned prompt, shape (3, N)."""
    is_visual: torch.Tensor
    """Shape (N,)."""
    next_position: int
    """Of the first token of the answer."""


Features = dict[str, list[torch.Tensor]]
"""What a vision tower made of the images and of the videos of one prompt, shape (N, width) each."""


class Reference:
    """A family's checkpoint in transformers, computing in float32.

    Args:
        family: whose checkpoint.
        dtype: to which its weights are rounded.
        misplaced: added to the position of every token behind the first medium: a control, which
            shows how far a wrong position moves the logprobs.
    """

    def __init__(self, family: Family, dtype: str, *, misplaced: int = 0) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        path = checkpoint(family.name)
        self._family = family
        self._misplaced = misplaced
        self._model: Any = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
        _round(self._model.eval(), dtype)
        self._processor: Any = AutoProcessor.from_pretrained(path)

    @torch.no_grad()
    def answer(self, case: Case, features: Features | None = None) -> Answer:
        """Returns the greedy answer to a case, whose videos all have a rate.

        Args:
            case: the prompt.
            features: of another vision tower, where this one's rounding would not be the same.
        """
        prompt = self._pruned(case, features)
        return _greedy(case.name, functools.partial(self._logits_after, prompt))

    def _inputs(self, case: Case) -> Any:
        videos = [video.data for video in case.videos]
        images = [medium.data for medium in case.media if medium.kind == "image"]
        return self._processor(
            text=[case.text(self._family)],
            videos=[[frames for frames, _ in videos]] if videos else None,
            images=images or None,
            video_metadata=[[_public(metadata) for _, metadata in videos]] if videos else None,
            do_sample_frames=False,
            return_mm_token_type_ids=True,
            return_tensors="pt",
        )

    def _pruned(self, case: Case, given: Features | None) -> _Prompt:
        inputs = self._inputs(case)
        ids = inputs["input_ids"][0]
        positions = self._positions(inputs, case)
        embeddings = self._model.get_input_embeddings()(ids)
        keep = torch.ones(len(ids), dtype=torch.bool)
        is_visual = torch.zeros(len(ids), dtype=torch.bool)
        columns = embeddings
        for kind in ("image", "video"):
            if f"{kind}_grid_thw" not in inputs:
                continue
            places = ids == getattr(self._model.config, f"{kind}_token_id")
            features = given[kind] if given else self._features(inputs, kind)
            if kind == "video":
                kept = [
                    _kept(rows, grid, video)
                    for rows, grid, video in zip(
                        features, inputs["video_grid_thw"].tolist(), case.videos, strict=True
                    )
                ]
                keep[places] = torch.cat(kept)
            rows = torch.cat(features)
            columns = torch.nn.functional.pad(columns, (0, rows.shape[1] - columns.shape[1]))
            columns[places] = rows.to(columns.dtype)
            is_visual |= places
        if self._misplaced and is_visual.any():
            last = int(is_visual.nonzero().max())
            positions = positions.clone()
            positions[:, last + 2 :] += self._misplaced
        next_position = int(positions.max()) + 1
        return _Prompt(columns[keep], positions[:, keep], is_visual[keep], next_position)

    def _features(self, inputs: Any, kind: str) -> list[torch.Tensor]:
        """Returns each medium's tokens, deepstack features behind the others."""
        suffix = "_videos" if kind == "video" else ""
        found = getattr(self._model.model, f"get_{kind}_features")(
            inputs[f"pixel_values{suffix}"], inputs[f"{kind}_grid_thw"]
        )
        levels = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
        return [torch.cat(parts, dim=1) for parts in zip(*levels, strict=True)]

    def _positions(self, inputs: Any, case: Case) -> torch.Tensor:
        """Returns the unpruned prompt's positions, shape (3, N)."""
        if self._family.name == "qwen2_5_vl":
            return self._positions_with_seconds(inputs, case)
        positions, _ = self._model.model.get_rope_index(
            inputs["input_ids"],
            inputs["mm_token_type_ids"],
            image_grid_thw=inputs.get("image_grid_thw"),
            video_grid_thw=inputs.get("video_grid_thw"),
        )
        found: torch.Tensor = positions[:, 0]
        return found

    def _positions_with_seconds(self, inputs: Any, case: Case) -> torch.Tensor:
        """As vLLM without pruning; transformers rounds the seconds of a grid to an integer."""
        config = self._model.config
        grids = {
            kind: iter(inputs.get(f"{kind}_grid_thw", torch.empty(0, 3)).tolist())
            for kind in ("image", "video")
        }
        seconds = iter([2 / video.data[1]["fps"] for video in case.videos])
        columns: list[tuple[int, int, int]] = []
        position, index = 0, 0
        ids = inputs["input_ids"][0].tolist()
        while index < len(ids):
            kinds = {config.image_token_id: "image", config.video_token_id: "video"}
            kind = kinds.get(ids[index])
            if kind is None:
                columns.append((position,) * 3)
                position, index = position + 1, index + 1
                continue
            steps, height, width = (int(n) for n in next(grids[kind]))
            step_seconds = next(seconds) if kind == "video" else 1.0
            walk = [
                # Two tokens per second.
                (position + int(step * 2 * step_seconds), position + row, position + column)
                for step in range(steps)
                for row in range(height // 2)
                for column in range(width // 2)
            ]
            columns += walk
            position, index = max(max(place) for place in walk) + 1, index + len(walk)
        return torch.tensor(columns).T

    def _logits_after(self, prompt: _Prompt, tokens: list[int]) -> torch.Tensor:
        """Returns the scores of what follows the prompt and these tokens of the answer."""
        answered = self._model.get_input_embeddings()(torch.tensor(tokens, dtype=torch.long))
        width = prompt.columns.shape[1]
        widened = torch.nn.functional.pad(answered, (0, width - answered.shape[1]))
        following = prompt.next_position + torch.arange(len(tokens)).expand(3, -1)
        is_answered = torch.zeros(len(tokens), dtype=torch.bool)
        return self._logits(
            torch.cat([prompt.columns, widened]),
            torch.cat([prompt.positions, following], dim=1),
            torch.cat([prompt.is_visual, is_answered]),
        )

    def _logits(
        self, columns: torch.Tensor, positions: torch.Tensor, is_visual: torch.Tensor
    ) -> torch.Tensor:
        hidden = self._model.get_input_embeddings().weight.shape[1]
        levels = columns.split(hidden, dim=1)
        deepstack = {}
        if len(levels) > 1 and is_visual.any():
            deepstack = {
                "visual_pos_masks": is_visual[None],
                "deepstack_visual_embeds": [level[is_visual] for level in levels[1:]],
            }
        output = self._model.model.language_model(
            inputs_embeds=levels[0][None],
            position_ids=positions[:, None],
            use_cache=False,
            **deepstack,
        )
        logits: torch.Tensor = self._model.lm_head(output.last_hidden_state[0, -1])
        return logits


def _public(metadata: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metadata.items() if k != "do_sample_frames"}


def _kept(rows: torch.Tensor, grid: list[int], video: Any) -> torch.Tensor:
    """Returns which of a video's tokens survive, shape (N,)."""
    steps, per_step = grid[0], len(rows) // grid[0]
    if video.method == "vidcom2":
        from vllm.multimodal.video_prune.vidcom2 import compute_retention_mask

        size = (steps, 1, per_step)
        mask: torch.Tensor = compute_retention_mask(
            rows.float(), size, spatial_merge_size=1, q=video.rate
        )
        return mask
    count = max(per_step, int(len(rows) * (1 - video.rate)))
    by_step = rows.reshape(steps, per_step, -1)
    similarity = torch.nn.functional.cosine_similarity(by_step[1:], by_step[:-1], dim=-1)
    change = torch.cat([torch.full((per_step,), 255.0), 1 - similarity.flatten()])
    best = torch.argsort(change, descending=True, stable=True)[:count]
    mask = torch.zeros(len(rows), dtype=torch.bool)
    mask[best] = True
    return mask


def _round(model: Any, dtype: str) -> None:
    for weight in model.parameters():
        weight.data = weight.data.to(getattr(torch, dtype)).float()


class NemotronReference:
    """The NemotronH of a Nemotron Nano VL, which transformers does not know as a whole.

    It has no vision tower, so features must be given, and no positions, so none can be misplaced.
    """

    def __init__(self, family: Family, dtype: str) -> None:
        from transformers import AutoTokenizer

        path = checkpoint(family.name)
        self._family = family
        self._model = _nemotron_language_model(path)
        _round(self._model.eval(), dtype)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=True)

    @torch.no_grad()
    def answer(self, case: Case, features: Features | None = None) -> Answer:
        """Returns the greedy answer to a case of videos, which all have a rate."""
        assert features is not None
        embed = self._model.get_input_embeddings()
        rows: list[torch.Tensor] = []
        videos = iter(zip(case.videos, features["video"], strict=True))
        for piece in case.text(self._family).split(self._family.video_prompt):
            if rows:
                rows += self._video_rows(*next(videos))
            rows.append(embed(self._ids(piece)))
        return _greedy(case.name, functools.partial(self._logits_after, torch.cat(rows)))

    def _video_rows(self, video: Medium, features: torch.Tensor) -> list[torch.Tensor]:
        frames, metadata = video.data
        per_frame = len(features) // len(frames)
        keep = _kept(features, [len(frames)], video).view(len(frames), per_frame)
        embed = self._model.get_input_embeddings()
        rows = []
        for index, kept in enumerate(keep):
            seconds = metadata["frames_indices"][index] * int(1000 / metadata["fps"]) / 1000
            separator = f"Frame {index + 1} sampled at {seconds:.2f} seconds: "
            rows.append(embed(self._ids("\n" * (index > 0) + separator)))
            rows.append(embed(self._ids("<img>")))
            rows.append(features.view(len(frames), per_frame, -1)[index][kept].float())
            rows.append(embed(self._ids("</img>")))
        return rows

    def _ids(self, text: str) -> torch.Tensor:
        return torch.tensor(
            self._tokenizer.encode(text, add_special_tokens=False), dtype=torch.long
        )

    def _logits_after(self, rows: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        """Returns the scores of what follows the prompt and these tokens of the answer."""
        answered = self._model.get_input_embeddings()(torch.tensor(tokens, dtype=torch.long))
        embeddings = torch.cat([rows, answered])[None]
        logits: torch.Tensor = self._model(inputs_embeds=embeddings, use_cache=False).logits[0, -1]
        return logits


def _greedy(name: str, logits_after: Callable[[list[int]], torch.Tensor]) -> Answer:
    tokens: list[int] = []
    steps: list[dict[int, float]] = []
    for _ in range(NUM_TOKENS):
        best = logits_after(tokens).float().log_softmax(-1).topk(TOP)
        steps.append(dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        tokens.append(int(best.indices[0]))
    return Answer(name, tuple(tokens), tuple(steps))


def _nemotron_language_model(path: Path) -> Any:
    from safetensors.torch import load_file
    from transformers import AutoConfig, NemotronHForCausalLM

    config = AutoConfig.from_pretrained(path, trust_remote_code=True).text_config
    model = NemotronHForCausalLM(config).float()
    prefix = "language_model."
    weights = load_file(path / "model.safetensors").items()
    model.load_state_dict(
        {
            name.removeprefix(prefix).replace("backbone.", "model.", 1): weight
            for name, weight in weights
            if name.startswith(prefix)
        }
    )
    return model
