"""A tiny Nemotron Nano VL: NemotronH (Mamba, attention, feed-forward) behind a RADIO vision tower.

Neither transformers nor vLLM has a class for its ``config.json``; the checkpoint brings one, as the
real ones do, and so wants ``trust_remote_code``. There are no rotary positions: order reaches the
model through its Mamba layers alone. Each frame is preceded by its number and time as text.
"""

import json
from pathlib import Path
from typing import Any

from server.demo.model import ATTENTION_GAIN, CHAT_TEMPLATE, SEED
from tests.families.parts import HIDDEN_SIZE, Vocabulary, write_generation_config

SPECIAL_TOKENS = ("<image>", "<video>", "<img>", "</img>")
PATCH, PICTURE = 16, 128
"""In pixels; frames and tiles are scaled to PICTURE on both sides, and make 16 tokens."""
VISION = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
REGISTERS = 8
TEXT = {
    "hidden_size": HIDDEN_SIZE,
    "layers_block_type": ["linear_attention", "full_attention", "mlp"] * 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "ssm_state_size": 32,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 64,
    "max_position_embeddings": 32768,
}

CONFIGURATION = '''\
"""The configuration of the checkpoint beside it."""

from transformers import NemotronHConfig, PreTrainedConfig


class NanoVisionConfig(PreTrainedConfig):
    model_type = "radio_tower"


class NanoVLConfig(PreTrainedConfig):
    model_type = "NemotronH_Nano_VL_V2"
    sub_configs = {"text_config": NemotronHConfig, "vision_config": NanoVisionConfig}

    def __init__(self, text_config=None, vision_config=None, **kwargs):
        self.text_config = NemotronHConfig(**(text_config or {}))
        self.vision_config = NanoVisionConfig(**(vision_config or {"args": {}}))
        super().__init__(**kwargs)
'''


def build(model_dir: Path) -> None:
    """Write the whole checkpoint into ``model_dir``."""
    from safetensors.torch import save_file

    vocabulary = Vocabulary()
    vocabulary.tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL_TOKENS)})
    vocabulary.tokenizer.chat_template = _chat_template()
    vocabulary.tokenizer.save_pretrained(model_dir)
    language_model = _language_model(vocabulary)
    config = _config(language_model.config.to_dict(), vocabulary)
    (model_dir / "configuration.py").write_text(CONFIGURATION)
    (model_dir / "config.json").write_text(json.dumps(config, indent=2))
    weights = {
        **{_published(name): weight for name, weight in language_model.state_dict().items()},
        **_vision_weights(),
    }
    save_file(weights, model_dir / "model.safetensors", metadata={"format": "pt"})
    write_generation_config(model_dir, vocabulary)


def _published(name: str) -> str:
    """Returns how the checkpoints call a weight that transformers calls ``name``."""
    return "language_model." + name.replace("model.", "backbone.", 1)


def _chat_template() -> str:
    template = CHAT_TEMPLATE
    for kind in ("image", "video"):
        template = template.replace(f"<|vision_start|><|{kind}_pad|><|vision_end|>", f"<{kind}>")
    return template


def _language_model(vocabulary: Vocabulary) -> Any:
    import torch
    from transformers import NemotronHConfig, NemotronHForCausalLM

    text = {**vocabulary.text_config(), "vocab_size": len(vocabulary.tokenizer)}
    torch.manual_seed(SEED)
    model = NemotronHForCausalLM(NemotronHConfig(**text, **TEXT, dtype="float32"))
    gains = {
        "mixer.q_proj.weight": ATTENTION_GAIN,
        "mixer.k_proj.weight": ATTENTION_GAIN,
        # Drawn so small that the Mamba layers would hand on no more than the token itself.
        "mixer.in_proj.weight": 4.0,
        "mixer.conv1d.weight": 25.0,
    }
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(gains.get(name.split(".", 3)[-1], 1.0))
        # Only whole words can win, so that an answer of random weights can at least be read.
        mask = torch.zeros(len(vocabulary.tokenizer), 1)
        mask[vocabulary.word_ids] = ATTENTION_GAIN
        model.lm_head.weight.mul_(mask)
    return model


def _config(text_config: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "architectures": ["NemotronH_Nano_VL_V2"],
        "model_type": "NemotronH_Nano_VL_V2",
        "auto_map": {"AutoConfig": "configuration.NanoVLConfig"},
        # vLLM's vision path is written for this type and no other.
        "dtype": "bfloat16",
        "text_config": {**text_config, "dtype": "bfloat16"},
        "vision_config": {
            "patch_size": PATCH,
            "preferred_resolution": [PICTURE, PICTURE],
            # The named model gives the layers their kind; the sizes after it are ours.
            "args": {
                "model": "vit_small_patch16_224",
                "num_attention_heads": 2,
                "cpe_max_size": 2 * PICTURE,
                "register_multiple": REGISTERS,
                **VISION,
            },
        },
        "force_image_size": PICTURE,
        "patch_size": PATCH,
        "downsample_ratio": 0.5,
        "use_thumbnail": True,
        "ps_version": "v2",
        "template": "nemotron",
        "image_tag_type": "internvl",
        "vit_hidden_size": VISION["hidden_size"],
        "projector_hidden_size": 512,
        "norm_mean": [0.48145466, 0.4578275, 0.40821073],
        "norm_std": [0.26862954, 0.26130258, 0.27577711],
        "img_context_token_id": vocabulary.tokenizer.convert_tokens_to_ids("<image>"),
        "video_context_token_id": vocabulary.tokenizer.convert_tokens_to_ids("<video>"),
        "eos_token_id": text_config["eos_token_id"],
        "pad_token_id": text_config["pad_token_id"],
        "tie_word_embeddings": False,
    }


def _vision_weights() -> dict[str, Any]:
    """Returns the vision tower and the projector, under the names of the real checkpoints."""
    import torch

    random = torch.Generator().manual_seed(SEED)
    width, inner = VISION["hidden_size"], VISION["intermediate_size"]

    def normal(*shape: int) -> Any:
        return torch.empty(shape).normal_(0, 0.02, generator=random)

    tower = {
        "patch_generator.embedder.weight": normal(width, 3 * PATCH**2),
        "patch_generator.pos_embed": normal(1, (2 * PICTURE // PATCH) ** 2, width),
        "patch_generator.cls_token.token": normal(REGISTERS, width),
    }
    for index in range(VISION["num_hidden_layers"]):
        for name, (rows, columns) in {
            "attn.qkv": (3 * width, width),
            "attn.proj": (width, width),
            "mlp.fc1": (inner, width),
            "mlp.fc2": (width, inner),
        }.items():
            tower[f"blocks.{index}.{name}.weight"] = normal(rows, columns)
            tower[f"blocks.{index}.{name}.bias"] = torch.zeros(rows)
        for name in ("norm1", "norm2"):
            tower[f"blocks.{index}.{name}.weight"] = torch.ones(width)
            tower[f"blocks.{index}.{name}.bias"] = torch.zeros(width)
    return {
        **{f"vision_model.radio_model.model.{name}": weight for name, weight in tower.items()},
        "mlp1.0.weight": torch.ones(4 * width),
        "mlp1.1.weight": normal(512, 4 * width),
        "mlp1.3.weight": normal(HIDDEN_SIZE, 512),
    }
