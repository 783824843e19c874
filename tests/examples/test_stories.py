"""Lines that users type, as the interface page has them; those with an engine are in tests/bind."""

import json

import numpy as np
import pytest

import thalweg as tw
from thalweg.store.formats.megatron import BinIdxWriter


def docs(n, seed):
    rng = np.random.default_rng(seed)
    return [
        {"input_ids": rng.integers(1, 900, rng.integers(5, 200)).astype(np.int32), "id": f"{seed}-{i}"}
        for i in range(n)
    ]


def test_a_mix_with_a_curriculum_by_tokens():
    a, b, c = (tw.from_dataset(docs(400, s), id="id") for s in range(3))
    shares = [(0, {"web": 0.7, "code": 0.2, "math": 0.1}), (20_000, {"web": 0.4, "code": 0.2, "math": 0.4})]
    feed = tw.mix({"web": a, "code": b, "math": c}, by="tokens", weights=shares, at="tokens")
    packed = feed.shuffle().pack(256, overlong="split").batch(2)
    loader = tw.Loader(packed, epochs=None, max_steps=80, return_tensors="np")
    tokens, seen = {"web": 0, "code": 0, "math": 0}, []
    for batch in loader:
        for names, row in zip(batch.info.sources, batch.info.ids, strict=True):
            for name in names:
                tokens[name] += 1
            seen += row
    assert loader.step == 80
    assert tokens["web"] > tokens["math"] > tokens["code"]


def test_megatron_files_packed_for_megatron(tmp_path):
    for seed, name in enumerate(("web_text_document", "code_text_document")):
        with BinIdxWriter(tmp_path / name, vocab_size=1000) as writer:
            for doc in docs(300, seed):
                writer.write(doc)
    blend = ["0.8", str(tmp_path / "web_text_document"), "0.2", str(tmp_path / "code_text_document")]
    feed = tw.from_megatron(blend).shuffle().pack(512, policy="concat_split").batch(4, collate="megatron")
    batch = next(iter(tw.Loader(feed, return_tensors="np")))
    assert batch["tokens"].shape == (4, 512)
    assert batch["attention_mask"] is None
    assert batch["loss_mask"].sum() == batch.info.num_label_tokens


@pytest.mark.slow
def test_a_stream_of_the_hub_goes_on_from_its_state(tmp_path):
    datasets = pytest.importorskip("datasets")
    from thalweg.encode import TextEncoder, qwen_tokenizer

    for part in range(3):
        lines = [json.dumps({"text": f"part {part} line {i} " * (1 + i % 7)}) for i in range(80)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))

    def feed():
        files = sorted(map(str, tmp_path.glob("*.jsonl")))
        stream = datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path))
        made = tw.from_stream(stream, shards=24).shuffle(buffer_size=10_000)
        encoder = TextEncoder(qwen_tokenizer())
        return made.map(encoder, batched=256).pack(128, policy="fill", overlong="split").batch(2)

    whole = [b.info.ids for b in tw.Loader(feed(), max_steps=12)]
    first = tw.Loader(feed(), max_steps=5)
    head = [b.info.ids for b in first]
    loader = tw.Loader(feed(), max_steps=12)
    loader.load_state_dict(first.state_dict())
    assert head + [b.info.ids for b in loader] == whole
