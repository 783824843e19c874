"""numpy batches to torch batches, on the device where there is one.

Decides which values become tensors. Shares memory with the numpy arrays: the caller owns both.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError


def to_tensors(batch: Batch) -> Batch:
    """Give the same batch with every numpy array as a tensor; other values and `.info` stay."""
    return Batch({k: _tensor(v) for k, v in batch.items()}, info=batch.info)


def _tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return value
    return torch.from_numpy(value if value.flags.writeable else value.copy())


def finisher(device: Any = None) -> Callable[[Batch], Batch]:
    """Give what makes a numpy batch a torch batch, on `device` where one is named.

    On a device with streams batches are copied two ahead (`bind.torch.copies`).
    """
    if device is None:
        return to_tensors
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is no device", where="Loader", fix='"cuda", "cuda:1" or "cpu"') from error
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device={device!r}: this torch sees no GPU", where="Loader", fix="leave device out, or check the driver"
        )
    if target.type not in {"cpu", "meta"} and hasattr(torch.get_device_module(target), "Stream"):
        copies = import_module("thalweg.bind.torch.copies")
        ahead: Callable[[Batch], Batch] = copies.Copies(copies.Accelerator(target))
        return ahead
    return lambda batch: to_tensors(batch).to(target)
