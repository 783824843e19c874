"""Qwen3-VL's clips: the time before each step, against the processor and the model of transformers."""

import ast
import inspect
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

from thalweg.encode import ChatEncoder, EncodeError
from thalweg.encode.media.batches import MediaCollator
from thalweg.encode.media.families import Limits, Media
from thalweg.encode.media.references import Folder
from thalweg.encode.media.stamps import Stamps, times
from thalweg.encode.media.videos import Sampling

pytest.importorskip("torch")
pytest.importorskip("transformers.models.qwen3_vl.processing_qwen3_vl")
import torch
import transformers
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor


def theirs():
    """Two functions of the model's video processor, whose module loads only beside torchvision, by their source."""
    import transformers.models.qwen3_vl as package

    path = Path(package.__file__).with_name("video_processing_qwen3_vl.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wanted = [n for n in ast.walk(tree) if getattr(n, "name", "") in {"smart_resize", "sample_frames"}]
    for node in wanted:
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
    space = {"np": np, "math": math, "logger": None}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), space)
    return SimpleNamespace(**space)


def their_size(frames, width, height, *, factor, **told):
    """Height and width that the method `resize` of their video processor would bring frames to."""
    import transformers.models.qwen3_vl as package

    path = Path(package.__file__).with_name("video_processing_qwen3_vl.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    method = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "resize")
    method.returns = None
    for argument in method.args.args:
        argument.annotation = None
    base = type("Base", (), {"resize": lambda self, image, size, resample: size})
    own = ast.parse("class Own(Base):\n    pass")
    own.body[0].body = [method]
    space = {"Base": base, "SizeDict": SimpleNamespace, "smart_resize": theirs().smart_resize}
    exec(compile(own, str(path), "exec"), space)
    processor = space["Own"]()
    processor.max_video_tokens = told["tokens"]
    size = SimpleNamespace(shortest_edge=told["least"], longest_edge=told["most"])
    clip = SimpleNamespace(shape=(1, frames, 3, height, width))
    made = processor.resize(clip, size, None, factor, 2, cap_pixels_per_frame=told["capped"])
    return made.height, made.width


@settings(max_examples=200, deadline=None)
@given(hs.integers(2, 200), hs.integers(20, 3000), hs.integers(20, 3000))
def test_frames_are_sized_as_by_the_models_video_processor(frames, width, height):
    told = {"temporal_factor": 2, "factor": 32, "min_pixels": 128 * 1024, "max_pixels": 768 * 1024}
    assert Stamps().resized(frames, width, height, 32, 2) == theirs().smart_resize(frames, height, width, **told)


# B7
@settings(max_examples=200, deadline=None)
@given(
    hs.integers(2, 300), hs.integers(32, 3000), hs.integers(32, 3000), hs.booleans(), hs.integers(1, 900),
    hs.sampled_from([4096, 128 * 1024]), hs.sampled_from([768 * 1024, 24_576 * 1024]),
)  # fmt: skip
def test_a_bound_of_each_frame_is_that_of_the_models_video_processor(
    frames, width, height, capped, tokens, least, most
):
    told = {"least": least, "most": most, "capped": capped, "tokens": tokens}
    assert Stamps(**told).resized(frames, width, height, 32, 2) == their_size(frames, width, height, factor=32, **told)


@given(hs.lists(hs.integers(0, 9999), min_size=1, max_size=9, unique=True), hs.sampled_from([10.0, 24.0, 29.97]))
def test_a_step_is_timed_halfway_between_its_first_frame_and_its_last(places, fps):
    places = sorted(places)
    processor = Qwen3VLProcessor.__new__(Qwen3VLProcessor)
    assert list(times(places, fps, 2)) == processor._calculate_timestamps(list(places), fps, 2)


@pytest.fixture(scope="module")
def sees(media_files):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    images = Qwen2VLImageProcessorPil(min_pixels=64 * 64, max_pixels=32 * 32 * 16, patch_size=16)
    stamps = Stamps(
        hasattr(transformers.ProcessorMixin, "get_text_with_replacements"), least=2 * 32 * 32, most=40 * 1024
    )
    return Media(images, folder=Folder(str(media_files)), stamps=stamps)


def says(asked, answered, **media):
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}], **media}


RECORDS = [
    says("Look:<video>what moves?", "A wave <0.5 seconds> long.", videos=["clip.mp4"]),
    says("<image><video>Both?", "Yes.", images=["wide.jpg"], videos=["clip.mp4"]),
    says("Two:<video> <video>\n?", "They are one.", videos=["clip.mp4", "clip.mp4"]),
    says("No clip.", "Right."),
]


# C47
@pytest.mark.parametrize("record", RECORDS[:3])
def test_ids_are_those_of_the_models_processor(qwen, sees, record):
    encoder = ChatEncoder(qwen, processor=sees)
    sample = encoder(record)
    processor = Qwen3VLProcessor.__new__(Qwen3VLProcessor)
    processor.tokenizer, processor.image_processor = qwen, sees.image_processor
    processor.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    for name in ("image", "video"):
        setattr(processor, f"{name}_token", f"<|{name}_pad|>")
    processor.vision_start_token, processor.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    count = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    frames = theirs().sample_frames(count, SimpleNamespace(total_num_frames=35, fps=10.0))
    grids = sample.get("video_grid_thw")
    assert all(len(frames) == 7 and g[0] == 4 for g in grids)
    metadata = [SimpleNamespace(frames_indices=frames, fps=10.0) for _ in grids]
    videos = {"video_grid_thw": grids, "video_metadata": metadata}
    clips = [processor.replace_video_token(videos, i) for i in range(len(grids))]
    seen = sample.get("image_grid_thw", np.empty((0, 3), np.int64))
    pictures = [processor.replace_image_token({"image_grid_thw": seen}, i) for i in range(len(seen))]
    text = encoder.drawer.draw(_conversation(encoder, record)).text
    ((written,), _) = processor.get_text_with_replacements([text], pictures, clips)
    assert sample["input_ids"].tolist() == qwen(written).input_ids
    kinds = np.select(
        [sample["input_ids"] == qwen.convert_tokens_to_ids(f"<|{n}_pad|>") for n in ("image", "video")], [1, 2]
    )
    assert sample["mm_token_type_ids"].tolist() == kinds.tolist()
    answer = record["messages"][1]["content"]
    assert qwen.decode([t for t in sample["labels"] if t != -100]) == f"{answer}<|im_end|>"


def _conversation(encoder, record):
    from thalweg.encode.layouts import read

    return read(record, encoder._layout(record))


def test_the_steps_stand_in_place_of_the_clips_own_borders_where_that_is_said(qwen, sees, media_files):
    inside = ChatEncoder(qwen, processor=sees)(RECORDS[0])
    media = Media(sees.image_processor, folder=sees.folder, stamps=Stamps(False, least=2 * 32 * 32, most=40 * 1024))
    instead = ChatEncoder(qwen, processor=media)(RECORDS[0])
    both = [qwen.decode(s["input_ids"]).replace("<|video_pad|>", "") for s in (inside, instead)]
    step = "<|vision_start|><|vision_end|>"
    assert "Look:<0.3 seconds>" + step in both[1]
    assert both[0 if sees.stamps.inside else 1].count("<|vision_start|>") == 4 + sees.stamps.inside
    assert both[1].count("<|vision_start|>") == 4
    assert qwen.decode([t for t in instead["labels"] if t != -100]).startswith("A wave <0.5 seconds> long.")


# K17
def test_what_a_user_writes_like_a_clip_stays_text_beside_a_real_one(qwen, sees):
    record = says("<video>is it <|video_pad|> or <0.3 seconds>?", "It is <|video_pad|>.", videos=["clip.mp4"])
    sample = ChatEncoder(qwen, processor=sees)(record)
    place = qwen.convert_tokens_to_ids("<|video_pad|>")
    assert (sample["input_ids"] == place).sum() == sample["media_tokens"] == sample["video_grid_thw"][0].prod() // 4
    assert qwen.decode([t for t in sample["labels"] if t != -100]) == "It is <|video_pad|>.<|im_end|>"
    plain = ChatEncoder(qwen, processor=sees)(says("<video>is it that or <0.3 seconds>?", "a", videos=["clip.mp4"]))
    (a, *_), (b, *_) = (np.flatnonzero(s["input_ids"] == place) for s in (sample, plain))
    assert sample["input_ids"][:a].tolist() == plain["input_ids"][:b].tolist()


# K19
def test_a_limit_takes_timed_clips_whole(qwen, sees):
    record = {"messages": RECORDS[0]["messages"] + RECORDS[2]["messages"], "videos": ["clip.mp4"] * 3}
    whole = ChatEncoder(qwen, processor=sees)(record)
    place, kept = qwen.convert_tokens_to_ids("<|video_pad|>"), set()
    for limit in range(20, len(whole["input_ids"]), 40):
        (result,) = ChatEncoder(qwen, processor=sees, max_length=limit).encode_batch([record])
        if not isinstance(result, EncodeError):
            assert (result.ids == place).sum() == sum(g.prod() // 4 for g in result.more["video_grid_thw"])
            kept.add(len(result.more["video_grid_thw"]))
    assert kept == {2}


# whole frames; frames made smaller; the bound of each frame; more frames than a whole number of steps
CLIPS = {
    "whole": {"size": {"shortest_edge": 4096, "longest_edge": 10**6}, "fps": 2},
    "smaller": {"size": {"shortest_edge": 4096, "longest_edge": 30_000}, "fps": 4},
    "capped": {"size": {"shortest_edge": 2048, "longest_edge": 10**6}, "fps": 2, "cap_pixels_per_frame": True,
               "max_video_tokens": 2},
    "odd": {"size": {"shortest_edge": 4096, "longest_edge": 10**6}, "fps": 1.0, "min_frames": 3, "max_frames": 3},
}  # fmt: skip


# B7 B9 B10 C47
@pytest.mark.slow
def test_pixels_frames_and_grids_of_a_clip_are_those_of_the_models_video_processor(sees, media_files, tmp_path):
    script, into = Path(__file__).with_name("their_clips.py"), tmp_path / "theirs.npz"
    command = [sys.executable, script, json.dumps(CLIPS), media_files / "clip.mp4", into]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    theirs = np.load(into)
    for name, told in CLIPS.items():
        sees.image_processor.save_pretrained(tmp_path / name)
        (tmp_path / name / "config.json").write_text('{"model_type": "qwen3_vl"}')
        (tmp_path / name / "video_preprocessor_config.json").write_text(json.dumps(told))
        media = Media.of(str(tmp_path / name), folder=sees.folder)
        clip, places, _ = media._chosen("clip.mp4")
        assert places.tolist() == theirs[f"{name}_frames"].tolist(), name
        ours = media.features("video", ["clip.mp4"])
        assert (
            ours["video_grid_thw"].tolist()
            == theirs[f"{name}_grid"].tolist()
            == [list(media.measure("video", "clip.mp4").grid)]
        )
        apart = np.abs(ours["pixel_values_videos"] - theirs[f"{name}_pixels"]) * 127.5  # in steps of a grey level
        resized = ours["video_grid_thw"][0, 1:].tolist() != [clip.height // 16, clip.width // 16]
        assert resized == (name in {"smaller", "capped"})
        # frames that keep their size are equal to the last bits; Pillow and torch round a resize their own ways
        assert apart.max() < (1.01 if resized else 1e-3), name
        assert apart.mean() < 0.1, name


# B9
def test_frames_are_sampled_as_the_user_says_and_a_folder_names_the_models_own_rule(qwen, sees, tmp_path):
    few = Media(sees.image_processor, folder=sees.folder, stamps=sees.stamps, limits=Limits(sampling=Sampling(1, 2, 2)))
    assert few.measure("video", "clip.mp4").grid[0] == 1
    sees.image_processor.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    (tmp_path / "video_preprocessor_config.json").write_text(
        '{"size": {"shortest_edge": 4096, "longest_edge": 9000}, "fps": 1}'
    )
    found = Media.of(str(tmp_path), folder=sees.folder)
    assert (found.stamps.least, found.stamps.most, found.stamps.fps, found.stamps.many) == (4096, 9000, 1, 768)
    assert found.stamps.inside == hasattr(transformers.ProcessorMixin, "get_text_with_replacements")
    assert found.measure("video", "clip.mp4").grid[0] == 2


@pytest.fixture(scope="module")
def model(qwen):
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    words = {"image_token_id": "image_pad", "video_token_id": "video_pad", "vision_start_token_id": "vision_start",
             "vision_end_token_id": "vision_end"}  # fmt: skip
    config = Qwen3VLConfig(
        text_config={
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "head_dim": 16, "num_key_value_heads": 1, "vocab_size": len(qwen), "pad_token_id": qwen.pad_token_id,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32,
            "deepstack_visual_indexes": [0], "num_position_embeddings": 64,
        },
        tie_word_embeddings=True, **{k: qwen.convert_tokens_to_ids(f"<|{v}|>") for k, v in words.items()},
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen3VLForConditionalGeneration(config).eval()


def tensors(batch):
    return {k: torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for k, v in batch.items()}


# C45 C46 C47
@pytest.mark.slow
def test_the_model_takes_them_packed_with_the_losses_of_each_alone(qwen, sees, model):
    samples = [ChatEncoder(qwen, processor=sees)(r) for r in RECORDS]

    def loss(batch):
        batch = tensors(batch)
        assert set(batch) <= set(inspect.signature(model.forward).parameters) | {
            "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "use_cache"
        }  # fmt: skip
        logits, wanted = model(**batch).logits[:, :-1], batch["labels"][:, 1:]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")

    with torch.no_grad():
        alone = [loss(MediaCollator(sees)([s])) for s in samples]
    packed = loss(MediaCollator(sees, packed=True)([samples]))
    packed.backward()
    assert float(packed.detach()) == pytest.approx(float(sum(alone)), rel=1e-5)
    assert any(p.grad is not None and p.grad.abs().max() > 0 for n, p in model.named_parameters() if "visual" in n)
    for sample in samples[:3]:
        batch = tensors(MediaCollator(sees)([sample]))
        grids = {k: batch.get(k) for k in ("image_grid_thw", "video_grid_thw")}
        wanted, _ = model.model.get_rope_index(batch["input_ids"], batch["mm_token_type_ids"], **grids)
        assert np.array_equal(wanted[:, 0].numpy(), sample["position_ids"])
