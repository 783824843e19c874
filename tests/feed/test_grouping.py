"""How much is read in one call, and that what is copied from mapped memory is what any other source gives."""

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

import thalweg as tw
from thalweg.feed import grouping
from thalweg.feed.grouping import FEW, FEW_TOKENS, MANY, MANY_TOKENS, QUICK, Grouping


def sizes(group, told, *, each=100):
    """Read groups that take so many seconds each: the micro-batches of every group."""
    micros = (SimpleNamespace(last=i % 3 == 2) for i in count())
    groups, out = group.of(micros), []
    for seconds in told:
        out.append(len(next(groups)))
        group.took(out[-1], each * out[-1], seconds)
    return out


def test_the_first_comes_alone_and_many_come_only_where_they_come_quickly():
    quick, slow = QUICK / 2, QUICK * 2
    near = Grouping(whole_steps=False, near=True)
    assert sizes(near, [slow, quick, quick, slow, slow, quick]) == [1, FEW, MANY, MANY, FEW, FEW]
    assert sizes(Grouping(whole_steps=False, near=False), [quick] * 4) == [1, FEW, FEW, FEW]
    assert sizes(Grouping(whole_steps=True, near=True), [quick] * 3) == [3, 3, 3]


@pytest.mark.parametrize("each", [FEW_TOKENS // 4, MANY_TOKENS // 2, MANY_TOKENS * 3])
def test_a_call_holds_no_more_tokens_than_it_may(each):
    few, many = max(1, min(FEW, FEW_TOKENS // each)), max(1, min(MANY, MANY_TOKENS // each))
    assert sizes(Grouping(whole_steps=False, near=True), [0.0] * 3, each=each) == [1, few, many]


def rows(n=700):
    rng = np.random.default_rng(0)
    lengths = [0 if i % 23 == 5 else int(x) for i, x in enumerate(rng.integers(1, 40, n))]
    out = [{"input_ids": rng.integers(1, 60_000, k).astype(np.int32)} for k in lengths]
    for i, row in enumerate(out):
        k = len(row["input_ids"])
        row["loss_spans"] = np.array([[k // 3, k]] if k and i % 4 else [], np.int32).reshape(-1, 2)
    return out


FORMS = {
    "flat": lambda feed, dtype: feed.batch(3, pad="none", dtype=dtype),
    "packed": lambda feed, dtype: feed.pack(64).batch(2, dtype=dtype),
    "packed flat": lambda feed, dtype: feed.pack(64).batch(2, pad="none", dtype=dtype),
    "cut": lambda feed, dtype: feed.pack(16, policy="concat_split").batch(2, dtype=dtype),
    "truncated": lambda feed, dtype: feed.pack(16, overlong="truncate").batch(2, dtype=dtype),
    "two lengths": lambda feed, dtype: feed.pack([48, 96]).batch(2, dtype=dtype),
    "wider": lambda feed, dtype: feed.pack(64).batch(2, pad_to=80, dtype=dtype),
    "padded": lambda feed, dtype: feed.batch(3, dtype=dtype),
}


# E35 C30
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("sets", [1, 3])
def test_mapped_sets_give_the_batches_of_a_list(tmp_path, monkeypatch, form, dtype, marked, sets):
    monkeypatch.setattr(grouping, "QUICK", 60.0)
    given = rows() if marked else [{"input_ids": row["input_ids"]} for row in rows()]
    parts = {f"s{i}": given[i::sets] for i in range(sets)}
    mapped = {}
    for name, part in parts.items():
        with tw.create_records(tmp_path / name, sync=False, vocab_size=60_000 if name == "s0" else None) as writer:
            for row in part:
                writer.write(row)
        mapped[name] = tw.from_records(tmp_path / name)
    lists = {name: tw.from_dataset(part) for name, part in parts.items()}
    one, other = (tw.mix(f) if sets > 1 else f["s0"] for f in (mapped, lists))
    got, want = (
        list(tw.Loader(FORMS[form](f.shuffle(), dtype), tail="pad", return_tensors="np")) for f in (one, other)
    )
    assert len(got) == len(want) > 20
    for a, b in zip(got, want, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert np.array_equal(value, b[key]), key
            assert getattr(value, "dtype", None) == getattr(b[key], "dtype", None), key
        assert (a.info.ids, a.info.num_label_tokens) == (b.info.ids, b.info.num_label_tokens)
