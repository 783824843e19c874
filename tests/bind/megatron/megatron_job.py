"""One rank of a job of the real megatron-core on the CPU. Run as megatron_job.py STORE RANK WORLD FOLDER KILL_AT TP PP.

Real here: parallel_state (gloo), GPTModel with local layers, its tensor- and pipeline-parallel parts, the schedules
that accumulate micro-batches, the wrapper that reruns steps, the calculator of micro-batches. Devices named "cuda"
inside are answered with "cpu", and waiting for a device with nothing.
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.num_microbatches_calculator import get_num_microbatches, init_num_microbatches_calculator
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.overrides import TorchFunctionMode

import thalweg as tw

STEPS, LENGTH, GLOBAL = 8, 64, 4


class OnCpu(TorchFunctionMode):
    """Answers a request for the device "cuda" with the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def feed(prefix):
    return tw.from_megatron(prefix).shuffle().pack(LENGTH, policy="concat_split")


ARGS = SimpleNamespace(consumed_train_samples=0, prefix="")


def get_args():
    """Stand in for megatron.training, which megatron-core does not have."""
    return ARGS


def provider(num_samples):
    corpus = feed(get_args().prefix)
    return tw.bind.megatron.iterators(corpus, valid=corpus, consumed_samples=get_args().consumed_train_samples)


provider.is_distributed = True


def forward_step(iterator, model):
    batch = next(iterator)
    segments = torch.bucketize(torch.arange(LENGTH), batch["cu_seqlens"][0, 1:-1], right=True)
    hidden = segments[:, None] != segments[None]
    hidden |= torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
    output = model(batch["tokens"], batch["position_ids"], hidden[None, None], labels=batch["labels"])

    def loss(mask, info, output):
        total = (output.float().view(-1) * mask.view(-1)).sum() / info.step_label_tokens
        return total * get_num_microbatches(), {"loss": total.detach()}

    return output, partial(loss, batch["loss_mask"], batch.info)


def main():
    store, folder = sys.argv[1], sys.argv[4]
    rank, world, kill, tensor, pipeline = (int(sys.argv[k]) for k in (2, 3, 5, 6, 7))
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(tensor, pipeline)
    data_group = parallel_state.get_data_parallel_group()
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    initialize_rng_tracker(inference_rng_tracker=True)
    init_num_microbatches_calculator(rank, None, GLOBAL, 1, parallel_state.get_data_parallel_world_size())
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=2, use_cpu_initialization=True, hidden_dropout=0.0,
        attention_dropout=0.0, pipeline_dtype=torch.float32, tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline, variable_seq_lengths=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPTModel(
        config, get_gpt_layer_local_spec(), vocab_size=128, max_sequence_length=LENGTH,
        position_embedding_type="learned_absolute", pre_process=first, post_process=last,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    peer = rank % tensor + tensor * parallel_state.get_pipeline_model_parallel_rank()  # what part of the model it is
    saved, iteration = Path(folder) / f"checkpoint-{peer}.pt", 0
    if saved.exists():
        checkpoint = torch.load(saved, weights_only=True)
        model.load_state_dict(checkpoint["model"], strict=False)
        optimizer.load_state_dict(checkpoint["optimizer"])
        iteration = checkpoint["iteration"]
    ARGS.prefix, ARGS.consumed_train_samples = Path(folder).parent / "corpus", iteration * GLOBAL
    train, valid, _ = provider(None)
    assert train.loader.topology == tw.Topology.from_megatron()
    data, run = RerunDataIterator(train), get_forward_backward_func()
    for step in range(iteration, STEPS):
        optimizer.zero_grad()
        with OnCpu():
            told = run(
                forward_step_func=forward_step, data_iterator=data, model=model,
                num_microbatches=get_num_microbatches(), seq_length=LENGTH, micro_batch_size=1, forward_only=False,
            )  # fmt: skip
        if step == kill and rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=data_group)
        optimizer.step()
        total = torch.stack([t["loss"] for t in told]).sum() if last else torch.zeros(())
        dist.all_reduce(total, group=data_group)
        if pipeline > 1:
            dist.all_reduce(total, group=parallel_state.get_pipeline_model_parallel_group())
        if rank == 0:
            print(json.dumps({"step": step, "loss": total.item()}), flush=True)
        if step % 3 == 2 and parallel_state.get_data_parallel_rank() == 0:
            weights = {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
            state = {"model": weights, "optimizer": optimizer.state_dict(), "iteration": step + 1}
            torch.save(state, f"{saved}.new")
            Path(f"{saved}.new").replace(saved)
    if rank == 0:
        print(json.dumps({"valid": [next(valid)["tokens"].shape[1] for _ in range(3)]}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
