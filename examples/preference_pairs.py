"""Direct preference optimisation with TRL's own trainer on a feed of preference pairs, stopped and resumed."""

import inspect
import os
import textwrap

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl import DPOConfig, DPOTrainer

import thalweg as tw
from thalweg.encode import qwen_tokenizer

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
DPOTrainer = tw.bind.trainer.with_feed(DPOTrainer)
tokenizer = AutoTokenizer.from_pretrained(str(qwen_tokenizer()))

# What a function does: its own documentation is preferred to that of its neighbour.
docs = [(name, inspect.getdoc(value)) for name, value in sorted(vars(textwrap).items()) if callable(value)]
docs += [(name, inspect.getdoc(value)) for name, value in sorted(vars(inspect).items()) if inspect.isfunction(value)]
docs = [(name, text) for name, text in docs if text]
pairs = [
    {"id": name, "prompt": f"What does {name} do? ", "chosen": text, "rejected": docs[i - 1][1]}
    for i, (name, text) in enumerate(docs)
]


def encode(sample):
    """Give the columns that TRL's collator takes."""
    prompt, *answers = (tokenizer(sample[k]).input_ids for k in ("prompt", "chosen", "rejected"))
    chosen, rejected = ([*ids[:60], tokenizer.eos_token_id] for ids in answers)
    return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}


feed = tw.from_dataset(pairs, id="id").map(encode, remove_columns="all").shuffle()


def tiny():
    """Make a model; the reference of DPO is the same one."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=16, **sizes))


def train(steps, **more):
    """Train to a number of steps; the feed ends without .batch, the trainer's arguments say it."""
    args = DPOConfig(
        "out", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=steps, save_steps=2, bf16=False,
        lr_scheduler_type="constant", logging_steps=1, report_to=[], use_cpu=True,
    )  # fmt: skip
    trainer = DPOTrainer(tiny(), tiny(), args=args, train_dataset=feed, processing_class=tokenizer)
    trainer.train(**more)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


before = train(2)
after = train(3, resume_from_checkpoint=True)  # the next pair is the next pair, at once
print(f"losses of 2 steps: {before}")
print(f"stopped there, and resumed up to step 3: {after}")
assert (after[:2], len(after)) == (before, 3)
