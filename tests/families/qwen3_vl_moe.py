"""A tiny Qwen3-VL with experts: as the dense one, but two experts of four for each token."""

from pathlib import Path
from typing import Any

from tests.families.parts import QWEN3_VL_TEXT, VISION, Vocabulary, random_model, write


def build(model_dir: Path) -> None:
    """Write the whole checkpoint into ``model_dir``."""
    from transformers import Qwen3VLMoeForConditionalGeneration

    vocabulary = Vocabulary()
    model = random_model(
        Qwen3VLMoeForConditionalGeneration, _config(vocabulary), vocabulary.word_ids
    )
    write(model_dir, vocabulary, model)
    _lay_experts_as_published(model_dir / "model.safetensors")


def _config(vocabulary: Vocabulary) -> Any:
    from transformers import Qwen3VLMoeConfig

    return Qwen3VLMoeConfig(
        text_config={
            **vocabulary.text_config(),
            **QWEN3_VL_TEXT,
            "intermediate_size": 512,
            # No two sides of an expert are equal: transformers tells by them how it is laid.
            "moe_intermediate_size": 96,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,  # vLLM asks for it, transformers always does it
        },
        vision_config={**VISION, "deepstack_visual_indexes": [1, 2]},
        **vocabulary.vision_tokens(),
        tie_word_embeddings=False,
        dtype="float32",
    )


def _lay_experts_as_published(path: Path) -> None:
    """Swap the sides of the experts, as in the checkpoints that vLLM and transformers load.

    transformers does so only when loading, not when saving.
    """
    from safetensors.torch import load_file, save_file

    weights = {
        name: weight.mT.contiguous() if ".mlp.experts." in name else weight
        for name, weight in load_file(path).items()
    }
    save_file(weights, path, metadata={"format": "pt"})
