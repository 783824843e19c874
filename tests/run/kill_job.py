"""The job that the kill loops kill: `python kill_job.py IN OUT LOG TASKS WORKERS WRITER [ray]`."""

import logging
import os
import sys
import time

from thalweg.run import LocalPipelineExecutor
from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter, RecordsWriter


def keep(doc):
    while os.path.exists(doc.metadata.get("hold", "")):
        time.sleep(0.01)  # more kills are to come: the job must not be done before them
    if doc.metadata["n"] % 25 == 0:
        time.sleep(0.002)  # long enough to be hit anywhere
    return doc.metadata["n"] % 3 > 0


def sample(data, rank, world_size):
    import numpy as np

    for doc in data:
        yield {"input_ids": np.frombuffer(doc.text.encode(), np.uint8).astype(np.int32), "id": doc.id}


def pipeline(source, out, writer):
    first = [JsonlReader(source), LambdaFilter(keep)]
    if writer == "records":
        return [*first, sample, RecordsWriter(out)]
    if writer == "datatrove":
        from datatrove.pipeline.writers import JsonlWriter as Theirs

        return [*first, Theirs(out, compression=None)]
    return [*first, JsonlWriter(out, compression=None, max_file_size=20_000)]


if __name__ == "__main__":
    source, out, log, tasks, workers, writer = sys.argv[1:7]
    logging.basicConfig(level=logging.WARNING)
    steps = pipeline(source, out, writer)
    if sys.argv[7:] == ["ray"]:
        from thalweg.run import RayPipelineExecutor

        settings = {"mem_per_cpu_gb": 0.1, "tasks_per_job": 2, "logging_dir": log}
        RayPipelineExecutor(steps, int(tasks), int(workers), **settings).run()
    else:
        LocalPipelineExecutor(steps, int(tasks), int(workers), log).run()
