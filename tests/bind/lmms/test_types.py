"""Every dataset_type on real pictures, clips, sounds, text: the columns its models take, or a refusal with advice."""

import inspect
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")
pytest.importorskip("PIL")
import datasets
import fsspec
import torch
import transformers
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import thalweg as tw
from thalweg.bind.lmms import DatasetConfig, MultiModalDataset, MultiModalIterableDataset
from thalweg.bind.lmms.processors import _REFUSED
from thalweg.core.errors import ConfigError
from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

pytestmark = pytest.mark.slow
TEXT = {"input_ids", "labels"}
SEEN = {"pixel_values", "image_grid_thw"}
MOVED = {"pixel_values_videos", "video_grid_thw"}
HEARD = {"input_features", "feature_attention_mask"}
OMNI_TEMPLATE = "qwen2_omni"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def models():
    """What a configuration's processor_name stands for: text, seeing, and seeing and hearing."""
    sees = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 16)
    tokenizer = load_tokenizer(qwen_tokenizer())
    omni = load_tokenizer(qwen_tokenizer())
    places = [
        "<|AUDIO|>",
        "<|audio_bos|>",
        "<|audio_eos|>",
        "<|IMAGE|>",
        "<|VIDEO|>",
        "<|vision_bos|>",
        "<|vision_eos|>",
    ]
    omni.add_special_tokens({"extra_special_tokens": places})
    hears = transformers.WhisperFeatureExtractor(feature_size=128)
    return {
        "text": tokenizer,
        "vl": SimpleNamespace(tokenizer=tokenizer, image_processor=sees),
        "omni": SimpleNamespace(tokenizer=omni, image_processor=sees, feature_extractor=hears),
    }


def part(kind, name):
    return {"type": f"{kind}_url", f"{kind}_url": {"url": name}}


def says(*parts, answer):
    """A record as the engine writes them: typed parts in each message."""
    text = lambda t: {"type": "text", "text": t}
    asked = [text(p) if isinstance(p, str) else p for p in parts]
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": [text(answer)]}]}


PICTURE, CLIP = part("image", "wide.jpg"), part("video", "clip.mp4")
SEES = [
    says(PICTURE, "What is this?", answer="A wave."),
    says(CLIP, "What happens?", answer="It moves."),
    says("First", part("image", "tall.png"), "then", part("image", "grey.png"), answer="Both are waves."),
    says("Nothing to see.", answer="Right."),
]
HEARS = [
    says(part("audio", "stereo.wav"), "What do you hear?", answer="Two tones."),
    says(part("image", "tall.png"), part("audio", "mono.flac"), "And now?", answer="A wave and a tone."),
    *SEES[1:2],
]
# dataset_type -> model, records, columns of a batch of all of them, the model whose forward takes them
TABLE = {
    "vision": ("vl", SEES, TEXT | SEEN | MOVED, "Qwen2VLForConditionalGeneration"),
    "llava_video": ("vl", SEES[1:2], TEXT | MOVED, "Qwen2VLForConditionalGeneration"),
    "vision_iterable": ("vl", SEES, TEXT | SEEN | MOVED, "Qwen2VLForConditionalGeneration"),
    "vision_audio": ("omni", HEARS, TEXT | SEEN | MOVED | HEARD, "Qwen2_5OmniThinkerForConditionalGeneration"),
    "qwen_omni": ("omni", HEARS, TEXT | SEEN | MOVED | HEARD, "Qwen2_5OmniThinkerForConditionalGeneration"),
    "qwen_omni_iterable": ("omni", HEARS, TEXT | SEEN | MOVED | HEARD, "Qwen2_5OmniThinkerForConditionalGeneration"),
    "fineweb_edu": ("text", [{"text": "One page."}, {"text": "Another, longer page."}], TEXT, "Qwen3ForCausalLM"),
}


def made(cls, models, kind, told, **more):
    model = TABLE[kind][0]
    processor = {"processor_type": "text" if model == "text" else "chat", "processor_name": models[model]}
    more = {"extra_kwargs": {"chat_template": OMNI_TEMPLATE} if model == "omni" else {}, **more}
    few = {"fps": 2, "video_max_pixels": 64 * 64, "video_max_frames": 8}
    config = DatasetConfig(dataset_type=kind, shuffle=False, processor_config=processor, **few, **told, **more)
    dataset = cls(config)
    dataset.build()
    items = list(dataset) if cls is MultiModalIterableDataset else [dataset[i] for i in range(len(dataset))]
    return items, dataset.get_collator()(items)


# C2 C5 C13 C45 C46 C47 C49
@pytest.mark.parametrize(("cls", "packing"), [(MultiModalDataset, True), (MultiModalIterableDataset, False)])
@pytest.mark.parametrize("kind", TABLE)
def test_a_type_gives_the_columns_that_its_models_take(models, media_files, tmp_path, kind, cls, packing):
    model, records, columns, takes = TABLE[kind]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    listed = [{"path": str(tmp_path / "r.jsonl"), "data_folder": str(media_files), "data_type": "jsonl"}]
    told = {"dataset_format": "yaml", "datasets": listed, "packing": packing, "packing_length": 4096}
    items, batch = made(cls, models, kind, told)
    more = {"position_ids"} | ({"mm_token_type_ids"} if model == "vl" else set())
    rows = (
        {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "use_cache"}
        if packing
        else {"attention_mask"}
    )
    places = more if model != "text" else {"position_ids"} if packing else set()
    assert set(batch) == columns | places | rows
    arrays = [v for k, v in batch.items() if k not in {"max_length_q", "max_length_k", "use_cache"}]
    assert all(isinstance(v, torch.Tensor) for v in arrays)
    parameters = inspect.signature(getattr(transformers, takes).forward).parameters
    assert columns | places <= set(parameters)
    samples = [s for row in items for s in (row if packing else [row])]
    answers = [r["messages"][1]["content"][0]["text"] if "messages" in r else r["text"] for r in records]
    tokenizer = getattr(models[model], "tokenizer", models[model])
    for sample, answer in zip(samples, answers, strict=True):
        assert answer in tokenizer.decode([t for t in sample["labels"] if t != -100])
    ids = batch["input_ids"]
    for pixels, grids, names in (
        ("pixel_values", "image_grid_thw", ("<|image_pad|>", "<|IMAGE|>")),
        ("pixel_values_videos", "video_grid_thw", ("<|video_pad|>", "<|VIDEO|>")),
    ):
        if pixels in columns:
            place = tokenizer.convert_tokens_to_ids(names[model == "omni"])
            assert len(batch[pixels]) == int(batch[grids].prod(1).sum()) == 4 * int((ids == place).sum())
    if columns >= HEARD:
        frames = batch["feature_attention_mask"].sum(1)
        tokens = (((frames - 1) // 2 + 1) - 2) // 2 + 1
        assert int(tokens.sum()) == int((ids == tokenizer.convert_tokens_to_ids("<|AUDIO|>")).sum())


# C2 C3 C6
@pytest.mark.parametrize(("cls", "packing"), [(MultiModalDataset, False), (MultiModalIterableDataset, True)])
def test_pictures_in_a_column_of_a_saved_table_take_the_places_that_the_messages_keep_for_them(
    models, media_files, tmp_path, cls, packing
):
    rows = [{"messages": says({"type": "image_url"}, "?", answer="One.")["messages"],
             "image": {"bytes": (media_files / "wide.jpg").read_bytes()}},
            {"messages": says("?", {"type": "image_url"}, answer="Two.")["messages"],
             "image": {"bytes": (media_files / "tall.png").read_bytes()}}]  # fmt: skip
    datasets.Dataset.from_list(rows).cast_column("image", datasets.Image()).save_to_disk(str(tmp_path / "saved"))
    told = {"dataset_format": "hf_dataset", "dataset_path": str(tmp_path / "saved"), "packing": packing}
    _, batch = made(cls, models, "vision", told, packing_length=4096)
    with Image.open(media_files / "wide.jpg") as first:
        width, height = first.size
    (_, h, w), (_, h2, w2) = batch["image_grid_thw"].tolist()
    assert (w > h) == (width > height)
    assert w2 < h2
    assert len(batch["pixel_values"]) == h * w + h2 * w2


# C49
@pytest.mark.parametrize(("storage", "protocol"), [("gcs", "gs"), ("azure", "az")])
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_pictures_are_read_from_a_bucket(models, media_files, tmp_path, monkeypatch, storage, protocol, cls):
    class Bucket(MemoryFileSystem):
        store, pseudo_dirs = {}, [""]

    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, protocol, Bucket)
    with fsspec.open(f"{protocol}://mine/train/wide.jpg", "wb") as file:
        file.write((media_files / "wide.jpg").read_bytes())
    (tmp_path / "r.jsonl").write_text(json.dumps(SEES[0]) + "\n")
    listed = [{"path": str(tmp_path / "r.jsonl"), "data_folder": "train", "data_type": "jsonl"}]
    told = {"dataset_format": "yaml", "datasets": listed}
    _, batch = made(cls, models, "vision", told, object_storage=storage, bucket_name="mine")
    assert len(batch["pixel_values"]) == int(batch["image_grid_thw"].prod())


# C2
@pytest.mark.parametrize("kind", ["vision_audio", "qwen_omni", "qwen_omni_iterable"])
def test_a_type_is_refused_where_the_model_lacks_a_part_that_it_needs(models, tmp_path, kind):
    told = {"processor_type": "chat", "processor_name": models["vl"]}
    config = DatasetConfig(
        dataset_type=kind, dataset_format="jsonl", dataset_path=str(tmp_path / "r.jsonl"), processor_config=told
    )
    with pytest.raises(ConfigError, match=f"'{kind}' needs a model with feature_extractor"):
        MultiModalDataset(config).build()


# C2
@pytest.mark.parametrize("kind", sorted(_REFUSED))
def test_a_type_that_makes_pictures_is_refused_and_its_advice_works_on_real_pictures(media_files, kind):
    told = {"dataset_format": "json", "dataset_path": "x.json", "processor_config": {}}
    with pytest.raises(ConfigError, match=r"makes pictures.*map\(your_function\)") as refused:
        MultiModalDataset(DatasetConfig(dataset_type=kind, **told)).build()
    data = [{"image": str(media_files / "wide.jpg"), "label": i} for i in range(4)]

    def your_function(row):
        with Image.open(row["image"]) as opened:
            return {"x": np.asarray(opened.convert("RGB").resize((32, 32)), np.float32) / 255, "y": row["label"]}

    collate = lambda rows: {k: np.stack([r[k] for r in rows]) for k in ("x", "y")}
    source = tw.from_stream(data) if "from_stream" in str(refused.value) else tw.from_dataset(data)
    loader = tw.Loader(source.map(your_function, remove_columns="all", mode="inline").batch(2, collate=collate))
    batches = list(loader)
    loader.close()
    assert [b["y"].tolist() for b in batches] == [[0, 1], [2, 3]]
    assert batches[0]["x"].shape == (2, 32, 32, 3)
