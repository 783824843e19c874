"""Hugging Face's Trainer on a feed: the same losses after a resume, nothing replayed, nothing settled silently."""

import json
from itertools import islice

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

import tiny  # noqa: E402

import thalweg as tw  # noqa: E402
from thalweg.core.errors import ConfigError, StateError  # noqa: E402

Trainer = tw.bind.trainer.with_feed(transformers.Trainer)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def args(folder, **more):
    words = {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 3, "logging_steps": 1,
        "save_steps": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2, "seed": 7,
    }  # fmt: skip
    return transformers.TrainingArguments(str(folder), **(words | more))


def losses(trainer):
    return {e["step"]: (e["loss"], e["epoch"]) for e in trainer.state.log_history if "loss" in e}


class Stop(transformers.TrainerCallback):
    """Ends the process's training as a crash would: by an error behind a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def packed(n=45):
    return tiny.feed(n).shuffle().pack(64, overlong="drop")


def test_a_resumed_run_has_the_losses_of_one_that_was_not_broken_off(tmp_path):  # F7 F8 K32
    whole = Trainer(tiny.model(), args(tmp_path / "whole"), train_dataset=packed())
    whole.train()
    wanted = losses(whole)
    broken = Trainer(tiny.model(), args(tmp_path / "run"), train_dataset=packed(), callbacks=[Stop(9)])
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    again = Trainer(tiny.model(), args(tmp_path / "run"), train_dataset=packed())
    read = []
    inner = again.training_step
    again.training_step = lambda model, inputs, *a: read.append(inputs.info.step) or inner(model, inputs, *a)
    again.train(resume_from_checkpoint=True)
    assert min(read) == 8  # the checkpoint is of step 8: the first batch read is the next one
    got = losses(again)
    assert got.keys() == wanted.keys()  # the history up to 8 is in the checkpoint
    for step, (loss, epoch) in wanted.items():
        assert got[step] == (pytest.approx(loss, abs=1e-4), pytest.approx(epoch))
    assert again.state.global_step == whole.state.global_step == whole.state.max_steps
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_three_epochs_give_every_sample_three_times_and_the_loss_counts_label_tokens(tmp_path):  # C38
    seen, steps, tokens = [], [], {}
    trainer = Trainer(tiny.model(), args(tmp_path, save_strategy="no"), train_dataset=packed())
    inner = trainer.training_step

    def step(model, inputs, num_items_in_batch=None):
        seen.extend(i for row in inputs.info.ids for i in row)
        steps.append((inputs.info.step, int(num_items_in_batch), inputs.info.step_label_tokens))
        tokens[inputs.info.step] = tokens.get(inputs.info.step, 0) + inputs.info.num_tokens
        return inner(model, inputs, num_items_in_batch)

    trainer.training_step = step
    trainer.train()
    counts = {i: seen.count(i) for i in set(seen)}
    assert len(counts) == 45
    assert set(counts.values()) <= {3, 4}  # the last step is filled from a fourth epoch
    assert all(mine == known for _, mine, known in steps)
    assert [s for s, *_ in steps] == sorted(2 * list(range(trainer.state.max_steps)))
    logged = [e for e in trainer.state.log_history if "loss" in e]
    for kind in ("avg", "min", "max"):
        assert [e[f"perf/global_seq_len_{kind}"] for e in logged] == list(tokens.values())


@pytest.mark.parametrize(
    ("more", "steps", "ends"),
    [
        ({"num_train_epochs": 3}, 34, [12, 24, 34]),  # 45 rows, 4 a step: 33.75 steps of three epochs, 11.25 of one
        ({"num_train_epochs": 2.5}, 30, [12, 24, 30]),  # whole steps of an epoch, as the Trainer itself counts
        ({"max_steps": 18}, 18, [12, 18]),
    ],
)
def test_a_run_has_the_steps_and_epochs_that_its_data_gives(tmp_path, more, steps, ends):
    """What a user sees: the bar ends at its last step, the schedule at a rate of zero, the epoch at what was asked."""
    seen = []

    class Ends(transformers.TrainerCallback):
        def on_epoch_end(self, args, state, control, **kwargs):
            seen.append(state.global_step)

    made = Trainer(
        tiny.model(), args(tmp_path, save_strategy="no", **more), train_dataset=tiny.feed(45).shuffle(),
        callbacks=[Ends()],
    )  # fmt: skip
    made.train()
    assert made.state.max_steps == made.state.global_step == steps
    assert seen == ends
    (last,) = (e for e in made.state.log_history if e["step"] == steps and "loss" in e)
    assert last["learning_rate"] == pytest.approx(1e-2 / steps)
    assert last["epoch"] == pytest.approx(more.get("num_train_epochs", 18 / 12))


def test_the_same_setting_in_two_places_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"batch\(size=5\).*per_device_train_batch_size=2"):
        Trainer(tiny.model(), args(tmp_path), train_dataset=packed().batch(5)).train()
    with pytest.raises(ConfigError, match=r"data_seed=3.*shuffle\(4\)"):
        Trainer(tiny.model(), args(tmp_path, data_seed=3), train_dataset=tiny.feed().shuffle(4))
    with pytest.raises(ConfigError, match=r"data_seed=3.*shuffle\(4\)"):
        Trainer(tiny.model(), args(tmp_path, data_seed=3), eval_dataset={"val": tiny.feed().shuffle(4)})
    with pytest.raises(ConfigError, match="split_batches"):
        Trainer(tiny.model(), args(tmp_path, accelerator_config={"split_batches": True}), train_dataset=packed())
    with pytest.raises(ConfigError, match="data_collator"):
        Trainer(tiny.model(), args(tmp_path), train_dataset=packed(), data_collator=dict).train()
    stream = tw.from_stream(tiny.samples()).batch(2)
    with pytest.raises(ConfigError, match="max_steps"):
        Trainer(tiny.model(), args(tmp_path), train_dataset=stream).train()
    with pytest.raises(ConfigError, match="no Trainer"):
        tw.bind.trainer.with_feed(dict)
    Trainer(tiny.model(), args(tmp_path, max_steps=1), train_dataset=packed().batch(2)).train()  # twice the same: fine


def test_a_stream_resumes_with_max_steps(tmp_path):
    def stream():
        return tw.from_stream(tiny.samples()).shuffle(buffer_size=9).pack(64, policy="fill", overlong="drop")

    whole = Trainer(tiny.model(), args(tmp_path / "whole", max_steps=10), train_dataset=stream())
    whole.train()
    broken = Trainer(tiny.model(), args(tmp_path / "run", max_steps=10), train_dataset=stream(), callbacks=[Stop(6)])
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    again = Trainer(tiny.model(), args(tmp_path / "run", max_steps=10), train_dataset=stream())
    again.train(resume_from_checkpoint=True)
    wanted, got = losses(whole), losses(again)
    assert got.keys() == wanted.keys()
    assert [got[s][0] for s in got] == pytest.approx([wanted[s][0] for s in got], abs=1e-4)


def test_evaluation_is_the_mean_over_label_tokens_and_moves_no_training(tmp_path):
    parts = tiny.feed(90).split({"train": 0.8, "val": 0.2})
    train, val = parts["train"].shuffle().pack(64, overlong="drop"), parts["val"]
    plain = Trainer(tiny.model(), args(tmp_path / "a", num_train_epochs=2), train_dataset=train)
    plain.train()
    more = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 4, "num_train_epochs": 2}
    evaluated = Trainer(tiny.model(), args(tmp_path / "b", **more), train_dataset=train, eval_dataset={"val": val})
    evaluated.train()
    assert losses(evaluated) == losses(plain)
    told = [e for e in evaluated.state.log_history if "eval_val_loss" in e]
    assert [e["step"] for e in told] == list(range(3, plain.state.max_steps + 1, 3))
    final = evaluated.evaluate()
    model, total, count = evaluated.model.eval(), 0.0, 0
    ids = {i for b in tw.Loader(val.batch(1)) for row in b.info.ids for i in row}
    for sample in tiny.samples():
        if sample["id"] in ids:
            tensors = {k: torch.tensor(sample[k])[None] for k in ("input_ids", "labels")}
            n = int((tensors["labels"][:, 1:] != -100).sum())
            with torch.no_grad():
                total, count = total + model(**{k: v.long() for k, v in tensors.items()}).loss.item() * n, count + n
    assert final["eval_val_loss"] == pytest.approx(total / count, rel=1e-5)
    assert evaluated.evaluate()["eval_val_loss"] == pytest.approx(final["eval_val_loss"])
    told = evaluated.predict(val)  # each row once, filler left out
    assert told.metrics["test_loss"] == pytest.approx(final["eval_val_loss"])
    assert evaluated.num_examples(evaluated.get_test_dataloader(val)) == len(ids)


def test_a_run_resumed_at_its_end_takes_no_further_step(tmp_path):
    made = Trainer(tiny.model(), args(tmp_path, num_train_epochs=2, save_steps=1), train_dataset=packed(8))
    made.train()
    again = Trainer(tiny.model(), args(tmp_path, num_train_epochs=2, save_steps=1), train_dataset=packed(8))
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == made.state.global_step == made.state.max_steps


def test_a_checkpoint_without_a_place_is_refused_and_one_holds_it_readably(tmp_path):
    trainer = Trainer(tiny.model(), args(tmp_path, max_steps=4), train_dataset=packed())
    trainer.train()
    place = tmp_path / "checkpoint-4" / "thalweg.json"
    assert json.loads(place.read_text())["step"] == "4"
    place.unlink()
    with pytest.raises(StateError, match="holds no place"):
        Trainer(tiny.model(), args(tmp_path, max_steps=8), train_dataset=packed()).train(resume_from_checkpoint=True)


def test_the_places_of_all_ranks_of_a_stream_are_put_together(tmp_path):
    from thalweg.bind.trainer import places

    def loader(rank, world):
        stream = tw.from_stream(tiny.samples(40), shards=4).batch(1)
        return tw.Loader(stream, topology=tw.Topology(rank, world), epochs=None, workers=0)

    whole = [b.info.ids[0][0] for b in islice(loader(0, 1), 20)]
    for rank in range(2):
        x = loader(rank, 2)
        seen = [b.info.ids[0][0] for b in islice(x, 4)]
        assert seen == whole[rank:8:2]
        places.save(str(tmp_path), x.state_dict(), planned=False, rank=rank)
    one = loader(0, 1)
    one.load_state_dict(places.load(str(tmp_path)))
    assert [b.info.ids[0][0] for b in islice(one, 12)] == whole[8:]
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["thalweg-00000.json", "thalweg-00001.json"]


def test_without_a_feed_the_class_is_what_it_was(tmp_path):
    assert tw.bind.trainer.with_feed(Trainer) is Trainer
    data = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8
    trainer = Trainer(tiny.model(), args(tmp_path, max_steps=2, save_strategy="no"), train_dataset=data)
    assert trainer.train().global_step == 2
    assert type(trainer.get_train_dataloader()).__module__.startswith("accelerate")
