"""A tiny Qwen3.5 with experts: as the dense one, but two experts of four and a shared one."""

from pathlib import Path
from typing import Any

from tests.families.parts import QWEN3_5_TEXT, VISION, Vocabulary, random_model, write


def build(model_dir: Path) -> None:
    """Write the whole checkpoint into ``model_dir``."""
    from transformers import Qwen3_5MoeForConditionalGeneration

    vocabulary = Vocabulary()
    model = random_model(
        Qwen3_5MoeForConditionalGeneration,
        _config(vocabulary),
        vocabulary.word_ids,
    )
    write(model_dir, vocabulary, model)


def _config(vocabulary: Vocabulary) -> Any:
    from transformers import Qwen3_5MoeConfig

    return Qwen3_5MoeConfig(
        text_config={
            **vocabulary.text_config(),
            **QWEN3_5_TEXT,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
        vision_config=VISION,
        **vocabulary.vision_tokens(),
        tie_word_embeddings=False,
        dtype="float32",
    )
