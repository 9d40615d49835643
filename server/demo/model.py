"""The embedded default model: a tiny Qwen2.5-VL checkpoint, built locally, the same every time.

Its weights are random, so its answers are made of random words; everything else is real: vision
tower, language model, M-RoPE, byte-level BPE tokenizer, video processor and chat template, loaded
by vLLM like any downloaded checkpoint. The query and key projections are scaled up, because with
plain random weights attention is nearly uniform and a wrong position would hardly change an answer.
"""

import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ATTENTION_GAIN = 8.0
"""Factor on the query and key projections of the language model."""
SEED = 20260

_VOCABULARY = """
a an the this that it is are was then now first second third last one two three four five six
seven eight nine ten red green blue yellow orange purple black white grey circle square triangle
star ball box car dog cat bird person hand left right up down in out of from to on under over
behind front near far fast slow still moving moves turns stops starts enters leaves appears
disappears grows shrinks and or not no yes what which where when who how many does do video
frame second seconds picture scene background light dark small large round there here shows see
seen describe color colour shape direction object objects happens before after at with while
between again

"""
WORDS = tuple(_VOCABULARY.split())

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- elif message['content'] -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'video' or 'video' in part -%}"
    "{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'image' or 'image' in part -%}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part -%}{{ part['text'] }}"
    "{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def default_model_dir() -> Path:
    """Returns where the embedded model is kept; the name changes whenever this module does."""
    source = inspect.getsource(sys.modules[__name__]).encode()
    fingerprint = hashlib.sha256(source).hexdigest()[:12]
    return Path.home() / ".cache" / "video-chat-server" / f"embedded-{fingerprint}"


def ensure_model(model_dir: Path | None = None) -> Path:
    """Returns the directory of the embedded model, building it first where it is missing."""
    return ensure_built(default_model_dir() if model_dir is None else model_dir, build_model)


def ensure_built(model_dir: Path, build: Callable[[Path], None]) -> Path:
    """Returns ``model_dir``, letting ``build`` write the checkpoint first where it is missing."""
    if (model_dir / "config.json").exists():
        return model_dir
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    # Built aside and renamed, so that two processes starting at once never see half a checkpoint.
    building = Path(tempfile.mkdtemp(dir=model_dir.parent, prefix=".building-"))
    try:
        build(building)
        try:
            os.rename(building, model_dir)
        except OSError:
            if not (model_dir / "config.json").exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return model_dir


def build_model(model_dir: Path, *, seed: int = SEED) -> None:
    """Write the whole checkpoint into ``model_dir``: weights, tokenizer, processor, template."""
    tokenizer = _build_tokenizer()
    token_ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    _build_processor(tokenizer).save_pretrained(model_dir)
    words = [tokenizer.encode(f" {word}", add_special_tokens=False) for word in WORDS]
    word_ids = [ids[0] for ids in words if len(ids) == 1]
    config = _model_config(len(tokenizer), token_ids)
    _build_weights(config, word_ids, seed).save_pretrained(model_dir)
    generation = {
        "eos_token_id": token_ids["<|im_end|>"],
        "pad_token_id": token_ids["<|endoftext|>"],
    }
    (model_dir / "generation_config.json").write_text(json.dumps(generation))


def _build_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    # One word a line and a leading space: the merges spell out each word as a single token.
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = [form for word in WORDS for form in (f" {word}", f" {word}", word)]
    backend.train_from_iterator(corpus, trainer)
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        model_max_length=32768,
        clean_up_tokenization_spaces=False,
    )


def _build_processor(tokenizer: Any) -> Any:
    from transformers import (
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    size = {"shortest_edge": 4 * 28 * 28, "longest_edge": 96 * 28 * 28}
    for token in ("image", "video"):
        setattr(tokenizer, f"{token}_token", f"<|{token}_pad|>")
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=dict(size)),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=dict(size), cap_pixels_per_frame=False),
        chat_template=CHAT_TEMPLATE,
    )


def _model_config(vocab_size: int, token_ids: dict[str, int]) -> Any:
    from transformers import Qwen2_5_VLConfig

    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": vocab_size,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "type": "default",
                "mrope_section": [8, 12, 12],
                "rope_theta": 1_000_000.0,
            },
            "bos_token_id": None,
            "eos_token_id": token_ids["<|im_end|>"],
            "pad_token_id": token_ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_heads": 2,
            "out_hidden_size": 256,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
        image_token_id=token_ids["<|image_pad|>"],
        video_token_id=token_ids["<|video_pad|>"],
        vision_start_token_id=token_ids["<|vision_start|>"],
        vision_end_token_id=token_ids["<|vision_end|>"],
        tie_word_embeddings=False,
        dtype="float32",
    )


def _build_weights(config: Any, word_ids: list[int], seed: int) -> Any:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("self_attn.q_proj.weight", "self_attn.k_proj.weight")):
                weight.mul_(ATTENTION_GAIN)
        # Only whole words can win, so that an answer of random weights can at least be read.
        mask = torch.zeros(config.text_config.vocab_size, 1)
        mask[word_ids] = ATTENTION_GAIN
        model.lm_head.weight.mul_(mask)
    return model
