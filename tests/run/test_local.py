"""The local executor: each rank once, whatever is launched again, changed or broken."""

import json
import os
import shutil
import signal

import pytest
import zstandard

from thalweg import run
from thalweg.core.errors import ConfigError, RunError
from thalweg.core.stats import PipelineStats
from thalweg.run import LocalPipelineExecutor
from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter


def rows_in(folder):
    """All rows below a folder, by file name."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl*")):
        data = path.read_bytes()
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data) if path.suffix == ".zst" else data
        found[str(path.relative_to(folder))] = [json.loads(line) for line in data.splitlines()]
    return found


def ids_in(folder):
    return sorted(r["id"] for rows in rows_in(folder).values() for r in rows)


def even(doc):
    return doc.metadata["n"] % 2 == 0, "odd"


@pytest.fixture
def make(tmp_path, corpus):
    """Build an executor over the corpus."""

    def build(*steps, tasks=4, workers=1, out="out", logs="log", reader=None, writer=None, **settings):
        reader = reader or JsonlReader(str(corpus))
        writer = writer or JsonlWriter(str(tmp_path / out))
        chosen = steps or (LambdaFilter(even),)
        return LocalPipelineExecutor(
            [reader, *chosen, writer], tasks=tasks, workers=workers, logging_dir=str(tmp_path / logs), **settings
        )

    return build


WANTED = sorted(f"{f}-{i}" for f in range(8) for i in range(0, 50, 2))


# D31 D42
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_documents_arrive_once_and_a_second_launch_finds_nothing_to_do(make, tmp_path, workers):
    stats = make(workers=workers).run()
    assert ids_in(tmp_path / "out") == WANTED
    assert [s.tally.to_dict()["dropped"] for s in stats] == [{}, {"odd": 200}, {}]
    # D12: an empty mark each, beside stats; D13: a complete run is free
    assert all((tmp_path / f"log/completions/{r:05d}").read_bytes() == b"" for r in range(4))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    again = make(workers=workers)
    assert again.run().to_dict() == stats.to_dict()
    assert again.get_incomplete_ranks() == []
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before
    assert not list((tmp_path / "log/attempts/g0").glob("0*"))


# D8
def test_more_tasks_than_units_complete_and_are_announced(make, tmp_path, caplog):
    stats = make(tasks=13).run()
    assert "5 of 13 tasks will have nothing to do" in caplog.text
    assert stats.ranks == 13
    assert ids_in(tmp_path / "out") == WANTED


# D14
def test_skip_completed_false_runs_everything_again(make, tmp_path):
    make().run()
    first = {p: p.stat().st_ino for p in (tmp_path / "out").iterdir()}
    make(skip_completed=False).run()
    second = {p: p.stat().st_ino for p in (tmp_path / "out").iterdir()}
    assert first.keys() == second.keys()
    assert ids_in(tmp_path / "out") == WANTED
    assert (tmp_path / "log/old/g0/completions/00000").exists()


class Breaks:
    """Fails on some ranks until a file exists."""

    def __init__(self, ranks, cure):
        self.ranks, self.cure = ranks, cure

    def __call__(self, data, rank, world_size):
        for number, doc in enumerate(data):
            if number == 5 and rank in self.ranks and not os.path.exists(self.cure):
                raise ValueError(f"rank {rank} will not")
            yield doc


# D21 D13 K43
@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_failing_ranks_leave_the_others_alone_and_only_they_run_again(make, tmp_path, workers):
    cure = str(tmp_path / "cure")

    def launch():
        return make(LambdaFilter(even), Breaks({1, 2}, cure), workers=workers).run()

    with pytest.raises(RunError, match=r"2 of 4 ranks failed, 2 are complete") as caught:
        launch()
    text = str(caught.value)
    assert "rank 00001  ValueError: rank 1 will not" in text
    assert "task_00002.log" in text
    assert sorted(caught.value.failures) == [1, 2]
    assert "rank 1 will not" in (tmp_path / "log/logs/task_00001.log").read_text()
    assert make(LambdaFilter(even), Breaks({1, 2}, cure), workers=workers).get_incomplete_ranks() == [1, 2]
    # nothing of a failed rank is visible
    assert sorted(rows_in(tmp_path / "out")) == ["00000.jsonl.zst", "00003.jsonl.zst"]
    done = (tmp_path / "out/00000.jsonl.zst").stat().st_mtime_ns
    open(cure, "w").close()
    # D28: totals over all ranks, not of this launch, and the same at every launch
    totals = [launch().to_dict()["steps"] for _ in range(2)]
    assert totals[0] == totals[1]
    assert totals[0][0]["tally"]["made"] == 400
    assert (tmp_path / "out/00000.jsonl.zst").stat().st_mtime_ns == done
    assert ids_in(tmp_path / "out") == WANTED
    # the log of the failed attempt is still there
    assert "rank 1 will not" in (tmp_path / "log/logs/task_00001.log").read_text()


# D22
@pytest.mark.slow
def test_a_killed_worker_is_one_failed_rank_and_can_be_tried_again(make, tmp_path):
    mark = tmp_path / "killed"

    def dies_once(data, rank, world_size):
        for doc in data:
            if rank == 2 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield doc

    with pytest.raises(RunError, match="rank 00002  SIGKILL"):
        make(LambdaFilter(even), dies_once, workers=2).run()
    mark.unlink()
    stats = make(LambdaFilter(even), dies_once, workers=2, retries=1).run()
    assert stats.ranks == 4
    assert ids_in(tmp_path / "out") == WANTED
    assert not list((tmp_path / "log/attempts/g0").glob("0*"))


def refuse(executor):
    with pytest.raises(RunError, match="belongs to another run") as caught:
        executor.run()
    return str(caught.value)


# D17
def test_a_changed_run_is_refused_and_the_difference_is_named(make, tmp_path, corpus):
    make().run()
    assert "tasks: 4 -> 3" in refuse(make(tasks=3))
    assert "its code changed" in refuse(make(LambdaFilter(lambda d: (d.metadata["n"] % 2 == 0, "odd"))))
    assert "limit: new" in refuse(make(reader=JsonlReader(str(corpus), limit=3)))
    assert "steps.3:JsonlWriter" in refuse(make(LambdaFilter(even), LambdaFilter(even)))
    (corpus / "8.jsonl").write_text('{"text":"more","id":"8-0","metadata":{"n":0}}\n')
    assert "input file added: 8.jsonl" in refuse(make())
    (corpus / "8.jsonl").unlink()
    content = (corpus / "7.jsonl").read_text()
    os.utime(corpus / "7.jsonl", (1, 1))
    assert "input file changed: 7.jsonl" in refuse(make())
    (corpus / "7.jsonl").unlink()
    assert "input file removed: 7.jsonl" in refuse(make())
    (corpus / "7.jsonl").write_text(content)
    # forced, it begins anew, and no part of the first run stays
    make(tasks=3, adopt=True).run()
    assert sorted(rows_in(tmp_path / "out")) == [f"0000{r}.jsonl.zst" for r in range(3)]
    assert ids_in(tmp_path / "out") == WANTED


# D18
def test_a_logging_directory_of_another_pipeline_is_refused(make):
    make().run()
    assert "steps.2:JsonlWriter.output_folder" in refuse(make(out="elsewhere"))


def test_the_same_pipeline_built_anew_is_the_same_run(make):
    def build():
        limit = 30
        return make(LambdaFilter(lambda d: d.metadata["n"] < limit))

    build().run()
    assert build().run().ranks == 4


# D19
def test_a_rerun_with_fewer_files_leaves_no_stale_part(make, tmp_path, corpus):
    def writer(size):
        return JsonlWriter(str(tmp_path / "out"), compression=None, max_file_size=size)

    make(writer=writer(500)).run()
    many = len(rows_in(tmp_path / "out"))
    (tmp_path / "out/notes.txt").write_text("mine")
    make(writer=writer(5000), adopt=True).run()
    assert len(rows_in(tmp_path / "out")) < many
    assert ids_in(tmp_path / "out") == WANTED
    assert (tmp_path / "out/notes.txt").read_text() == "mine"


# D19
def test_parts_that_an_unrecorded_run_left_under_a_ranks_names_are_removed(make, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/003_00001.jsonl.zst").write_bytes(b"old")
    (tmp_path / "out/other.jsonl.zst").write_bytes(zstandard.compress(b""))
    make().run()
    assert sorted(rows_in(tmp_path / "out")) == [*(f"0000{r}.jsonl.zst" for r in range(4)), "other.jsonl.zst"]


# D31 K43
def test_two_machines_share_a_run_and_totals_do_not_depend_on_who_merges(make, tmp_path):
    whole = make(out="whole", logs="whole_log").run()
    make(local_tasks=2).run()
    assert make().get_incomplete_ranks() == [2, 3]
    second = make(local_tasks=2, local_rank_offset=2).run()
    assert [s.tally for s in second] == [s.tally for s in whole]
    a, b = second.stats[0]["doc_len"], whole.stats[0]["doc_len"]
    assert (a.n, a.total) == (b.n, b.total)
    assert abs(a.variance - b.variance) < 1e-9
    with pytest.raises(ConfigError, match="go beyond 4 tasks"):
        make(local_tasks=3, local_rank_offset=2)


# D26
def test_statistics_are_a_fold_over_the_ranks_files(make, tmp_path):
    stats = make().run()
    parts = [json.loads((tmp_path / f"log/stats/{r:05d}.json").read_text()) for r in range(4)]
    made = sum(p["steps"][0]["tally"]["made"] for p in parts)
    assert made == stats[0].tally.made == 400
    assert PipelineStats.from_dict(json.loads((tmp_path / "log/stats.json").read_text())).to_dict() == stats.to_dict()


# D32
def test_a_dependency_runs_first_and_its_failure_stops_the_second_unless_asked(make, tmp_path):
    cure = str(tmp_path / "cure")
    first = make(Breaks({0}, cure), logs="first", out="a")

    def second(**settings):
        reader = JsonlReader(str(tmp_path / "a"))
        return make(reader=reader, logs="second", out="b", depends=first, **settings)

    with pytest.raises(RunError, match="rank 00000  ValueError"):
        second().run()
    assert not (tmp_path / "b").exists()
    second(run_on_dependency_fail=True).run()
    assert ids_in(tmp_path / "b")
    shutil.rmtree(tmp_path / "second")
    shutil.rmtree(tmp_path / "b")
    open(cure, "w").close()
    second().run()
    assert ids_in(tmp_path / "b") == WANTED


def test_a_pipeline_that_cannot_be_sent_names_the_step(make, tmp_path):
    with (
        open(tmp_path / "x", "w") as handle,
        pytest.raises(ConfigError, match=r"step 1 \(function\) cannot be sent"),
    ):
        make(lambda data, rank, world: (handle, data)[1]).run()


def test_a_run_without_a_logging_directory_is_refused():
    with pytest.raises(ConfigError, match="logging_dir is missing"):
        LocalPipelineExecutor([[]], tasks=1)


# D39
def test_ranks_start_spread_over_the_given_seconds(tmp_path, corpus, monkeypatch):
    slept = []
    monkeypatch.setattr("thalweg.run.task.time.sleep", slept.append)
    steps = [JsonlReader(str(corpus)), JsonlWriter(str(tmp_path / "out"))]
    LocalPipelineExecutor(steps, 8, 1, str(tmp_path / "log"), randomize_start_duration=60).run()
    assert len(slept) == len(set(slept)) == 8
    assert all(0 <= s <= 60 for s in slept)
    assert max(slept) - min(slept) > 5


# D39 D32
@pytest.mark.parametrize("kind", ["Local", "Slurm", "Ray", "Jobs"])
def test_every_executor_spreads_starts_and_runs_after_a_failed_dependency_when_asked(tmp_path, corpus, kind):
    if kind in {"Ray", "Jobs"}:
        pytest.importorskip({"Ray": "ray", "Jobs": "huggingface_hub"}[kind], exc_type=ImportError)
    launched = []

    class Noted(getattr(run, f"{kind}PipelineExecutor")):
        def launch(self, task, planned):
            launched.append(task.delay)

    def never(data, rank, world_size):
        raise ValueError("never")
        yield

    more = {"time": "1:00", "partition": "p"} if kind == "Slurm" else {}
    steps = [JsonlReader(str(corpus)), JsonlWriter(str(tmp_path / "out"))]
    settings = {"tasks": 2, "logging_dir": str(tmp_path / "log"), "randomize_start_duration": 7, **more}
    settings["depends"] = LocalPipelineExecutor([never], 1, 1, str(tmp_path / "first"))
    with pytest.raises(RunError, match="ValueError: never"):
        Noted(steps, **settings).run()
    assert launched == []
    Noted(steps, run_on_dependency_fail=True, **settings).run()
    assert launched == [7]
