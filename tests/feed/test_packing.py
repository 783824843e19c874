"""Packing in a feed: one order on any layout under every policy and rule, nothing lost, and batches as models take."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.core.errors import ConfigError
from thalweg.testing import Leg, assert_continues_anywhere

CAP = 12
POLICIES = ("best_fit", "fill", "auto", "first_fit", "next_fit", "window_4")
RULES = ("drop", "truncate", "split", "alone")


def source(lengths):
    """Plain text whose token t of document i is 100 i + t + 1, so that any token says where it came from."""
    rows = [{"input_ids": np.arange(n, dtype=np.int32) + 100 * i + 1, "id": str(i)} for i, n in enumerate(lengths)]
    return tw.from_dataset(rows, id="id", fingerprint=f"text:{lengths}")


def loader(feed, topology=None, accumulation=1, **more):
    topology = topology or tw.Topology()
    return tw.Loader(feed, topology=topology, gradient_accumulation_steps=accumulation, return_tensors="np", **more)


def documents(batch):
    """Give the tokens of each segment that is not padding."""
    flat, borders = batch["input_ids"].reshape(-1), batch["cu_seq_lens_q"].tolist()
    parts = (flat[a:b].tolist() for a, b in pairwise(borders))
    return [p for p in parts if any(p)]


lengths_of_documents = st.lists(st.integers(1, 20), min_size=8, max_size=60)


# C23 C21 C22 K36 E50
@given(lengths_of_documents, st.sampled_from(POLICIES), st.sampled_from(RULES), st.sampled_from([1, 2, 4]))
@settings(max_examples=60, deadline=None)
def test_an_epoch_holds_every_token_that_the_rule_keeps_once(lengths, policy, rule, align):
    feed = source(lengths).shuffle(seed=1).pack(CAP, policy=policy, overlong=rule, align=align).batch(1)
    got = [tuple(d) for b in loader(feed, tail="pad") for d in documents(b)]
    got = [t for d in got for t in d if t]
    want = [
        100 * i + t + 1
        for i, n in enumerate(lengths)
        for t in range(0 if rule == "drop" and n > CAP else min(n, CAP) if rule == "truncate" else n)
    ]
    assert sorted(got) == want


def legs():
    layout = st.builds(Leg, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
    return st.lists(layout, min_size=2, max_size=4)


# K30 K36
@given(lengths_of_documents, st.sampled_from([*POLICIES, "concat_split"]), st.sampled_from(RULES), legs())
@settings(max_examples=60, deadline=None)
def test_any_layout_continues_the_same_order_under_every_policy_and_rule(lengths, policy, rule, run):
    rule = None if policy == "concat_split" else rule
    lengths = [*lengths, 3]  # one document at least fits a row
    feed = source(lengths).shuffle().pack(CAP, policy=policy, overlong=rule).batch(1)
    assert_continues_anywhere(lambda t, a: loader(feed, t, a, epochs=None), run)  # epochs=None: the tail is carried


def test_each_epoch_packs_other_documents_together():
    lengths = [3, 4, 5, 6, 2, 7] * 10
    feed = source(lengths).shuffle().pack(CAP).batch(1)
    epochs = [set(), set()]
    for batch in loader(feed, epochs=2, tail="pad"):
        epochs[batch.info.epoch] |= {tuple(sorted(row)) for row in batch.info.ids}
    for rows in epochs:
        assert sorted(i for row in rows for i in row) == sorted(str(i) for i in range(len(lengths)))
    assert epochs[0] != epochs[1]


def test_capped_documents_give_batches_of_one_shape():
    feed = source([1] * 50 + [9] * 10).shuffle().pack(CAP, max_docs=4).batch(2)
    shapes = {tuple(np.shape(v) for v in b.values()) for b in loader(feed)}
    assert len(shapes) == 1


def test_a_long_document_without_a_rule_is_refused_with_its_share():
    with pytest.raises(ConfigError, match=r"1 of 3 samples \(65.0% of the tokens\).*sample 1 of source"):
        list(loader(source([3, 13, 4]).shuffle().pack(CAP).batch(1)))


# K36 E24
@pytest.mark.parametrize("stored", ["spans", "labels", "records"])
def test_truncation_keeps_a_sample_whose_loss_begins_in_time_and_refuses_the_others(tmp_path, stored):
    begins = {"early": 5, "late": 13, "edge": 12, "short": 2}
    rows = []
    for name, first in begins.items():
        n = 9 if name == "short" else 20
        ids = np.arange(1, n + 1, dtype=np.int32)
        row = {"input_ids": ids, "loss_spans": np.array([[first, n]], np.int32), "id": name}
        if stored == "labels":
            row["labels"] = np.where(np.arange(n) < first, -100, ids).astype(np.int64)
            del row["loss_spans"]
        rows.append(row)
    if stored == "records":
        with tw.create_records(str(tmp_path / "rec")) as w:
            for row in rows:
                w.write({k: v for k, v in row.items() if k != "id"}, id=row["id"])
        feed = tw.from_records(str(tmp_path / "rec"))
    else:
        feed = tw.from_dataset(rows, id="id", fingerprint=stored)
    made = list(loader(feed.pack(CAP, overlong="truncate").batch(1), tail="pad"))
    assert {i for b in made for r in b.info.ids for i in r} == {"early", "short"}
    assert sum(b.info.num_label_tokens for b in made) == (CAP - 5) + (9 - 2)


# C45 C46
@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_takes_a_batch_as_it_comes_and_sees_documents_alone(attention):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Qwen3Config(vocab_size=2000, num_key_value_heads=2, head_dim=16, **sizes)
    config._attn_implementation = attention
    model = transformers.Qwen3ForCausalLM(config).eval()
    lengths = [3, 11, 5, 7, 12, 2, 9, 1, 6, 4]
    feed = source(lengths).shuffle().pack(16).batch(2)
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in tw.Loader(feed, tail="pad", return_tensors="pt"):
            out = model(**batch)
            total += float(out.loss) * batch.info.num_label_tokens
            count += batch.info.num_label_tokens
            flat, borders = batch["input_ids"].reshape(-1), batch["cu_seq_lens_q"].tolist()
            logits = out.logits.reshape(len(flat), -1)
            for a, b in pairwise(borders):
                if flat[a:b].any():
                    alone = model(input_ids=flat[None, a:b], use_cache=False).logits[0]
                    assert float((alone - logits[a:b]).abs().max()) < 1e-5
        want = 0.0
        for i, n in enumerate(lengths):
            ids = torch.arange(n)[None] + 100 * i + 1
            if n > 1:
                want += float(model(input_ids=ids, labels=ids, use_cache=False).loss) * (n - 1)
    assert count == sum(n - 1 for n in lengths)
    assert abs(total - want) / count < 1e-5


class Kept:
    """A collate function that lays out rows of samples itself."""

    packed = True

    def __call__(self, rows):
        """Give the rows as they come."""
        return {"rows": rows}


# K36 C47
@pytest.mark.parametrize("rule", ["truncate", "split"])
def test_a_function_that_lays_out_rows_gets_the_pieces_of_long_samples(rule):
    lengths = [5, 30, 9, 14]
    rows = [
        {"input_ids": np.arange(n, dtype=np.int32) + 100 * i + 1, "labels": np.arange(n) + 100 * i + 1, "id": str(i)}
        for i, n in enumerate(lengths)
    ]
    feed = tw.from_dataset(rows, id="id", fingerprint="pieces").shuffle().pack(CAP, overlong=rule)
    got = []
    for batch in loader(feed.batch(1, collate=Kept()), tail="pad"):
        for row in batch["rows"]:
            assert sum(len(s["input_ids"]) for s in row) <= CAP
            for s in row:
                assert np.array_equal(s["labels"], s["input_ids"])
                got += s["input_ids"].tolist()
    kept = [min(n, CAP) if rule == "truncate" else n for n in lengths]
    assert sorted(got) == [100 * i + t + 1 for i, n in enumerate(kept) for t in range(n)]
