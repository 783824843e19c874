"""The executable model of the planned feed, with our own free choices put in its place.

The model fixes which draws happen and how often, where steps begin and end, what each tail delivers and where a state
resumes. Phases, permutations, packing and the order of rows are ours.
"""

import importlib.util
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from thalweg.plan import pack
from thalweg.plan.epoch import Order, Packed
from thalweg.plan.schedule import Schedule
from thalweg.plan.table import SourceTable

CAP = 16
SPEC = Path(__file__).resolve().parents[1].parent / "shared" / "spec" / "planned_model.py"


def model():
    """Load the model, or skip: it lies beside the checkout."""
    if not SPEC.exists():
        pytest.skip("the executable model (../shared/spec/planned_model.py) is not beside this checkout")
    spec = importlib.util.spec_from_file_location("planned_model", SPEC)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def best_fit(lengths, source, index):
    rows = pack.plan(lengths, CAP, policy="best_fit", overlong="error").rows
    return Packed(rows.order, rows.offsets)


def make_order(
    lengths, *, weights=None, by="samples", at="samples", on_exhausted="stop_first", seed=0, block=64, packer=best_fit
):
    """Our order for the same arguments as the model's Feed."""
    names = list(lengths)
    tables = []
    for name in names:
        sizes = np.array(lengths[name], np.int32)
        kept = np.flatnonzero(sizes <= CAP)
        tables.append(SourceTable(name, len(sizes), None if len(kept) == len(sizes) else kept, sizes, seed))
    entries = None
    if weights is not None:
        given = [(0, weights)] if isinstance(weights, dict) else sorted(weights)
        entries = [(b, tuple(Fraction(w.get(n, 0)).limit_denominator(10**6) for n in names)) for b, w in given]
    schedule = Schedule(
        names,
        [t.n for t in tables],
        entries=entries,
        means=[t.mean for t in tables],
        by=by,
        at=at,
        rule=on_exhausted,
        seed=seed,
    )
    return Order(tables, schedule, packer=packer, seed=seed, block=block)


def make_model(planned_model, lengths, order, **given):
    """The model with our phases, our permutations and our rows."""

    class Feed(planned_model.Feed):
        def __init__(self):
            super().__init__(lengths, CAP, **{k: v for k, v in given.items() if k != "packer"})
            self.phases = [Fraction(p, 1 << 32) for p in order.schedule.phases]

        def sample(self, s, k):
            return int(order.sources[s].samples(np.array([k]))[0])

        def blocks(self, epoch):
            """Blocks of the model's own draws, rows of ours."""
            out, todo = [], self.draws(epoch)
            while todo:
                n = next(
                    (i for i, d in enumerate(todo[: self.block]) if d[0] != todo[0][0]), min(self.block, len(todo))
                )
                rows = rows_of(order, epoch, len(out))
                assert sorted(d for r in rows for d in r) == sorted((s, self.sample(s, k)) for _, s, k in todo[:n])
                back = {}
                for _, s, k in todo[:n]:
                    back.setdefault((s, self.sample(s, k)), []).append(k)
                out.append([tuple((s, back[s, i].pop(0)) for s, i in r) for r in rows])
                todo = todo[n:]
            return out

    return Feed()


def rows_of(order, epoch, number):
    """Rows of a block as tuples of (source, index)."""
    block = order.block(epoch, number)
    pairs = list(zip(block.source.tolist(), block.index.tolist(), strict=True))
    return [tuple(pairs[a:b]) for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)]


@st.composite
def arguments(draw, mixed=None):
    """Sizes and settings of small feeds, a few samples overlong."""
    some = st.lists(st.integers(1, CAP + 3), min_size=0, max_size=30)
    lengths = {n: draw(some) for n in "abc"[: draw(st.integers(1, 3))]}
    kind = mixed or draw(st.sampled_from(["one", "stop_first", "stop_all", "without_repeat"]))
    given = {"seed": draw(st.integers(0, 3)), "block": draw(st.sampled_from([3, 8, 50]))}
    if kind == "one":
        lengths = {"a": lengths["a"]}
    else:
        lengths = {n: [*v, draw(st.integers(1, CAP))] for n, v in lengths.items()}
        w = st.fixed_dictionaries({n: st.integers(1, 9) for n in lengths})
        schedule = [(0, draw(w))] + [(draw(st.integers(1, 60)), draw(w)) for _ in range(draw(st.integers(0, 2)))]
        schedule = list({b: (b, x) for b, x in schedule}.values())
        unit = st.sampled_from(["samples", "tokens"])
        given.update(weights=schedule, by=draw(unit), at=draw(unit), on_exhausted=kind)
    return lengths, given


layouts = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
