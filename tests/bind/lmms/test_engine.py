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

import lmms_trainer
from lmms_trainer import STEPS, dataset_of, model_of, trainer_of
from thalweg.bind.lmms import MultiModalDataset, MultiModalIterableDataset
from warm import needs_of

pytestmark = pytest.mark.slow
PACKAGE = Path(importlib.util.find_spec("lmms_engine").submodule_search_locations[0])
SCRIPT = Path(lmms_trainer.__file__)
NEEDS = [*needs_of(SCRIPT), "torch.distributed.fsdp", "transformers:Qwen3ForCausalLM", "datasets",
         "transformers:AutoTokenizer", "torchdata.stateful_dataloader"]  # fmt: skip


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

    def run(cls, folder, kill=None, resume=False, **more):
        dataset, model = dataset_of(cls, rows, qwen, **more), model_of(len(qwen))
        seen, logged, forward = [], {}, model.forward

        def counted(*args, **batch):
            if kill is not None and len(seen) == kill:
                raise Killed
            seen.append({k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in batch.items()})
            return forward(*args, **batch)

        monkeypatch.setattr(model, "forward", counted, raising=False)
        trainer = trainer_of(engine, model, dataset, tmp_path / folder, logged.__setitem__)
        trainer.train(resume_from_checkpoint=resume)
        return {step: d for step, d in logged.items() if step is not None}, seen

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


def job(warm, tmp_path, rows, cls, folder, kill=None):
    """Run two ranks; give the losses by step, and end both where step `kill` is logged."""
    (tmp_path / folder).mkdir(exist_ok=True)
    store = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
    words = (2, tmp_path / folder, rows, tmp_path / "tokenizer", cls.__name__)
    ranks = [warm.start(SCRIPT, store, r, *words, needs=NEEDS, piped=r == 0) for r in range(2)]
    losses = {}
    for line in ranks[0].lines():
        if line.startswith('{"step"'):
            told = json.loads(line)
            losses[told["step"]] = told["train/loss"]
            assert told["perf/global_seq_len_min"] <= told["perf/global_seq_len_avg"] <= told["perf/global_seq_len_max"]
            assert told["perf/global_seq_len_min"] < told["perf/global_seq_len_max"]
            if told["step"] == kill:
                for rank in ranks:
                    rank.kill()
    ended = [rank.wait() for rank in ranks]
    assert ended == [0 if kill is None else -9] * 2, "".join(rank.err[-2000:] for rank in ranks)
    return losses


# C13 C33 C38 C40 C48
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_two_ranks_of_the_packages_trainer_are_killed_without_a_word_and_resume_to_the_same_losses(
    warm, tmp_path, rows, qwen, cls
):
    qwen.save_pretrained(tmp_path / "tokenizer")
    whole = job(warm, tmp_path, rows, cls, "whole")
    assert list(whole) == list(range(STEPS))
    first = job(warm, tmp_path, rows, cls, "cut", kill=2)  # behind the checkpoint of step 2
    assert {step: whole[step] for step in first} == first
    rest = job(warm, tmp_path, rows, cls, "cut")
    assert rest == {step: whole[step] for step in range(2, STEPS)}


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
    dataset = dataset_of(cls, rows, qwen)
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
