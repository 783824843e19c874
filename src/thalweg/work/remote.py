"""A runner whose calls happen in a worker process.

Decides how jobs and outcomes travel: small ones in one pickle, large arrays through the arena, looked at in place.
A worker that dies becomes an error that names the signal and the items it held.
"""

import contextlib
import mmap
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from thalweg.core.errors import WorkerError
from thalweg.work.arena import Arena, Piece
from thalweg.work.cpus import ThreadClock
from thalweg.work.failure import Failure, lines_of
from thalweg.work.port import Job, Outcome
from thalweg.work.runner import Call, Runner, Sink
from thalweg.work.spawn import Child
from thalweg.work.wire import Wire, pack, unpack

_ALIGN = 64
_LAST = b"last"  # a note on the last results of a job, where no arrays lie beside them


class _FarSink:
    """In the worker: sends outcomes to the parent."""

    def __init__(self, wire: Wire, fd: int) -> None:
        self._wire, self._fd = wire, fd
        self._maps: dict[tuple[int, int], mmap.mmap] = {}
        self.piece: tuple[int, int] | None = None  # where large arrays of this job may go, (offset, size)
        self.end = 0  # number behind the job's last item
        self._last: tuple[int, list[Any]] | None = None  # its results, sent together with what the calls took

    def result(
        self, number: int, items: list[Any], outcomes: list[Outcome], charged: int, size: int | None = None
    ) -> None:
        """Send the outcomes of consecutive items."""
        del items, charged, size
        found = [_portable(o) for o in outcomes]
        if number + len(found) == self.end:
            self._last = (number, found)
        else:
            self._send("result", number, found)

    def part(self, number: int, item: Any, output: Any, emitted: int) -> bool:
        """Send one output and wait until the parent has room for it."""
        del item
        self._send("part", number, (emitted, output))
        answer = self._wire.receive()
        return answer is not None and bytes(answer[0]) == b"go"

    def done(self, wall: float, busy: float) -> None:
        """Tell that the job is over, and how long its calls took."""
        last, self._last = self._last, None
        if last is None:
            self._send("done", 0, (wall, busy))
        else:
            self._send("last", last[0], (last[1], (wall, busy)))

    def _send(self, kind: str, number: int, value: Any) -> None:
        data, buffers = pack((kind, number, value))
        need = sum(_padded(b.nbytes) for b in buffers)
        if not buffers or self.piece is None or self.piece[1] < need:
            self._wire.send(data, buffers, pickle.dumps((None, need)) if need else _LAST if kind == "last" else b"")
            return
        memory = self._map(self.piece)
        self.piece = None
        places: list[tuple[int, int]] = []
        at = 0
        for buffer in buffers:
            memory[at : at + buffer.nbytes] = buffer.cast("B")
            places.append((at, buffer.nbytes))
            at += _padded(buffer.nbytes)
        self._wire.send(data, None, pickle.dumps((places, need)))

    def _map(self, piece: tuple[int, int]) -> memoryview:
        if piece not in self._maps:
            self._maps[piece] = mmap.mmap(self._fd, piece[1], offset=piece[0])
        return memoryview(self._maps[piece])


def _padded(n: int) -> int:
    return -(-n // _ALIGN) * _ALIGN


def _portable(outcome: Outcome) -> Any:
    """Make a failure fit to travel: the exception itself where it survives pickling, else type, text, traceback."""
    if isinstance(outcome, list):
        return outcome
    error = outcome.error
    text = lines_of(error)
    try:
        data = cloudpickle.dumps(error)
        if type(pickle.loads(data)) is not type(error):  # noqa: S301  what this process has just written
            raise TypeError  # noqa: TRY301
    except Exception:  # noqa: BLE001  any failure of a user's __reduce__ or __init__
        data = None
    cause = error.__cause__
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return Failure(
        _Report(data, name, _text_of(error), text, None if cause is None else lines_of(cause)), outcome.outputs
    )


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "(its text cannot be shown)"


class _Report(Exception):  # noqa: N818  it only carries an error
    """An error on its way out of a worker process."""

    def __init__(self, data: bytes | None, name: str, text: str, lines: str, cause: str | None) -> None:
        super().__init__(data, name, text, lines, cause)

    def rebuild(self, where: str) -> BaseException:
        """Give the exception to raise in the parent."""
        data, name, text, lines, _ = self.args
        error: BaseException | None = None
        if data is not None:
            try:
                error = pickle.loads(data)  # noqa: S301  from a process that this one started
            except Exception:  # noqa: BLE001
                error = None
        if error is None:
            error = WorkerError(f"{name}: {text}", where=where, fix="see the worker's traceback below")
        error.add_note(f"in a worker process:\n{lines}")
        return error


def _serve(wire: Wire, fds: Sequence[int], call_bytes: bytes) -> None:
    """Serve jobs in the worker until the parent closes the wire."""
    try:
        call, describe, stop_on_error = pickle.loads(call_bytes)  # noqa: S301  from the parent
    except BaseException as error:  # noqa: BLE001
        wire.send(pickle.dumps(("broken", lines_of(error))))
        return
    wire.send(pickle.dumps(("ready", None)))
    runner = Runner(call, describe, stop_on_error)
    sink = _FarSink(wire, fds[0])
    clock = ThreadClock()
    while True:
        message = wire.receive()
        if message is None:
            return
        first, items, sink.piece = unpack(message[0], message[1])
        sink.end = first + len(items)
        wall, busy = clock()
        runner.run(Job(first, items, 0), sink)
        then = clock()
        sink.done(then[0] - wall, then[1] - busy)


class _Body:
    """What a worker process runs; a class, so that cloudpickle sends it by reference."""

    def __init__(self, call_bytes: bytes) -> None:
        self._call_bytes = call_bytes

    def __call__(self, wire: Wire, fds: Sequence[int]) -> None:
        _serve(wire, fds, self._call_bytes)


class RemoteCalls:
    """Makes runners in worker processes for one function, sharing one arena. `remote` tells that they are.

    Args:
        call: pickled by cloudpickle, so closures and lambdas work.
        describe: item -> words for an error.
        stop_on_error: leave the rest of a job after the first failure.
        arena_bytes: memory for arrays on their way.
        copy: arrays are copied out of the arena instead of looked at in place, into memory of this process alone that
            is used again when they are gone: fresh memory costs more than the copy.

    Raises:
        WorkerError: the function cannot be pickled; what holds it back is named.
    """

    remote = True

    def __init__(
        self,
        call: Call,
        describe: Callable[[Any], str],
        stop_on_error: bool,
        *,
        arena_bytes: int = 256 << 20,
        copy: bool = False,
        name: str = "map",
    ) -> None:
        try:
            self.payload = cloudpickle.dumps((call, describe, stop_on_error), 5)
        except Exception as error:
            raise WorkerError(
                f"the function cannot be sent to a worker process: {error}",
                where=name,
                fix="create files, locks and clients inside the function, or say mode='threads'",
            ) from error
        self.arena = Arena(arena_bytes)
        self.own = Arena(arena_bytes) if copy else None
        self.stop_on_error = stop_on_error
        self.describe = describe
        self.name = name

    def __call__(self) -> "RemoteRunner":
        """Make one runner; its process starts with its first job."""
        return RemoteRunner(self)


class RemoteRunner:
    """Runs jobs in one worker process, which starts with the first job and again after a death."""

    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls
        self._child: Child | None = None
        self._need = 0  # bytes of large arrays that the last results had
        self._cancelled = False
        self.spent: tuple[float, float] | None = None  # wall and busy seconds of the last job's calls
        self._at = 0  # number of the first item of the job without an outcome
        self._piece: Piece | None = None  # lent by the arena, not yet looked into by anybody
        self.take: Callable[[], Job | None] | None = None  # gives the next job, where one waits
        self._sent: Job | None = None  # it is in the process's hands before the results of the one before were read

    @property
    def child(self) -> Child | None:
        """The process, once it runs."""
        return self._child

    def _started(self) -> Child:
        if self._child is None:
            calls = self._calls
            child = Child(_Body(calls.payload), [calls.arena.fd], calls.name)
            self._child = child
            if self._cancelled:
                child.kill()
            first = child.wire.receive()
            word, text = ("died", child.death()) if first is None else pickle.loads(first[0])  # noqa: S301
            if word != "ready":
                self._drop()
                what = "a worker process " if word == "died" else "the function cannot be loaded in a worker process:\n"
                raise WorkerError(
                    what + text,
                    where=calls.name,
                    fix="make its modules importable from a fresh interpreter, or say mode='threads'",
                )
        return self._child

    def begin(self) -> None:
        """Start the process, so that no call's time includes it."""
        with contextlib.suppress(Exception):  # the first run tries again and says why
            self._started()

    def run(self, job: Job, sink: Sink) -> None:
        """Send a job and hand its outcomes on as they come."""
        self._at = job.first
        sent, self._sent = self._sent, None
        try:
            if sent is not None and sent is not job:
                self._drop()  # it was given up, and its results would come first
            child = self._started()
            if sent is not job:
                self._give(child, job)
            self._collect(child, job, sink)
        except BaseException as error:  # noqa: BLE001
            self._drop()
            at = self._at
            if at - job.first >= len(job.items):
                return  # it died after its last outcome
            outcome = Failure(error)
            sink.result(at, [job.items[at - job.first]], [outcome], job.size)
            rest = job.items[at - job.first + 1 :]
            if rest and not self._calls.stop_on_error and not self._cancelled:
                for k, item in enumerate(rest, at + 1):  # one by one: another death costs one item
                    self.run(Job(k, [item], 0), sink)

    def _give(self, child: Child, job: Job) -> None:
        piece = self._piece = self._calls.arena.borrow(self._need) if self._need else None
        data, buffers = pack((job.first, job.items, None if piece is None else (piece.offset, piece.size)))
        with contextlib.suppress(OSError):  # it died; receive says so
            child.wire.send(data, buffers)

    def _give_next(self, child: Child) -> None:
        """Let the process go on while the results that it has sent are read here: calls too fast to wait for it."""
        job = self.take() if self.take is not None and not self._need else None
        if job is not None:
            with contextlib.suppress(Exception):  # what cannot be sent fails in its own run
                self._give(child, job)
                self._sent = job

    def _put_back(self) -> None:
        piece, self._piece = self._piece, None
        if piece is not None:
            self._calls.arena.give_back(piece)

    def _collect(self, child: Child, job: Job, sink: Sink) -> None:
        charged = job.size
        self._at = at = job.first
        while True:
            message = child.wire.receive()
            if message is None:
                held = [self._calls.describe(i) for i in job.items[at - job.first :]]
                shown = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
                raise WorkerError(
                    f"worker process {child.pid} {child.death()}; it held {shown}",
                    where=self._calls.name,
                    fix="look for code that crashes the interpreter or needs too much memory; lower workers=",
                )
            if message[2] == _LAST and len(job.items) > 1:
                self._give_next(child)
            (kind, number, value), size = self._open(message)
            if kind == "done":
                self.spent = value
                self._put_back()
                return
            if kind == "part":
                emitted, output = value
                go = sink.part(number, job.items[number - job.first], output, emitted)
                with contextlib.suppress(OSError):
                    child.wire.send(b"go" if go else b"stop")
                continue
            found, spent = value if kind == "last" else (value, None)
            outcomes = [o if isinstance(o, list) else self._failure(o, job, number + k) for k, o in enumerate(found)]
            start = number - job.first
            sink.result(number, job.items[start : start + len(outcomes)], outcomes, charged, size)
            self._at = at = number + len(outcomes)
            charged = 0
            if spent is not None:
                self.spent = spent
                self._put_back()
                return

    def _open(self, message: "tuple[memoryview, list[bytearray], bytes]") -> tuple[Any, int]:
        """Rebuild a message, and say its bytes; arrays in the arena become views that keep their piece."""
        data, buffers, note = message
        places, need = pickle.loads(note) if note and note != _LAST else (None, 0)  # noqa: S301  from a process that this one started
        if need:
            self._need = max(need, self._need * 7 // 8)
        size = len(data) + need
        if places is None:
            return unpack(data, buffers), size
        piece = self._piece
        assert piece is not None
        if self._calls.own is not None:
            view = self._copied(piece, self._calls.own, places[-1][0] + places[-1][1])
        else:
            view = self._calls.arena.lease(piece)
            self._piece = None
        return unpack(data, [view[a : a + n] for a, n in places]), size

    @staticmethod
    def _copied(piece: Piece, own: Arena, used: int) -> memoryview:
        """Copy the bytes of a piece to memory of this process: lent, or fresh where all that may be lent is out."""
        kept = own.borrow(used)
        whole = memoryview(piece.memory)[:used]
        if kept is None:
            return memoryview(bytearray(whole))
        memoryview(kept.memory)[:used] = whole
        return own.lease(kept)

    def _failure(self, outcome: Failure, job: Job, number: int) -> Failure:
        report = outcome.error
        assert isinstance(report, _Report)
        return Failure(report.rebuild(self._calls.describe(job.items[number - job.first])), outcome.outputs)

    def _drop(self) -> None:
        child, self._child, self._sent = self._child, None, None
        if child is not None:
            child.kill()
            child.end()
        self._put_back()

    def stack(self) -> str:
        """Ask the process where its threads stand."""
        child = self._child
        return "" if child is None else child.stack()

    def cancel(self) -> None:
        """Kill the process: its run ends at once. Takes no lock."""
        self._cancelled = True
        child = self._child
        if child is not None:
            child.kill()

    def end(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            if self._cancelled:
                child.kill()
            child.end()
