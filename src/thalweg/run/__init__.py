"""Executors: the same pipeline on many ranks, on one machine or a cluster. Names load on first use."""

from typing import TYPE_CHECKING

from thalweg.core.lazy import lazy_names

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

__getattr__ = lazy_names(__name__, _WHERE)
