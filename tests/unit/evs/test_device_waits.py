"""Nothing that the model does with rows and positions waits for a value on the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
from vllm.v1.worker.gpu.mm.encoder_runner import EncoderRunner

from server.evs.plan import MAX_FINGERPRINT
from tests.unit.evs.v2_prompts import (
    HIDDEN,
    MAX_TOKENS,
    QWEN2_5,
    QWEN3,
    QWEN3_FLAT,
    WHOLE,
    Image,
    Video,
    prompt_of,
)
from tests.unit.evs.v2_runner import model_of


class WaitsForDeviceError(Exception):
    """A value on the device was asked for."""


class NoWaiting(TorchDispatchMode):
    """Meta tensors play the device: they have no values, and few operations can do without.

    What can, though it waits on a GPU, is refused by name.
    """

    ASKING = frozenset(
        {
            "aten::_local_scalar_dense",
            "aten::is_nonzero",
            "aten::equal",
            "aten::nonzero",
            "aten::nonzero_numpy",
            "aten::masked_select",
            "aten::_unique2",
            "aten::bincount",
        }
    )
    INDEXING = frozenset({"aten::index", "aten::index_put", "aten::index_put_"})

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().split(".")[0]
        on_device = [leaf for leaf in tree_leaves((args, kwargs)) if is_on_device(leaf)]
        if on_device and name in self.ASKING:
            raise WaitsForDeviceError(name)
        if name in self.INDEXING and any(map(is_mask, tree_leaves(args[1]))):
            raise WaitsForDeviceError(name)
        found = func(*args, **kwargs)
        is_copied_back = any(isinstance(t, torch.Tensor) and t.is_cpu for t in tree_leaves(found))
        if on_device and is_copied_back:
            raise WaitsForDeviceError(name)
        return found


def is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def is_mask(index: Any) -> bool:
    return is_on_device(index) and index.dtype in (torch.bool, torch.uint8)


WAITING: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda t: t[0].item(),
    "int": lambda t: int(t[0]),
    "if": lambda t: bool(t[0] > 0),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "copy": lambda t: torch.zeros(4).copy_(t),
    "numpy": lambda t: t.numpy(),
    "mask": lambda t: t[t > 0],
    "mask assigned": lambda t: t.index_put_((t > 0,), torch.zeros((), device="meta")),
    "masked_select": lambda t: t.masked_select(t > 0),
    "nonzero": lambda t: (t > 0).nonzero(),
    "where": lambda t: torch.where(t > 0),
    "unique": lambda t: t.unique(),
    "repeat_interleave": lambda t: torch.repeat_interleave(t, t.long()),
    "equal": lambda t: torch.equal(t, t),
    "slice": lambda t: t[: t.long()[0]],
}
"""What would wait for a GPU, as someone might write it."""


@pytest.mark.parametrize("written", WAITING)
def test_the_guard_notices_what_would_wait_for_a_gpu(written):
    # Torch itself refuses some of it for meta tensors, with one of the last three.
    waits = (WaitsForDeviceError, NotImplementedError, RuntimeError, TypeError)

    with NoWaiting(), pytest.raises(waits):
        WAITING[written](torch.zeros(4, device="meta"))


@pytest.mark.parametrize(
    ("family", "method"),
    [(QWEN2_5, "evs"), (QWEN3_FLAT, "evs"), (QWEN3, "evs"), (QWEN3, "vidcom2")],
    ids=lambda value: getattr(value, "name", value),
)
def test_nothing_is_asked_of_values_on_the_device(family, method):
    meta = torch.device("meta")
    model = model_of(family, device=meta)
    pruned = Video(4, 2, 3, seed=5, rate=0.5, fingerprint=MAX_FINGERPRINT, method=method)
    prompt = prompt_of(family, [2, Image(2, 2, seed=9), 1, pruned, 1, WHOLE, 2])
    encoder = EncoderRunner(model, MAX_TOKENS, HIDDEN, EncoderCache(), torch.float32, meta)
    positions, _ = model.get_mrope_input_positions(prompt.token_ids, prompt.features)
    stored = positions.to(meta, torch.int32)
    media = [(feature.modality, feature.data) for feature in prompt.features]

    with NoWaiting():
        rows = encoder.execute_mm_encoder(media)
        cleaned, updated, delta = model.recompute_mrope_positions(
            input_ids=torch.tensor(prompt.token_ids, device=meta, dtype=torch.int32),
            multimodal_embeddings=rows,
            mrope_positions=stored.long(),
            num_computed_tokens=1,
        )

    counts = [feature.mm_position.get_num_embeds() for feature in prompt.features]
    assert [tuple(c.shape) for c in cleaned] == [(count, family.width) for count in counts]
    assert updated.is_meta
    assert updated.shape == positions.shape
    assert delta is None
