"""The package lmms-engine on the CPU: its own trainer, with stand-ins for what it imports and does not need here.

As a script one rank of a job: lmms_trainer.py STORE RANK WORLD FOLDER ROWS TOKENIZER CLASS. It prints what it logs, a
line a step, and goes on from the last checkpoint in FOLDER.
"""

import importlib.util
import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
import transformers
from accelerate.utils import send_to_device  # noqa: F401 - these look for the packages that are stood in for
from transformers import Trainer, TrainingArguments  # noqa: F401

from thalweg.bind.lmms import DatasetConfig, MultiModalDataset, MultiModalIterableDataset

# third-party packages that its files import at their top; none of them does anything on the paths that are run
ABSENT = ("deepspeed", "wandb", "jsonlines", "librosa", "loguru")
STEPS = 4


def trainer_module(put, change, world=1):
    """Import the module of FSDP2SFTTrainer; there is a process group of `world` ranks.

    Args:
        put: called with the name of each module that is stood in for, and what stands in.
        change: called with object, name and value of what a GPU would answer.
        world: number of ranks.
    """
    root = importlib.util.find_spec("lmms_engine").submodule_search_locations[0]
    for name in ABSENT:
        if importlib.util.find_spec(name) is None:
            put(name, MagicMock(__spec__=ModuleSpec(name, None), __path__=[]))
    for name, more in {
        "models": {"ModelConfig": object},  # its __init__ patches every model for a GPU's kernels
        "datasets": {"DatasetConfig": object},
        "train": {},
        "train.fsdp2": {},
        "parallel.parallelize": {"MODEL_TO_PARALLEL_METHOD": {}, "apply_parallelize": None},
    }.items():
        bare = types.ModuleType(f"lmms_engine.{name}")
        bare.__path__ = [f"{root}/{name.replace('.', '/')}"]
        vars(bare).update(more)
        put(bare.__name__, bare)
    change(torch.cuda, "get_device_name", lambda *a: "no GPU")
    change(torch.cuda, "current_device", lambda: torch.device("cpu"))
    pgm = importlib.import_module("lmms_engine.parallel.process_group_manager")
    mesh = pgm.init_device_mesh
    change(pgm, "init_device_mesh", lambda _, *a, **k: mesh("cpu", *a, **k))
    pgm.setup_process_group_manager(1, 1, 1, world)
    return importlib.import_module("lmms_engine.train.fsdp2.fsdp2_trainer")


def dataset_of(cls, rows, tokenizer, **more):
    dataset = cls(
        DatasetConfig(
            dataset_type="vision", dataset_format="jsonl", dataset_path=str(rows), packing_length=400,
            processor_config={"processor_type": "chat", "processor_name": tokenizer}, **more,
        )
    )  # fmt: skip
    dataset.build()
    return dataset


def model_of(size):
    from lmms_engine.models.utils import setup_flops_counter

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    setup_flops_counter(config)
    return transformers.Qwen3ForCausalLM(config)


def trainer_of(engine, model, dataset, folder, log, size=2):
    """Make the trainer; `log` is called with (step, figures)."""
    from lmms_engine.train.config import TrainingArguments as Arguments

    engine.Tracking = lambda **told: types.SimpleNamespace(log=lambda figures, step=None: log(step, figures))
    args = Arguments(
        output_dir=str(folder), per_device_train_batch_size=size, max_steps=STEPS, bf16=True, use_cpu=True,
        save_steps=2, learning_rate=1e-3, report_to=[], dataloader_pin_memory=False, lr_scheduler_type="cosine",
        dataloader_num_workers=0, fsdp_config={"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]},
        print_batch_input_steps=1, gradient_accumulation_steps=1, num_train_epochs=3,
    )  # fmt: skip
    args.warmup_ratio = 0.0  # a word that later releases of transformers have no more
    return engine.FSDP2SFTTrainer(
        model=model, args=args, train_dataset=dataset, data_collator=dataset.get_collator(),
        processing_class=dataset.processor,
    )  # fmt: skip


def main(store, rank, world, folder, rows, tokenizer, kind):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    engine = trainer_module(sys.modules.__setitem__, setattr, world)
    cls = {c.__name__: c for c in (MultiModalDataset, MultiModalIterableDataset)}[kind]
    dataset = dataset_of(cls, rows, tokenizer, packing=True)
    log = lambda step, figures: step is None or print(json.dumps({"step": step, **figures}), flush=True)
    model = model_of(len(dataset.processor.tokenizer))
    trainer = trainer_of(engine, model, dataset, folder, log, size=1)
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
