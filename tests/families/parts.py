"""What the tiny checkpoints of the Qwen families have in common.

The vocabulary and the tokenizer are those of the embedded model, so a timestamp such as
``<0.3 seconds>`` becomes several tokens, as in the real models. The vision tower is that of
Qwen3-VL: patches of 16 pixels, merged two by two, two frames to a step.
"""

import json
from pathlib import Path
from typing import Any

from server.demo.model import (
    ATTENTION_GAIN,
    CHAT_TEMPLATE,
    SEED,
    SPECIAL_TOKENS,
    WORDS,
    _build_tokenizer,
)

NORM_GAIN = 3.0
"""Factor of the query and key norms, which undo any scaling of the projections before them."""
HIDDEN_SIZE = 256
VISION = {
    "depth": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 2,
    "out_hidden_size": HIDDEN_SIZE,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 256,
}
QWEN3_VL_TEXT = {
    "hidden_size": HIDDEN_SIZE,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "rope_parameters": {
        "rope_type": "default",
        "mrope_interleaved": True,
        "mrope_section": [12, 10, 10],
        "rope_theta": 5_000_000.0,
    },
}
"""The language model of Qwen3-VL without its feed-forward layers."""
QWEN3_5_TEXT = {
    "hidden_size": HIDDEN_SIZE,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32768,
    "rope_parameters": {
        "rope_type": "default",
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000.0,
    },
}
"""The language model of Qwen3.5 without its feed-forward layers."""


class Vocabulary:
    """The tokenizer, with the ids that configurations and weights are built from."""

    def __init__(self) -> None:
        self.tokenizer = _build_tokenizer()
        self.token_ids = {
            token: self.tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS
        }
        words = [self.tokenizer.encode(f" {word}", add_special_tokens=False) for word in WORDS]
        self.word_ids = [ids[0] for ids in words if len(ids) == 1]

    def text_config(self) -> dict[str, Any]:
        """What a text configuration says about the vocabulary."""
        return {
            "vocab_size": len(self.tokenizer),
            "bos_token_id": None,
            "eos_token_id": self.token_ids["<|im_end|>"],
            "pad_token_id": self.token_ids["<|endoftext|>"],
            "tie_word_embeddings": False,
        }

    def vision_tokens(self) -> dict[str, int]:
        """What a Qwen configuration says about the tokens around a picture."""
        return {
            "image_token_id": self.token_ids["<|image_pad|>"],
            "video_token_id": self.token_ids["<|video_pad|>"],
            "vision_start_token_id": self.token_ids["<|vision_start|>"],
            "vision_end_token_id": self.token_ids["<|vision_end|>"],
        }


def write(model_dir: Path, vocabulary: Vocabulary, model: Any) -> None:
    """Write the whole checkpoint of a Qwen3-VL or Qwen3.5 model into ``model_dir``."""
    _build_processor(vocabulary.tokenizer).save_pretrained(model_dir)
    model.save_pretrained(model_dir)
    write_generation_config(model_dir, vocabulary)


def write_generation_config(model_dir: Path, vocabulary: Vocabulary) -> None:
    """Write which tokens end an answer and which fill a batch."""
    generation = {
        "eos_token_id": vocabulary.token_ids["<|im_end|>"],
        "pad_token_id": vocabulary.token_ids["<|endoftext|>"],
    }
    (model_dir / "generation_config.json").write_text(json.dumps(generation))


def _build_processor(tokenizer: Any) -> Any:
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    # As in the real checkpoints; vLLM scales both pictures and videos by the means of the first.
    shared = {
        **{"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2},
        **{"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    }
    # The video processor counts the pixels of all frames together, the image processor of one.
    image_size = {"shortest_edge": 4 * 32 * 32, "longest_edge": 64 * 32 * 32}
    video_size = {"shortest_edge": 4 * 32 * 32, "longest_edge": 1024 * 32 * 32}
    for token in ("image", "video"):
        setattr(tokenizer, f"{token}_token", f"<|{token}_pad|>")
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=image_size, **shared),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(
            size=video_size, cap_pixels_per_frame=False, **shared
        ),
        chat_template=CHAT_TEMPLATE,
    )


def random_model(
    model_class: Any, config: Any, word_ids: list[int], *, output_gain: float = 1.0
) -> Any:
    """Returns a model of random weights, with peaky attention and whole words for answers.

    ``output_gain`` is the factor on what full attention hands on.
    """
    import torch

    torch.manual_seed(SEED)
    model = model_class(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight")):
                # New norms scale by one, by a weight of one or, in Qwen3.5, of zero.
                weight.add_(NORM_GAIN - 1)
            if name.endswith("self_attn.o_proj.weight"):
                weight.mul_(output_gain)
            # Experts that are told apart, so that rounding does not choose between them.
            if name.endswith("mlp.gate.weight"):
                weight.mul_(ATTENTION_GAIN)
        # Only whole words can win, so that an answer of random weights can at least be read.
        mask = torch.zeros(config.text_config.vocab_size, 1)
        mask[word_ids] = ATTENTION_GAIN
        model.lm_head.weight.mul_(mask)
    return model
