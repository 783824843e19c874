"""The trainer of the package lmms-engine in this process, which is afterwards as it was."""

import sys
from functools import partial

import pytest


@pytest.fixture
def engine(monkeypatch):
    """Give the module of FSDP2SFTTrainer; afterwards no process group and no module of the package is left."""
    pytest.importorskip("lmms_engine")
    pytest.importorskip("torchdata.stateful_dataloader")
    pytest.importorskip("accelerate")
    import torch.distributed as dist

    import lmms_trainer

    before = set(sys.modules)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        module = lmms_trainer.trainer_module(partial(monkeypatch.setitem, sys.modules), monkeypatch.setattr)
        monkeypatch.setattr(module, "Tracking", None)  # a test sets its own
        yield module
    finally:
        dist.destroy_process_group()
        for name in set(sys.modules) - before:
            if name.startswith("lmms_engine"):
                del sys.modules[name]
