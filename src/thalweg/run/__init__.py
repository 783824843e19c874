"""Executors: the same pipeline on many ranks, on one machine or a cluster. Names load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WHERE = {
    "JobsPipelineExecutor": "jobs",
    "LocalPipelineExecutor": "local",
    "PipelineExecutor": "executor",
    "RayPipelineExecutor": "ray",
    "SlurmPipelineExecutor": "slurm",
    "merge_stats": "executor",
}

__all__ = [
    "JobsPipelineExecutor",
    "LocalPipelineExecutor",
    "PipelineExecutor",
    "RayPipelineExecutor",
    "SlurmPipelineExecutor",
    "merge_stats",
]

if TYPE_CHECKING:
    from thalweg.run.executor import PipelineExecutor, merge_stats
    from thalweg.run.jobs import JobsPipelineExecutor
    from thalweg.run.local import LocalPipelineExecutor
    from thalweg.run.ray import RayPipelineExecutor
    from thalweg.run.slurm import SlurmPipelineExecutor


def __getattr__(name: str) -> Any:
    """Load an executor on first use."""
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'thalweg.run' has no attribute {name!r}")
    value = getattr(import_module(f"thalweg.run.{where}"), name)
    globals()[name] = value
    return value
