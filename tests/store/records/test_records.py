"""Written rows come back, in every way of reading, and the set is whole or absent."""

import pickle
import threading
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from records_rows import equal, token_rows

import thalweg as tw
from thalweg.core.errors import IntegrityError, RecordsError, SampleError
from thalweg.core.sample import Ragged
from thalweg.store.records import PartWriter, merge_parts, rowwriter


def write(path, rows, **options):
    with tw.create_records(path, sync=False, **options) as w:
        for row in rows:
            w.write(row)
    return tw.open_records(path)


# E35
@pytest.mark.parametrize("shard_bytes", ["256MB", 20_000])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_rows_come_back_by_index_slice_iteration_and_gather(tmp_path, shard_bytes, io):
    rows = token_rows(5000)
    write(tmp_path / "set", rows, shard_bytes=shard_bytes)
    rec = tw.open_records(tmp_path / "set", io=io)
    assert len(rec) == 5000
    assert all(equal(rec[i], rows[i]) for i in (0, 1, 17, 4095, 4096, 4999))
    assert equal(rec[-3], rows[-3])
    assert equal(rec[10:14], rows[10:14])
    assert equal(list(rec), list(rows))
    order = np.random.default_rng(1).integers(-5000, 5000, 700)
    got = rec.read(order)
    assert isinstance(got["input_ids"], Ragged)
    assert got["input_ids"].values.dtype == np.int32
    for j, i in enumerate(order.tolist()):
        assert np.array_equal(got["input_ids"][j], rows[i]["input_ids"])
        assert np.array_equal(got["loss_spans"][j], rows[i]["loss_spans"])
        assert got["id"][j] == rows[i]["id"]
        assert got["row"][j] == rows[i]["row"]
    small = rec.read([3, 1, 2], ["input_ids"])["input_ids"]
    assert [r.tolist() for r in small] == [rows[i]["input_ids"].tolist() for i in (3, 1, 2)]


def test_facts_are_mapped_and_count_tokens_in_the_loss(tmp_path):
    rows = token_rows(300)
    rec = write(tmp_path / "set", rows)
    assert rec.lengths.dtype == np.int32
    assert rec.lengths.tolist() == [len(r["input_ids"]) for r in rows]
    expected = [sum(max(0, min(b, len(r["input_ids"])) - max(a, 1)) for a, b in r["loss_spans"].tolist()) for r in rows]
    assert rec.facts["label_tokens"].tolist() == expected
    assert rec.num_tokens == sum(len(r["input_ids"]) for r in rows)


def test_label_tokens_of_labels_and_of_plain_text_leave_out_the_first_token(tmp_path):
    labels = np.array([7, -100, 9, 9], np.int64)
    rows = [{"input_ids": np.arange(4, dtype=np.int32), "labels": labels}, {"input_ids": np.arange(5, dtype=np.int32)}]
    assert write(tmp_path / "set", rows).facts["label_tokens"].tolist() == [2, 4]


def test_a_named_fact_lies_beside_the_data_in_four_bytes(tmp_path):
    rows = [{"input_ids": np.arange(3, dtype=np.int32), "score": i / 7} for i in range(10)]
    rec = write(tmp_path / "set", rows, facts=["score"])
    assert rec.facts["score"].dtype == np.float32
    assert np.allclose(rec.facts["score"], np.arange(10) / 7)
    assert rec[3]["score"] == 3 / 7


def test_media_tokens_are_a_fact_where_rows_have_them(tmp_path):
    rows = [{"input_ids": np.arange(9, dtype=np.int32), "media_tokens": i // 5} for i in range(10)]
    assert write(tmp_path / "set", rows).facts["media_tokens"].tolist() == [0] * 5 + [1] * 5
    assert write(tmp_path / "text", token_rows(3)).facts["media_tokens"].tolist() == [0] * 3


def test_a_fact_has_a_file_from_where_it_varies_and_from_floats_on(tmp_path):
    for values in ([2, 2], [2, 3], [2, 2, 0.5], [2, 3, 0.5], [0.5, 2], [2, 2.0, 2]):
        folder = tmp_path / str(values)
        with tw.create_records(folder, sync=False, facts=["score"]) as w:
            for value in values:
                w.write_batch({"score": np.full(9, value)})
        expected = np.repeat(values, 9).tolist()
        assert tw.open_records(folder).facts["score"].tolist() == expected
        assert len(list(folder.glob("*.score.npy"))) == (len(set(values)) > 1)
        joined = write(folder, [{"score": 2}] * 5, append=True, facts=["score"])
        assert joined.facts["score"].tolist() == [*expected, *[2] * 5]
        assert write(folder, [{"n": 1}], append=True).facts["score"].tolist() == [*expected, *[2] * 5, 0]


def test_ids_are_the_column_or_given_or_the_row_number(tmp_path):
    with tw.create_records(tmp_path / "set", sync=False) as w:
        w.write({"a": 1, "id": "x"})
        w.write({"a": 2}, id="y")
        w.write({"a": 3})
        w.write({"a": 4, "id": 17})
    rec = tw.open_records(tmp_path / "set")
    assert rec.ids([3, 2, 1, 0]) == ["17", "2", "y", "x"]
    expected = [xxhash.xxh3_64_intdigest(i.encode()) for i in ("17", "2", "y", "x")]
    assert rec.id_hashes([3, 2, 1, 0]).tolist() == expected
    assert [list(r) for r in rec] == [["a", "id"], ["a"], ["a"], ["a", "id"]]


def test_the_fingerprint_follows_rows_and_order_and_not_shards_paths_or_widths(tmp_path):
    rows = token_rows(3000)
    a = write(tmp_path / "a", rows)
    assert write(tmp_path / "b", rows, shard_bytes=10_000).fingerprint == a.fingerprint
    assert write(tmp_path / "c", rows, vocab_size=151_000).fingerprint == a.fingerprint
    assert write(tmp_path / "d", [rows[1], rows[0], *rows[2:]]).fingerprint != a.fingerprint
    changed = {**rows[5], "source": "code"}
    assert write(tmp_path / "e", [*rows[:5], changed, *rows[6:]]).fingerprint != a.fingerprint
    small = [{"input_ids": r["input_ids"] % 60_000} for r in rows]
    wide, narrow = write(tmp_path / "f", small), write(tmp_path / "g", small, vocab_size=60_000)
    assert wide.fingerprint == narrow.fingerprint
    assert narrow[5]["input_ids"].dtype == np.int32
    assert (tmp_path / "g").stat() != (tmp_path / "f").stat()
    with tw.create_records(tmp_path / "h", sync=False) as w:
        w.write_batch({"input_ids": Ragged.from_rows([r["input_ids"] for r in small])})
    assert tw.open_records(tmp_path / "h").fingerprint == wide.fingerprint


def test_the_fingerprint_does_not_see_parts_or_generations(tmp_path):
    rows = [{**r, "mixed": r["input_ids"] if i % 3 else i} for i, r in enumerate(token_rows(900))]
    whole = write(tmp_path / "whole", rows).fingerprint
    for cuts in ([300, 600], [1, 2, 3, 899], [450, 450], [0, 900]):
        bounds = [0, *cuts, 900]
        for a, b in pairwise(bounds):
            rec = write(tmp_path / f"a{cuts}", rows[a:b], append=a > 0 or (tmp_path / f"a{cuts}").exists())
        assert rec.fingerprint == whole
        for k, (a, b) in enumerate(pairwise(bounds)):
            with PartWriter(tmp_path / f"p{cuts}", k, len(bounds) - 1, sync=False) as w:
                for row in rows[a:b]:
                    w.write(row)
        merge_parts(tmp_path / f"p{cuts}")
        assert tw.open_records(tmp_path / f"p{cuts}").fingerprint == whole
    middle = rows[500]["input_ids"].copy()
    middle[len(middle) // 2] += 1
    assert write(tmp_path / "b", [*rows[:500], {**rows[500], "input_ids": middle}, *rows[501:]]).fingerprint != whole


def test_nothing_appears_after_an_exception(tmp_path):
    def broken():
        yield {"a": 1}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "set", broken())
    assert list((tmp_path / "set").iterdir()) == []
    with pytest.raises(RecordsError, match="no record set"):
        tw.open_records(tmp_path / "set")


def test_a_path_in_use_is_refused(tmp_path):
    write(tmp_path / "set", [{"a": 1}])
    with pytest.raises(RecordsError, match="in use"):
        tw.create_records(tmp_path / "set")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(RecordsError, match=r"thesis\.tex"):
        tw.create_records(tmp_path / "mine")


def test_an_id_outside_its_type_or_vocabulary_names_the_record(tmp_path):
    rows = [{"input_ids": [1, 2, 5], "id": "a"}, {"input_ids": [1, 3, 70_000], "id": "b"}]
    with pytest.raises(SampleError, match=r"token id 70000 is outside.*row 1 id 'b', position 2"):
        write(tmp_path / "a", rows, vocab_size=65_000)
    rows[1]["input_ids"][1] = 3_000_000_000
    with pytest.raises(SampleError, match=r"3000000000 is outside int32.*row 1 id 'b'"):
        write(tmp_path / "b", rows)
    with tw.create_records(tmp_path / "c", vocab_size=100, on_error="quarantine", sync=False) as w:
        assert w.write({"input_ids": [1, 99]}) == 0
        assert w.write({"input_ids": [1, 100], "id": "bad"}) == -1
        assert w.write({"input_ids": [-1]}) == -1
        assert w.write({"input_ids": [5]}) == 1
    rec = tw.open_records(tmp_path / "c")
    assert [r["input_ids"].tolist() for r in rec] == [[1, 99], [5]]
    assert rec.quarantined == 2


def test_append_makes_a_generation_and_earlier_ones_stay_openable(tmp_path):
    rows = token_rows(700)
    old = write(tmp_path / "set", rows[:300])
    new = write(tmp_path / "set", rows[300:], append=True)
    assert (old.generation, new.generation, len(old), len(new)) == (0, 1, 300, 700)
    assert equal(list(new), list(rows))
    assert len(tw.open_records(tmp_path / "set", generation=0)) == 300
    assert new.fingerprint == write(tmp_path / "whole", rows).fingerprint
    assert new.lengths.tolist() == [len(r["input_ids"]) for r in rows]
    write(tmp_path / "set", rows[:1], append=True)
    assert [len(tw.open_records(tmp_path / "set", generation=g)) for g in range(3)] == [300, 700, 701]


def test_overwrite_replaces_and_removes_the_old_files(tmp_path):
    write(tmp_path / "set", token_rows(50))
    write(tmp_path / "set", token_rows(50, seed=1), append=True)
    before = {p.name for p in (tmp_path / "set").iterdir()}
    rec = write(tmp_path / "set", [{"a": 1}], overwrite=True)
    assert [dict(r) for r in rec] == [{"a": 1}]
    assert not before & {p.name for p in (tmp_path / "set").iterdir()}


def test_records_pickle_and_are_read_by_many_threads(tmp_path):
    rows = token_rows(3000)
    rec = pickle.loads(pickle.dumps(write(tmp_path / "set", rows, shard_bytes=30_000)))
    wrong = []

    def work(seed):
        for i in np.random.default_rng(seed).integers(0, 3000, 400).tolist():
            if not equal(rec[i], rows[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []


def test_a_block_that_another_thread_is_mapping_is_not_taken_for_mapped(tmp_path):
    rec = write(tmp_path / "set", token_rows(10))
    touch, begun, go_on = rec._opened.touch, threading.Event(), threading.Event()
    ready = touch._ready

    def blocked(spans):
        if threading.current_thread() is slow:
            begun.set()
            go_on.wait(60)
        ready(spans)

    slow = threading.Thread(target=lambda: rec[:])
    touch._ready = blocked
    slow.start()
    assert begun.wait(60)
    assert not touch.done.any()  # reading would end the process
    assert equal(rec[:], token_rows(10))
    go_on.set()
    slow.join()


# E40
def test_unknown_columns_and_another_tokenizer_are_refused_at_open(tmp_path):
    write(tmp_path / "set", token_rows(3), lineage={"tokenizer": "abc"})
    assert tw.open_records(tmp_path / "set", expect={"tokenizer": "abc"}).lineage["tokenizer"] == "abc"
    with pytest.raises(RecordsError, match="'abc', 'xyz' is expected"):
        tw.open_records(tmp_path / "set", expect={"tokenizer": "xyz"})
    with pytest.raises(RecordsError, match="template of the set is None, 'chatml' is expected"):
        tw.open_records(tmp_path / "set", expect={"template": "chatml"})  # a set that does not say is another one
    with pytest.raises(RecordsError, match="'input_ids'"):
        tw.open_records(tmp_path / "set", columns=["input_id"])
    with pytest.raises(RecordsError, match="schema of the set"):
        tw.open_records(tmp_path / "set", expect={"schema": {"input_ids": "int64[*]"}})


def test_a_damaged_manifest_is_refused(tmp_path):
    write(tmp_path / "set", token_rows(3))
    path = tmp_path / "set" / "manifest.0"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="manifest"):
        tw.open_records(tmp_path / "set")


def test_plain_rows_come_back_whatever_stands_between_them(tmp_path):
    """Rows of arrays alone take a short way from the first one of a block on; everything else ends it."""
    ids = np.arange(60, dtype=np.int32)
    buffer = np.empty(50, np.int32)

    def odd(i):
        return {
            20_000: {"input_ids": ids[::3]},  # not contiguous
            20_500: {"input_ids": list(range(5))},
            21_000: {"input_ids": ids[:4], "n": 7},
            21_001: {"n": 8},
            30_000: {"input_ids": ids[:0]},
        }.get(i)

    expected = []
    with tw.create_records(tmp_path / "set", sync=False, shard_bytes="1MB") as w:
        for i in range(40_000):
            row = odd(i)
            if row is None:
                buffer[:] = i  # the caller uses its array again
                row = {"input_ids": buffer[: i % 50]}
            assert w.write(row, id="x" if i == 22_000 else None) == i
            expected.append(odd(i) or {"input_ids": np.full(i % 50, i, np.int32)})
        assert len(w) == 40_000
        w.write_batch({"input_ids": [[1, 2]]})
        for _ in range(3):
            w.write({"input_ids": ids})
    expected += [{"input_ids": np.array([1, 2])}, *[{"input_ids": ids}] * 3]
    rec = tw.open_records(tmp_path / "set", verify=True)
    assert len(rec) == len(expected)
    for got, row in zip(rec, expected, strict=True):
        assert got.keys() == row.keys()
        assert all(np.array_equal(got[k], row[k]) for k in row)
    assert rec.ids([22_000, 22_001]) == ["x", "22001"]
    rec.verify("full")
    with tw.create_records(tmp_path / "again", sync=False) as w:
        for i, row in enumerate(expected):
            w.write(row, id="x" if i == 22_000 else None)
    assert tw.open_records(tmp_path / "again").fingerprint == rec.fingerprint


def test_several_plain_columns_come_back_and_an_array_of_another_type_is_no_surprise(tmp_path, monkeypatch):
    def row(i):
        long = np.arange(i % 9, dtype=np.int16 if i == 3000 else np.int64)
        return {"input_ids": np.full(i % 7, i, np.int32), "labels": np.full(i % 7, -i), "extra": long}

    monkeypatch.setattr(rowwriter, "BLOCK_ROWS", 800)
    rec = write(tmp_path / "set", (row(i) for i in range(3500)))
    for i in (0, 1, 799, 800, 2999, 3000, 3001, 3499):
        assert all(np.array_equal(rec[i][k], v) and rec[i][k].dtype == v.dtype for k, v in row(i).items())
    rec.verify("full")


def test_joining_rows_that_look_alike_reads_few_of_them_again(tmp_path, monkeypatch):
    """Packed rows have one length, begin and end alike: chunks of the fingerprint end somewhere all the same."""
    from thalweg.store.records.reread import Reread

    rng = np.random.default_rng(5)
    ids = rng.integers(3, 99, (3000, 64)).astype(np.int32)
    ids[:, 0], ids[:, -1] = 1, 2
    again = []
    read = Reread.__call__
    monkeypatch.setattr(Reread, "__call__", lambda self, k, a, b: again.append(b - a) or read(self, k, a, b))
    for part in (ids[:1500], ids[1500:]):
        with tw.create_records(tmp_path / "set", sync=False, append=True) as w:
            w.write_batch({"input_ids": Ragged(part.reshape(-1), np.arange(1501) * 64)})
    assert sum(again) < 1000
    whole = write(tmp_path / "whole", [{"input_ids": r} for r in ids])
    assert tw.open_records(tmp_path / "set").fingerprint == whole.fingerprint
