"""Tokenizer and chat template: whole words, whole numbers, short timestamps."""

import re
from typing import Any

from server.embedded import phrasing

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
_TIMESTAMP_ENDS = tuple(f".{tenth} seconds>" for tenth in range(10))
"""With whole numbers below 100, ``<12.3 seconds>`` has three tokens."""
_NUMBERS = tuple(str(number) for number in range(100))
_ANSWER_WORDS = """
Red Green Blue Yellow Purple White Black Left Right Up Down Nowhere Zero One Two Three Four Five
Six Yes No At second The then A appears disappears moves left right up down stays still and a the
system user assistant You are a helpful assistant about video clip
"""

# Videos come first wherever the client put them: the model was trained on them there.
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
    "{%- endif -%}{%- endfor -%}"
    "{%- for part in message['content'] -%}"
    "{%- if 'text' in part -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


def build_tokenizer() -> Any:
    """Returns the tokenizer, the same every time: byte-level BPE that knows the world's words."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d{1,2}|[^\d]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(), trainer)
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.add_tokens([AddedToken(end, normalized=False) for end in _TIMESTAMP_ENDS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        model_max_length=32768,
        clean_up_tokenization_spaces=False,
    )


def _corpus() -> list[str]:
    """Returns each word in each of its forms, a line for each."""
    text = " ".join([*phrasing.corpus(), _ANSWER_WORDS])
    words = sorted(set(re.findall(r"[A-Za-z]+", text)))
    forms = {form for word in words for form in (word, word.lower(), word.capitalize())}
    lines = [line for form in sorted(forms) for line in (form, f" {form}")]
    return [*lines, *_NUMBERS]
