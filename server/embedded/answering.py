"""A checkpoint that answers through plain transformers, without vLLM or this server's decoding.

What transformers lacks is pruning: here the opening of a prompt is computed once, without the
video tokens that EVS drops and with the positions that the others have, and then each question.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from server.embedded.views import View
from server.evs.arithmetic import retained_tokens
from server.evs.plan import PruningChoice, PruningPlan
from server.evs.retention import retained_indices

_MOST_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Watched:
    """A clip that was looked at, at one rate; questions go on from here."""

    cache: Any
    num_tokens: int
    next_position: int


class Answerer:
    """The checkpoint in a directory, in float32."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

        self.processor: Any = AutoProcessor.from_pretrained(directory)
        self.model: Any = Qwen3VLForConditionalGeneration.from_pretrained(
            directory, dtype=torch.float32
        ).eval()
        self._eos = self.model.generation_config.eos_token_id

    def inputs(self, view: View, frames: NDArray[np.uint8], text: str) -> Any:
        """Returns what the processor makes of a question about a clip.

        Args:
            view: when the frames are.
            frames: at the clip's own size, shape (n, height, width, 3).
            text: the question.
        """
        content = [{"type": "video"}, {"type": "text", "text": text}]
        prompt = self.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )
        metadata = {
            "fps": view.scene.fps,
            "total_num_frames": view.scene.num_frames,
            "duration": view.scene.duration_seconds,
            "frames_indices": list(view.frame_indices),
        }
        return self.processor(
            text=[prompt],
            videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
            video_metadata=[metadata],
            do_sample_frames=False,
            return_tensors="pt",
        )

    @torch.no_grad()
    def watch(self, view: View, frames: NDArray[np.uint8], *, rate: float = 0.0) -> Watched:
        """Returns the state after the clip, pruned by EVS at ``rate``."""
        from transformers import DynamicCache

        inputs = self.inputs(view, frames, "")
        ids, grid = inputs["input_ids"], inputs["video_grid_thw"]
        positions, _ = self.model.model.get_rope_index(
            ids, inputs["mm_token_type_ids"], video_grid_thw=grid
        )
        is_video = ids[0] == self.model.config.video_token_id
        after_video = int(is_video.nonzero().max()) + 3
        features = self.model.model.get_video_features(inputs["pixel_values_videos"], grid)
        merged, levels = features.pooler_output[0], [f[0] for f in features.deepstack_features]
        keep = _kept(torch.cat([merged, *levels], dim=-1), int(grid[0, 0]), rate)
        places = torch.cat([is_video.nonzero().flatten()[keep], (~is_video).nonzero().flatten()])
        places = places[places < after_video].sort().values
        embeddings = self.model.get_input_embeddings()(ids)
        embeddings[0, is_video] = merged
        cache = DynamicCache(config=self.model.config.text_config)
        self.model.model.language_model(
            inputs_embeds=embeddings[:, places],
            position_ids=positions[:, :, places],
            past_key_values=cache,
            visual_pos_masks=is_video[places][None],
            deepstack_visual_embeds=[level[keep] for level in levels],
        )
        last = int(positions[:, 0, places].max())
        return Watched(cache, len(places), last + 1)

    @torch.no_grad()
    def answer(self, watched: Watched, text: str) -> str:
        """Returns the answer to a question, token by token the likeliest."""
        tokenizer = self.processor.tokenizer
        prompt = f"{text}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        if spoken := watched.cache.get_seq_length() - watched.num_tokens:
            watched.cache.crop(-spoken)
        said: list[int] = []
        at = watched.next_position
        while len(said) < _MOST_TOKENS:
            positions = torch.arange(at, at + len(ids)).expand(3, 1, -1)
            states = self.model.model.language_model(
                inputs_embeds=self.model.get_input_embeddings()(torch.tensor([ids])),
                position_ids=positions,
                past_key_values=watched.cache,
            ).last_hidden_state
            at += len(ids)
            ids = [int(self.model.lm_head(states[0, -1]).argmax())]
            if ids[0] == self._eos:
                break
            said += ids
        answer: str = tokenizer.decode(said, skip_special_tokens=True)
        return answer


def _kept(rows: torch.Tensor, num_grids: int, rate: float) -> torch.Tensor:
    total = len(rows)
    kept = retained_tokens(tokens_per_grid=total // num_grids, num_grids=num_grids, rate=rate)
    plan = PruningPlan(PruningChoice(rate, "evs"), total, kept, fingerprint=1)
    return retained_indices(rows, num_grids=num_grids, plan=plan)
