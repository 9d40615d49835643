"""The environment variables by which vLLM is configured, set before vLLM is imported.

vLLM reads some switches from the environment only. Those that an operator may want to choose are
set where absent; those that this server's safety rests on are always set.
"""

import os

from server.engine.base import CLIP_URL_SCHEME

CONNECTOR_NAME = CLIP_URL_SCHEME.rstrip(":")
"""Name under which ``server.engine.connector`` is registered with vLLM."""

_REQUIRED = {
    # vLLM must never fetch or decode what a client named; the connector hands over clips.
    "VLLM_MEDIA_CONNECTOR": CONNECTOR_NAME,
    # EngineCore must not inherit this process's threads and locks half way.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",
    "VLLM_SERVER_DEV_MODE": "0",
}
_DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # The transport between the processes stays on this machine.
    "VLLM_HOST_IP": "127.0.0.1",
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare_environment(*, log_level: str, compiles: bool = True) -> None:
    """Set the variables. Call it before the first import of vLLM in this process.

    Args:
        log_level: least severe level that vLLM logs.
        compiles: whether vLLM may compile at all. Its ``enforce_eager`` leaves out some helpers,
            of logprobs for one, and without a C++ compiler the first use of one kills EngineCore.
    """
    os.environ.update(_REQUIRED)
    if not compiles:
        os.environ.update(TORCH_COMPILE_DISABLE="1", TORCHDYNAMO_DISABLE="1")
    for name, value in {**_DEFAULTS, "VLLM_LOGGING_LEVEL": log_level.upper()}.items():
        os.environ.setdefault(name, value)
