"""The checkpoint: a Qwen3-VL of three million parameters, its processor, and how it is written."""

import json
from pathlib import Path
from typing import Any

from server.embedded.vocabulary import CHAT_TEMPLATE, SPECIAL_TOKENS, build_tokenizer

WEIGHTS = Path(__file__).parent / "weights"
"""The trained checkpoint that comes with the package."""

PATCH_PIXELS = 14
MERGED_PATCHES = 2
FRAMES_PER_GRID = 2
MAX_TOKENS_PER_GRID = 24
"""A frame of 4:3 becomes 140 x 112 pixels and 20 tokens, one of 16:9 168 x 84 and 18."""
MAX_FRAMES = 16
"""Most frames of a clip in training; what the demo's ``video.max_frames`` should be."""
_MOST_GRIDS = 128

HIDDEN_SIZE = 192
_TOKEN_PIXELS = (PATCH_PIXELS * MERGED_PATCHES) ** 2


def token_ids(tokenizer: Any) -> dict[str, int]:
    """Returns the ids of the special tokens."""
    return {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}


def build_processor() -> Any:
    """Returns the processor: tokenizer, chat template, and the size of frames."""
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    tokenizer = build_tokenizer()
    shared = {
        "patch_size": PATCH_PIXELS,
        "temporal_patch_size": FRAMES_PER_GRID,
        "merge_size": MERGED_PATCHES,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    smallest = 4 * _TOKEN_PIXELS
    for token in ("image", "video"):
        setattr(tokenizer, f"{token}_token", f"<|{token}_pad|>")
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(
            size={
                "shortest_edge": smallest,
                "longest_edge": MAX_TOKENS_PER_GRID * _TOKEN_PIXELS,
            },
            **shared,
        ),
        tokenizer=tokenizer,
        # The size is that of all frames together; the cap holds for each frame.
        video_processor=Qwen3VLVideoProcessor(
            size={
                "shortest_edge": smallest,
                "longest_edge": _MOST_GRIDS * FRAMES_PER_GRID * MAX_TOKENS_PER_GRID * _TOKEN_PIXELS,
            },
            cap_pixels_per_frame=True,
            max_video_tokens=MAX_TOKENS_PER_GRID,
            max_frames=MAX_FRAMES,
            **shared,
        ),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: Any, *, seed: int) -> Any:
    """Returns the model with random weights, in float32."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    torch.manual_seed(seed)
    ids = token_ids(tokenizer)
    config = Qwen3VLConfig(
        text_config=_text_config(len(tokenizer), ids),
        vision_config=_VISION_CONFIG,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
        dtype="float32",
    )
    return Qwen3VLForConditionalGeneration(config)


def write_checkpoint(model: Any, processor: Any, directory: Path) -> None:
    """Write the whole checkpoint in bfloat16, as vLLM and transformers load it."""
    import copy

    import torch

    directory.mkdir(parents=True, exist_ok=True)
    processor.save_pretrained(directory)
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    rounded.save_pretrained(directory)
    ids = token_ids(processor.tokenizer)
    generation = {"eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
    (directory / "generation_config.json").write_text(json.dumps(generation))


_VISION_CONFIG = {
    "depth": 3,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 4,
    "out_hidden_size": HIDDEN_SIZE,
    "patch_size": PATCH_PIXELS,
    "temporal_patch_size": FRAMES_PER_GRID,
    "spatial_merge_size": MERGED_PATCHES,
    "num_position_embeddings": 144,
    # vLLM's pruning code expects at least one level.
    "deepstack_visual_indexes": [1],
}


def _text_config(vocab_size: int, ids: dict[str, int]) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 32,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
            "rope_theta": 10_000.0,
        },
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
