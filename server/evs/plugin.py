"""Entry point ``vllm.general_plugins``: every vLLM process calls ``register``, some of them twice.

vLLM logs and swallows an exception raised while the entry point is imported, but lets one raised
by the call through; hence the imports inside the function.
"""

SUPPORTED_VLLM = ("0.32.0",)
ARCHITECTURES = {
    "Qwen2_5_VLForConditionalGeneration": "server.evs.qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "server.evs.qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "server.evs.qwen3_vl",
    "Qwen3_5ForConditionalGeneration": "server.evs.qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "server.evs.qwen3_5",
    "NemotronH_Nano_VL_V2": "server.evs.nemotron_vl",
}
"""Modules of the model classes whose videos are pruned at their own rate, by architecture."""
METHODS_OF_ARCHITECTURE = {
    name: ("evs", "vidcom2") if name.startswith("Qwen3") else ("evs",) for name in ARCHITECTURES
}
"""Pruning methods that vLLM 0.32.0's class of that name has."""


def register() -> None:
    """Make the engine prune each video at its own rate.

    Raises:
        RuntimeError: the installed vLLM is not one whose internals the overrides were written for.
    """
    import vllm
    from vllm import ModelRegistry
    from vllm.logger import init_logger
    from vllm.platforms import current_platform

    installed = vllm.__version__.split("+")[0]
    if installed not in SUPPORTED_VLLM:
        raise RuntimeError(
            f"server.evs was written for vLLM {', '.join(SUPPORTED_VLLM)} and found {installed}; "
            "install that version, or check the overrides in server/evs and extend SUPPORTED_VLLM"
        )
    for architecture, module in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, f"{module}:{architecture}")
    if current_platform.is_cpu():
        from server.evs.runner import enable_pruning_on_cpu

        enable_pruning_on_cpu()
    # Under vLLM's name, as it is vLLM's log.
    init_logger("vllm.server_evs").info_once(
        "each video is pruned at its own rate, in engines started with a video_pruning_rate"
    )
