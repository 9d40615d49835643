"""What drafts tokens for a family's checkpoint: a draft model, an EAGLE-3 head, an MTP layer.

A draft model is the target's own language model as a text-only checkpoint, so on a text it drafts
what the target says. Heads are random: they draft, and are hardly ever right.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.demo.model import SEED

AUXILIARY_LAYERS = (0, 1)
"""Of the target, whose hidden states an EAGLE-3 head is given."""
Weights = dict[str, Any]


def draft_model(target: Path, model_dir: Path) -> None:
    """Write the language model of ``target``, without its vision tower."""
    config = _config(target)
    text = {key: value for key, value in config["text_config"].items() if key != "layer_types"}
    is_qwen3 = "qwen3" in config["model_type"]
    text["model_type"] = "qwen3" if is_qwen3 else "qwen2"
    text["architectures"] = ["Qwen3ForCausalLM" if is_qwen3 else "Qwen2ForCausalLM"]
    text["dtype"] = config["dtype"]
    rope = text["rope_parameters"]
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    weights = {
        name.replace("language_model.", ""): weight
        for name, weight in _weights(target).items()
        if "visual." not in name
    }
    _write(model_dir, target, text, weights)


def eagle3(target: Path, model_dir: Path) -> None:
    """Write a random EAGLE-3 head, whose rotary positions are the target's."""
    config = _config(target)
    text = config["text_config"]
    copied = ("hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    copied = (*copied, "max_position_embeddings", "rope_parameters", "rms_norm_eps")
    hidden, inner, heads = text["hidden_size"], 512, text["num_attention_heads"]
    head = text.get("head_dim") or hidden // heads
    head_config = {
        **{key: text[key] for key in copied},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "head_dim": head,
        "draft_vocab_size": text["vocab_size"],
        "num_aux_hidden_states": len(AUXILIARY_LAYERS),
        "eagle_aux_hidden_state_layer_ids": list(AUXILIARY_LAYERS),
        "tie_word_embeddings": False,
        "dtype": config["dtype"],
    }
    key_value = text["num_key_value_heads"] * head
    shapes = {
        "fc.weight": (hidden, hidden * len(AUXILIARY_LAYERS)),
        "midlayer.self_attn.q_proj.weight": (heads * head, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (key_value, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (key_value, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * head),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        **{
            f"{norm}.weight": (hidden,)
            for norm in (
                "midlayer.hidden_norm",
                "midlayer.input_layernorm",
                "midlayer.post_attention_layernorm",
                "norm",
            )
        },
    }
    weights = {**_random(shapes), "lm_head.weight": _weights(target)["lm_head.weight"]}
    _write(model_dir, target, head_config, weights)


def mtp(target: Path, model_dir: Path) -> None:
    """Write a random layer for multi-token prediction, as Qwen3.5's checkpoints have one.

    It stands beside the target's configuration, embeddings and output, in a directory of its own.
    """
    config = _config(target)
    config["text_config"]["mtp_num_hidden_layers"] = 1
    text, layers = config["text_config"], "model.language_model.layers."
    last = text["layer_types"].index("full_attention")
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (text["hidden_size"], 2 * text["hidden_size"])
    }
    norms = ("mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding")
    shapes |= {f"{norm}.weight": (text["hidden_size"],) for norm in norms}
    weights = {}
    for name, weight in _weights(target).items():
        if name.startswith(f"{layers}{last}."):
            shapes[f"mtp.layers.0.{name.removeprefix(f'{layers}{last}.')}"] = tuple(weight.shape)
        elif "embed_tokens" in name or name == "lm_head.weight":
            weights[name] = weight
    # The norms of Qwen3.5 scale by one more than their weight.
    _write(model_dir, target, config, {**weights, **_random(shapes, norm=0.0)})


def _config(target: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((target / "config.json").read_text())
    return config


def _weights(target: Path) -> Weights:
    from safetensors.torch import load_file

    return dict(load_file(target / "model.safetensors"))


def _random(shapes: dict[str, tuple[int, ...]], *, norm: float = 1.0) -> Weights:
    import torch

    random = torch.Generator().manual_seed(SEED)
    return {
        name: torch.full(shape, norm)
        if len(shape) == 1
        else torch.empty(shape).normal_(0, 0.02, generator=random)
        for name, shape in shapes.items()
    }


def _write(model_dir: Path, target: Path, config: dict[str, Any], weights: Weights) -> None:
    from safetensors.torch import save_file

    shutil.copytree(target, model_dir, dirs_exist_ok=True)
    (model_dir / "config.json").write_text(json.dumps(config, indent=2))
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()},
        model_dir / "model.safetensors",
        metadata={"format": "pt"},
    )


BUILDERS: dict[str, Callable[[Path, Path], None]] = {
    "draft_model": draft_model,
    "eagle3": eagle3,
    "mtp": mtp,
}
"""By the method's name in vLLM."""
