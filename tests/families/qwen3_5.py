"""A tiny Qwen3.5, dense: linear and full attention in turn, the latter with a gate and M-RoPE.

Only a quarter of each head is rotated. There is no deepstack.
"""

from pathlib import Path
from typing import Any

from tests.families.parts import QWEN3_5_TEXT, VISION, Vocabulary, random_model, write

OUTPUT_GAIN = 4.0
"""Positions matter to full attention only, and linear attention would drown out what it says."""


def build(model_dir: Path) -> None:
    """Write the whole checkpoint into ``model_dir``."""
    from transformers import Qwen3_5ForConditionalGeneration

    vocabulary = Vocabulary()
    model = random_model(
        Qwen3_5ForConditionalGeneration,
        _config(vocabulary),
        vocabulary.word_ids,
        output_gain=OUTPUT_GAIN,
    )
    write(model_dir, vocabulary, model)


def _config(vocabulary: Vocabulary) -> Any:
    from transformers import Qwen3_5Config

    return Qwen3_5Config(
        text_config={**vocabulary.text_config(), **QWEN3_5_TEXT, "intermediate_size": 512},
        vision_config=VISION,
        **vocabulary.vision_tokens(),
        tie_word_embeddings=False,
        dtype="float32",
    )
