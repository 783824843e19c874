"""The encoders as a user has them: in a feed, with a cache, packed and batched; and the same samples offline."""

import json

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.document import Document
from thalweg.encode import ChatEncoder, TextEncoder
from thalweg.steps.encode import EncodeChat

pytestmark = pytest.mark.slow


@pytest.fixture
def rows(tmp_path):
    said = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i} " * (i + 1)}]}
        for i in range(12)
    ]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(r) + "\n" for r in said))
    return said


# E15 E23 B47
def test_a_feed_of_conversations_trains_the_answers_and_nothing_else(qwen, rows, tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    encoder = ChatEncoder(qwen)
    feed = tw.from_files(str(tmp_path / "chat.jsonl")).map(encoder, mode="inline").cache(str(tmp_path / "made"))
    loader = tw.Loader(feed.shuffle().pack(128, overlong="drop").batch(2), return_tensors="np", tail="pad")
    trained = []
    for batch in loader:
        ids, labels = batch["input_ids"], batch["labels"]
        assert set(labels[labels != -100].tolist()) <= set(ids.reshape(-1).tolist())
        for row in labels:
            trained += [t for t in qwen.decode([i for i in row.tolist() if i != -100]).split("<|im_end|>") if t]
    assert sorted(trained) == sorted(r["messages"][1]["content"] for r in rows)
    step = EncodeChat(qwen)
    for made, row in zip(step([Document("", str(i), metadata=r) for i, r in enumerate(rows)]), rows, strict=True):
        alone = encoder(row)
        assert np.array_equal(made["input_ids"], alone["input_ids"])
        spans = np.full(len(alone["labels"]), -100)
        for a, b in made["loss_spans"].tolist():
            spans[a:b] = made["input_ids"][a:b]
        assert np.array_equal(spans, alone["labels"])


# E15 A5
@pytest.mark.parametrize("batched", [False, 5])
def test_texts_are_encoded_one_by_one_or_in_batches(qwen, tmp_path, batched):
    texts = [f"text number {i}" for i in range(11)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    feed = tw.from_files(str(tmp_path / "text.jsonl")).map(TextEncoder(qwen), batched=batched, mode="inline")
    seen = [s["input_ids"] for s in feed]
    assert [qwen.decode(ids[:-1]) for ids in seen] == texts


def test_a_bad_record_is_left_out_where_that_is_asked_for(qwen, rows, tmp_path):
    rows[3] = {"messages": [{"role": "user", "content": "no answer"}]}
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    feed = tw.from_files(str(tmp_path / "chat.jsonl")).map(ChatEncoder(qwen), mode="inline", on_error="skip", max_bad=3)
    assert len([s for s in feed if s is not None]) == 11  # the twelfth keeps its place as a hole


# C47
@pytest.mark.parametrize("packed", [False, True])
def test_pictures_of_a_feed_are_decoded_when_the_batch_is_built(qwen, tmp_path, packed):
    images = pytest.importorskip("PIL.Image")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from thalweg.encode.media.batches import MediaCollator
    from thalweg.encode.media.families import Media
    from thalweg.encode.media.references import Folder

    media = Media(Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12_544), folder=Folder(str(tmp_path)))
    said = []
    for i in range(6):
        images.new("RGB", (60 + 30 * i, 60), (40 * i, 0, 0)).save(tmp_path / f"{i}.png")
        messages = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": f"number {i}"}]
        said.append({"messages": messages, "images": [f"{i}.png"]})
    (tmp_path / "see.jsonl").write_text("".join(json.dumps(r) + "\n" for r in said))
    feed = tw.from_files(str(tmp_path / "see.jsonl")).map(ChatEncoder(qwen, processor=media), mode="inline")
    collate = MediaCollator(media, packed=packed)
    feed = (
        feed.pack(256, policy="fill", overlong="drop").batch(1, collate=collate)
        if packed
        else feed.batch(2, collate=collate)
    )
    grids, answers = [], []
    for batch in tw.Loader(feed, return_tensors="np", tail="pad"):
        pad = qwen.convert_tokens_to_ids("<|image_pad|>")
        assert (batch["input_ids"] == pad).sum() == len(batch["pixel_values"]) // 4
        assert batch["position_ids"].shape == (4, *batch["input_ids"].shape)
        grids += batch["image_grid_thw"].tolist()
        answers += qwen.decode([i for i in batch["labels"].reshape(-1).tolist() if i != -100]).split("<|im_end|>")
    wanted = [list(media.measure("image", f"{i}.png").grid) for i in range(6)]
    assert sorted(grids) == sorted(wanted)
    assert sorted(a for a in answers if a) == [f"number {i}" for i in range(6)]
