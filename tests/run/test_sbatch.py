"""What is submitted to a cluster, by a stub of `sbatch` that writes down what it was given."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core.errors import RunError
from thalweg.run import LocalPipelineExecutor, SlurmPipelineExecutor
from thalweg.run.sbatch import arrays, ranks_of_element
from thalweg.steps import JsonlReader, JsonlWriter

STUB = """#!/usr/bin/env python3
import json, os, sys
log = os.environ["STUB_LOG"]
calls = [json.loads(line) for line in open(log)] if os.path.exists(log) else []
script = sys.argv[-1]
calls.append({"id": str(101 + len(calls)), "args": sys.argv[1:-1], "script": open(script).read(), "path": script})
open(log, "a").write(json.dumps(calls[-1]) + "\\n")
print("Submitted batch job", calls[-1]["id"])
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    path = tmp_path / "bin/sbatch"
    path.parent.mkdir()
    path.write_text(STUB)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "calls"))
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)

    def calls():
        log = tmp_path / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    return calls


@pytest.fixture
def make(tmp_path, corpus):
    def build(tasks, logs="log", out="out", **settings):
        steps = [JsonlReader(str(corpus)), JsonlWriter(str(tmp_path / out))]
        settings = {"time": "01:00:00", "partition": "cpu", **settings}
        return SlurmPipelineExecutor(steps, tasks, logging_dir=str(tmp_path / logs), **settings)

    return build


def option(call, name):
    return next((a.partition("=")[2] for a in call["args"] if a.startswith(f"--{name}=")), None)


def mark(tmp_path, ranks, tasks):
    for rank in range(tasks):
        if rank not in ranks:
            (tmp_path / f"log/completions/{rank:05d}").touch()


# D34 K44
@pytest.mark.parametrize(
    ("tasks", "per_job", "sizes"),
    [
        (999, 1, [999]),
        (1000, 1, [1000]),
        (1001, 1, [1000, 1]),
        (2000, 1, [1000, 1000]),
        (2000, 3, [667]),
        (20_000, 10, [1000, 1000]),
    ],
)
def test_arrays_fit_the_clusters_limit_and_the_merge_depends_on_all_of_them(make, stub, tasks, per_job, sizes):
    executor = make(tasks, max_array_size=1000, tasks_per_job=per_job)
    executor.run()
    *submitted, merge = stub()
    assert [option(c, "array") for c in submitted] == [f"0-{n - 1}" for n in sizes]
    offsets = [int(option(c, "export").rpartition("=")[2]) for c in submitted]
    ranks = json.loads(next(executor.logging_dir.glob("launches/*/ranks_to_run.json")).read_text())
    ran = [
        r for o, n in zip(offsets, sizes, strict=True) for e in range(n) for r in ranks_of_element(ranks, e, o, per_job)
    ]
    assert ran == list(range(tasks))
    # D36: it runs however the arrays end, and is not left in the queue for ever
    assert option(merge, "dependency") == ":".join(["afterany", *(c["id"] for c in submitted)])
    assert option(merge, "kill-on-invalid-dep") == "yes"
    assert (executor.job_ids, executor.merge_job_id) == ([c["id"] for c in submitted], merge["id"])
    chained = [option(c, "dependency") for c in submitted]
    assert chained == [None, *(f"afterany:{c['id']}" for c in submitted[:-1])]


# D33 K44
def test_only_unfinished_ranks_are_submitted_under_their_own_numbers(make, stub, tmp_path):
    make(2000, max_array_size=1000).run()
    mark(tmp_path, {5, 1500}, 2000)
    executor = make(2000, max_array_size=1000, workers=40)
    executor.run()
    array, merge = stub()[3:]
    assert option(array, "array") == "0-1%40"
    home = os.path.dirname(array["path"])
    assert json.loads(Path(home, "ranks_to_run.json").read_text()) == [5, 1500]
    assert f"rank {home}/executor.pik" in array["script"]
    assert "--finish" in merge["script"]
    # the first launch's list is its own: elements of it that still wait run what they were meant to
    assert len(list((tmp_path / "log/launches").iterdir())) == 2


# D38 K44
def test_a_finished_run_submits_nothing(make, stub, tmp_path):
    make(3).run()
    mark(tmp_path, set(), 3)
    executor = make(3)
    before = len(stub())
    executor.run()
    assert (len(stub()), executor.job_id) == (before, "-1")
    follower = make(2, logs="log2", out="out2", depends=executor)
    follower.run()
    assert option(stub()[-2], "dependency") is None


# D38 D32
def test_dependencies_are_submitted_first_and_stay_out_of_the_pickle(make, stub):
    first = make(1500, logs="a", out="a", max_array_size=1000)
    second = make(3, logs="b", out="b", depends=first, depends_job_id="77")
    second.run()
    a0, a1, a_merge, b, b_merge = stub()
    assert option(b, "dependency") == f"afterok:77,afterok:{a_merge['id']}"
    assert option(a_merge, "dependency") == f"afterany:{a0['id']}:{a1['id']}"
    assert option(b_merge, "dependency") == f"afterany:{b['id']}"
    assert second._without_the_chain().depends is None
    third = make(3, logs="c", out="c", depends=first, run_on_dependency_fail=True)
    third.run()
    assert option(stub()[-2], "dependency") == f"afterany:{a_merge['id']}"
    assert len(stub()) == 7  # the first was not submitted again


def test_a_local_dependency_is_run_before_anything_is_submitted(make, stub, tmp_path, corpus):
    local = LocalPipelineExecutor(
        [JsonlReader(str(corpus)), JsonlWriter(str(tmp_path / "x"))], 2, 1, str(tmp_path / "l")
    )
    make(2, depends=local).run()
    assert local.get_incomplete_ranks() == []
    assert len(stub()) == 2


# D39
def test_what_is_asked_for_stands_in_the_script(make, stub, tmp_path):
    make(
        2,
        cpus_per_task=3,
        mem_per_cpu_gb=1.5,
        gpus_per_task=1,
        qos="high",
        job_name="mine",
        mail_user="a@b.c",
        sbatch_args={"signal": "USR1@90", "exclusive": True},
        srun_args={"cpu-bind": "none"},
        env_command="module load python",
        slurm_logs_folder=str(tmp_path / "elsewhere"),
        stagger_max_array_jobs=0,
        randomize_start_duration=60,
    ).run()
    text = stub()[0]["script"]
    for line in (
        "--job-name=mine", "--partition=cpu", "--time=01:00:00", "--cpus-per-task=3", "--mem-per-cpu=1536M",
        "--gpus-per-task=1", "--qos=high", "--mail-user=a@b.c", "--mail-type=ALL", "--signal=USR1@90", "--exclusive",
        "--requeue", "--open-mode=append", f"--output={tmp_path}/elsewhere/%A_%a.out",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in text
    assert "\nmodule load python\n" in text
    assert "exec srun --cpu-bind=none python -m thalweg.cli rank " in text
    conda = make(2, logs="l2", out="o2", condaenv="train", with_srun=False)
    conda.run()
    assert "conda activate train\nexec python -m thalweg.cli rank" in stub()[2]["script"]
    venv = make(2, logs="l3", out="o3", venv_path="/venv/bin/activate")
    venv.run()
    assert "source /venv/bin/activate\n" in stub()[4]["script"]


def test_a_refusal_of_the_cluster_is_the_error(make, stub, tmp_path):
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\necho invalid partition >&2; exit 1\n")
    with pytest.raises(RunError, match="sbatch refused: invalid partition"):
        make(2).run()


# D35
@given(st.integers(1, 3000), st.integers(1, 7), st.integers(1, 500))
def test_every_rank_belongs_to_exactly_one_element(tasks, per_job, limit):
    ranks = list(range(0, 2 * tasks, 2))
    ran = []
    for offset, size in arrays(tasks, per_job, limit):
        assert size <= limit
        ran += [r for e in range(size) for r in ranks_of_element(ranks, e, offset, per_job)]
    assert ran == ranks
