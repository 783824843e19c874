"""The trainer of the package lmms-engine on our datasets: run, killed, resumed; and every call in its source."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")
pytest.importorskip("lmms_engine")
import torch

from thalweg.bind.lmms import DatasetConfig, MultiModalDataset, MultiModalIterableDataset

pytestmark = pytest.mark.slow
PACKAGE = Path(importlib.util.find_spec("lmms_engine").submodule_search_locations[0])
STEPS = 4


@pytest.fixture(scope="module")
def qwen(qwen):
    """The same conversations by a vocabulary of bytes: a real one is most of what a small model computes."""
    import tokenizers
    import transformers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    engine = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(letters)}, []))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = tokenizers.decoders.ByteLevel()
    engine.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    made.chat_template = qwen.chat_template
    return made


class Killed(Exception):
    """What stands in for the end of a process."""


@pytest.fixture
def rows(tmp_path, monkeypatch, qwen):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    turns = lambda i: [{"role": "user", "content": f"number {i}?"}, {"role": "assistant", "content": f"{i} " * (i % 5)}]
    rows = [{"messages": turns(i + 1)} for i in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path / "rows.jsonl"


@pytest.fixture
def train(engine, qwen, rows, tmp_path, monkeypatch):
    """Run the trainer; give what it logged, step by step, and end it behind a number of batches where told."""
    import transformers
    from lmms_engine.models.utils import setup_flops_counter
    from lmms_engine.train.config import TrainingArguments

    logged = []
    monkeypatch.setattr(
        engine,
        "Tracking",
        lambda **told: type("Log", (), {"log": lambda self, d, step=None: logged.append((step, d))})(),
    )

    def run(cls, folder, kill=None, resume=False, **more):
        torch.manual_seed(0)
        dataset = cls(
            DatasetConfig(
                dataset_type="vision", dataset_format="jsonl", dataset_path=str(rows), packing_length=400,
                processor_config={"processor_type": "chat", "processor_name": qwen}, **more,
            )
        )  # fmt: skip
        dataset.build()
        config = transformers.Qwen3Config(
            vocab_size=len(qwen), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, tie_word_embeddings=False,
        )  # fmt: skip
        model = transformers.Qwen3ForCausalLM(config)
        setup_flops_counter(config)
        seen, forward = [], model.forward

        def counted(*args, **batch):
            if kill is not None and len(seen) == kill:
                raise Killed
            seen.append({k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in batch.items()})
            return forward(*args, **batch)

        monkeypatch.setattr(model, "forward", counted, raising=False)
        args = TrainingArguments(
            output_dir=str(tmp_path / folder), per_device_train_batch_size=2, max_steps=STEPS, bf16=True, use_cpu=True,
            save_steps=2, learning_rate=1e-3, report_to=[], dataloader_pin_memory=False, lr_scheduler_type="cosine",
            dataloader_num_workers=0, fsdp_config={"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]},
            print_batch_input_steps=1, gradient_accumulation_steps=1, num_train_epochs=3,
        )  # fmt: skip
        args.warmup_ratio = 0.0  # a word that later releases of transformers have no more
        trainer = engine.FSDP2SFTTrainer(
            model=model, args=args, train_dataset=dataset, data_collator=dataset.get_collator(),
            processing_class=dataset.processor,
        )  # fmt: skip
        logged.clear()
        trainer.train(resume_from_checkpoint=resume)
        return {step: d for step, d in logged if step is not None}, seen

    return run


# C13 C38 C40 C48
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
@pytest.mark.parametrize("packing", [False, True])
def test_the_packages_trainer_trains_is_killed_and_resumes_to_the_same_losses(train, tmp_path, cls, packing):
    whole, batches = train(cls, "whole", packing=packing)
    losses = {step: d["train/loss"] for step, d in whole.items()}
    assert list(losses) == list(range(STEPS))
    for step, batch in enumerate(batches):
        assert ("attention_mask" in batch) != packing
        tokens = (batch["labels"] != -100).sum() if packing else batch["attention_mask"].sum()
        for kind in ("avg", "min", "max"):
            told = whole[step][f"perf/global_seq_len_{kind}"]
            assert told > tokens if packing else told == tokens
    with pytest.raises(Killed):
        train(cls, "cut", packing=packing, kill=3)
    saved = tmp_path / "cut" / "checkpoint-2"
    assert (saved / "tokenizer.json").is_file()
    rest, _ = train(cls, "cut", packing=packing, resume=True)
    assert {s: d["train/loss"] for s, d in rest.items()} == {s: losses[s] for s in (2, 3)}


OURS = {  # what a file of the package calls its objects -> whose they are
    "train/fsdp2/fsdp2_trainer.py": {
        "dataset": "dataset", "self.train_dataset": "dataset", "self.eval_dataset": "dataset",
        "self.data_collator": "collator", "self.processing_class": "processor",
        "self.processing_class.processor": "decoder", "self.train_dataloader.dataset": "dataset",
    },
    "train/runner.py": {"dataset": "dataset", "self.train_dataset": "dataset", "self.eval_dataset": "dataset"},
    "train/hf/trainer.py": {
        "dataset": "dataset", "self.train_dataset": "dataset", "self.processing_class": "processor",
        "self.data_collator": "collator",
    },
}  # fmt: skip
# of datasets' own tables, asked for only behind isinstance(dataset, datasets.Dataset)
THEIRS = {("dataset", "column_names")}


def asked(file, names):
    """Find what a file reads of our objects, by its source."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    found = {
        (names[o], n.attr)
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute)
        if (o := ast.unparse(n.value)) in names
    }
    return found - THEIRS


# C1 C13 C28 C29 C30 C32
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_every_call_in_the_packages_source_is_answered(rows, qwen, cls):
    told = {"processor_type": "chat", "processor_name": qwen}
    dataset = cls(
        DatasetConfig(dataset_type="vision", dataset_format="jsonl", dataset_path=str(rows), processor_config=told)
    )
    dataset.build()
    processor = dataset.processor
    objects = {
        "dataset": dataset, "collator": dataset.get_collator(), "processor": processor, "decoder": processor.processor,
    }  # fmt: skip
    calls = {file: asked(file, names) for file, names in OURS.items()}
    assert calls["train/fsdp2/fsdp2_trainer.py"] == {
        ("dataset", "modality_length"), ("processor", "save_pretrained"), ("processor", "processor"),
        ("decoder", "batch_decode"),
    }  # fmt: skip
    assert {("dataset", "build"), ("dataset", "get_collator"), ("dataset", "processor")} <= calls["train/runner.py"]
    for owner, name in sorted(set().union(*calls.values())):
        if (owner, name) == ("dataset", "modality_length") and cls is MultiModalIterableDataset:
            continue  # of its samplers, and a stream has none
        assert hasattr(objects[owner], name), f"{owner}.{name}"
