"""The package lmms-engine on the CPU: its own trainer, with stand-ins for what it imports and does not need here."""

import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import pytest

# third-party packages that its files import at their top; none of them does anything on the paths that are run
ABSENT = ("deepspeed", "wandb", "jsonlines", "librosa", "loguru")


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Give the module of FSDP2SFTTrainer; afterwards no process group and no module of the package is left."""
    pytest.importorskip("lmms_engine")
    pytest.importorskip("torchdata.stateful_dataloader")
    pytest.importorskip("accelerate")
    import torch
    import torch.distributed as dist
    from accelerate.utils import send_to_device  # noqa: F401 - these look for the packages that are stood in for
    from transformers import Trainer, TrainingArguments  # noqa: F401

    root = importlib.util.find_spec("lmms_engine").submodule_search_locations[0]
    before = set(sys.modules)
    for name in ABSENT:
        if importlib.util.find_spec(name) is None:
            monkeypatch.setitem(sys.modules, name, MagicMock(__spec__=ModuleSpec(name, None), __path__=[]))
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
        monkeypatch.setitem(sys.modules, bare.__name__, bare)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *a: "no GPU")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        pgm = importlib.import_module("lmms_engine.parallel.process_group_manager")
        mesh = pgm.init_device_mesh
        monkeypatch.setattr(pgm, "init_device_mesh", lambda _, *a, **k: mesh("cpu", *a, **k))
        pgm.setup_process_group_manager(1, 1, 1, 1)
        yield importlib.import_module("lmms_engine.train.fsdp2.fsdp2_trainer")
    finally:
        dist.destroy_process_group()
        for name in set(sys.modules) - before:
            if name.startswith("lmms_engine"):
                del sys.modules[name]
