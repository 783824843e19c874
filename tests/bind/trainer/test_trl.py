"""TRL's own SFTTrainer and DPOTrainer on feeds; killed and resumed they are in tests/bind/test_engines.py."""

import os
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import tiny  # noqa: E402

import thalweg as tw  # noqa: E402
from thalweg.core.errors import ConfigError  # noqa: E402
from thalweg.encode import ChatEncoder  # noqa: E402

needs_shared = pytest.mark.skipif(not tiny.SHARED.exists(), reason="no ../shared/data beside the checkout")
pytestmark = [
    pytest.mark.slow,
    *(pytest.mark.filterwarnings(f"ignore::{w}Warning") for w in ("Future", "Deprecation", "User")),
]
WORDS = {
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 1, "save_steps": 9,
    "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2, "max_steps": 2, "bf16": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    assert os.environ.get("HF_HUB_OFFLINE") == "1"


@pytest.fixture(scope="module")
def words():
    return tiny.small_tokenizer()


@pytest.fixture(scope="module")
def chat(words, tmp_path_factory):
    """Real conversations, encoded once, in two parts."""
    made = tw.from_files(str(tiny.SHARED / "data/chat/alpaca_en_demo.json")).take(60)
    made = made.map(ChatEncoder(words)).cache(str(tmp_path_factory.mktemp("cache") / "made"))
    return made.split({"train": 0.8, "val": 0.2})


@needs_shared
def test_story_7_trl(words, chat, tmp_path, monkeypatch):
    from trl import SFTConfig, SFTTrainer

    monkeypatch.chdir(tmp_path)
    name = "tiny"  # as of a model of the hub: a folder with model and tokenizer
    tiny.model(len(words)).save_pretrained(name)
    words.save_pretrained(name)
    feed = {k: v.shuffle().pack(160, overlong="drop") for k, v in chat.items()}  # they end in .pack, without .batch
    more = {"num_train_epochs": 5, "logging_steps": 1, "save_steps": 1, "use_cpu": True, "bf16": False, "report_to": []}
    more |= {"disable_tqdm": True, "learning_rate": 1e-2}

    SFTTrainer = tw.bind.trainer.with_feed(SFTTrainer)  # noqa: N806

    def made(**args):
        args = SFTConfig("out", per_device_train_batch_size=4, gradient_accumulation_steps=8, **more, **args)
        return SFTTrainer(model=name, args=args, train_dataset=feed["train"], eval_dataset=feed["val"])

    whole = made()
    whole.train()
    t = made()
    for folder in Path("out").glob("checkpoint-*"):
        if folder.name != "checkpoint-1":
            shutil.rmtree(folder)
    read = []
    inner = t.training_step
    t.training_step = lambda model, inputs, *a: read.append(inputs.info.step) or inner(model, inputs, *a)
    t.train(resume_from_checkpoint=True)

    assert min(read) == 1  # at once: nothing of step 0 is read again
    assert t.state.global_step == whole.state.global_step >= 2
    assert losses(t) == pytest.approx(losses(whole), abs=1e-4)
    assert t.evaluate()["eval_loss"] == pytest.approx(whole.evaluate()["eval_loss"], abs=1e-4)


def losses(trainer):
    return [e["loss"] for e in trainer.state.log_history if "loss" in e]


@needs_shared
def test_words_that_would_prepare_a_feed_again_are_refused(words, chat, tmp_path):
    SFTTrainer = tw.bind.trainer.with_feed(trl.SFTTrainer)  # noqa: N806
    model = tiny.model(len(words))
    with pytest.raises(ConfigError, match=r"packing=True would do nothing.*\.pack"):
        SFTTrainer(
            model=model, args=trl.SFTConfig(str(tmp_path), packing=True, **WORDS),
            train_dataset=chat["train"].shuffle(), processing_class=words,
        )  # fmt: skip
    with pytest.raises(ConfigError, match="max_length=64 in args, and the feed packs rows of 160"):
        SFTTrainer(
            model=model, args=trl.SFTConfig(str(tmp_path), max_length=64, **WORDS),
            train_dataset=chat["train"].pack(160, overlong="drop"), processing_class=words,
        )  # fmt: skip


@needs_shared
def test_dpo_uses_trls_own_collator_and_its_evaluation_counts_pairs(words, tmp_path):
    DPOTrainer = tw.bind.trainer.with_feed(trl.DPOTrainer)  # noqa: N806
    feed = tw.from_dataset(tiny.pairs(24), id="id")
    trainer = DPOTrainer(
        model=tiny.model(len(words)), ref_model=tiny.model(len(words)), train_dataset=feed.shuffle(),
        args=trl.DPOConfig(str(tmp_path), max_length=64, per_device_eval_batch_size=5, **WORDS),
        eval_dataset=feed.take(7), processing_class=words,
    )  # fmt: skip
    assert type(trainer.data_collator).__name__ == "DataCollatorForPreference"
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.train_batches.loader.close()
    trainer.train()
    assert len(losses(trainer)) == 2
    assert not [k for e in trainer.state.log_history for k in e if "seq_len" in k]  # pairs have no length of their own
    assert batch["input_ids"].shape[0] == 4  # two pairs: chosen and rejected
    assert len(batch.info.ids) == 2
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.num_examples(trainer.get_eval_dataloader()) == 7
