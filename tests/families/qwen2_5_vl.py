"""The embedded model, a tiny Qwen2.5-VL, as one family among the others."""

from pathlib import Path

from server.demo.model import ensure_model


def build(model_dir: Path) -> None:
    """Write the whole checkpoint into ``model_dir``."""
    ensure_model(model_dir)
