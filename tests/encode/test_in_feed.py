"""The encoders as a user has them: in a feed, with a cache, packed and batched; and the same samples offline."""

import json

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.document import Document
from thalweg.encode import ChatEncoder, EncodeError, TextEncoder
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


@pytest.fixture
def seen(qwen, tmp_path):
    """Six pictures of different widths, two texts without one, and a record whose picture is missing."""
    images = pytest.importorskip("PIL.Image")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from thalweg.encode.media.families import Media
    from thalweg.encode.media.references import Folder

    media = Media(Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12_544), folder=Folder(str(tmp_path)))
    with (tmp_path / "mllm.jsonl").open("w") as file:
        for i in range(9):
            if i < 6:
                images.new("RGB", (60 + 30 * i, 60), (40 * i, 0, 0)).save(tmp_path / f"{i}.png")
            ask = {"role": "user", "content": "?" if i in {6, 8} else "<image>?"}
            said = [ask, {"role": "assistant", "content": f"number {i}"}]
            file.write(
                json.dumps({"id": f"d{i}", "messages": said, "images": [] if i in {6, 8} else [f"{i}.png"]}) + "\n"
            )
    return media, ChatEncoder(qwen, processor=media)


@pytest.mark.parametrize("packed", [False, True])
def test_the_doctor_looks_at_batches_with_pictures_and_tells_them_apart(seen, tmp_path, packed):
    _, encoder = seen
    rows = [json.loads(line) for line in (tmp_path / "mllm.jsonl").read_text().splitlines()][:6]
    for row in rows:  # one question and one answer about six pictures of one size
        row["messages"][1]["content"] = "red"
        (tmp_path / row["images"][0]).write_bytes((tmp_path / "0.png").read_bytes())
    (tmp_path / "same.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    feed = tw.from_files(str(tmp_path / "same.jsonl"), id="id").map(encoder, mode="inline").cache().shuffle()
    feed = feed.pack(64, overlong="drop").batch(1) if packed else feed.batch(2)
    told = {found.what for _, found in tw.doctor(feed).verdicts}
    assert {"batches can be made", "no sample comes twice"} <= told, told


# C45 C47
@pytest.mark.parametrize("packed", [False, True])
def test_pictures_behind_a_cache_are_counted_once_planned_and_decoded_by_the_encoders_own_collator(
    qwen, seen, tmp_path, packed
):
    media, encoder = seen
    feed = tw.from_files(str(tmp_path / "mllm.jsonl"), id="id")
    feed = feed.map(encoder, mode="inline", on_error="quarantine", quarantine=str(tmp_path / "bad"), max_bad=3)
    feed = feed.cache(str(tmp_path / "made")).shuffle()
    feed = feed.pack(128, overlong="drop").batch(1) if packed else feed.batch(2)
    assert feed.kind == "planned"

    def walk(state=None, **more):
        loader = tw.Loader(feed, return_tensors="np", tail="pad", **more)
        if state:
            loader.load_state_dict(state)
        for batch in loader:
            real = batch["pixel_values"][:] if "pixel_values" in batch else np.zeros((0, 1))
            yield batch, real, loader.state_dict()

    whole = list(walk())
    ids = [name for batch, _, _ in whole for row in batch.info.ids for name in row]
    assert sorted(ids) == [f"d{i}" for i in range(9) if i != 7]
    assert "7.png" in "".join(p.read_text() for p in (tmp_path / "bad").rglob("*") if p.is_file())
    pad = qwen.convert_tokens_to_ids("<|image_pad|>")
    for batch, pixels, _ in whole:
        assert (batch["input_ids"] == pad).sum() == len(pixels) // 4
        assert batch["position_ids"].shape == (4, *batch["input_ids"].shape)
    grids = [grid for batch, _, _ in whole for grid in batch.get("image_grid_thw", np.zeros((0, 3))).tolist()]
    assert sorted(grids) == sorted(list(media.measure("image", f"{i}.png").grid) for i in range(6))
    rest = list(walk(whole[0][2]))
    assert [b.info.ids for b, _, _ in rest] == [b.info.ids for b, _, _ in whole[1:]]
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(rest, whole[1:], strict=True))
    ranks = [list(walk(topology=tw.Topology(rank, 2))) for rank in range(2)]
    both = [name for rank in ranks for b, _, _ in rank for row in b.info.ids for name in row]
    assert set(both) == set(ids)


# C45
@pytest.mark.parametrize("packed", [False, True])
def test_a_picture_damaged_behind_its_header_costs_its_sample_where_samples_may_fail_and_else_ends_the_run(
    seen, tmp_path, packed
):
    media, encoder = seen
    noise = np.random.default_rng(0).integers(0, 255, (60, 120, 3), dtype=np.uint8)
    pytest.importorskip("PIL.Image").fromarray(noise).save(tmp_path / "2.png")
    rows = (tmp_path / "mllm.jsonl").read_text().splitlines()
    (tmp_path / "six.jsonl").write_text("\n".join(rows[:6]) + "\n")

    def batches(**policy):
        feed = tw.from_files(str(tmp_path / "six.jsonl"), id="id").map(encoder, mode="inline", **policy)
        feed = feed.cache(str(tmp_path / "made" / str(len(policy))))
        feed = feed.pack(1024, overlong="drop").batch(1) if packed else feed.batch(2)
        return list(tw.Loader(feed, return_tensors="np", tail="pad"))

    before = batches(on_error="skip")
    batches()
    data = (tmp_path / "2.png").read_bytes()
    (tmp_path / "2.png").write_bytes(data[: len(data) // 2])
    with pytest.warns(UserWarning, match=r"left out: .*2\.png.*record d2"):
        after = batches(on_error="skip")
    assert [b.info.ids for b in after] == [b.info.ids for b in before]
    grids = [g for b in after for g in b["image_grid_thw"].tolist()]
    assert sorted(grids) == sorted(list(media.measure("image", f"{i}.png").grid) for i in range(6) if i != 2)
    trained = [sum(int((b["labels"] != -100).sum()) for b in made) for made in (before, after)]
    assert trained[1] == trained[0] * 5 // 6  # all answers are of one length
    with pytest.raises(EncodeError, match=r"2\.png.*record d2"):
        batches()


def test_what_a_collator_leaves_out_is_counted_and_no_part_of_its_identity(seen, tmp_path):
    media, encoder = seen
    from thalweg.encode.media.batches import MediaCollator
    from thalweg.feed.code import code_of

    rows = [json.loads(line) for line in (tmp_path / "mllm.jsonl").read_text().splitlines()]
    good, bad = encoder(rows[0]), encoder(rows[1])
    (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:60])
    collate = MediaCollator(media, on_error="skip", always_media=True, dummies=encoder.placer.dummies)
    name = code_of(collate)
    with pytest.warns(UserWarning, match="1.png"):
        batch = collate([bad])  # nothing is left to see, and each tower still takes part
    assert len(batch["pixel_values"])
    assert (batch["labels"] == -100).all()
    with pytest.warns(UserWarning, match="1.png"):
        batch = collate([good, bad])
    assert len(batch["image_grid_thw"]) == 1
    assert (batch["labels"][0] != -100).any()
    assert (batch["labels"][1] == -100).all()
    assert sum(collate.skipped.values()) == 2
    assert code_of(collate) == name
