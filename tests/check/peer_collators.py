"""Batches made by the collators of TRL, LLaMA-Factory and LMMS Engine, for the doctor to look at. Run as a script.

    python peer_collators.py CASE FOLDER_OF_UNPACKED_WHEELS    -> {check: level} as JSON

The modules are the projects' own, from their wheels; only what they import beside it and do not use here (peft,
deepspeed, loguru) is stood in for, and the fronts of packages, which would import whole trainers, are passed by.
"""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from torch.utils.data import DataLoader

import thalweg as tw
from qwen_ready import TOKENIZER

END, TEXT_END = (TOKENIZER.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>"))
WHEELS = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


def front(name, folder):
    """Make a package whose `__init__` is not run."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def stand_in(name, **values):
    module = ModuleType(name)
    module.__dict__.update(values)
    module.__path__ = []
    sys.modules.setdefault(name, module)


def turns(n):
    """(prompt ids, answer ids) of a conversation of two exchanges."""
    out = []
    for k in range(2):
        ask = f"<|im_start|>user\nWhat is {n} plus {k} in words, please?<|im_end|>\n<|im_start|>assistant\n"
        tell = f"It is {n + k}, and that is" + " quite certain" * (n % 7) + ".<|im_end|>"
        out.append(tuple(TOKENIZER.encode(t, add_special_tokens=False) for t in (ask, tell)))
    return out


def sample(n, train_prompt=False):
    ids, labels = [], []
    for ask, tell in turns(n):
        ids += ask + tell
        labels += (ask if train_prompt else [-100] * len(ask)) + tell
    return {"input_ids": ids, "labels": labels, "attention_mask": [1] * len(ids)}


def levels(target, **told):
    report = tw.doctor(target, tokenizer=TOKENIZER, **told)
    return {finding.check: finding.level for _, finding in report.verdicts}


# ---- TRL


def trl_flat():
    """What it does right: packed rows without a mask, boundaries off the loss."""
    from datasets import Dataset
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows = Dataset.from_list([{k: sample(n)[k] for k in ("input_ids", "labels")} for n in range(40)])
    packed = pack_dataset(rows, seq_length=256, strategy="bfd")
    collate = DataCollatorForLanguageModeling(pad_token_id=TEXT_END, padding_free=True)
    return levels(DataLoader(list(packed), batch_size=1, shuffle=True, collate_fn=collate))


def trl_mask_of_ones():
    """Packed rows with a mask of ones and positions that restart: documents see each other."""
    from datasets import Dataset
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows = Dataset.from_list([{k: sample(n)[k] for k in ("input_ids", "labels")} for n in range(40)])
    packed = pack_dataset(rows, seq_length=256, strategy="bfd")
    collate = DataCollatorForLanguageModeling(pad_token_id=TEXT_END, return_position_ids=True)
    return levels(DataLoader(list(packed), batch_size=2, collate_fn=collate))


def trl_cut_to_nothing():
    """Packing cuts each document to the row's length: of short rows no trained token is left."""
    from datasets import Dataset
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows = Dataset.from_list([{k: sample(n)[k] for k in ("input_ids", "labels")} for n in range(40)])
    packed = pack_dataset(rows, seq_length=8, strategy="bfd")
    collate = DataCollatorForLanguageModeling(pad_token_id=TEXT_END)
    return levels(DataLoader(list(packed), batch_size=2, collate_fn=collate), max_length=8)


def trl_template_without_marks():
    """A chat template that marks no answers gives a mask of zeros: nothing is trained."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    TOKENIZER.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

    def made(n):
        messages = [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": f"It is {n}."}]
        out = TOKENIZER.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        ids, on = out["input_ids"], out["assistant_masks"]
        return {"input_ids": ids, "labels": [i if m else -100 for i, m in zip(ids, on, strict=True)]}

    collate = DataCollatorForLanguageModeling(pad_token_id=TEXT_END)
    return levels(DataLoader([made(n) for n in range(20)], batch_size=4, collate_fn=collate))


def hf_padding_is_the_end():
    """The language modelling collator of transformers takes every padding id off the loss, the end token with it."""
    from transformers import DataCollatorForLanguageModeling

    TOKENIZER.pad_token = "<|im_end|>"
    collate = DataCollatorForLanguageModeling(TOKENIZER, mlm=False)
    data = [{"input_ids": sample(n)["input_ids"]} for n in range(20)]
    return levels(DataLoader(data, batch_size=4, collate_fn=collate))


# ---- LLaMA-Factory


class Plugin:
    """The plug-in of a template without media."""

    image_token = video_token = audio_token = None

    def process_messages(self, messages, *_):
        return messages

    def process_token_ids(self, ids, labels, *_):
        return ids, labels

    def get_mm_inputs(self, *_):
        return {}


def factory(*, packing, neat=False, train_on_prompt=False, efficient_eos=False):
    stand_in("peft", PeftModel=type("PeftModel", (), {}))
    stand_in("peft.utils", SAFETENSORS_WEIGHTS_NAME="a", WEIGHTS_NAME="b")
    sys.path.insert(0, str(WHEELS / "llamafactory"))
    front("llamafactory.data", WHEELS / "llamafactory" / "llamafactory" / "data")
    front("llamafactory.data.processor", WHEELS / "llamafactory" / "llamafactory" / "data" / "processor")
    from llamafactory.data.collator import SFTDataCollatorWith4DAttentionMask
    from llamafactory.data.processor.supervised import PackedSupervisedDatasetProcessor, SupervisedDatasetProcessor

    def encode_multiturn(_tokenizer, messages, *_):
        end = TEXT_END if efficient_eos else None
        pairs = turns(int(messages[0]["content"]))
        return [(a, t[:-1] if end else t) for a, t in pairs]

    template = SimpleNamespace(mm_plugin=Plugin(), efficient_eos=efficient_eos, encode_multiturn=encode_multiturn,
                               preserve_thinking=False)  # fmt: skip
    settings = SimpleNamespace(cutoff_len=300, mask_history=False, train_on_prompt=train_on_prompt,
                               neat_packing=neat, packing=packing)  # fmt: skip
    kind = PackedSupervisedDatasetProcessor if packing else SupervisedDatasetProcessor
    tokenizer = SimpleNamespace(eos_token_id=TEXT_END, pad_token_id=TEXT_END)
    processor = kind(template=template, tokenizer=tokenizer, processor=None, data_args=settings)
    n = 40
    made = processor.preprocess_dataset(
        {"_prompt": [[{"content": str(i)}] for i in range(n)], "_response": [[{"content": ""}]] * n,
         "_system": [""] * n, "_tools": [""] * n, "_images": [None] * n, "_videos": [None] * n, "_audios": [None] * n}
    )  # fmt: skip
    rows = [{k: made[k][i] for k in made if k != "packing_params"} for i in range(len(made["input_ids"]))]
    collate = SFTDataCollatorWith4DAttentionMask(
        tokenizer=TOKENIZER, template=template, label_pad_token_id=-100, block_diag_attn=neat, neat_packing=neat
    )
    kept = ("input_ids", "labels", "attention_mask", "position_ids")
    return levels(DataLoader([{k: r[k] for k in kept if k in r} for r in rows], batch_size=2, collate_fn=collate))


def factory_packing():
    return factory(packing=True)


def factory_neat():
    return factory(packing=True, neat=True)


def factory_neat_trains_prompts():
    return factory(packing=True, neat=True, train_on_prompt=True)


def factory_efficient_eos():
    return factory(packing=False, efficient_eos=True)


# ---- LMMS Engine


def engine(pad, side="right"):
    stand_in("deepspeed")
    stand_in("loguru", logger=SimpleNamespace(info=print, warning=print))
    root = WHEELS / "lmms_engine" / "lmms_engine"
    front("lmms_engine", root)
    front("lmms_engine.datasets", root / "datasets")
    front("lmms_engine.datasets.collator", root / "datasets" / "collator")
    front("lmms_engine.utils", root / "utils")
    stand_in("lmms_engine.utils.train_utils", TrainUtilities=object)
    from lmms_engine.datasets.collator.vision_collator import VisionCollator

    tokenizer = SimpleNamespace(padding_side=side, pad_token_id=pad)
    return VisionCollator(SimpleNamespace(tokenizer=tokenizer))


def tensors(n):
    return {k: torch.tensor(v) for k, v in sample(n).items()}


def engine_padding_is_the_end():
    """Its mask is ids != pad: where padding is the end token, real end tokens are hidden."""
    return levels(DataLoader([tensors(n) for n in range(24)], batch_size=4, collate_fn=engine(END)))


def engine_pads_left():
    """It turns rows around for padding on the left and counts no positions."""
    return levels(DataLoader([tensors(n) for n in range(24)], batch_size=4, collate_fn=engine(TEXT_END, "left")))


def engine_packs_are_padded():
    """A pack is a tensor of all its documents, each padded to the longest."""
    long = {k: v.repeat(20) for k, v in tensors(6).items()}
    packs = [[long, *[tensors(n) for n in range(20)]] for _ in range(4)]
    return levels(DataLoader(packs, batch_size=1, collate_fn=engine(TEXT_END)))


def engine_ranks_differ():
    """Its packers run on each rank alone: ranks end after different numbers of packs."""
    collate = engine(TEXT_END)
    from lmms_engine.datasets.packing import build_online_packer

    rng = np.random.default_rng(0)
    order = rng.permutation(400)
    loaders = []
    for part in np.array_split(order, 4):
        packer, packs = build_online_packer("first_fit", 600), []
        for n in part.tolist():
            one = {k: v.repeat(1 + n % 5) for k, v in tensors(n).items()}
            packs += packer.add(one, len(one["input_ids"]))
        packs += packer.flush()
        loaders.append(DataLoader(packs, batch_size=1, collate_fn=collate))
    return levels(loaders)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
