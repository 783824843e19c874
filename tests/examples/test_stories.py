"""The stories of the interface page, by number: each does what its lines say.

Stories 7 (TRL), 8 (FSDP2) and 9 (Megatron-Core) are in tests/bind with their engines, 11 (MindSpeed-MM) in
tests/check/test_mindspeed.py and examples/mindspeed, 12 (the mask bug) in tests/check/test_real_data.py.
"""

import gc
import gzip
import json
from pathlib import Path

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


@pytest.fixture
def model_of_the_hub(small_words, tmp_path, monkeypatch):
    """Stand in for what the hub would load: a folder of that name, here, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    small_words.save_pretrained("Qwen/Qwen3-0.6B")
    return len(small_words)


@pytest.mark.slow
def test_story_1_quick_sft(model_of_the_hub, chat_folder, capsys):
    torch = pytest.importorskip("torch")
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from thalweg.encode import ChatEncoder

    rows = json.loads((chat_folder / "alpaca_en_demo.json").read_text("utf-8"))[:60]
    Path("data").mkdir()
    Path("data/chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=model_of_the_hub, num_key_value_heads=1, head_dim=16, **size))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    losses, steps = [], []

    feed = tw.from_files("data/chat.jsonl").map(ChatEncoder("Qwen/Qwen3-0.6B")).cache().shuffle()
    feed = feed.pack(4096, overlong="drop").batch(2)
    loader = tw.Loader(feed, epochs=3, device=device)
    report = tw.inspect(feed)
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
        steps.append(batch.info)

    assert 2 <= len(report.samples) <= 3  # rows of many documents each
    assert all(0 < view.count("loss") < view.num_tokens for view in report.samples)
    assert losses[-1] < losses[0]
    for epoch in range(3):
        names = [name for info in steps if info.epoch == epoch for row in info.ids for name in row]
        assert len(names) == len(set(names)) > 40


@pytest.mark.slow
def test_story_2_vlm_sft(model_of_the_hub, small_words, tmp_path):
    torch = pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from thalweg.encode import ChatEncoder

    small_words.save_pretrained("ckpt/Qwen2.5-VL-7B-Instruct")
    Qwen2VLImageProcessorPil().save_pretrained("ckpt/Qwen2.5-VL-7B-Instruct")
    Path("data").mkdir()
    rows = []
    for n in range(24):
        image.effect_noise((400 + 40 * n, 600), 40).convert("RGB").save(f"data/{n}.png")
        turns = [
            {"from": "human", "value": "<image>How wide is it?"},
            {"from": "gpt", "value": f"{400 + 40 * n} dots."},
        ]
        rows.append({"conversations": turns, "images": [f"{n}.png"]})
    Path("data/7.png").write_bytes(b"no picture")
    Path("data/mllm.json").write_text(json.dumps(rows))
    ids = {n: small_words.convert_tokens_to_ids(f"<|{n}|>") for n in ("image_pad", "video_pad")}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"vocab_size": len(small_words), "num_key_value_heads": 2, "rope_parameters": rope}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 1, "mlp_ratio": 1, "patch_size": 14}
    words = {"image_token_id": ids["image_pad"], "video_token_id": ids["video_pad"]}
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **words))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh, dp_size, steps = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp")), 1, []

        enc = ChatEncoder("ckpt/Qwen2.5-VL-7B-Instruct", media_dir="data", image_max_pixels=262_144)
        feed = tw.from_files("data/mllm.json").map(enc, on_error="quarantine", quarantine="bad/", max_bad=100).cache()
        feed = feed.shuffle().pack(1_024, overlong="drop").batch(1)
        loader = tw.Loader(feed, topology=tw.Topology.from_device_mesh(mesh), gradient_accumulation_steps=8)
        for batch in loader:
            (model(**batch).loss * batch.info.num_label_tokens / batch.info.step_label_tokens * dp_size).backward()
            steps.append(batch)
            if len(steps) == 2:
                break
    finally:
        dist.destroy_process_group()
        gc.collect()
    assert len(loader) == 8
    assert steps[0].info.step_label_tokens == steps[1].info.step_label_tokens
    assert all(b["position_ids"].shape[0] == 4 for b in steps)
    for batch in steps:
        grids = batch["image_grid_thw"]
        assert (batch["input_ids"] == ids["image_pad"]).sum() == grids.prod(-1).sum() // 4
        assert all(int(g.prod()) * 14 * 14 <= 1.1 * 262_144 for g in grids)
    assert sum(p.grad is not None for p in model.parameters()) > 10
    assert list(Path("bad").rglob("*"))


def test_story_4_a_mix_with_a_curriculum():
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
    told = loader.stats()["proportions"]
    assert sum(told.values()) == pytest.approx(1)
    assert 0.4 < told["web"] < 0.7  # of tokens: from .7 to .4, that of math from .1 to .4
    assert 0.1 < told["math"] < 0.4
    assert told["code"] == pytest.approx(0.2, abs=0.02)
    assert tokens["web"] > tokens["math"] > tokens["code"]


def test_story_5_megatron_bin_and_idx(tmp_path):
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
def test_story_3_a_hub_stream_goes_on_from_its_state(tmp_path):
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


SCRIPT = """
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

if __name__ == "__main__":
    executor = LocalPipelineExecutor(
        pipeline=[
            JsonlReader("raw"),
            LambdaFilter(lambda doc: len(doc.text) > 40),
            JsonlWriter("kept", compression="gzip"),
        ],
        tasks=2,
        workers=1,
        logging_dir="logs",
    )
    executor.run()
"""
CHANGED = {
    "from datatrove.executor import": "from thalweg.run import",
    "from datatrove.pipeline.filters import": "from thalweg.steps import",
    "from datatrove.pipeline.readers import": "from thalweg.steps import",
    "from datatrove.pipeline.writers import": "from thalweg.steps import EncodeText, RecordsWriter,",
    '"gzip"),\n': '"gzip"),\n            EncodeText("words"),\n'
    '            RecordsWriter("s3://corpus/cc-2026-20/tokens"),\n',
}  # fmt: skip


@pytest.mark.slow
def test_stories_6_and_10_a_script_of_datatrove_by_changing_its_imports(small_words, tmp_path, monkeypatch, warm):
    pytest.importorskip("datatrove")
    moto, boto3 = pytest.importorskip("moto.server"), pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    place = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    place |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="corpus")
    lines = [{"text": f"line {i} " * (i % 9 + 1), "id": str(i)} for i in range(90)]
    ours = SCRIPT
    for old, new in CHANGED.items():
        assert old in ours
        ours = ours.replace(old, new)
    needs = {"theirs": ["datatrove.executor", "datatrove.pipeline.readers"], "ours": ["thalweg.run", "thalweg.steps"]}
    for name, script in (("theirs", SCRIPT), ("ours", ours)):
        folder = tmp_path / name
        (folder / "raw").mkdir(parents=True)
        for part in range(2):
            rows = "".join(json.dumps(row) + "\n" for row in lines[part::2])
            (folder / "raw" / f"{part}.jsonl").write_text(rows)
        (folder / "script.py").write_text(script)
        small_words.save_pretrained(folder / "words")
        done = warm.run(folder / "script.py", cwd=folder, needs=needs[name])
        assert done.returncode == 0, done.err[-3000:]

    rec = tw.open_records("s3://corpus/cc-2026-20/tokens")
    kept = [row["text"] for part in (0, 1) for row in lines[part::2] if len(row["text"]) > 40]
    assert rec.num_tokens == sum(len(small_words(text).input_ids) + 1 for text in kept)
    assert len(rec) == len(kept)
    server.stop()
    monkeypatch.chdir(tmp_path)
    both = [documents(tmp_path / name / "kept") for name in ("theirs", "ours")]
    assert both[0] == both[1]
    assert [text for _, text in both[1]] == [
        text for _, text in sorted((r["id"], r["text"]) for r in lines if r["text"] in kept)
    ]


def documents(folder):
    found = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            found += [json.loads(line) for line in file]
    return sorted((row["id"], row["text"]) for row in found)
