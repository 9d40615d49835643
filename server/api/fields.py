"""Which top-level fields of a chat request there are, and what becomes of each."""

from collections.abc import Mapping

from server.api.dialects import HINT_FIELDS, REQUEST_FIELDS
from server.api.options import FORWARDED_FIELDS
from server.api.validation import shown, unknown_field
from server.engine.base import JsonObject
from server.errors import InvalidRequest

IGNORED_FIELDS = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""Fields that OpenAI's clients send and that mean nothing to a server of one model."""
KNOWN_FIELDS = (
    frozenset({"model", "messages", *HINT_FIELDS, *REQUEST_FIELDS})
    | FORWARDED_FIELDS
    | IGNORED_FIELDS
)

_OWN_FORMAT = "Use response_format with a JSON schema."
_OWN_TEMPLATE = "The prompt is made by the model's own chat template."
_NONE = ""
REFUSED_FIELDS: Mapping[str, str] = {
    # vLLM's: each has been a way to run code, read another request's data or stop the engine.
    "add_generation_prompt": _OWN_TEMPLATE,
    "add_special_tokens": _OWN_TEMPLATE,
    "allowed_token_ids": "Use logit_bias.",
    "bad_words": "Use logit_bias.",
    "cache_salt": _NONE,
    "chat_template": _OWN_TEMPLATE,
    "chat_template_kwargs": _OWN_TEMPLATE + " Use reasoning_effort to bound reasoning.",
    "continue_final_message": _OWN_TEMPLATE,
    "documents": "Put the documents into a message.",
    "ec_transfer_params": _NONE,
    "echo": _NONE,
    "guided_choice": _OWN_FORMAT,
    "guided_grammar": _OWN_FORMAT,
    "guided_json": _OWN_FORMAT,
    "guided_regex": _OWN_FORMAT,
    "include_stop_str_in_output": _NONE,
    "kv_transfer_params": _NONE,
    "length_penalty": _NONE,
    "logits_processors": _NONE,
    "logprob_token_ids": "Use logprobs and top_logprobs.",
    "priority": _NONE,
    "prompt_logprobs": "Use logprobs for the answer's own.",
    "repetition_detection": _NONE,
    "request_id": "Send the header X-Request-Id.",
    "return_token_ids": _NONE,
    "return_tokens_as_token_ids": _NONE,
    "spaces_between_special_tokens": _NONE,
    "structured_outputs": _OWN_FORMAT,
    "thinking_token_budget": "Use reasoning_effort.",
    "truncate_prompt_tokens": "Send a shorter conversation.",
    "truncation_side": "Send a shorter conversation.",
    "use_beam_search": _NONE,
    "vllm_xargs": _NONE,
    # OpenAI's, for what this server does not do.
    "audio": "Answers are text.",
    "function_call": "Use tool_choice.",
    "functions": "Use tools.",
    "modalities": "Answers are text; leave it out.",
    "prediction": _NONE,
    "extra_body": "The OpenAI client puts what is in it on the request itself; do the same.",
    "verbosity": "Say in a message how long the answer should be.",
    "web_search_options": _NONE,
}
"""Known fields that are not accepted, and what to use instead."""

_SERVICE_TIERS = (None, "auto", "default")


def check_fields(payload: JsonObject) -> None:
    """Returns if every top-level field is accepted.

    Raises:
        InvalidRequest: naming the field that is not, and what to do instead.
    """
    for name in payload:
        if name in KNOWN_FIELDS:
            continue
        if name in REFUSED_FIELDS or name.endswith("_embeds"):
            message = f"The field {shown(name)} is not accepted by this server."
            cure = REFUSED_FIELDS.get(name, "Send the video itself.")
            raise InvalidRequest(
                f"{message} {cure}".rstrip(), param=name[:200], code="unsupported_field"
            )
        raise unknown_field(name, KNOWN_FIELDS, name)
    if payload.get("service_tier") not in _SERVICE_TIERS:
        raise InvalidRequest(
            "There is one service tier here; service_tier must be auto or default.",
            param="service_tier",
        )
