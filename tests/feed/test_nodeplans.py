"""Plans kept on the node: the same rows as planned anew, counted together, and never needed."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tw
from thalweg.feed import nodeplans, planfile, tables
from thalweg.feed.compile import compile_feed
from thalweg.feed.passes import cache_folder


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Keep small plans too, in a folder of their own."""
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nodeplans, "BLOCK_DRAWS", 16)
    monkeypatch.setattr(nodeplans, "TOGETHER", 3)
    monkeypatch.setattr(tables, "KEPT", 16)
    monkeypatch.setattr("thalweg.plan.epoch.PACKED_BLOCK", 64)


def records(tmp_path, n=600, seed=0):
    rng = np.random.default_rng(seed)
    with tw.create_records(str(tmp_path / f"rec{seed}")) as w:
        for i in range(n):
            k = int(rng.integers(1, 40))
            ids = np.full(k, i % 90 + 1, np.int32)
            w.write({"input_ids": ids, "loss_spans": np.array([[k // 2, k]], np.int32)}, id=str(i))
    return tw.from_records(str(tmp_path / f"rec{seed}"))


def rows_of(feed, seed=0, epoch=0):
    order = compile_feed(feed, seed).order
    out = []
    for b in range(order.num_blocks(epoch)):
        block = order.block(epoch, b)
        out += [block.index[a:z].tolist() for a, z in zip(block.offsets[:-1], block.offsets[1:], strict=True)]
    return out, order


@pytest.mark.parametrize(
    "words",
    [
        {"overlong": "drop"},
        {"overlong": "truncate"},
        {"policy": "concat_split"},
        {"overlong": "alone", "policy": "fill"},
        {"capacity": (32, 64)},
    ],
)
def test_a_plan_that_was_kept_gives_the_rows_of_one_made_anew(tmp_path, monkeypatch, words):
    feed = records(tmp_path).shuffle().pack(**{"capacity": 32, **words}).batch(1)
    want, _ = rows_of(feed, epoch=1)
    assert list((cache_folder() / "plans").glob("block-*"))
    made = []
    original = nodeplans.Order._plan
    monkeypatch.setattr(nodeplans.Order, "_plan", lambda self, *a: made.append(a) or original(self, *a))
    again, _ = rows_of(feed, epoch=1)
    assert again == want
    assert not [a for a in made if a[0] == 1 and a[1] < 6]  # the last block is small, and not kept
    other, _ = rows_of(feed, seed=7, epoch=1)
    assert other != want


# C16 C19
def test_rows_are_counted_together_once_and_the_counts_are_those_of_the_plans(tmp_path, monkeypatch):
    feed = records(tmp_path).shuffle().pack(32, overlong="drop").batch(1)
    want, order = rows_of(feed)
    blocks = order.num_blocks(0)
    assert blocks >= 7
    monkeypatch.setattr(nodeplans, "usable_cpus", lambda ranks: 2)
    counted = compile_feed(feed).order
    assert counted.rows(0) == len(want)
    kept = list((cache_folder() / "plans").glob("counts-*"))
    assert [len(json.loads(k.read_text())) for k in kept] == [blocks]
    monkeypatch.setattr(nodeplans.Order, "_plan", None)  # nothing is planned or counted again
    monkeypatch.setattr(nodeplans.NodePlans, "_counted", None)
    assert len(tw.Loader(feed, return_tensors="np")) == len(want)
    assert feed.num_rows == len(want)


def test_data_in_memory_is_counted_without_workers(monkeypatch):
    rows = [{"input_ids": np.ones(n, np.int32), "id": str(n)} for n in range(1, 31)] * 10
    feed = tw.from_dataset(rows, id="id", fingerprint="memory").shuffle().pack(32).batch(1)
    monkeypatch.setattr(nodeplans, "SENDABLE", 100)
    monkeypatch.setattr(nodeplans, "supervise", None)
    assert compile_feed(feed).order.rows(0) == len(rows_of(feed)[0])


def test_a_disk_that_takes_nothing_costs_only_time(tmp_path, monkeypatch):
    feed = records(tmp_path).shuffle().pack(32, overlong="drop").batch(1)
    want, _ = rows_of(feed)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(nodeplans, "cache_folder", lambda: tmp_path / "file")
    again, order = rows_of(feed)
    assert again == want
    assert order.rows(0) == len(want)


def _flipped(data):
    at = len(data) * 2 // 3
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("broken", [lambda d: d[:40], lambda d: d[:7], lambda d: d + b"\0", _flipped, lambda _: b""])
def test_a_torn_or_damaged_plan_is_made_anew(tmp_path, broken):
    feed = records(tmp_path).shuffle().pack(32, overlong="drop").batch(1)
    want, _ = rows_of(feed)
    kept = list((cache_folder() / "plans").glob("block-*"))
    whole = [path.read_bytes() for path in kept]
    assert kept
    for path, data in zip(kept, whole, strict=True):
        path.write_bytes(broken(data))
    for _ in range(2):  # the first takes it away, the second keeps it again
        assert rows_of(feed)[0] == want
    assert [path.read_bytes() for path in kept] == whole


@given(
    st.lists(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**40)), max_size=9), max_size=4),
    st.binary(),
    st.data(),
)
def test_arrays_come_back_from_a_file_and_any_changed_byte_is_found(arrays, name, data):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        planfile.write(path, {str(i): np.array(a, np.int64) for i, a in enumerate(arrays)}, {"x": name.hex()})
        found, more = planfile.read(path)
        assert {k: v.tolist() for k, v in found.items()} == {str(i): a for i, a in enumerate(arrays)}
        assert more == {"x": name.hex()}
        written = bytearray(path.read_bytes())
        written[data.draw(st.integers(0, len(written) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(written)
        with pytest.raises(ValueError, match="no whole plan"):
            planfile.read(path)


def test_long_and_empty_samples_are_left_out_of_the_table_and_counted(tmp_path):
    lengths = [5, 0, 40, 7, 0, 33, 9, 32] * 40
    rows = [{"input_ids": np.full(n, 3, np.int32), "id": str(i)} for i, n in enumerate(lengths)]
    feed = tw.from_dataset(rows, id="id", fingerprint="gaps").shuffle().pack(32, overlong="drop").batch(1)
    for _ in range(2):  # the second time from what was kept
        loader = tw.Loader(feed, tail="pad", return_tensors="np")
        seen = [int(i) for b in loader for row in b.info.ids for i in row]
        assert sorted(seen) == [i for i, n in enumerate(lengths) if 0 < n <= 32]
        assert loader.stats()["left_out"] == {"empty": 80, "overlong": 80}
        order = compile_feed(feed).order
        for i in (0, 3, 6, 7, 8):
            draw = order.sources[0].draw_of(i, 0)
            assert order.sources[0].samples(np.array([draw])).tolist() == [i]
        assert order.sources[0].draw_of(1, 0) is None
        assert order.sources[0].draw_of(2, 0) is None
    assert list((cache_folder() / "table").glob("*.npy"))
