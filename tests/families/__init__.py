"""One tiny checkpoint for each model family whose pruning is tested, built when first asked for.

The weights are random; configuration, tokenizer and processor are of the real models' kind, so that
vLLM loads each checkpoint with the classes it would use for a downloaded one.
"""

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import server.demo.model
from server.demo.model import ensure_built
from tests.families import (
    nemotron_nano_vl,
    parts,
    qwen2_5_vl,
    qwen3_5,
    qwen3_5_moe,
    qwen3_vl,
    qwen3_vl_moe,
    speculators,
)

QWEN_VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
BFLOAT16 = ("bfloat16",)
"""vLLM's linear attention on a CPU, and its Nemotron vision path anywhere, know no other type."""
NO_MAMBA_DRAFTS = (
    "vLLM's Mamba layers on a CPU answer otherwise once drafts are allowed, pruned or not"
)
FEWER_DRAFTS = "vLLM dies of a step with fewer drafts than it took before (gdn_attention.py:556)"


@dataclass(frozen=True)
class Family:
    """A model family, and what a test must know to ask its checkpoint something."""

    name: str
    architecture: str
    """The class in ``config.json``, by which vLLM finds its own."""
    builder: Callable[[Path], None]
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """In which vLLM runs it on a CPU."""
    video_prompt: str = QWEN_VIDEO
    """What stands for one video in a prompt."""
    image_prompt: str = QWEN_IMAGE
    trust_remote_code: bool = False
    has_mrope: bool = True
    has_prefix_cache: bool = True
    """Whether vLLM can resume a prompt from its prefix cache on a CPU."""
    scarce_memory: Mapping[str, Any] = field(
        default_factory=lambda: {"num_gpu_blocks_override": 7, "max_model_len": 768}
    )
    """Engine arguments that leave memory for little more than one prompt of a test."""
    speculators: tuple[str, ...] = ("ngram",)
    """What can draft for it on a CPU, by the method's name in vLLM."""
    unspeculated: Mapping[str, str] = field(default_factory=dict)
    """What cannot, with or without pruning, and where vLLM stops."""


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "qwen2_5_vl",
            "Qwen2_5_VLForConditionalGeneration",
            qwen2_5_vl.build,
            speculators=("ngram", "draft_model", "eagle3"),
        ),
        Family(
            "qwen3_vl",
            "Qwen3VLForConditionalGeneration",
            qwen3_vl.build,
            speculators=("ngram", "draft_model", "eagle3"),
        ),
        Family(
            "qwen3_vl_moe",
            "Qwen3VLMoeForConditionalGeneration",
            qwen3_vl_moe.build,
            speculators=("ngram", "eagle3"),
        ),
        Family(
            "qwen3_5",
            "Qwen3_5ForConditionalGeneration",
            qwen3_5.build,
            BFLOAT16,
            speculators=("mtp",),
            unspeculated={"ngram": FEWER_DRAFTS},
        ),
        Family(
            "qwen3_5_moe",
            "Qwen3_5MoeForConditionalGeneration",
            qwen3_5_moe.build,
            BFLOAT16,
            speculators=("mtp",),
            unspeculated={"ngram": FEWER_DRAFTS},
        ),
        Family(
            "nemotron_nano_vl",
            "NemotronH_Nano_VL_V2",
            nemotron_nano_vl.build,
            BFLOAT16,
            video_prompt="<video>",
            image_prompt="<image>",
            trust_remote_code=True,
            has_mrope=False,
            # mamba_mixer2.py wants a state for each chunk, the CPU kernel returns one a request.
            has_prefix_cache=False,
            # Its blocks are so large that no answer outgrows one: chunks must do it.
            scarce_memory={
                "num_gpu_blocks_override": 8,
                "max_model_len": 1024,
                "max_num_batched_tokens": 300,
                "scheduler_reserve_full_isl": False,
            },
            speculators=(),
            unspeculated={"ngram": NO_MAMBA_DRAFTS},
        ),
    )
}


def video_token_id(name: str) -> int:
    """Returns the token that stands for one video token in the family's prompts."""
    config = json.loads((checkpoint(name) / "config.json").read_text())
    return int(config["video_token_id"])


def checkpoint(name: str) -> Path:
    """Returns the directory of the family's checkpoint, building it first where it is missing."""
    family = FAMILIES[name]
    return ensure_built(_model_dir(family), family.builder)


def speculator(name: str, method: str) -> Path:
    """Returns the directory of what drafts for the family's checkpoint, building it likewise."""
    target = checkpoint(name)
    source = inspect.getsource(speculators)
    model_dir = target.with_name(f"{target.name}-{method}-{_fingerprint(source)}")
    return ensure_built(model_dir, functools.partial(speculators.BUILDERS[method], target))


def _model_dir(family: Family) -> Path:
    modules = (inspect.getmodule(family.builder), parts, server.demo.model)
    source = "".join(inspect.getsource(module) for module in modules)
    folder = Path.home() / ".cache" / "video-chat-server" / "families"
    return folder / f"{family.name}-{_fingerprint(source)}"


def _fingerprint(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:12]
