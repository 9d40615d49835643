"""``GET /v1/models``: the served model, and what can be asked of it."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.api.errors import JsonResponse
from server.api.state import engine_of, settings_of
from server.api.validation import shown
from server.engine.base import JsonObject, ModelFacts
from server.errors import ModelNotFound
from server.settings import Settings

router = APIRouter()


@router.get("/v1/models", response_class=Response)
async def list_models(request: Request) -> Response:
    """Returns the list of the models that are served, which has one entry."""
    return JsonResponse(_models(request))


@router.get("/v1/models/{model:path}", response_class=Response)
async def get_model(request: Request, model: str) -> Response:
    """Returns the model of that name."""
    for entry in _models(request)["data"]:
        if entry["id"] == model:
            return JsonResponse(entry)
    raise ModelNotFound(f"The model {shown(model)} is not served here.", param="model")


def _models(request: Request) -> JsonObject:
    engine, settings = engine_of(request), settings_of(request)
    listing = engine.models()
    abilities = {
        "architecture": {"input_modalities": ["text", "video"], "output_modalities": ["text"]},
        "video": _video_abilities(settings, engine.facts),
    }
    return {**listing, "data": [{**entry, **abilities} for entry in listing["data"]]}


def _video_abilities(settings: Settings, facts: ModelFacts) -> JsonObject:
    """Returns what a client may ask of a video, so that it need not find out by errors."""
    video, pruning = settings.video, settings.pruning
    return {
        "pruning": facts.supports_pruning,
        "pruning_methods": list(facts.pruning_methods),
        "default_pruning_method": pruning.default_method if facts.supports_pruning else None,
        "default_pruning_rate": pruning.default_rate if facts.supports_pruning else 0.0,
        "max_pruning_rate": pruning.max_rate if facts.supports_pruning else 0.0,
        "default_fps": video.default_fps,
        "max_fps": video.max_fps,
        "max_frames": video.max_frames,
        "max_videos": video.max_videos,
        "max_video_bytes": video.max_video_bytes,
        "urls": video.allow_urls,
    }
