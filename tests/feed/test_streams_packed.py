"""Promises C20 to C31 on streams, and hub streams under every wrapper."""

import itertools
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ThalwegError
from thalweg.core.topology import Topology
from thalweg.feed.loader import FeedLoader
from thalweg.feed.open import from_stream


def docs(lengths):
    return [{"input_ids": np.full(n, i, np.int32)} for i, n in enumerate(lengths)]


def run(feed, rank=0, world=1, **more):
    loader = FeedLoader(feed, topology=Topology(rank, world), tail="pad", **more)
    out = list(loader)
    loader.close()
    return out


def rows(batches):
    """Documents of each row as (first token, tokens), padding left out."""
    out = []
    for b in batches:
        bounds = np.asarray(b["cu_seq_lens_q"]).tolist()
        flat = np.asarray(b["input_ids"]).reshape(-1)
        row = [(int(flat[a]), z - a) for a, z in itertools.pairwise(bounds) if z > a]
        out.append(row[: sum(len(r) for r in b.info.ids)])
    return out


@given(
    lengths=st.lists(
        st.integers(1, 40) | st.sampled_from([15, 16, 17, 32, 33]), min_size=1, max_size=80
    ),  # the borders
    policy=st.sampled_from(["fill", "next_fit", "window_7"]),
    overlong=st.sampled_from(["drop", "truncate", "split", "alone"]),
)
@settings(max_examples=60, deadline=None)
def test_each_kept_document_is_in_exactly_one_row_and_no_row_is_too_long(lengths, policy, overlong):
    # C20 C21 C22 C23
    kept = [n for n in lengths if n <= 16 or overlong != "drop"]
    if not kept:
        return
    feed = from_stream(docs(lengths)).pack(16, policy=policy, overlong=overlong).batch(1)
    packed = rows(run(feed, workers=0))
    for row in packed:
        total = sum(n for _, n in row)
        assert total <= 16 or (overlong == "alone" and len(row) == 1)
    seen = {}
    for i, n in (d for row in packed for d in row):
        seen.setdefault(i, []).append(n)
    expected = {
        i: {"drop": [n], "truncate": [min(n, 16)], "alone": [n]}.get(overlong)
        or [16] * (n // 16) + ([n % 16] if n % 16 else [])
        for i, n in enumerate(lengths)
        if n <= 16 or overlong != "drop"
    }
    assert {i: sorted(v) for i, v in seen.items()} == {i: sorted(v) for i, v in expected.items()}


@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=40).filter(any))
@settings(max_examples=60, deadline=None)
def test_documents_end_to_end_are_the_rows_end_to_end_however_long_they_are(lengths):
    # C20 C21
    batches = run(from_stream(docs(lengths)).pack(16, policy="concat_split").batch(1), workers=0)
    assert [b.info.num_tokens for b in batches[:-1]] == [16] * (len(batches) - 1)
    flat = np.concatenate([b["input_ids"].reshape(-1)[: b.info.num_tokens] for b in batches])
    assert flat.tolist() == [i for i, n in enumerate(lengths) for _ in range(n)]


def test_a_buffer_that_would_be_too_full_goes_out_and_the_rest_at_the_end():
    # C20
    packed = rows(run(from_stream(docs([6, 3, 4, 5, 1, 7])).pack(10, policy="next_fit", overlong="error").batch(1)))
    assert packed == [[(0, 6), (1, 3)], [(2, 4), (3, 5), (4, 1)], [(5, 7)]]  # the last one is not full


def test_overlong_documents_are_counted_or_refused_by_name():
    # C22
    feed = from_stream(docs([5, 30, 4])).pack(10, overlong="drop").batch(1)
    loader = FeedLoader(feed, topology=Topology())
    list(loader)
    assert loader.stats()["1 pack"]["dropped"] == {"overlong": 1}
    loader.close()
    with pytest.raises(ThalwegError, match=r"sample '1' has 30 tokens and rows take 10"):
        run(from_stream(docs([5, 30, 4])).pack(10, overlong="error").batch(1))


def test_memory_does_not_grow_with_the_data_and_the_first_batch_does_not_wait_for_it():
    # C24 C25 C26
    def peak(n):
        read = [0]

        def source():
            for i in range(n):
                read[0] = i
                yield {"input_ids": np.full(50 + i % 50, i % 1000, np.int32)}

        feed = from_stream(source).shuffle(buffer_size=50).pack(512, policy="fill", overlong="drop").batch(2)
        loader = FeedLoader(feed, topology=Topology(), workers=0)
        tracemalloc.start()
        batches = iter(loader)
        next(batches)
        first = read[0]
        for _ in batches:
            pass
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        loader.close()
        return first, top

    small, large = peak(2_000), peak(16_000)
    assert small[0] == large[0] <= 200
    assert large[1] < small[1] + 500_000  # the data grew by 4.2 MB; rows wait for the collector


def test_packing_differs_from_epoch_to_epoch_and_is_the_same_again():
    # C27
    feed = (
        from_stream(docs([1 + i % 9 for i in range(90)])).shuffle(3, buffer_size=30).pack(16, overlong="drop").batch(1)
    )

    def epochs():
        loader = FeedLoader(feed, topology=Topology())
        out = [rows(loader) for _ in range(2)]
        loader.close()
        return out

    one, two = epochs(), epochs()
    assert one == two
    assert one[0] != one[1]


def test_a_stream_has_no_length_and_says_why():
    # C28
    loader = FeedLoader(from_stream(docs([3] * 9)).batch(1), topology=Topology())
    with pytest.raises(TypeError, match="a stream has no length"):
        len(loader)
    assert (
        len(list(FeedLoader(from_stream(docs([3] * 9)).batch(1), topology=Topology(), epochs=None, max_steps=30))) == 30
    )


@pytest.mark.parametrize("by", ["sample", "file"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_hub_streams_are_divided_without_loss_by_sample_and_by_file(by, world):
    # C31 A35
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"n": list(range(101))}).to_iterable_dataset(num_shards=8)
    feed = from_stream(stream, shards=4, shard_by=by).batch(1, collate="raw")
    parts = [[b["samples"][0]["n"] for b in run(feed, r, world)] for r in range(world)]
    assert sorted(n for p in parts for n in p) == list(range(101))
    if by == "sample":
        assert parts == [[i for i in range(101) if i % world == r] for r in range(world)]


@pytest.mark.parametrize("by", ["sample", "file"])
def test_a_stream_that_was_split_before_is_split_again_without_loss(by):
    # nested splits compose: nodes by `datasets`, ranks of a node by us
    datasets = pytest.importorskip("datasets")
    from datasets.distributed import split_dataset_by_node

    stream = datasets.Dataset.from_dict({"n": list(range(101))}).to_iterable_dataset(num_shards=8)
    parts = []
    for node in range(2):
        part = split_dataset_by_node(stream, node, 2)
        own = [row["n"] for row in part]
        feed = from_stream(part, shards=2, shard_by=by).batch(1, collate="raw")
        ranks = [[b["samples"][0]["n"] for b in run(feed, r, 2)] for r in range(2)]
        assert sorted(ranks[0] + ranks[1]) == sorted(own)
        if by == "sample":
            assert ranks == [own[0::2], own[1::2]]
        parts += own
    assert sorted(parts) == list(range(101))


@pytest.mark.parametrize("block", [1, 7, 1000, 10_000])
@pytest.mark.parametrize("by", ["sample", "file"])
def test_a_hub_stream_resumes_at_the_next_row_whatever_it_reads_at_once(block, by, tmp_path):
    # K28 A51: 5,000 rows, filter, one to two, batches of 8; also between the two outputs of one input
    datasets = pytest.importorskip("datasets")
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    pq.write_table(pa.table({"n": list(range(5000))}), tmp_path / "a.parquet", row_group_size=block)
    stream = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "a.parquet"), split="train", streaming=True, cache_dir=str(tmp_path)
    ).map(lambda s: {"m": -s["n"]})
    calls = []

    def twice(s):
        calls.append(s["n"])
        return [{"n": s["n"], "k": k} for k in range(2)]

    def make():
        feed = from_stream(stream, shards=1, shard_by=by).filter(lambda s: s["n"] % 3 != 0)
        return FeedLoader(
            feed.map(twice, mode="threads", workers=4).batch(3, collate="raw"), topology=Topology(), tail="pad"
        )

    whole = [(n, k) for n in range(5000) if n % 3 for k in range(2)]
    loader = make()
    it = iter(loader)
    got = [(s["n"], s["k"]) for _ in range(67) for s in next(it)["samples"]]
    assert got == whole[:201]  # an odd number: the state stands between two outputs
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    calls.clear()
    again = make()
    again.load_state_dict(state)
    it = iter(again)
    got = [(s["n"], s["k"]) for _ in range(50) for s in next(it)["samples"]]
    again.close()
    assert got == whole[201 : 201 + 150]
    assert min(calls) == whole[200][0]  # nothing before the item under way was mapped again


def test_a_source_without_a_state_is_read_again_without_being_mapped_and_says_what_it_costs():
    # A51
    calls = []

    def source():
        for i in range(30_000):
            yield {"n": i}

    def fn(s):
        calls.append(s["n"])
        return s

    feed = from_stream(source).map(fn, mode="threads", workers=2).batch(100, collate="raw")
    assert "the source up to its place where it has no load_state_dict" in str(feed)
    assert "the source" not in str(from_stream([{"n": 1}]).map(fn))  # a list is opened at any place
    loader = FeedLoader(feed, topology=Topology())
    it = iter(loader)
    for _ in range(150):
        next(it)
    state = loader.state_dict()
    loader.close()
    calls.clear()
    again = FeedLoader(feed, topology=Topology())
    again.load_state_dict(state)
    with pytest.warns(UserWarning, match="15,000 items are read again"):
        batch = next(iter(again))
    assert batch["samples"][0]["n"] == 15_000
    again.close()
    assert min(calls) == 15_000


def test_generators_and_functions_of_the_epoch_are_sources():
    feed = from_stream(lambda epoch: ({"n": 10 * epoch + i} for i in range(3))).batch(1, collate="raw")
    loader = FeedLoader(feed, topology=Topology())
    assert [[b["samples"][0]["n"] for b in loader] for _ in range(3)] == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    loader.close()
    once = FeedLoader(from_stream({"n": i} for i in range(3)).batch(1, collate="raw"), topology=Topology())
    assert len(list(once)) == 3
    with pytest.raises(ThalwegError, match="can be read only once"):
        list(once)
    once.close()


@pytest.mark.parametrize("world", [1, 2])
def test_a_function_of_shard_and_shards_opens_each_sub_stream_on_its_own(world):
    opened = []

    def part(shard, shards, epoch):
        opened.append((shard, shards))
        return ({"n": 1000 * epoch + i} for i in range(shard, 40, shards))

    def seen(feed, rank, world):
        loader = FeedLoader(feed.batch(1, collate="raw"), topology=Topology(rank, world))
        found = [[b["samples"][0]["n"] for b in loader] for _ in range(2)]
        loader.close()
        return found

    for rank in range(world):
        opened.clear()
        assert seen(from_stream(part, shards=4), rank, world)[1] == [1000 + i for i in range(rank, 40, world)]
        assert set(opened) == {(s, 4) for s in range(rank, 4, world)}  # no sub-stream of another rank
    assert seen(from_stream(part, shards=2).take(5), 0, 1)[0] == list(range(5))
    assert opened[-1] == (0, 1)  # a count over all of it reads all of it


def test_take_skip_and_split_work_on_streams():
    data = [{"n": i} for i in range(100)]
    feed = from_stream(data, shards=2).skip(10).take(30).batch(1, collate="raw")
    assert sorted(b["samples"][0]["n"] for b in run(feed)) == list(range(10, 40))
    parts = from_stream(data).split({"train": 0.8, "val": 0.2})
    sides = [[b["samples"][0]["n"] for b in run(p.batch(1, collate="raw"))] for p in parts.values()]
    assert sorted(sides[0] + sides[1]) == list(range(100))
    assert 5 < len(sides[1]) < 40
    inner = from_stream([{"n": i} for i in range(600)]).split({"train": 0.5, "val": 0.5})["train"]
    nested = inner.split({"a": 0.5, "b": 0.5})
    sides = [{b["samples"][0]["n"] for b in run(p.batch(1, collate="raw"))} for p in (inner, *nested.values())]
    assert sides[1] | sides[2] == sides[0]
    assert not sides[1] & sides[2]
    assert 110 < len(sides[1]) < 190  # half of a half, not the whole of it


@pytest.mark.parametrize("mode", ["auto", "inline"])
def test_a_map_behind_pack_sees_rows_as_they_are_laid_out(mode):
    seen = []

    def mask_even(row):
        seen.append(len(row["input_ids"]))
        return {"labels": np.where(row["input_ids"] % 2 == 0, -100, row["labels"])}

    feed = from_stream(docs([6, 3, 4, 5, 1])).pack(10, policy="next_fit", overlong="error")
    plain, mapped = run(feed.batch(2)), run(feed.map(mask_even, mode=mode).batch(2))
    assert sorted(seen) == [9, 10]
    for a, b in zip(plain, mapped, strict=True):
        odd = np.asarray(a["input_ids"]) % 2 == 1
        assert np.array_equal(b["labels"], np.where(odd, a["labels"], -100))
    assert np.array_equal(feed.map(mask_even).peek()[0]["labels"], np.asarray(mapped[0]["labels"])[0, :9])

    def other_length(row):
        return {"labels": row["labels"][1:]}

    with pytest.raises(ThalwegError, match="keeps lengths"):
        run(feed.map(other_length).batch(2))
