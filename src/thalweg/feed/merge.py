"""How a user's function changes samples: which columns it is given, which it sets, which stay.

Decides SEMANTICS 5.7 for one stage, planned or stream: columns that the function does not return stay; replacing a
column that was not declared an input is refused where inputs are declared; None drops; a list expands. Runs the
function where it is called; knows no thread and no order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import GeneratorType
from typing import Any

import numpy as np

from thalweg.core.errors import SampleError
from thalweg.core.sample import Sample
from thalweg.core.seeds import generator
from thalweg.feed.columns import names
from thalweg.feed.losscount import TOKENS
from thalweg.feed.stages import Map

BATCHED = 256  # samples of a call with batched=True


@dataclass
class SampleInfo:
    """What a function with `with_info=True` is told of its sample.

    Args:
        id: of the sample.
        source: name of its source.
        index: its index there.
        epoch: of the run.
        key: what the random numbers depend on besides epoch and id: seed and stage.
    """

    id: str
    source: str
    index: int
    epoch: int
    key: tuple[Any, ...] = ()

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator from (seed, stage, epoch, id): the same on any worker, rank or resume."""
        return generator(*self.key, self.epoch, self.source, self.id)


def call(stage: Map, sample: Sample, info: SampleInfo | None = None) -> list[Sample]:
    """Apply a stage to one sample.

    Args:
        stage: with `batched` False.
        sample: is not changed.
        info: needed where the stage asks for it.

    Returns:
        No sample (dropped), one, or several (the function gave a list or a generator).

    Raises:
        SampleError: the function gave something else, or an undeclared column would be overwritten.
    """
    more = (info,) if stage.with_info else ()
    inputs = [dict(sample)] if stage.input_columns is None else _inputs(stage, sample)
    given = stage.fn(*inputs, *more)
    if given is None and stage.output_columns is None:
        return []
    if isinstance(given, list | GeneratorType) and stage.output_columns is None:
        return [merged(stage, sample, one) for one in given]
    return [merged(stage, sample, given)]


def _inputs(stage: Map, sample: Mapping[str, Any]) -> list[Any]:
    missing = [c for c in names(stage.input_columns) if c not in sample]
    if missing:
        raise SampleError(f"no column {missing[0]!r}", where=str(stage), fix="columns: " + ", ".join(sample))
    return [sample[c] for c in names(stage.input_columns)]


def merged(stage: Map, sample: Sample, given: Any) -> Sample:
    """Set the columns that the function gave; the others stay, but for `remove_columns`."""
    outputs = names(stage.output_columns)
    if isinstance(given, Mapping):
        columns = dict(given)
    elif outputs:
        values: Sequence[Any] = given if isinstance(given, tuple) and len(outputs) > 1 else (given,)
        if len(values) != len(outputs):
            raise SampleError(
                f"the function gave {len(values)} values for {len(outputs)} output columns", where=str(stage)
            )
        columns = dict(zip(outputs, values, strict=True))
    else:
        raise SampleError(
            f"the function gave {type(given).__name__}", where=str(stage),
            fix="return a dict, None to drop the sample, or name output_columns",
        )  # fmt: skip
    _refuse_overwriting(stage, sample, columns)
    _refuse_tokens(stage, columns)
    gone = set(sample) if stage.remove_columns == "all" else set(names(stage.remove_columns))
    kept = {k: v for k, v in sample.items() if k not in gone}
    kept.update(columns)
    return kept


def _refuse_overwriting(stage: Map, sample: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
    if stage.input_columns is None:
        return
    for name in columns:
        if name in sample and name not in names(stage.input_columns) and name not in names(stage.output_columns):
            raise SampleError(
                f"the function replaces column {name!r}, which is not one of its inputs", where=str(stage),
                fix="name it in input_columns or output_columns, or return another name",
            )  # fmt: skip


def _refuse_tokens(stage: Map, columns: Mapping[str, Any]) -> None:
    """Hold a function to its declaration where it decides what is in the loss: the plan has counted that already."""
    outputs = names(stage.output_columns)
    if not outputs:
        return
    for name in columns:
        if name in TOKENS and name not in outputs:
            raise SampleError(
                f"the function gives column {name!r}, which output_columns does not name", where=str(stage),
                fix=f"name {name!r} in output_columns, or return other columns",
            )  # fmt: skip


def call_batched(stage: Map, samples: Sequence[Sample]) -> list[Sample]:
    """Apply a stage with `batched` to some samples: {column: [values]} in, lists of equal length out.

    Raises:
        SampleError: lists of different lengths.
    """
    named = dict.fromkeys(k for s in samples for k in s)  # samples need not have the same columns
    columns: dict[str, list[Any]] = {k: [s.get(k) for s in samples] for k in named}
    given = (
        stage.fn(columns)
        if stage.input_columns is None
        else stage.fn(*(columns[c] for c in names(stage.input_columns)))
    )
    outputs = names(stage.output_columns)
    if not isinstance(given, Mapping):
        given = dict(zip(outputs, given if len(outputs) > 1 else (given,), strict=True))
    sizes = {len(v) for v in given.values()}
    if len(sizes) > 1:
        raise SampleError(f"the function gave columns of different lengths: {sorted(sizes)}", where=str(stage))
    n = sizes.pop() if sizes else 0
    gone = set(columns) if stage.remove_columns == "all" else set(names(stage.remove_columns))
    stay = {k: v for k, v in columns.items() if k not in gone and n == len(samples)}
    stay.update(given)
    return [{k: v[i] for k, v in stay.items()} for i in range(n)]
