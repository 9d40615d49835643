"""Entry point ``vllm.general_plugins``: every vLLM process calls ``register``, some of them twice.

vLLM logs and swallows an exception raised while the entry point is imported, but lets one raised
by the call through; hence the imports inside the function.
"""

SUPPORTED_VLLM = ("0.32.0",)
ARCHITECTURES = ("Qwen2_5_VLForConditionalGeneration",)
"""Model architectures, by their Hugging Face names, whose videos are pruned at their own rate."""


def register() -> None:
    """Make the engine prune each video at its own rate.

    Raises:
        RuntimeError: the installed vLLM is not one whose internals the overrides were written for.
    """
    import vllm
    from vllm import ModelRegistry
    from vllm.platforms import current_platform

    installed = vllm.__version__.split("+")[0]
    if installed not in SUPPORTED_VLLM:
        raise RuntimeError(
            f"server.evs was written for vLLM {', '.join(SUPPORTED_VLLM)} and found {installed}; "
            "install that version, or check the overrides in server/evs and extend SUPPORTED_VLLM"
        )
    for architecture in ARCHITECTURES:
        ModelRegistry.register_model(architecture, f"server.evs.models:{architecture}")
    if current_platform.is_cpu():
        from server.evs.runner import enable_pruning_on_cpu

        enable_pruning_on_cpu()
