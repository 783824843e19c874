"""One feed on any source: a generator's rows, raw files and records give identical samples; parts and unions."""

import csv
import json
import sqlite3
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import urlopen

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, InputError, SampleError
from thalweg.feed import stages as st
from thalweg.feed.mapped import Leaf
from thalweg.feed.source import ObjectSource

ROWS = [{"id": f"d{i}", "prompt": f"what is {i}?", "response": "word " * (i % 7 + 1)} for i in range(60)]


def encode(sample):
    """Prompt and answer stay apart until here; the loss is on the answer."""
    prompt, answer = (np.frombuffer(sample[k].encode(), np.uint8).astype(np.int32) for k in ("prompt", "response"))
    labels = np.concatenate([np.full(len(prompt), -100), answer]).astype(np.int64)
    return {"input_ids": np.concatenate([prompt, answer]), "labels": labels}


CALLS = []  # not captured by the functions below: what a function captures is part of a cache's key


def counted(sample):
    CALLS.append(sample["id"])
    return encode(sample)


def even(sample):
    CALLS.append(sample["id"])
    return int(sample["id"]) % 2 == 0


def training(feed):
    return feed.map(encode, remove_columns="all").cache().shuffle(5).pack(96, overlong="drop").batch(2)


def batches(feed):
    return [
        (b.info.ids, b["input_ids"].tolist(), b["labels"].tolist())
        for b in tw.Loader(training(feed), return_tensors="np")
    ]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))


def from_jsonl(folder):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    with path.open() as file:
        return [json.loads(line) for line in file]


def from_csv(folder):
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def from_sqlite(folder):
    with sqlite3.connect(folder / "rows.db") as base:
        base.execute("create table rows (id text, prompt text, response text)")
        base.executemany("insert into rows values (:id, :prompt, :response)", ROWS)
        found = [
            dict(zip(("id", "prompt", "response"), r, strict=True))
            for r in base.execute("select * from rows order by rowid")
        ]
    base.close()
    return found


def from_http(_folder):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = "".join(json.dumps(r) + "\n" for r in ROWS).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}/") as answer:
            return [json.loads(line) for line in answer]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("read", [from_jsonl, from_csv, from_sqlite, from_http])
def test_a_generator_and_records_give_identical_samples(tmp_path, read):  # E5 E7 E8
    with tw.create_records(str(tmp_path / "records")) as writer:
        for row in ROWS:
            writer.write(row)
    assert batches(tw.from_dataset(read(tmp_path), id="id")) == batches(tw.from_records(str(tmp_path / "records")))


def test_raw_files_are_read_directly_and_give_the_same(tmp_path):  # E5 E6 C14
    from_jsonl(tmp_path)
    feed = tw.from_files(str(tmp_path / "*.jsonl"), id="id")
    assert feed.kind == "planned"
    assert batches(feed) == batches(tw.from_dataset(ROWS, id="id"))
    with pytest.raises(InputError):
        tw.from_files(str(tmp_path / "none*.jsonl"))


def test_a_second_start_maps_nothing(tmp_path):  # C15 E51
    CALLS.clear()

    def run():
        feed = tw.from_dataset(ROWS, id="id").map(counted, remove_columns="all").cache(str(tmp_path / "kept"))
        return len(tw.Loader(feed.shuffle(5).pack(96, overlong="drop").batch(2)))

    first = run()
    made = len(CALLS)
    assert made == len(ROWS)
    assert run() == first
    assert len(CALLS) == made


def test_a_filter_on_table_columns_reads_nothing_and_one_on_data_runs_once(tmp_path):  # E50 E51
    rows = [{"input_ids": np.arange(1 + i % 10, dtype=np.int32), "id": str(i)} for i in range(50)]
    CALLS.clear()
    feed = tw.from_dataset(rows, id="id").filter(lambda length: length > 4, columns="length")
    assert feed.num_rows == 30
    both = feed.filter(even).shuffle().batch(1)
    assert both.num_rows == 15
    ids = {i for b in tw.Loader(both, return_tensors="np") for row in b.info.ids for i in row}
    assert ids == {str(i) for i in range(50) if i % 10 > 3 and i % 2 == 0}
    made = len(CALLS)
    assert both.num_rows == 15
    assert len(CALLS) == made  # kept
    with pytest.raises(ConfigError, match="did you mean 'length'"):
        _ = tw.from_dataset(rows).filter(lambda x: x > 1, columns="lenght").num_rows
    with pytest.raises(ConfigError, match="must give 50 booleans"):
        _ = tw.from_dataset(rows).filter(lambda length: True, columns="length").num_rows


def test_a_random_filter_with_info_keeps_the_same_samples_everywhere(tmp_path, monkeypatch):  # E51
    rows = [{"input_ids": np.arange(3, dtype=np.int32), "id": str(i)} for i in range(200)]

    def kept(cache):
        monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / cache))
        feed = tw.from_dataset(rows, id="id").filter(lambda s, info: info.rng.random() < 0.5, with_info=True)
        return [s["id"] for s in feed]

    assert kept("one") == kept("two")
    assert 60 < len(kept("one")) < 140


def plain(n, name=""):
    return tw.from_dataset([{"input_ids": np.arange(2, dtype=np.int32), "id": f"{name}{i}"} for i in range(n)], id="id")


def ids(feed):
    return [i for b in tw.Loader(feed.batch(1), return_tensors="np") for row in b.info.ids for i in row]


def test_parts_and_unions_hold_what_they_say():
    ten = plain(10)
    assert ids(ten.take(3)) == ["0", "1", "2"]
    assert ids(ten.skip(8)) == ["8", "9"]
    assert ids(ten.skip(2).take(2)) == ["2", "3"]
    assert ids(ten.select([5, 1, 5])) == ["5", "1", "5"]
    both = tw.concat({"a": plain(3, "a"), "b": plain(2, "b").repeat(2)})
    assert ids(both) == ["a0", "a1", "a2", "b0", "b1", "b0", "b1"]
    shuffled = ids(both.shuffle())
    assert sorted(shuffled) == sorted(ids(both))
    assert shuffled != ids(both)
    with pytest.raises(ConfigError, match="index 10 is outside"):
        ids(ten.select([10]))
    assert ids(ten.take(0)) == []


def test_no_rows_of_a_plain_object_have_its_columns():
    rows = [{"input_ids": [1, 2], "loss_spans": [[0, 1]], "text": "a"}]
    for asked in (None, ["input_ids", "loss_spans", "text"]):
        got = ObjectSource(rows).read(np.array([], np.int64), asked)
        assert {k: len(v) for k, v in got.items()} == {"input_ids": 0, "loss_spans": 0, "text": 0}
        assert got["loss_spans"].values.shape == (0, 2)


def test_a_sample_stays_on_its_side_when_data_grows():
    small, large = plain(500).split({"train": 0.8, "val": 0.2}), plain(700).split({"train": 0.8, "val": 0.2})
    train, val = set(ids(small["train"])), set(ids(small["val"]))
    assert train | val == {str(i) for i in range(500)}
    assert not train & val
    assert 60 < len(val) < 140
    assert train <= set(ids(large["train"]))
    assert val <= set(ids(large["val"]))
    assert set(ids(plain(500).split({"train": 0.8, "val": 0.2}, seed=1)["val"])) != val


def test_a_split_of_a_split_divides_its_side_by_its_own_shares():
    train = plain(4000).split({"train": 0.5, "val": 0.5})["train"]
    inner = train.split({"a": 0.5, "b": 0.5})
    a, b = set(ids(inner["a"])), set(ids(inner["b"]))
    assert not a & b
    assert a | b == set(ids(train))
    assert len(a) == pytest.approx(len(a | b) / 2, rel=0.1)
    deeper = inner["a"].split({"x": 0.25, "y": 0.75})
    assert len(ids(deeper["x"])) == pytest.approx(len(a) / 4, rel=0.2)
    parts = tw.concat({"one": train, "two": plain(10)}).split({"x": 0.25, "y": 0.75})
    assert len(ids(parts["x"])) == pytest.approx((len(a | b) + 10) / 4, rel=0.15)
    assert train.split({"a": 0.5, "b": 0.5})["b"].fingerprint == inner["b"].fingerprint


def test_labels_of_another_length_are_refused_with_the_sample_named():  # E9
    rows = [{"input_ids": np.arange(3), "labels": np.arange(2), "id": "short"}]
    with pytest.raises(ValueError, match="'short' has 3 input_ids and 2 labels"):
        next(iter(tw.Loader(tw.from_dataset(rows, id="id").map(lambda s: s).batch(1))))


def test_a_column_that_has_no_place_in_a_batch_is_refused_by_name():
    rows = [{"input_ids": np.arange(3), "text": "abc"}]
    with pytest.raises(ConfigError, match="column 'text'"):
        tw.Loader(tw.from_dataset(rows).batch(1))
    with pytest.raises(ConfigError, match="no column 'input_ids'"):
        tw.Loader(tw.from_dataset([{"text": "abc"}]).batch(1))
    raw = next(iter(tw.Loader(tw.from_dataset(rows).batch(1, collate="raw"), return_tensors="np")))
    assert raw["samples"][0]["text"] == "abc"
    made = next(iter(tw.Loader(tw.from_dataset(rows).batch(1, collate=lambda rows: {"n": len(rows)}))))
    assert made["n"] == 1


def test_a_sample_that_fails_keeps_its_place():
    rows = [{"input_ids": np.arange(4, dtype=np.int32), "id": str(i)} for i in range(40)]

    def build(bad, on_error="skip"):
        def fn(sample):
            if sample["id"] in bad:
                raise ValueError("poison")
            return {}

        feed = tw.from_dataset(rows, id="id").map(fn, length="same", on_error=on_error, max_bad=0.5)
        return feed.shuffle().pack(16, overlong="drop").batch(2)

    whole = list(tw.Loader(build(set()), return_tensors="np"))
    holes = list(tw.Loader(build({"3", "7"}), return_tensors="np"))
    assert [b.info.ids for b in whole] == [b.info.ids for b in holes]  # the plan does not move
    assert sum(b.info.num_tokens for b in whole) - sum(b.info.num_tokens for b in holes) == 8
    assert sum(b.info.num_label_tokens for b in whole) - sum(b.info.num_label_tokens for b in holes) == 6
    with pytest.raises(ValueError, match="poison") as raised:
        list(tw.Loader(build({"3"}, "raise")))
    assert any("sample '3'" in note for note in raised.value.__notes__)
    alone = tw.from_dataset(rows[:2], id="id").map(lambda s: None if s["id"] == "1" else s).batch(1)
    assert [float(b.info.weight.sum()) for b in tw.Loader(alone, return_tensors="np")] == [1.0, 0.0]


def grouped(columns):
    """A function of whole columns that refuses a group with a 7 in it."""
    if 7 in columns["n"]:
        raise ValueError("poison")
    return {"twice": [2 * n for n in columns["n"]]}


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("rule", ["skip", "quarantine"])
def test_a_group_that_fails_loses_none_but_its_bad_sample(tmp_path, cached, rule):  # A38
    rows = [{"n": n} for n in range(20)]
    aside = {"quarantine": str(tmp_path / "bad")} if rule == "quarantine" else {}
    feed = tw.from_dataset(rows, fingerprint="rows").map(grouped, batched=8, on_error=rule, max_bad=1, **aside)
    feed = feed.cache(str(tmp_path / "made")) if cached else feed
    batches = list(tw.Loader(feed.batch(5, collate="raw"), tail="pad", return_tensors="np", workers=0))
    assert [s["twice"] for b in batches for s in b["samples"]] == [2 * n for n in range(20) if n != 7]
    if rule == "quarantine":
        lines = [json.loads(x) for p in (tmp_path / "bad").rglob("*.jsonl") for x in p.read_text().splitlines()]
        assert [line["sample"] for line in lines] == [{"n": 7}]
        assert "poison" in lines[0]["error"]
    with pytest.raises(ValueError, match="poison") as raised:
        feed = tw.from_dataset(rows, fingerprint="rows").map(grouped, batched=8)
        list(tw.Loader((feed.cache() if cached else feed).batch(5, collate="raw"), return_tensors="np", workers=0))
    assert any("while mapping sample '" in note for note in raised.value.__notes__)


def test_the_books_of_a_function_on_groups_add_up():
    leaf = Leaf(
        "", ObjectSource([{"n": n} for n in range(20)]), [st.Map(grouped, batched=8, on_error="skip", max_bad=3)]
    )
    leaf.samples(np.arange(20), 0, 0)
    tally = leaf.tallies[0]
    assert (tally.taken, tally.out, dict(tally.dropped), tally.balance) == (20, 19, {"failed": 1}, 0)


def test_a_sample_that_is_a_group_by_itself_is_called_once():
    calls = []

    def noted(columns):
        calls.append(columns["n"])
        return grouped(columns)

    stage = st.Map(noted, batched=2, on_error="skip", max_bad=3)
    made = Leaf("", ObjectSource([{"n": n} for n in (1, 2, 7)]), [stage]).samples(np.arange(3), 0, 0)
    assert [None if s is None else s["twice"] for s in made] == [2, 4, None]
    assert calls == [[1, 2], [7]]


def test_samples_without_tokens_may_be_kept(tmp_path):
    feed = tw.from_dataset([{"n": n} for n in range(20)], fingerprint="n").map(lambda s: {"m": s["n"]}).cache(tmp_path)
    for world in (1, 2):
        loaders = [tw.Loader(feed.batch(5, collate="raw"), topology=tw.Topology(rank, world)) for rank in range(world)]
        assert sorted(s["m"] for l in loaders for b in l for s in b["samples"]) == list(range(20))  # noqa: E741


SPARSE = [{"n": 0, "said": None}, {"n": 1}, {"n": 2, "said": "x"}, {"n": None, "said": "y"}]


@pytest.mark.parametrize("kind", ["objects", "files", "records", "several", "stream"])
def test_null_and_absent_stay_two_things(tmp_path, kind):  # E5
    """A function sees the keys that its sample has, on every source."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in SPARSE))
    for name in ("a", "b"):
        with tw.create_records(str(tmp_path / name)) as writer:
            for row in SPARSE:
                writer.write(row)
    feeds = {
        "objects": lambda: tw.from_dataset(SPARSE),
        "files": lambda: tw.from_files(str(tmp_path / "rows.jsonl")),
        "records": lambda: tw.from_records(str(tmp_path / "a")),
        "several": lambda: tw.concat({k: tw.from_records(str(tmp_path / k)) for k in "ab"}),
        "stream": lambda: tw.from_stream(lambda: iter(SPARSE)),
    }
    seen = []

    def look(sample):
        seen.append(dict(sample))
        return {"input_ids": np.zeros(1, np.int32)}

    mapped = feeds[kind]().map(look, remove_columns="all", mode="inline").batch(1)
    list(tw.Loader(mapped, return_tensors="np", workers=0))
    assert seen == (SPARSE * 2 if kind == "several" else SPARSE)
    if kind != "several":
        found = feeds[kind]().map(lambda s: s, mode="inline").batch(4, collate="raw")
        assert next(iter(tw.Loader(found, return_tensors="np", workers=0)))["samples"] == SPARSE


def test_too_many_bad_samples_stop_the_run_with_the_rate():
    rows = [{"input_ids": np.arange(4, dtype=np.int32), "id": str(i)} for i in range(400)]

    def fn(sample):
        raise ValueError("bad")

    with pytest.raises(RuntimeError, match=r"samples failed, more than max_bad=3"):
        list(tw.Loader(tw.from_dataset(rows).map(fn, on_error="skip", max_bad=3).batch(1)))


def test_maps_set_columns_keep_the_others_and_refuse_undeclared_ones():  # E25
    rows = [{"a": 1, "b": 2}]

    def first(feed):
        return feed.peek()[0]

    source = tw.from_dataset(rows)
    assert first(source.map(lambda s: {"c": s["a"] + 1})) == {"a": 1, "b": 2, "c": 2}
    assert first(source.map(lambda a: a + 1, input_columns="a", output_columns="c")) == {"a": 1, "b": 2, "c": 2}
    assert first(source.map(lambda s: {"c": 3}, remove_columns="all")) == {"c": 3}
    assert first(source.map(lambda b: {"c": b["a"]}, batched=True)) == {"a": 1, "b": 2, "c": 1}
    with pytest.raises(ValueError, match="replaces column 'b'"):
        first(source.map(lambda a: {"b": a}, input_columns="a"))
    with pytest.raises(ValueError, match="the function gave int"):
        first(source.map(lambda s: 3))


def slowly(sample, info):
    """Half of the samples come back late, with random numbers of their own."""
    waited = sum(range(int(sample["id"]) % 5 * 2000))
    return {"input_ids": sample["input_ids"] + int(info.rng.integers(100)) + waited * 0}


@pytest.mark.parametrize(
    "how", [{"workers": 0}, {"mode": "threads", "workers": 3}, {"mode": "processes", "workers": 2}, {"mode": "auto"}]
)
def test_workers_and_modes_change_nothing(how):  # K49 E14
    rows = [{"input_ids": np.full(3, i, np.int32), "id": str(i)} for i in range(60)]
    feed = tw.from_dataset(rows, id="id").map(slowly, with_info=True, length="same", **how).shuffle().batch(4)
    inline = tw.from_dataset(rows, id="id").map(slowly, with_info=True, length="same").shuffle().batch(4)

    def values(one, **more):
        return [(b.info.ids, b["input_ids"].tolist()) for b in tw.Loader(one, epochs=2, return_tensors="np", **more)]

    assert values(feed) == values(inline, workers=0)
    loader = tw.Loader(feed, epochs=2, return_tensors="np")
    iterator = iter(loader)
    head = [next(iterator).info.ids for _ in range(3)]  # workers are ahead; the state is not
    resumed = tw.Loader(inline, epochs=2, return_tensors="np", workers=0)
    resumed.load_state_dict(loader.state_dict())
    loader.close()
    assert head + [b.info.ids for b in resumed] == [ids for ids, _ in values(inline, workers=0)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_at_its_place_after_all_earlier_batches(workers):
    rows = [{"input_ids": np.full(3, i, np.int32), "id": str(i)} for i in range(40)]

    def fn(sample):
        if sample["id"] == "25":
            raise KeyError("here")
        return {}

    feed = tw.from_dataset(rows, id="id").map(fn, mode="threads", length="same").batch(4)
    got = []
    with pytest.raises(KeyError, match="here") as raised:
        got.extend(b.info.ids for b in tw.Loader(feed, return_tensors="np", workers=workers))
    assert len(got) == 6
    assert any("sample '25'" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_put_aside_with_place_and_traceback(tmp_path, workers):
    rows = [{"input_ids": np.full(3, i, np.int32), "id": str(i)} for i in range(40)]

    def fn(sample):
        if int(sample["id"]) % 10 == 3:
            raise ValueError("bad one")
        return {}

    feed = tw.from_dataset(rows, id="id").map(
        fn, on_error="quarantine", quarantine=str(tmp_path / "bad"), max_bad=10, length="same", mode="threads"
    )
    loader = tw.Loader(feed.batch(4), return_tensors="np", workers=workers)
    assert sum(float(b.info.weight.sum()) for b in loader) == 36
    lines = [json.loads(x) for p in (tmp_path / "bad").glob("*.jsonl") for x in p.read_text().splitlines()]
    assert sorted(x["sample"]["id"] for x in lines) == ["13", "23", "3", "33"]
    assert all("bad one" in x["error"] and "Traceback" in x["traceback"] and "sample '" in x["place"] for x in lines)


@pytest.mark.parametrize("pad", ["right", "none"])
def test_a_map_behind_pack_sees_rows_and_keeps_their_length(pad):
    rows = [{"input_ids": np.full(5, i + 1, np.int32), "id": str(i)} for i in range(20)]
    packed = tw.from_dataset(rows, id="id").shuffle().pack(16, overlong="drop")

    def mask_first(row):
        labels = row["labels"]
        labels[: len(labels) // 2] = -100
        return {"labels": labels, "input_ids": row["input_ids"] + 1}

    plain = list(tw.Loader(packed.batch(2, pad=pad), return_tensors="np", tail="pad"))
    mapped = list(tw.Loader(packed.map(mask_first).batch(2, pad=pad), return_tensors="np", tail="pad"))
    for a, b in zip(plain, mapped, strict=True):
        assert a.info.ids == b.info.ids
        real = a["input_ids"] > 0
        assert np.array_equal(b["input_ids"][real], a["input_ids"][real] + 1)
        assert b.info.num_label_tokens == int((b["labels"] != -100).sum()) < a.info.num_label_tokens
    assert packed.map(mask_first).peek()[0]["labels"][0] == -100
    with pytest.raises(ValueError, match="keeps lengths"):
        list(tw.Loader(packed.map(lambda r: {"labels": r["labels"][:2]}).batch(2)))
    with pytest.raises(ConfigError, match="behind pack"):
        packed.map(mask_first, with_info=True)


@pytest.mark.parametrize("given", [{"input_ids": [2]}, {"input_ids": [2], "id": None}])
def test_a_sample_without_the_id_or_the_tokens_is_named(given):
    feed = tw.from_dataset([{"input_ids": [1], "id": "a"}, given], id="id").batch(2)
    with pytest.raises(SampleError, match=r"no 'id' \[sample 1\]"):
        [batch.info.ids for batch in tw.Loader(feed, return_tensors="np", workers=0)]
    with pytest.raises(SampleError, match=r"no 'input_ids' \[sample 1\]"):
        list(tw.Loader(tw.from_dataset([{"input_ids": [1]}, {"b": 1}]).batch(1), return_tensors="np"))
