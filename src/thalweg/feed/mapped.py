"""A source with the functions that its samples go through when they are read.

Decides what becomes of a sample whose function fails: raised with its place named, or a hole that keeps its seat
(SEMANTICS 4.3). Knows no batch and no rank.
"""

import json
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import BudgetError, SampleError
from thalweg.core.sample import Sample
from thalweg.core.state import digest
from thalweg.core.tally import Tally
from thalweg.feed import stages as st
from thalweg.feed.code import code_of
from thalweg.feed.merge import BATCHED, SampleInfo, call, call_batched
from thalweg.feed.source import Source, samples_of

Ints = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Failed:
    """A sample whose function failed: stage, index, words for a human, the error, its traceback and the sample."""

    number: int
    index: int
    place: str
    error: str
    trace: str
    sample: Sample


def code_of_stage(stage: st.Map) -> str:
    """Digest what a stage makes of samples; how it is run (workers, mode, errors, paths) is free."""
    words = [
        stage.batched,
        stage.with_info,
        stage.remove_columns,
        stage.input_columns,
        stage.output_columns,
        stage.length,
    ]
    return digest([code_of(stage.fn), [str(w) for w in words]])


def keep_aside(folder: str, stage: str, failure: Failed) -> None:
    """Append a failed sample to `<folder>/planned-<pid>.jsonl`, in one write."""
    path = Path(folder) / f"planned-{os.getpid()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    line: dict[str, Any] = {"place": failure.place, "stage": stage, "error": failure.error}
    line["traceback"] = failure.trace[-20_000:]
    line["sample"] = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in failure.sample.items()}
    with path.open("ab") as file:
        file.write(json.dumps(line, default=repr, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")


@dataclass(eq=False)
class Leaf:
    """One source of a planned feed.

    Args:
        name: in its mix; "" for the only one.
        source: what is read.
        maps: functions on its samples, in order.
        filters: that chose the samples of `source`.
        shuffle: the stage that permutes it, None in order.
        repeats: passes until it is used up.
        tallies: books of each function.
        failures: what failed, where another keeps the books; None judges the budget here.
        seconds: spent on reading, and in functions.
    """

    name: str
    source: Source
    maps: list[st.Map] = field(default_factory=list[st.Map])
    filters: list[st.Filter] = field(default_factory=list[st.Filter])
    shuffle: st.Shuffle | None = None
    repeats: int = 1
    tallies: dict[int, Tally] = field(default_factory=dict[int, Tally])
    failures: "list[Failed] | None" = None
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0], repr=False)

    @property
    def title(self) -> str:
        """Name it for a human."""
        return f"source {self.name!r}" if self.name else "the source"

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Table columns of the source."""
        return self.source.facts

    def code(self) -> list[str]:
        """Digest the code of its functions: what a resume warns about."""
        return [code_of_stage(m) for m in self.maps]

    def samples(self, indices: Ints, epoch: int, seed: int) -> list[Sample | None]:
        """Read samples through all functions; None where one was dropped or failed under a rule that allows it.

        Raises:
            Exception: the function's own, with a note that names sample, source and stage (`on_error="raise"`).
            SampleError: a function gave several samples, which a plan has no place for.
        """
        start = perf_counter()
        read = self.source.read(indices, None)
        out: list[Sample | None] = list(samples_of(read, len(indices)))
        there = perf_counter()
        for number in range(len(self.maps)):
            out = self._mapped(number, out, indices, epoch, seed)
        self.seconds[0] += there - start
        self.seconds[1] += perf_counter() - there
        return out

    def _mapped(
        self, number: int, samples: Sequence[Sample | None], indices: Ints, epoch: int, seed: int
    ) -> list[Sample | None]:
        stage = self.maps[number]
        if stage.batched:
            return self._batched(number, stage, samples, indices)
        ids = self.source.ids(indices) if stage.with_info else None
        out: list[Sample | None] = []
        for i, sample in enumerate(samples):
            if sample is None:
                out.append(None)
                continue
            info = None
            if ids is not None:
                info = SampleInfo(ids[i], self.name, int(indices[i]), epoch, (seed, "map", number))
            out.append(self._one(number, stage, sample, int(indices[i]), info))
        return out

    def _one(self, number: int, stage: st.Map, sample: Sample, index: int, info: SampleInfo | None) -> Sample | None:
        self.tallies.setdefault(number, Tally()).taken += 1
        before = len(sample["input_ids"]) if stage.length == "same" and "input_ids" in sample else None
        try:
            made = _planned_call(stage, sample, info, before)
        except Exception as error:  # noqa: BLE001  (raised there, where the stage says so)
            self._refused(number, error, index, sample, self.place(index, stage))
            return None
        self._gave(number, 1, len(made))
        return made[0] if made else None

    def _gave(self, number: int, taken: int, made: int) -> None:
        """Count what came of samples that did not fail."""
        tally = self.tallies[number]
        tally.out += made
        tally.made += max(made - taken, 0)
        if made < taken:
            tally.drop("dropped by the function", taken - made)

    def _refused(self, number: int, error: Exception, index: int, sample: Sample, place: str) -> None:
        """Count a sample that failed, under the rule of its stage.

        Raises:
            Exception: the error, with a note that names the place (`on_error="raise"`).
            BudgetError: as `account`.
        """
        stage, tally = self.maps[number], self.tallies[number]
        if stage.on_error == "raise":
            error.add_note(place)
            raise error
        if stage.on_error == "quarantine":
            tally.quarantined += 1
        else:
            tally.drop("failed")
        trace = "".join(traceback.format_exception(error))
        failure = Failed(number, index, self.place(index, stage), repr(error), trace, sample)
        if self.failures is not None:
            self.failures.append(failure)
        else:
            self.account(failure)

    def account(self, failure: Failed) -> None:
        """Put a failed sample aside, and hold the stage to its budget.

        Raises:
            BudgetError: n of m failed, more than the limit.
        """
        stage, tally = self.maps[failure.number], self.tallies[failure.number]
        if stage.on_error == "quarantine" and stage.quarantine is not None:
            keep_aside(stage.quarantine, str(stage), failure)
        bad = tally.quarantined + tally.dropped["failed"]
        limit = stage.max_bad if isinstance(stage.max_bad, int) else stage.max_bad * max(tally.taken, 100)
        if bad > limit:
            raise BudgetError(
                f"{bad} of {tally.taken} samples failed, more than max_bad={stage.max_bad} allows; the last:"
                f" {failure.error}",
                where=failure.place,
            )

    def _batched(
        self, number: int, stage: st.Map, samples: Sequence[Sample | None], indices: Ints
    ) -> list[Sample | None]:
        there = [(i, s) for i, s in enumerate(samples) if s is not None]
        out: list[Sample | None] = [None] * len(samples)
        for part in _groups(stage, there):
            index = [int(indices[i]) for i, _ in part]
            for made, of in self._called(number, [s for _, s in part], index):
                if len(made) != len(of):
                    raise SampleError(
                        f"{len(of)} samples became {len(made)}, and the plan has one place for each", where=str(stage),
                        fix=".cache() behind this map",
                    )  # fmt: skip
                for k, sample in zip(of, made, strict=True):
                    out[part[k][0]] = sample
        return out

    def _called(
        self, number: int, samples: list[Sample], index: list[int], names: Sequence[str] | None = None
    ) -> Iterator[tuple[list[Sample], range]]:
        """Call a function on a group, and give (samples made, numbers of those taken).

        Where some may fail, a group that fails is tried again sample by sample: none but the bad ones is lost.
        """
        stage, every = self.maps[number], range(len(samples))
        self.tallies.setdefault(number, Tally()).taken += len(samples)
        groups = [every]
        while groups:
            of = groups.pop(0)
            try:
                made = call_batched(stage, samples[of.start : of.stop])
            except Exception as error:  # noqa: BLE001  (raised there, where the stage says so)
                if len(of) > 1 and stage.on_error != "raise":
                    groups = [every[k : k + 1] for k in every]
                    continue
                at = of.start
                place = self.place(index[at], stage) if names is None else _named(names[at], stage)
                place += f" and the {len(of) - 1} behind it" * (len(of) > 1)
                self._refused(number, error, index[at], samples[at], place)
            else:
                self._gave(number, len(of), len(made))
                yield made, of

    def outputs(self, indices: Ints) -> Iterator[tuple[str, Sample]]:
        """Give (id, sample) of all samples behind the functions, lists that they make included."""
        ids, at = self.source.ids(indices), indices.tolist()
        read = samples_of(self.source.read(indices, None), len(indices))
        todo: list[tuple[str, int, Sample]] = list(zip(ids, at, read, strict=True))
        for number, stage in enumerate(self.maps):
            if stage.batched:
                todo = self._batches(number, stage, todo)
            else:
                todo = [made for one in todo for made in self._expanded(number, stage, *one)]
        yield from ((name, sample) for name, _, sample in todo)

    def _expanded(
        self, number: int, stage: st.Map, name: str, index: int, sample: Sample
    ) -> list[tuple[str, int, Sample]]:
        self.tallies.setdefault(number, Tally()).taken += 1
        try:
            made = call(stage, sample, SampleInfo(name, self.name, index, 0) if stage.with_info else None)
        except Exception as error:  # noqa: BLE001  (raised there, where the stage says so)
            self._refused(number, error, index, sample, _named(name, stage))
            return []
        self._gave(number, 1, len(made))
        return [(name if len(made) == 1 else f"{name}#{k}", index, s) for k, s in enumerate(made)]

    def _batches(
        self, number: int, stage: st.Map, todo: Sequence[tuple[str, int, Sample]]
    ) -> list[tuple[str, int, Sample]]:
        out: list[tuple[str, int, Sample]] = []
        for part in _groups(stage, todo):
            names, index = [name for name, *_ in part], [i for _, i, _ in part]
            for made, of in self._called(number, [s for *_, s in part], index, names):
                first = of.start
                if len(made) == len(of):
                    out.extend((names[k], index[k], s) for k, s in zip(of, made, strict=True))
                else:
                    out.extend((f"{names[first]}#{k}", index[first], s) for k, s in enumerate(made))
        return out

    def place(self, index: int, stage: st.Stage) -> str:
        """Name a sample for a human: its id, source, and file and line where they are recorded."""
        at = np.array([index])
        where = f"while mapping sample {self.source.ids(at)[0]!r} (row {index}"
        where += f" of source {self.name!r})" if self.name else ")"
        return f"{where} in {stage}"


def _named(name: str, stage: st.Map) -> str:
    return f"while mapping sample {name!r} in {stage}"


def _groups(stage: st.Map, items: Sequence[T]) -> Iterator[Sequence[T]]:
    size = BATCHED if stage.batched is True else int(stage.batched)
    return (items[at : at + size] for at in range(0, len(items), size))


def _planned_call(stage: st.Map, sample: Sample, info: SampleInfo | None, before: int | None) -> list[Sample]:
    """Call a function where the plan has one place, and hold it to `length="same"`."""
    made = call(stage, sample, info)
    if len(made) > 1:
        raise SampleError(
            f"the function made {len(made)} samples of one, and the plan has one place for it",
            where=str(stage),
            fix=".cache() behind this map: then all of them are planned",
        )
    if made and before is not None and len(made[0].get("input_ids", ())) != before:
        raise SampleError(f'length="same" was promised, and {before} tokens became another number', where=str(stage))
    return made
