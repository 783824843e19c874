"""Packed documents do not see each other: real model code gives for a row what it gives for its documents alone.

Tiny random models of transformers, `model(**batch)` as a user writes it. Each proof has a control in which the
isolation is taken away, and then the logits differ.
"""

import numpy as np
import pytest

from mamba_kernels import build_mamba, use_stand_ins
from small_models import TEXT, VOCAB, build, build_vl, pictured
from thalweg.core.sample import Ragged
from thalweg.encode.collate import DIALECTS
from thalweg.encode.collate_samples import columns_of
from thalweg.plan.rows import lay_out
from thalweg.plan.slices import cut

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# FlexAttention is compiled: torch 2.13 warns of its own and of transformers' older calls
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SAME, OTHER = 1e-5, 1e-3
SIZES = [[5, 17, 1, 30], [22, 9], [40]]


def tensors(batch):
    """Give the batch as torch tensors, plain values as they are."""
    return {k: torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for k, v in batch.items()}


def documents(seed=0):
    rng = np.random.default_rng(seed)
    docs = [rng.integers(1, VOCAB, n).astype(np.int32) for row in SIZES for n in row]
    spans = [np.array([[n // 3, n]], np.int32) for row in SIZES for n in row]
    offsets = np.append(0, np.cumsum([len(r) for r in SIZES]))
    bounds = np.arange(len(docs) + 1)
    return Ragged.from_rows(docs, np.int32), Ragged(np.concatenate(spans), bounds), offsets


def places(docs, offsets):
    """Give (document, row, first place) in a right-padded batch."""
    for row in range(len(offsets) - 1):
        at = 0
        for d in range(offsets[row], offsets[row + 1]):
            yield d, row, at
            at += len(docs[d])


def loss_alone(model, docs, spans):
    """Give the mean loss over all trained tokens, each document in a forward of its own."""
    total, count = 0.0, 0
    for tokens, pairs in zip(docs, spans, strict=True):
        labels = np.full(len(tokens), -100)
        for a, b in pairs:
            labels[a:b] = tokens[a:b]
        labels[0] = -100
        n = int((labels != -100).sum())
        if n:
            ids = torch.from_numpy(tokens.astype(np.int64))[None]
            one = {"input_ids": ids, "labels": torch.from_numpy(labels)[None], "use_cache": False}
            total += float(model(**one).loss) * n
            count += n
    return total / count, count


# C45 C46
@pytest.mark.parametrize("attention", ["eager", "sdpa"])  # FlexAttention, which is compiled: through the loader
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_packed_row_gives_the_logits_and_the_loss_of_its_documents_alone(name, attention):
    model = build(name, attention)
    docs, spans, offsets = documents()
    rows = lay_out(docs, offsets, spans=spans, capacity=64)
    batch = tensors(DIALECTS["hf"](rows))
    with torch.no_grad():
        out = model(**batch)
        worst = 0.0
        alone = build(name, "eager")
        for d, row, at in places(docs, offsets):
            want = alone(input_ids=torch.from_numpy(docs[d].astype(np.int64))[None]).logits[0]
            worst = max(worst, float((out.logits[row, at : at + len(docs[d])] - want).abs().max()))
        loss, count = loss_alone(alone, docs, spans)
    assert worst < SAME
    assert count == rows.num_label_tokens
    assert abs(float(out.loss) - loss) < SAME


# F2
@pytest.mark.parametrize("broken", ["mask of ones", "cache left on", "positions run on"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_proof_fails_when_the_isolation_is_taken_away(name, broken):
    model = build(name, "sdpa")
    docs, spans, offsets = documents()
    batch = tensors(DIALECTS["hf"](lay_out(docs, offsets, spans=spans, capacity=64)))
    with torch.no_grad():
        right = model(**batch).logits[0, 5:22]
        if broken == "mask of ones":
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        elif broken == "cache left on":
            del batch["use_cache"]
        else:
            batch["position_ids"] = torch.arange(64).expand(3, 64)
        wrong = model(**batch).logits[0, 5:22]
    assert float((right - wrong).abs().max()) > OTHER


# E17 E22
@pytest.mark.parametrize("pad", ["right", "left"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_padded_row_gives_the_logits_and_the_loss_of_its_document_alone(pad, attention):
    model = build("qwen3", attention)
    docs, spans, _ = documents()
    rows = lay_out(docs, np.arange(len(docs) + 1), spans=spans, packed=False, pad=pad, pad_id=5)
    batch = tensors(DIALECTS["hf"](rows))
    with torch.no_grad():
        out = model(**batch)
        for d, tokens in enumerate(docs):
            want = model(input_ids=torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
            n = len(tokens)
            got = out.logits[d, :n] if pad == "right" else out.logits[d, -n:]
            assert float((got - want).abs().max()) < SAME
            if pad == "left":
                assert int(batch["input_ids"][d, -1]) == int(tokens[-1])
        loss, _ = loss_alone(model, docs, spans)
    assert abs(float(out.loss) - loss) < SAME


@pytest.mark.parametrize("dialect", ["megatron", "torchtitan"])
def test_shifted_labels_give_the_loss_that_the_model_computes_from_unshifted_ones(dialect):
    model = build("llama", "sdpa")
    docs, spans, offsets = documents()
    rows = lay_out(docs, offsets, spans=spans, capacity=64)
    with torch.no_grad():
        out = model(**tensors(DIALECTS["hf"](rows)))
    batch = tensors(DIALECTS[dialect](rows))
    each = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    mask = batch["loss_mask"].flatten() if dialect == "megatron" else (batch["labels"] != -100).flatten().float()
    assert abs(float((each * mask).sum() / mask.sum()) - float(out.loss)) < SAME


def test_a_model_that_shifts_inside_takes_the_shifted_labels_of_a_slice():
    model = build("llama", "sdpa")
    docs, spans, offsets = documents()
    rows = lay_out(docs, offsets, spans=spans, capacity=64, align=2)
    with torch.no_grad():
        whole = model(**tensors(DIALECTS["hf"](rows)))
        slice_of_one = model(**tensors(DIALECTS["hf"](cut(rows, 0, 1))))
    assert abs(float(whole.loss) - float(slice_of_one.loss)) < SAME


# C45 C47 F3
@pytest.mark.parametrize("attention", ["eager", "sdpa"])  # transformers has no FlexAttention for this model
def test_a_packed_row_with_images_gives_the_logits_of_its_documents_alone(attention):
    model, alone = build_vl(attention), build_vl("eager")
    rng = np.random.default_rng(0)
    samples = [
        pictured(model, rng, [(1, 4, 4)], 9),
        pictured(model, rng, [], 7),
        pictured(model, rng, [(1, 2, 6), (1, 4, 2)], 5),
        pictured(model, rng, [(1, 6, 4)], 12),
    ]
    columns = columns_of(samples)
    offsets = np.array([0, 3, 4])
    rows = lay_out(
        columns.tokens, offsets, labels=columns.labels, rope=columns.rope, aligned=columns.aligned, capacity=64
    )
    batch = tensors({**DIALECTS["hf"](rows), **columns.media})
    assert batch["position_ids"].shape == (4, 2, 64)
    with torch.no_grad():
        out = model(**batch)
        total = 0.0
        for d, row, at in places(columns.tokens, offsets):
            s = {k: torch.from_numpy(np.asarray(v)) for k, v in samples[d].items() if k != "position_ids"}
            one = {k: v if k.startswith(("pixel", "image")) else v[None] for k, v in s.items()}
            want = alone(**one)
            n = len(columns.tokens[d])
            assert float((out.logits[row, at : at + n] - want.logits[0]).abs().max()) < SAME
            total += float(want.loss) * int((samples[d]["labels"][1:] != -100).sum())
        assert abs(float(out.loss) - total / rows.num_label_tokens) < SAME
        three = {**batch, "position_ids": batch["position_ids"][1:]}  # no text positions: documents see each other
        assert float((model(**three).logits[0, 16:30] - out.logits[0, 16:30]).abs().max()) > OTHER
        swapped = {**batch, "pixel_values": batch["pixel_values"].flip(0)}  # media in another order than the tokens
        assert float((model(**swapped).logits[0] - out.logits[0]).abs().max()) > OTHER


# F1
def test_a_key_called_cu_seqlens_would_be_taken_by_the_vision_tower_and_ours_are_not():
    model, rng = build_vl("sdpa"), np.random.default_rng(0)
    samples = [pictured(model, rng, [(1, 4, 4)], 9), pictured(model, rng, [(1, 2, 6)], 5)]
    columns = columns_of(samples)
    rows = lay_out(
        columns.tokens, np.array([0, 2]), labels=columns.labels, rope=columns.rope, aligned=columns.aligned, capacity=64
    )
    batch = tensors({**DIALECTS["hf"](rows), **columns.media})
    assert not {"cu_seqlens", "max_seqlen"} & batch.keys()
    assert batch["cu_seq_lens_q"].tolist() == rows.cu_seqlens.tolist()
    patches = len(batch["pixel_values"])
    with torch.no_grad():
        ours = model(**batch).logits
        bare = model(**{k: v for k, v in batch.items() if not k.startswith(("cu_seq_lens", "max_length"))}).logits
        assert float((ours - bare).abs().max()) < SAME
        taken = model(**batch, cu_seqlens=torch.tensor([0, patches], dtype=torch.int32)).logits  # silently others
        assert float((ours - taken).abs().max()) > SAME
        with pytest.raises(RuntimeError):
            model(**batch, cu_seqlens=torch.from_numpy(rows.cu_seqlens))


# ---- state-space models: transformers keeps documents apart by `seq_idx`, in kernels that need a GPU


# C45
def test_a_packed_row_of_a_state_space_model_gives_the_logits_of_its_documents_alone(monkeypatch):
    model = build_mamba("sdpa")
    docs, spans, offsets = documents()
    rows = lay_out(docs, offsets, spans=spans, capacity=64)
    batch = tensors(DIALECTS["hf_mamba"](rows))
    assert batch["seq_idx"].dtype == torch.int32
    with torch.no_grad():
        want = [model(input_ids=torch.from_numpy(t.astype(np.int64))[None]).logits[0] for t in docs]
        with pytest.raises(ValueError, match="can't keep packed sequences apart"):
            model(**batch)  # without the kernels transformers refuses the batch: no silent leak
        use_stand_ins(monkeypatch)
        out = model(**batch)
        leaky = model(**{k: v for k, v in batch.items() if k != "seq_idx"})
        for d, row, at in places(docs, offsets):
            n = len(docs[d])
            assert float((out.logits[row, at : at + n] - want[d]).abs().max()) < SAME
        assert float((leaky.logits[0, 5:22] - want[1]).abs().max()) > OTHER
        loss, count = loss_alone(model, docs, spans)
    assert count == rows.num_label_tokens
    assert abs(float(out.loss) - loss) < SAME


def test_a_linear_attention_model_refuses_a_packed_row_that_it_can_not_isolate():
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        **{**TEXT, "head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32},
        shared_expert_intermediate_size=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )
    model = transformers.Qwen3NextForCausalLM(config).eval()
    docs, spans, offsets = documents()
    batch = tensors(DIALECTS["hf"](lay_out(docs, offsets, spans=spans, capacity=64)))
    with torch.no_grad(), pytest.raises(ValueError, match="can't keep packed sequences apart"):
        model(**batch)
