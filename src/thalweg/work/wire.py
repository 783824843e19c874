"""Messages over a socket: one pickle with its large buffers beside it, copied once.

Decides the frame: a head of fixed size, the lengths of the buffers, the pickle, a note on it, the buffers. Knows
nothing of what the messages mean. Only processes that this process started are at the other end, so unpickling is safe.
"""

import pickle
import socket
import struct
from typing import Any

import cloudpickle

_HEAD = struct.Struct("<QII")
_KEPT = 4 << 20  # a pickle of up to so many bytes is received into memory that is used again
OUT_OF_BAND = 4096  # bytes from which a buffer is worth its own copy beside the pickle


def pack(value: Any) -> tuple[bytes, list[memoryview]]:
    """Pickle a value; large contiguous buffers (arrays) are left out and given beside it.

    Values whose class lives in the main script travel by value.
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    try:
        return pickle.dumps(value, 5, buffer_callback=keep), buffers
    except (pickle.PicklingError, AttributeError, TypeError):
        buffers.clear()
        return cloudpickle.dumps(value, 5, buffer_callback=keep), buffers


def unpack(data: "bytes | bytearray | memoryview", buffers: list[Any]) -> Any:
    """Rebuild a value; arrays are views of the buffers."""
    return pickle.loads(data, buffers=buffers)  # noqa: S301  from a process that this one started


class Wire:
    """One end of a stream socket that carries messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._kept = bytearray(1 << 16)

    def fileno(self) -> int:
        """Give the descriptor."""
        return self._sock.fileno()

    def send(self, data: bytes, buffers: "list[memoryview] | None" = None, note: bytes = b"") -> None:
        """Send one message.

        Raises:
            OSError: the other end is gone.
        """
        parts = buffers or []
        head = _HEAD.pack(len(data), len(note), len(parts)) + struct.pack(f"<{len(parts)}Q", *(b.nbytes for b in parts))
        if not parts and len(data) < 1 << 16:
            self._sock.sendall(b"".join((head, data, note)))
            return
        self._sock.sendall(head)
        self._sock.sendall(data)
        self._sock.sendall(note)
        for part in parts:
            self._sock.sendall(part.cast("B") if part.nbytes else b"")

    def receive(self) -> "tuple[memoryview, list[bytearray], bytes] | None":
        """Wait for one message: (pickle, buffers, note). None when the other end has closed or died.

        The pickle stays as it is until the next message is received; the buffers are the caller's.
        """
        head = self._exactly(bytearray(_HEAD.size))
        if head is None:
            return None
        size, noted, count = _HEAD.unpack(head)
        sizes = self._exactly(bytearray(8 * count))
        data = self._exactly(self._room(size))
        note = self._exactly(bytearray(noted))
        if sizes is None or data is None or note is None:
            return None
        buffers: list[bytearray] = []
        for n in struct.unpack(f"<{count}Q", sizes):
            part = bytearray(n)
            if self._exactly(part) is None:
                return None
            buffers.append(part)
        return data, buffers, bytes(note)

    def _room(self, size: int) -> "bytearray | memoryview":
        """Give memory for a pickle: fresh memory costs more than the copy into it."""
        if size > _KEPT:
            return bytearray(size)
        if size > len(self._kept):
            self._kept = bytearray(1 << (size - 1).bit_length())
        return memoryview(self._kept)[:size]

    def _exactly(self, into: "bytearray | memoryview") -> memoryview | None:
        view = memoryview(into)
        got, n = 0, len(view)
        while got < n:
            try:
                k = self._sock.recv_into(view[got:] if got else view)
            except (ConnectionError, OSError):
                return None
            if k == 0:
                return None
            got += k
        return view

    def close(self) -> None:
        """Close this end. Twice is fine."""
        self._sock.close()
