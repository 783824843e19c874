"""TRL's own SFTTrainer and DPOTrainer on feeds: trained, broken off, resumed with the same losses."""

import os

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

import tiny  # noqa: E402

import thalweg as tw  # noqa: E402
from thalweg.core.errors import ConfigError  # noqa: E402
from thalweg.encode import ChatEncoder, qwen_tokenizer  # noqa: E402

needs_shared = pytest.mark.skipif(not tiny.SHARED.exists(), reason="no ../shared/data beside the checkout")
pytestmark = [
    pytest.mark.slow,
    *(pytest.mark.filterwarnings(f"ignore::{w}Warning") for w in ("Future", "Deprecation", "User")),
]
WORDS = {
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 1, "save_steps": 2,
    "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2, "max_steps": 6, "bf16": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    assert os.environ.get("HF_HUB_OFFLINE") == "1"


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(qwen_tokenizer()))


def losses(trainer):
    return [e["loss"] for e in trainer.state.log_history if "loss" in e]


def same_after_a_break(make, folder):
    """Train whole; train with an error behind step 5; resume; compare."""
    whole = make(folder / "whole")
    whole.train()

    class Stop(tiny.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5:
                raise KeyboardInterrupt

    broken = make(folder / "run")
    broken.add_callback(Stop())
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    again = make(folder / "run")
    again.train(resume_from_checkpoint=True)
    assert len(losses(whole)) == 6
    assert losses(again) == pytest.approx(losses(whole), abs=1e-4)
    return whole


@needs_shared
def test_sft_on_real_conversations_resumes_exactly(tmp_path, tokenizer):
    chat = tw.from_files(str(tiny.SHARED / "data/chat/alpaca_en_demo.json")).take(60)
    chat = chat.map(ChatEncoder(qwen_tokenizer(), max_length=96)).cache(str(tmp_path / "cache"))
    parts = chat.split({"train": 0.8, "val": 0.2})
    SFTTrainer = tw.bind.trainer.with_feed(trl.SFTTrainer)  # noqa: N806

    def make(folder):
        return SFTTrainer(
            model=tiny.model(len(tokenizer)),
            args=trl.SFTConfig(str(folder), max_length=128, **WORDS),
            train_dataset=parts["train"].shuffle().pack(128, overlong="drop"),
            eval_dataset=parts["val"].pack(128, overlong="drop"),
            processing_class=tokenizer,
        )

    trainer = same_after_a_break(make, tmp_path)
    assert trainer.evaluate()["eval_loss"] > 0
    with pytest.raises(ConfigError, match=r"packing=True would do nothing.*\.pack"):
        SFTTrainer(
            model=tiny.model(len(tokenizer)), args=trl.SFTConfig(str(tmp_path), packing=True, **WORDS),
            train_dataset=parts["train"].shuffle(), processing_class=tokenizer,
        )  # fmt: skip
    with pytest.raises(ConfigError, match="max_length=64 in args, and the feed packs rows of 128"):
        SFTTrainer(
            model=tiny.model(len(tokenizer)), args=trl.SFTConfig(str(tmp_path), max_length=64, **WORDS),
            train_dataset=parts["train"].pack(128, overlong="drop"), processing_class=tokenizer,
        )  # fmt: skip


@needs_shared
def test_dpo_on_preference_pairs_resumes_exactly_and_uses_trls_collator(tmp_path, tokenizer):
    DPOTrainer = tw.bind.trainer.with_feed(trl.DPOTrainer)  # noqa: N806
    feed = tw.from_dataset(tiny.pairs(24), id="id")

    def make(folder):
        return DPOTrainer(
            model=tiny.model(len(tokenizer)),
            ref_model=tiny.model(len(tokenizer)),
            args=trl.DPOConfig(str(folder), max_length=64, per_device_eval_batch_size=5, **WORDS),
            train_dataset=feed.shuffle(),
            eval_dataset=feed.take(7),
            processing_class=tokenizer,
        )

    trainer = same_after_a_break(make, tmp_path)
    assert type(trainer.data_collator).__name__ == "DataCollatorForPreference"
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].shape[0] == 4  # two pairs: chosen and rejected
    assert len(batch.info.ids) == 2
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.num_examples(trainer.get_eval_dataloader()) == 7
