"""`perf/global_seq_len_*`: tokens of each rank's batch, its mean, smallest and largest over the ranks.

Decides what counts as a token of a batch: what is no padding, packed or padded. Knows no trainer.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist


def tokens_of(batch: Mapping[str, Any]) -> int:
    """Count the real tokens of a batch: by its mask, else by its `.info`, else all that is there."""
    mask = batch.get("attention_mask")
    if mask is not None:
        return int(mask.sum())
    info = getattr(batch, "info", None)
    return int(info.num_tokens) if info is not None and info.num_tokens else int(batch["input_ids"].numel())


def sequence_metrics(batch: Mapping[str, Any]) -> dict[str, float]:
    """Give the three figures of a step.

    Args:
        batch: of this rank, of tensors.

    Returns:
        perf/global_seq_len_avg, _min and _max, the same on all ranks.
    """
    mine = torch.tensor([float(tokens_of(batch))])
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        gathered = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine)
        mine = torch.cat(gathered)
    return {
        "perf/global_seq_len_avg": float(mine.mean()),
        "perf/global_seq_len_min": float(mine.min()),
        "perf/global_seq_len_max": float(mine.max()),
    }
