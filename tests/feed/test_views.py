"""Several sources read as one: each row is its own source's, whatever the sources are and wherever they lie."""

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import IntegrityError
from thalweg.feed import tokencopy, views
from thalweg.feed.source import ObjectSource
from thalweg.store.records import guard

N = 150


def rows_of(name, n=N):
    rng = np.random.default_rng(len(name) + ord(name[0]))
    sizes = [0 if i % 17 == 3 else 1 + i % 3 if i % 5 else int(rng.integers(1, 200)) for i in range(n)]
    return [{"input_ids": rng.integers(0, 60_000, s).astype(np.int32)} for s in sizes]


def with_spans(row):
    return row | {"loss_spans": np.array([[0, (len(row["input_ids"]) + 1) // 2]], np.int32)}


def records(path, rows, **options):
    with tw.create_records(path, sync=False, **options) as w:
        for row in rows:
            w.write(row)
    return path


def sources(folder, kinds):
    """Give (sources, their rows): records in shards, of 2 bytes, read by ranges, or a part of them; or a list."""
    out, rows = [], []
    for k, kind in enumerate(kinds):
        mine = [with_spans(r) for r in rows_of(f"{'abcdefgh'[k]}")]
        if kind == "list":
            out.append(ObjectSource(mine))
        else:
            words = {"shards": {"shard_bytes": 20_000}, "narrow": {"vocab_size": 60_000}}.get(kind, {})
            path = records(folder / str(k), mine, **words)
            source = tw.open_records(path, io="pread" if kind == "pread" else "mmap")
            if kind == "part":
                picked = np.random.default_rng(k).permutation(N)[: N // 2]
                source, mine = views.Part(source, picked), [mine[i] for i in picked.tolist()]
            out.append(source)
        rows.append(mine)
    return out, rows


# E35 K38
@pytest.mark.parametrize(
    "kinds",
    [
        ("whole", "shards", "part", "whole"),
        ("whole", "pread", "shards"),
        ("list", "whole", "part"),
        ("narrow", "whole", "shards"),
        ("narrow", "narrow"),
        ("list", "list"),
        ("part",),
    ],
)
@pytest.mark.parametrize("n", [1, 40, 700])
@pytest.mark.parametrize("columns", [("input_ids",), ("loss_spans", "input_ids")])
def test_each_row_is_its_own_sources(tmp_path, kinds, n, columns):
    parts, rows = sources(tmp_path, kinds)
    rng = np.random.default_rng(n)
    part = rng.integers(0, len(parts), n).astype(np.int32)
    inner = np.array([rng.integers(0, len(rows[p])) for p in part.tolist()], np.int64)
    got = views.merge(part, parts, inner, columns)
    assert tuple(got) == columns
    for name in columns:
        assert len(got[name]) == n
        assert got[name].values.dtype == np.int32
        for value, p, i in zip(got[name], part.tolist(), inner.tolist(), strict=True):
            assert value.tolist() == rows[p][i][name].tolist()


def test_mapped_sets_are_read_in_one_copy(tmp_path, monkeypatch):
    parts, rows = sources(tmp_path, ["whole", "part", "shards"])
    copies = []
    once = views.gather_at
    monkeypatch.setattr(views, "gather_at", lambda *args: copies.append(1) or once(*args))
    monkeypatch.setattr(type(parts[0]), "read", None)
    part = np.arange(300, dtype=np.int32) % 3
    got = views.merge(part, parts, np.arange(300) % 70, ["input_ids"])["input_ids"]
    assert len(copies) == 1
    assert all(got[i].tolist() == rows[i % 3][i % 70]["input_ids"].tolist() for i in range(300))


def test_a_mix_of_records_is_read_in_one_copy_and_every_set_is_looked_at(tmp_path, monkeypatch):
    parts = {name: tw.from_records(records(tmp_path / name, rows_of(name))).skip(2) for name in "abc"}
    feed = tw.mix(parts).shuffle().batch(300, pad="none")
    copies, looks = [], []
    once = tokencopy.ready
    monkeypatch.setattr(tokencopy, "ready", lambda *args: copies.append(1) or once(*args))
    monkeypatch.setattr(guard, "_compare", looks.append)
    batch = next(iter(tw.Loader(feed, workers=0, return_tensors="np")))
    assert len(copies) == 1
    assert {path.parent.name for files in looks for path, _, _ in files} == set("abc")
    rows = {name: rows_of(name) for name in "abc"}
    named = [(s, i) for row in zip(batch.info.sources, batch.info.ids, strict=True) for s, i in zip(*row, strict=True)]
    assert {s for s, _ in named} == set("abc")
    assert batch["input_ids"][0].tolist() == [t for s, i in named for t in rows[s][int(i)]["input_ids"].tolist()]


def test_a_damaged_set_among_several_is_noticed(tmp_path):
    paths = [records(tmp_path / name, rows_of(name)) for name in "ab"]
    shard = next(paths[1].glob("*.arrow"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    whole = views.Union([(str(p), tw.open_records(p, verify=True), 1) for p in paths])
    with pytest.raises(IntegrityError):
        whole.read(np.arange(2 * N), ["input_ids"])
