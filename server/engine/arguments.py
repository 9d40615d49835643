"""From our settings to vLLM's configuration, with the faults named in one line."""

import dataclasses
import difflib
from typing import Any

from pydantic import ValidationError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs

from server.errors import ConfigurationError
from server.evs.arithmetic import ENABLED_AT_RATE_ZERO, METHODS
from server.evs.plugin import ARCHITECTURES, METHODS_OF_ARCHITECTURE
from server.settings import PruningSettings, Settings

_OWNED = {
    "model": "model",
    "served_model_name": "served_model_name",
    "video_pruning_rate": "pruning.default_rate",
    "video_pruning_method": "pruning.default_method",
}
"""vLLM arguments that have a setting of ours."""
_REFUSED = {
    "enable_mm_embeds": "clients could hand tensors to the model",
    "enable_prompt_embeds": "clients could hand tensors to the model",
    "disable_log_stats": "the times in answers and metrics come from them",
}


def create_vllm_config(settings: Settings, model: str) -> tuple[VllmConfig, tuple[str, ...]]:
    """Returns vLLM's configuration for ``model``, and the methods by which videos can be pruned.

    Raises:
        ConfigurationError: an engine argument is unknown, wrong, or does not fit the model.
    """
    _check_names(settings.engine)
    arguments: dict[str, Any] = {
        # The log says what the settings are; vLLM's own request log would hold prompts.
        "enable_log_requests": False,
        **settings.engine,
        "model": model,
        "served_model_name": settings.public_model_name,
    }
    try:
        architecture = AsyncEngineArgs(**arguments).create_model_config().architecture
        methods = METHODS_OF_ARCHITECTURE.get(architecture, ())
        if settings.engine.get("pipeline_parallel_size", 1) > 1:
            # Later stages do not see the positions that the encoder's rows bring.
            architecture, methods = f"{architecture} in several pipeline stages", ()
        _check_defaults(settings.pruning, architecture, methods)
        if methods:
            arguments["video_pruning_method"] = settings.pruning.default_method
            arguments["video_pruning_rate"] = max(
                settings.pruning.default_rate, ENABLED_AT_RATE_ZERO
            )
        return AsyncEngineArgs(**arguments).create_engine_config(), methods
    except ValidationError as error:
        raise ConfigurationError(f"engine: {_first_line(error)}") from error
    # vLLM refuses arguments, models and platforms with any of these.
    except (ValueError, TypeError, OSError, RuntimeError, NotImplementedError) as error:
        text = " ".join(str(error).split())
        raise ConfigurationError(f"engine: {text or type(error).__name__}") from error


def _check_names(engine: dict[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(AsyncEngineArgs)]
    for name in engine:
        if name in _OWNED:
            raise ConfigurationError(f"engine.{name}: set {_OWNED[name]} instead")
        if name in _REFUSED and engine[name]:
            raise ConfigurationError(f"engine.{name} can not be switched on: {_REFUSED[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean engine.{near[0]}?" if near else ""
            raise ConfigurationError(f"engine.{name} is no argument of vLLM's engine{hint}")


def _check_defaults(pruning: PruningSettings, architecture: str, methods: tuple[str, ...]) -> None:
    if not methods and pruning.default_rate > 0:
        raise ConfigurationError(
            f"pruning.default_rate is {pruning.default_rate}, but {architecture} has no video "
            f"pruning; set it to 0, or serve one of: {', '.join(ARCHITECTURES)}"
        )
    accepted = methods or METHODS[:1]
    if pruning.default_method not in accepted:
        raise ConfigurationError(
            f"pruning.default_method is {pruning.default_method}, which {architecture} does not "
            f"have; set it to {' or '.join(accepted)}"
        )


def _first_line(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    text = " ".join(str(first["msg"]).split())
    return f"{place}: {text}" if place else text
