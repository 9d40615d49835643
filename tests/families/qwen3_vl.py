"""A tiny Qwen3-VL, dense: interleaved M-RoPE, timestamps as text, two deepstack layers of three."""

from pathlib import Path
from typing import Any

from tests.families.parts import QWEN3_VL_TEXT, VISION, Vocabulary, random_model, write


def build(model_dir: Path) -> None:
    """Write the whole checkpoint into ``model_dir``."""
    from transformers import Qwen3VLForConditionalGeneration

    vocabulary = Vocabulary()
    model = random_model(Qwen3VLForConditionalGeneration, _config(vocabulary), vocabulary.word_ids)
    write(model_dir, vocabulary, model)


def _config(vocabulary: Vocabulary) -> Any:
    from transformers import Qwen3VLConfig

    return Qwen3VLConfig(
        text_config={
            **vocabulary.text_config(),
            **QWEN3_VL_TEXT,
            "intermediate_size": 512,
        },
        vision_config={**VISION, "deepstack_visual_indexes": [1, 2]},
        **vocabulary.vision_tokens(),
        tie_word_embeddings=False,
        dtype="float32",
    )
