"""``GET /v1/models``: the served model, and what can be asked of it."""

from typing import get_args

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.api.errors import JsonResponse
from server.api.state import engine_of, files_of, settings_of
from server.api.validation import shown
from server.conversation import FrameAlignment
from server.engine.base import JsonObject, ModelFacts
from server.errors import ModelNotFound
from server.settings import PruningSettings, Settings, VideoSettings

router = APIRouter()


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", response_class=Response)
async def list_models(request: Request) -> Response:
    """Returns the list of the models that are served, which has one entry."""
    return JsonResponse(_models(request))


@router.head("/v1/models/{model:path}", include_in_schema=False)
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
        "video": {
            **_pruning_abilities(settings.pruning, engine.facts),
            **_sampling_abilities(settings.video),
            **_accepted_sources(settings, takes_uploads=files_of(request).is_available),
        },
    }
    return {**listing, "data": [{**entry, **abilities} for entry in listing["data"]]}


# What a client may ask of a video and may send as one, so that it need not find out by errors.


def _pruning_abilities(pruning: PruningSettings, facts: ModelFacts) -> JsonObject:
    return {
        "pruning": facts.supports_pruning,
        "pruning_methods": list(facts.pruning_methods),
        "default_pruning_method": pruning.default_method if facts.supports_pruning else None,
        "default_pruning_rate": pruning.default_rate if facts.supports_pruning else 0.0,
        "max_pruning_rate": pruning.max_rate if facts.supports_pruning else 0.0,
    }


def _sampling_abilities(video: VideoSettings) -> JsonObject:
    return {
        "default_fps": video.default_fps,
        "max_fps": video.max_fps,
        "min_frames": video.min_frames,
        "max_frames": video.max_frames,
        "frame_alignments": list(get_args(FrameAlignment)),
        "max_model_pixels_per_frame": video.max_model_pixels_per_frame,
        "max_model_pixels_per_video": video.max_model_pixels_per_video,
    }


def _accepted_sources(settings: Settings, *, takes_uploads: bool) -> JsonObject:
    video = settings.video
    return {
        "max_videos": video.max_videos,
        "max_video_bytes": video.max_video_bytes,
        "range_threshold_bytes": video.range_threshold_bytes,
        "max_ranged_video_bytes": video.max_ranged_video_bytes,
        "max_source_frames": video.max_source_frames,
        "max_pixels_per_frame": video.max_pixels_per_frame,
        "max_list_frames": video.max_list_frames,
        "max_picture_bytes": video.max_picture_bytes,
        "containers": list(video.containers),
        "codecs": list(video.codecs),
        "urls": video.allow_urls,
        "file_urls": video.local_directory is not None,
        "uploads": takes_uploads,
        "max_upload_bytes": settings.files.max_file_bytes if takes_uploads else None,
    }
