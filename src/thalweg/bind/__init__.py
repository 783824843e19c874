"""The ecosystem's own shapes; each loads on first use."""

from importlib import import_module
from typing import Any

from thalweg.core.extras import need

_FACES = (
    "datatrove", "lightning", "llamafactory", "lmms", "megatron", "mindspeed", "torch", "torchtitan", "trainer",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a face on first use."""
    if name not in _FACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "torchtitan":  # its classes are the base of ours
        need("torchtitan", why="bind.torchtitan")
    return import_module(f"{__name__}.{name}")
