"""Batches that are on the device before they are asked for: page-locked buffers, copies on a stream of their own.

Decides when a copy begins, when its buffer may be used again (after the copy's own event, never by time), and that
the batch handed over waits for its own copy alone. Knows no feed; the device is behind `Device`, so that the logic
is tested where there is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from thalweg.bind.torch.tensors import to_tensors
from thalweg.core.batch import Batch

Tensors = dict[str, Any]
_ALIGN, _SMALLEST = 64, 1 << 12


class Device(Protocol):
    """What copies need of a device: memory that it reads by itself, a stream, events."""

    def page_locked(self, nbytes: int) -> Any:
        """Give a uint8 tensor (nbytes,) in page-locked memory."""
        ...

    def copy(self, tensors: Mapping[str, Any]) -> tuple[Tensors, Any]:
        """Begin to copy on the stream of copies; give the device's tensors and the event at their end."""
        ...

    def hand_over(self, tensors: Tensors, event: Any) -> None:
        """Let the caller's stream wait for the event, and keep the tensors' memory until it is done with them."""
        ...

    def done(self, event: Any) -> bool:
        """Say whether an event has passed, without waiting."""
        ...


class Accelerator:
    """A device of torch with streams: cuda, xpu, npu, ...

    Args:
        device: such as torch.device("cuda:0").
    """

    def __init__(self, device: Any) -> None:
        self.device, self._module = device, torch.get_device_module(device)
        self._stream = self._module.Stream(device)

    def page_locked(self, nbytes: int) -> Any:
        """Give page-locked memory."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, tensors: Mapping[str, Any]) -> tuple[Tensors, Any]:
        """Begin to copy on the stream of copies."""
        with self._module.stream(self._stream):
            there = {name: tensor.to(self.device, non_blocking=True) for name, tensor in tensors.items()}
            event = self._module.Event()
            event.record(self._stream)
        return there, event

    def hand_over(self, tensors: Tensors, event: Any) -> None:
        """Let the caller's stream wait, and tell the allocator who uses the memory."""
        current = self._module.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors.values():
            tensor.record_stream(current)

    def done(self, event: Any) -> bool:
        """Ask the event."""
        return bool(event.query())


class Buffers:
    """Page-locked buffers, used again once the copy out of them is over.

    Args:
        device: that reads them.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._given: list[tuple[Any, Any]] = []  # buffer, event of the copy out of it
        self.made = 0

    def take(self, nbytes: int) -> Any:
        """Give a buffer of at least nbytes that no copy reads any more."""
        for at, (buffer, event) in enumerate(self._given):
            if nbytes <= buffer.numel() <= 4 * max(nbytes, _SMALLEST) and self._device.done(event):
                del self._given[at]
                return buffer
        self._given = [(b, e) for b, e in self._given if b.numel() >= nbytes or not self._device.done(e)]
        self.made += 1
        return self._device.page_locked(max(_SMALLEST, 1 << (nbytes - 1).bit_length()))

    def give(self, buffer: Any, event: Any) -> None:
        """Give a buffer back: free when the event has passed."""
        self._given.append((buffer, event))


@dataclass(eq=False)
class _Copy:
    """A batch under way."""

    batch: Batch
    tensors: Tensors
    event: Any


class Copies:
    """numpy batch -> the same batch on the device; those behind it are copied meanwhile.

    Args:
        device: where to.
        lead: batches copied ahead of the one handed over.
    """

    def __init__(self, device: Device, lead: int = 2) -> None:
        self.lead = lead
        self._device, self._buffers = device, Buffers(device)
        self._under_way: dict[int, _Copy] = {}

    def __call__(self, batch: Batch) -> Batch:
        """Give the batch on the device; the caller's stream waits for its copy, the caller does not."""
        copy = self._under_way.pop(id(batch), None) or self._begin(batch)
        self._device.hand_over(copy.tensors, copy.event)
        return Batch({**batch, **copy.tensors}, info=batch.info)

    def ahead(self, batches: Sequence[Batch]) -> None:
        """Begin the copies of the batches to come; those of others are forgotten (the loader went elsewhere)."""
        wanted = {id(b) for b in batches}
        self._under_way = {key: copy for key, copy in self._under_way.items() if key in wanted}
        for batch in batches:
            if id(batch) not in self._under_way:
                self._under_way[id(batch)] = self._begin(batch)

    def _begin(self, batch: Batch) -> _Copy:
        here = {name: v for name, v in to_tensors(batch).items() if isinstance(v, torch.Tensor)}
        places, end = {}, 0
        for name, tensor in here.items():
            places[name] = end
            end += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        buffer = self._buffers.take(max(end, 1))
        locked = {}
        for name, tensor in here.items():
            nbytes = tensor.numel() * tensor.element_size()
            view = buffer[places[name] : places[name] + nbytes].view(tensor.dtype).view(tensor.shape)
            locked[name] = view.copy_(tensor)
        tensors, event = self._device.copy(locked)
        self._buffers.give(buffer, event)
        return _Copy(batch, tensors, event)
