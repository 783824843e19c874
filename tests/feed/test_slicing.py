"""Context-parallel ranks of a loader: slices of one row, labels shifted first, losses that sum to the row's."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.core.errors import ConfigError

LAYOUTS = ("zigzag", "zigzag_row", "contiguous")
VOCAB = 64


def source(lengths):
    rng = np.random.default_rng(len(lengths))
    rows = [
        {
            "input_ids": rng.integers(1, VOCAB, n).astype(np.int32),
            "loss_spans": np.array([[n // 3, n]], np.int32),
            "id": str(i),
        }
        for i, n in enumerate(lengths)
    ]
    return tw.from_dataset(rows, id="id", fingerprint=f"cut:{lengths}")


def loader(feed, cp=(0, 1), dp=(0, 1), **more):
    place = tw.Topology(dp_rank=dp[0], dp_size=dp[1], cp_rank=cp[0], cp_size=cp[1])
    return tw.Loader(feed, topology=place, return_tensors="np", **more)


def loss(batch):
    """Sum the loss of a model without attention: it sees each token and its position, so places must be right."""
    rng = np.random.default_rng(1)
    words, places = rng.standard_normal((VOCAB, VOCAB)), rng.standard_normal((512, VOCAB))
    ids, labels = batch["input_ids"], batch["labels"]
    if not batch.info.labels_shifted:
        labels = np.concatenate([labels[:, 1:], np.full((len(labels), 1), -100)], axis=1)
    logits = words[ids] + places[batch["position_ids"]]
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = np.take_along_axis(logp, np.maximum(labels, 0)[..., None], -1)[..., 0]
    return -float((each * (labels != -100)).sum())


# C45 C46
@given(
    st.lists(st.integers(1, 30), min_size=6, max_size=40),
    st.sampled_from([2, 4]),
    st.sampled_from(LAYOUTS),
    st.sampled_from(["right", "none", "unpacked"]),
)
@settings(max_examples=60, deadline=None)
def test_the_losses_of_all_slices_sum_to_that_of_the_whole_rows(lengths, size, layout, kind):
    feed = source(lengths).shuffle(seed=1)
    packed = feed.pack(64, align=2 * size, overlong="drop").batch(2, pad="none" if kind == "unpacked" else kind)
    feed = feed.batch(2) if kind == "unpacked" else packed
    whole = list(loader(feed, tail="pad"))
    ranks = [list(loader(feed, (r, size), tail="pad", cp_layout=layout)) for r in range(size)]
    for row, *parts in zip(whole, *ranks, strict=True):
        row.setdefault("position_ids", np.arange(row["input_ids"].shape[1])[None])  # padded rows carry none
        assert sum(map(loss, parts)) == pytest.approx(loss(row), abs=1e-5)
        assert sum(p.info.num_label_tokens for p in parts) == row.info.num_label_tokens
        assert sum(p.info.num_tokens for p in parts) == row.info.num_tokens
        assert {p.info.step_label_tokens for p in parts} == {row.info.step_label_tokens}
        assert all(p.info.labels_shifted and "shift_labels" in p for p in parts)
        assert len({p["input_ids"].shape for p in parts}) == 1
        assert [p.info.ids for p in parts] == [row.info.ids] * size
        if "attention_mask" in row:
            assert sum(int(p["attention_mask"].sum()) for p in parts) == row.info.num_tokens


class Mesh:
    """What `Topology.from_device_mesh` asks of a mesh."""

    def __init__(self, names, shape, at):
        self.mesh_dim_names, self.shape, self.at = names, shape, at

    def size(self, dim):
        return self.shape[dim]

    def get_coordinate(self):
        return self.at


# E42 E43 E48 C33
@pytest.mark.parametrize(
    "names",
    [
        ("pp", "dp_replicate", "dp_shard", "cp", "tp"),  # hybrid sharding with every other kind beside it
        ("dp_shard", "cp", "tp", "pp", "dp_replicate"),
    ],
)
def test_in_a_hybrid_mesh_each_row_is_one_groups_and_its_slices_are_the_peers(names):
    shape = tuple(1 if name == "tp" else 2 for name in names)
    feed = source([9, 14, 30, 5, 22, 17, 3, 28] * 4).shuffle().pack(64, align=4).batch(1)
    whole = [b["input_ids"][0] for b in loader(feed)]
    got = {}
    for at in product(*map(range, shape)):
        place = tw.Topology.from_device_mesh(Mesh(names, shape, at))
        where = dict(zip(names, at, strict=True))
        reads = where["pp"] == 0
        run = tw.Loader(feed, topology=place, return_tensors="np", read=reads, cp_layout="contiguous")
        batches = list(run)
        assert [b.info.step for b in batches] == list(range(len(whole) // 4))
        assert all(bool(b) == reads for b in batches)
        for step, b in enumerate(batches if reads else []):
            got.setdefault((step, place.dp_rank), {}).setdefault(place.cp_rank, []).append(b["input_ids"][0])
    rows = []
    for key in sorted(got):
        assert [len(peers) for _, peers in sorted(got[key].items())] == [1, 1]
        rows.append(np.concatenate([peers[0] for _, peers in sorted(got[key].items())]))
    assert len(rows) == len(whole) // 4 * 4
    assert all(np.array_equal(a, b) for a, b in zip(rows, whole, strict=False))


def test_the_slices_of_every_data_parallel_rank_are_of_its_own_rows():
    feed = source([9, 14, 30, 5, 22, 17, 3, 28] * 4).shuffle().pack(64, align=4).batch(1)
    seen = []
    for d in range(2):
        halves = [list(loader(feed, (c, 2), (d, 2))) for c in range(2)]
        for a, b in zip(*halves, strict=True):
            assert a.info.ids == b.info.ids
            seen += [i for row in a.info.ids for i in row]
    assert len(seen) == len(set(seen))
    states = {str(loader(feed, (c, 2), (d, 2)).state_dict()) for c in range(2) for d in range(2)}
    assert len(states) == 1


@pytest.mark.parametrize("dialect", ["megatron", "torchtitan"])
def test_dialects_that_shift_take_slices_as_they_are(dialect):
    feed = source([9, 14, 30, 5]).pack(64, align=4).batch(1, collate=dialect)
    whole, parts = list(loader(feed)), [list(loader(feed, (c, 2))) for c in range(2)]
    for row, *cut in zip(whole, *parts, strict=True):
        assert sorted(np.concatenate([c["labels"] for c in cut], axis=1)[0].tolist()) == sorted(
            row["labels"][0].tolist()
        )


def test_a_trainer_that_cuts_rows_itself_gets_them_whole():
    feed = source([9, 14, 30, 5]).pack(64).batch(1)
    for row, part in zip(loader(feed), loader(feed, (1, 2), cp_layout=None), strict=True):
        assert np.array_equal(row["labels"], part["labels"])
        assert not part.info.labels_shifted


def test_slices_of_a_stream_are_of_the_same_rows():
    lengths = [9, 14, 30, 5, 22, 17, 3, 28]
    rows = [{"input_ids": np.arange(1, n + 1, dtype=np.int32), "id": str(i)} for i, n in enumerate(lengths)]
    feed = tw.from_stream(lambda: iter(rows), shards=1).pack(64, policy="next_fit", overlong="drop", align=4).batch(1)
    whole, *parts = list(loader(feed)), list(loader(feed, (0, 2))), list(loader(feed, (1, 2)))
    assert len(whole) > 1
    for row, *cut in zip(whole, *parts, strict=True):
        assert sum(map(loss, cut)) == pytest.approx(loss(row), abs=1e-5)


@pytest.mark.parametrize(
    ("feed", "layout", "words"),
    [
        (lambda s: s.pack(64).batch(1), "zigzag", "align=4"),
        (lambda s: s.pack(62).batch(1), "zigzag_row", "rows of 64"),
        (lambda s: s.pack(64, align=4).batch(1), "zig", "'zigzag'"),
        (lambda s: s.batch(1, collate="raw"), "zigzag", "cp_layout=None"),
    ],
)
def test_rows_that_can_not_be_cut_are_refused_before_any_is_read(feed, layout, words):
    with pytest.raises(ConfigError, match=words):
        loader(feed(source([9, 14, 30, 5])), (0, 2), cp_layout=layout)


def test_one_rank_of_a_group_writes_the_ledger(tmp_path):
    feed = source([9, 14, 30, 5] * 3).shuffle().pack(64, align=4).batch(1)
    for c in range(2):
        one = loader(feed, (c, 2), ledger=tmp_path)
        assert list(one)
        one.close()
    assert len(list(tmp_path.glob("*.ledger"))) == 1


# C45 C46
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_losses_of_a_real_model_over_slices_sum_to_its_loss_of_the_row(size, layout):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from thalweg.plan.rows import RowArrays
    from thalweg.plan.slices import places

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    feed = source([9, 14, 30, 5, 22, 17, 3, 28]).shuffle().pack(64, align=2 * size).batch(2)
    ranks = [list(loader(feed, (r, size), tail="pad", cp_layout=layout)) for r in range(size)]
    for row, *parts in zip(tw.Loader(feed, tail="pad", return_tensors="pt"), *ranks, strict=True):
        with torch.no_grad():
            out = model(**row)
        lengths = np.array([row["input_ids"].shape[1]] * len(row["input_ids"]))
        shape = RowArrays(
            input_ids=row["input_ids"].numpy(), labels=row["labels"].numpy(), position_ids=row["position_ids"].numpy(),
            cu_seqlens=row["cu_seq_lens_q"].numpy(), max_seqlen=0, lengths=lengths, weight=row.info.weight,
            num_tokens=0, num_label_tokens=0, packed=True, pad="right", row_tokens=lengths,
        )  # fmt: skip
        total = 0.0
        for r, part in enumerate(parts):
            at = torch.from_numpy(places(shape, r, size, layout))
            logits = torch.take_along_dim(out.logits, at[..., None], 1)
            labels = torch.from_numpy(part["shift_labels"])
            total += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        assert total / row.info.num_label_tokens == pytest.approx(float(out.loss), abs=1e-5)


BATCHINGS = {
    "packed": lambda feed: feed.pack(64).batch(2),
    "padded": lambda feed: feed.batch(2),
    "buckets": lambda feed: feed.bucket([10, 20], [4, 2, 1]),
    "budget": lambda feed: feed.token_budget(60),
}


# E48
@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_stage_that_needs_no_tokens_steps_with_its_peers_and_reads_nothing(batching):
    lengths = [9, 14, 30, 5, 22, 17, 3, 28] * 3
    rows = [{"input_ids": np.ones(n, np.int32), "id": str(i)} for i, n in enumerate(lengths)]
    feed = tw.from_dataset(rows, id="id", fingerprint="stages").shuffle()
    feed = BATCHINGS[batching](feed)
    words = {"epochs": 2, "tail": "pad", "gradient_accumulation_steps": 2}
    reads = loader(feed, (0, 1), (1, 2), **words)
    idle = loader(feed, (0, 1), (1, 2), read=False, **words)
    idle.node.reader.read = None  # any read would fail
    for batch, empty in zip(reads, idle, strict=True):
        assert empty == {}
        for name in ("epoch", "step", "micro", "last", "step_label_tokens"):
            assert getattr(empty.info, name) == getattr(batch.info, name)
        assert empty.info.weight.tolist() == batch.info.weight.tolist()
        assert idle.state_dict() == reads.state_dict()
    again = loader(feed, (0, 1), (1, 2), **words)
    again.load_state_dict(idle.state_dict())
    assert again.step == reads.step


def test_a_stream_can_not_step_without_reading():
    feed = tw.from_stream(lambda: iter([]), shards=1).batch(1)
    with pytest.raises(ConfigError, match="stream"):
        loader(feed, read=False)
