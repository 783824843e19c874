"""`for batch in loader: model(**batch)` is right as written: documents of a row do not see each other.

Tiny random models of transformers on every attention that runs on a CPU, batches as the loader hands them over, and
for each the control: without what keeps documents apart, the logits are others.
"""

from itertools import pairwise, product

import numpy as np
import pytest

import small_models
import thalweg as tw
from mamba_kernels import build_mamba, use_stand_ins
from small_models import VOCAB, build_vl, pictured
from thalweg.encode.collate import DIALECTS
from thalweg.encode.collate_samples import columns_of
from thalweg.plan.rows import lay_out

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# FlexAttention is compiled: torch 2.13 warns of its own and of transformers' older calls
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SAME, OTHER = 1e-5, 1e-3
LENGTHS = [3, 41, 17, 7, 29, 2, 9, 1, 26, 4, 33, 12]


def build(name, attention):
    return build_mamba(attention, VOCAB) if name == "bamba" else small_models.build(name, attention)


def samples():
    rng = np.random.default_rng(0)
    for i, n in enumerate(LENGTHS):
        ids = rng.integers(1, VOCAB, n).astype(np.int32)
        yield {"input_ids": ids, "loss_spans": np.array([[n // 3, n]], np.int32), "id": str(i)}


def alone(model):
    """Give the logits and the summed loss of each document in a forward of its own."""
    out = {}
    for s in samples():
        ids = torch.from_numpy(s["input_ids"].astype(np.int64))[None].to(model.device)
        labels = ids.clone()
        labels[:, : int(s["loss_spans"][0, 0])] = -100
        labels[:, 0] = -100
        made = model(input_ids=ids, labels=labels, use_cache=False)
        n = int((labels != -100).sum())
        out[s["id"]] = made.logits[0].float().cpu(), float(made.loss) * n if n else 0.0
    return out


def worst(logits, batch, want):
    """Give the largest difference of the logits of any document of a batch."""
    flat = logits.reshape(-1, logits.shape[-1])
    borders = batch["cu_seq_lens_q"].tolist()
    names = [name for row in batch.info.ids for name in (*row, None)]  # None: the padding at the row's end
    real = batch["input_ids"].reshape(-1)
    segments = [(a, b) for a, b in pairwise(borders) if real[a:b].any()]
    names = [n for n in names if n is not None]
    assert [b - a for a, b in segments] == [len(want[n][0]) for n in names]
    return max(float((flat[a:b] - want[n][0]).abs().max()) for n, (a, b) in zip(names, segments, strict=True))


# C45 C46
@pytest.mark.parametrize(
    ("name", "attention", "pad"),
    [
        *product(("llama", "qwen3"), ("eager", "sdpa"), ("right", "none")),
        *product(("llama", "qwen3"), ("flex_attention",), ("right",)),  # compiled: half a minute a shape
        *product(("bamba",), ("eager", "sdpa"), ("right", "none")),  # transformers has no FlexAttention for it
    ],
)
def test_the_batches_of_a_loader_give_the_logits_and_the_loss_of_their_documents_alone(
    name, attention, pad, monkeypatch
):
    with torch.no_grad():
        want = alone(build(name, "eager"))
        if name == "bamba":
            use_stand_ins(monkeypatch)
        model = build(name, attention)
        feed = tw.from_dataset(list(samples()), id="id", fingerprint="isolation").shuffle().pack(64)
        feed = feed.batch(2, pad=pad, collate="hf_mamba" if name == "bamba" else "hf")
        total, seen, leaks = 0.0, 0, 0.0
        for batch in tw.Loader(feed, tail="pad", return_tensors="pt"):
            out = model(**batch)
            assert worst(out.logits, batch, want) < SAME
            total += float(out.loss) * batch.info.num_label_tokens
            seen += batch.info.num_label_tokens
            leaks = max(leaks, worst(model(**leaky(name, batch)).logits, batch, want))
    assert abs(total - sum(loss for _, loss in want.values())) / seen < SAME
    assert leaks > OTHER


# C45
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlashAttention needs an accelerator")
def test_flash_attention_keeps_the_documents_of_a_flat_row_apart():
    pytest.importorskip("flash_attn")
    with torch.no_grad():
        model = build("llama", "flash_attention_2").to("cuda", torch.bfloat16)
        want = alone(model)
        feed = tw.from_dataset(list(samples()), id="id", fingerprint="isolation").shuffle().pack(64)
        feed = feed.batch(2, pad="none", collate="hf")
        kept, leaks = 0.0, 0.0
        for batch in tw.Loader(feed, tail="pad", device="cuda"):
            here = {k: v.cpu() if hasattr(v, "cpu") else v for k, v in batch.items()}
            out = model(**batch).logits.float().cpu()
            kept = max(kept, worst(out, OnHost(here, batch.info), want))
            whole = {"input_ids": batch["input_ids"], "position_ids": torch.arange(out.shape[1], device="cuda")[None]}
            leaks = max(leaks, worst(model(**whole).logits.float().cpu(), OnHost(here, batch.info), want))
    assert kept < leaks / 10  # bfloat16 rounds; without borders the logits are others altogether


class OnHost(dict):
    """A batch of the device as the host sees it."""

    def __init__(self, columns, info):
        super().__init__(columns)
        self.info = info


def leaky(name, batch):
    """Take away what keeps documents apart."""
    if name == "bamba":
        return {k: v for k, v in batch.items() if k != "seq_idx"}
    width = batch["input_ids"].shape[1]
    return {**batch, "position_ids": torch.arange(width).expand_as(batch["input_ids"])}


def pictures(model):
    """Give samples with none, one or two pictures, positions by the model's own rule."""
    rng = np.random.default_rng(0)
    for i, (grids, text) in enumerate([([(1, 4, 4)], 9), ([], 7), ([(1, 2, 6), (1, 4, 2)], 5), ([(1, 6, 4)], 12)]):
        sample = pictured(model, rng, grids, text)
        yield {**sample, "id": str(i), "input_ids": sample["input_ids"].astype(np.int32)}


class Together:
    """Lays out rows of samples with media, as a user's own collate function may."""

    packed = True

    def __call__(self, rows):
        """Give the batch of rows, each a list of samples."""
        columns = columns_of([{k: v for k, v in s.items() if k != "id"} for row in rows for s in row])
        offsets = np.append(0, np.cumsum([len(row) for row in rows]))
        made = lay_out(
            columns.tokens, offsets, labels=columns.labels, rope=columns.rope, aligned=columns.aligned, capacity=48
        )
        return {**DIALECTS["hf"](made), **columns.media}


# C45 C47
@pytest.mark.parametrize("attention", ["eager", "sdpa"])  # transformers has no FlexAttention for this model
def test_batches_with_pictures_give_the_logits_of_their_documents_alone(attention):
    model, single = build_vl(attention), build_vl("eager")
    data = list(pictures(model))
    feed = tw.from_dataset(data, id="id", fingerprint="pictures").shuffle().pack(48).batch(2, collate=Together())
    with torch.no_grad():
        want = {}
        for s in data:
            one = {k: torch.from_numpy(np.asarray(v)) for k, v in s.items() if k not in {"position_ids", "id"}}
            one = {k: v if k.startswith(("pixel", "image")) else v.long()[None] for k, v in one.items()}
            want[s["id"]] = single(**one).logits[0], 0.0
        batches = list(tw.Loader(feed, tail="pad", return_tensors="pt"))
        assert max(len(row) for b in batches for row in b.info.ids) > 1
        leaks = 0.0
        for batch in batches:
            assert batch["position_ids"].shape[0] == 4
            assert worst(model(**batch).logits, batch, want) < SAME
            three = {**batch, "position_ids": batch["position_ids"][1:]}
            leaks = max(leaks, worst(model(**three).logits, batch, want))
    assert leaks > OTHER
