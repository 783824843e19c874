"""How the calls of a stage run: inline, on threads, in processes, or as measured.

Decides workers and items ahead from what the stage, the loader and the machine say. Knows the stage's words, not its
function.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thalweg.core.errors import ConfigError, WorkerError, nearest
from thalweg.feed.call import EventCall, describe_event
from thalweg.feed.events import ITEM, KIND, Event, EventNode
from thalweg.work.budget import ByteBudget
from thalweg.work.choose import Choice, Chooser
from thalweg.work.cpus import usable_cpus
from thalweg.work.inline import InlineMap
from thalweg.work.ordered import OrderedMap
from thalweg.work.port import Message
from thalweg.work.remote import RemoteCalls
from thalweg.work.runner import Runner

MODES = ("auto", "inline", "threads", "processes")
log = logging.getLogger("thalweg")


@dataclass(frozen=True, slots=True)
class Engine:
    """How a stage runs.

    Args:
        mode: "auto" | "inline" | "threads" | "processes".
        workers: how many; None for as many as the machine has, or as measured.
        ahead: items in flight; None: 128, at least 4 a worker.
        stall_after: seconds without anything arriving before an error; None waits for ever.
        hook: sees every message to the consumer.
        chunk: most items in one job; None joins only calls that are fast.
    """

    mode: str = "auto"
    workers: int | None = None
    ahead: int | None = None
    stall_after: float | None = 300.0
    hook: Callable[[Message], None] | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown mode."""
        if self.mode not in MODES:
            raise ConfigError(f"mode={self.mode!r} is unknown", where="map", fix=nearest(self.mode, MODES))


def engine_of(stage: Any, workers: int | str, stall_after: float | None) -> Engine:
    """Settle a stage's words with the loader's.

    Args:
        stage: a map (its own workers and mode win), or a filter.
        workers: the loader's: a number, "auto", or 0 for all inline.
        stall_after: the loader's.
    """
    own, mode = getattr(stage, "workers", "auto"), getattr(stage, "mode", "auto")
    wanted = own if own != "auto" else workers
    if wanted == 0 or workers == 0 or mode == "inline":
        return Engine("inline", 0, stall_after=stall_after)
    if isinstance(wanted, int) and mode == "auto" and wanted < 1:
        raise ConfigError(f"workers={wanted} must be at least 0", where=str(stage))
    ahead = getattr(stage, "ahead", None)
    return Engine(mode, wanted if isinstance(wanted, int) else None, ahead, stall_after)


def start_map(
    upstream: EventNode, call: EventCall, stage: Any, engine: Engine, budget: ByteBudget | None
) -> "InlineMap | OrderedMap":
    """Make the map that runs a stage; nothing starts before its turns are asked for."""
    if engine.mode == "inline":
        return InlineMap(upstream, call, describe=describe_event, passes=no_call, wake=upstream.stop)
    stop_on_error = getattr(stage, "on_error", "raise") == "raise"
    where = str(stage)[:200]
    cpus = usable_cpus()

    def in_threads() -> Runner:
        return Runner(call.for_worker(), describe_event, stop_on_error)

    def in_processes() -> RemoteCalls:
        return RemoteCalls(call, describe_event, stop_on_error, name=where)

    def told(choice: Choice) -> None:
        run.choice = choice  # type: ignore[attr-defined]
        log.info("%s: %s", where, choice)

    measured = engine.mode == "auto" and engine.workers is None
    make: Any = in_processes() if engine.mode == "processes" else in_threads
    watch = Chooser(cpus, _sendable(in_processes), told=told).look if measured else None
    run = OrderedMap(
        upstream,
        call,
        workers=1 if measured else engine.workers or cpus,
        ahead=engine.ahead,
        budget=budget,
        chunk=engine.chunk,
        name=getattr(stage, "verb", "map"),
        describe=describe_event,
        passes=no_call,
        stop_on_error=stop_on_error,
        timeout=getattr(stage, "timeout", None),
        stall_after=engine.stall_after,
        make_runner=make,
        hook=engine.hook,
        wake=upstream.stop,
        watch=watch,
    )
    return run


def _sendable(make: Callable[[], RemoteCalls]) -> Callable[[], RemoteCalls] | None:
    """Give the maker of processes if the function can be sent to one, else None."""
    try:
        make().arena.close()
    except WorkerError as error:
        log.info("%s", error)
        return None
    return make


def no_call(event: Event) -> bool:
    """Say whether an event goes by without a call."""
    return event[KIND] != ITEM
