"""Figures of a training run for loggers: TensorBoard, W&B and their like, Prometheus, a file of JSON lines.

Decides the names of figures and when they are written. Figures over all ranks are gathered where the job has a process
group, at the steps that are logged and no other.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError
from thalweg.feed.loader import FeedLoader
from thalweg.feed.planned import PlannedNode
from thalweg.feed.sourceplaces import places_of_sources, together

Gather = Callable[[str], list[str]]  # this rank's text -> the texts of all ranks, in their order
Log = Callable[[dict[str, float], int], Any]


class StepLog:
    """Call it with every batch: at the last one of a step it writes the step's figures.

        log = StepLog(loader, SummaryWriter("runs"), every=10)
        for batch in loader:
            ...
            log(batch)

    Args:
        loader: whose batches they are.
        to: where figures go: an object with `add_scalar` (TensorBoard) or `log` (W&B), a function of (figures, step),
            or a path: ".prom" is rewritten in Prometheus text format, anything else gets JSON lines.
        every: steps between two writings.
        gather: gives the texts of all ranks; None asks torch.distributed where the job has a process group.

    Figures: perf/global_seq_len_avg, _min, _max (tokens of a step on a rank, over ranks), perf/tokens_per_second (of
    all ranks), data/padding, data/wait_share, data/dropped, data/epoch, data/step, data/row; of each source of a mix
    data/samples/<source>, data/epoch/<source> and data/position/<source> (samples of that epoch of its own).
    """

    def __init__(
        self,
        loader: FeedLoader,
        *to: Any,
        every: int = 1,
        gather: Gather | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError(f"every={every} must be at least 1", where="StepLog")
        self.loader, self.every = loader, every
        self.logs: list[Log] = [_log_of(one) for one in to]
        self._gather = gather or _found(loader)
        self._tokens = self._since = 0
        self._sources: Counter[str] = Counter()
        self._mixed = len(getattr(loader.feed.stages[0], "feeds", ())) > 1
        self._at, self._before = perf_counter(), loader.pace.read()

    def __call__(self, batch: Batch) -> dict[str, float] | None:
        """Count a batch; at the last of a logged step give the figures, on every rank, and write them on rank 0."""
        info = batch.info
        self._tokens += info.num_tokens
        self._since += info.num_tokens
        if self._mixed:
            self._sources.update(chain.from_iterable(info.sources))
        if not info.last:
            return None
        tokens, self._tokens = self._tokens, 0
        if (info.step + 1) % self.every:
            return None
        figures = self._figures(tokens, info.step, info.epoch)
        if self.loader.topology.dp_rank == 0:
            for log in self.logs:
                log(figures, info.step)
        return figures

    def _figures(self, tokens: int, step: int, epoch: int) -> dict[str, float]:
        now, pace = perf_counter(), self.loader.pace.read()
        own: dict[str, Any] = {"tokens": tokens, "since": self._since, "sources": dict(self._sources)}
        own["places"] = places_of_sources(self.loader.node) if self._mixed else {}
        texts = [json.dumps(own)] if self._gather is None else self._gather(json.dumps(own))
        ranks: list[dict[str, Any]] = [json.loads(text) for text in texts]
        lengths = [int(r["tokens"]) for r in ranks]
        took = max(now - self._at, 1e-9)
        spent = {k: pace[k] - self._before[k] for k in ("waited_s", "finished_s", "consumed_s")}
        whole = sum(spent.values())
        figures: dict[str, float] = {
            "perf/global_seq_len_avg": sum(lengths) / len(lengths),
            "perf/global_seq_len_min": float(min(lengths)),
            "perf/global_seq_len_max": float(max(lengths)),
            "perf/tokens_per_second": sum(int(r["since"]) for r in ranks) / took,
            "data/padding": float(pace["padding"]),
            "data/wait_share": spent["waited_s"] / whole if whole > 0 else 0.0,
            "data/dropped": float(sum(dropped(self.loader).values())),
            "data/epoch": float(epoch),
            "data/step": float(step),
        }
        planned = isinstance(self.loader.node, PlannedNode)
        for name, (of, at) in together([r.get("places", {}) for r in ranks], planned=planned).items():
            figures |= {f"data/epoch/{name}": float(of), f"data/position/{name}": float(at)}
        if isinstance(self.loader.node, PlannedNode):
            figures["data/row"] = float(self.loader.node.place.passed)
        for name in sorted({n for r in ranks for n in r["sources"]}):
            figures[f"data/samples/{name}"] = float(sum(int(r["sources"].get(name, 0)) for r in ranks))
        self._at, self._before, self._since = now, pace, 0
        return figures


def dropped(loader: FeedLoader) -> dict[str, int]:
    """Give reason -> samples that were left out so far, by the table, by functions and by filters."""
    out: Counter[str] = Counter()
    if isinstance(loader.node, PlannedNode):
        out.update({reason: documents for reason, (documents, _) in loader.node.compiled.losses.items()})
        for leaf in loader.node.compiled.leaves:
            for tally in leaf.tallies.values():
                out.update(tally.dropped)
                out["quarantined"] += tally.quarantined
    for value in loader.stats().values():
        if isinstance(value, dict) and "dropped" in value:
            out.update(cast("dict[str, int]", value["dropped"]))
            out["quarantined"] += int(value.get("quarantined", 0))
    return {reason: n for reason, n in out.items() if n}


def _found(loader: FeedLoader) -> Gather | None:
    if loader.topology.dp_size == 1 or "torch.distributed" not in sys.modules:
        return None
    agreement: Gather | None = import_module("thalweg.bind.torch.place").agreement()
    return agreement


def _log_of(to: Any) -> Log:
    if isinstance(to, str | os.PathLike):
        path = Path(to)
        return (lambda f, s: _prometheus(path, f, s)) if path.suffix == ".prom" else (lambda f, s: _line(path, f, s))
    if hasattr(to, "add_scalar"):
        return lambda figures, step: [to.add_scalar(name, value, step) for name, value in figures.items()]
    if hasattr(to, "log"):
        return lambda figures, step: to.log(figures, step=step)
    if callable(to):
        return cast("Log", to)
    raise ConfigError(
        f"{type(to).__name__} takes no figures", where="StepLog",
        fix="give a SummaryWriter, a W&B run, a function of (figures, step), or a path",
    )  # fmt: skip


def _line(path: Path, figures: Mapping[str, float], step: int) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **figures}) + "\n")


def _prometheus(path: Path, figures: Mapping[str, float], step: int) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(prometheus_text({**figures, "step": step}), encoding="utf-8")
    partial.replace(path)  # a scraper never sees half a file


def prometheus_text(stats: Mapping[str, Any]) -> str:
    """Write figures in Prometheus text format; nested ones are named by their path, other values are left out.

    Args:
        stats: figures, or what `loader.stats()` gives.
    """
    rows = [f"# TYPE {name} gauge\n{name} {value}\n" for name, value in _flat("thalweg", stats)]
    return "".join(dict.fromkeys(rows))


def _flat(name: str, value: Any) -> Iterable[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            word = "".join(c if c.isalnum() else "_" for c in str(key)).strip("_")
            yield from _flat(f"{name}_{word}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)
