"""Megatron-Core: iterators for `--dataloader-type external`.

Decides what a provider of Megatron gets. The place in the job and the micro-batch are asked of Megatron where it runs.
"""

from thalweg.bind.megatron.iterators import RowIterator, iterators

__all__ = ["RowIterator", "iterators"]
