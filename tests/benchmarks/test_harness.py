"""The benchmark harness: fresh processes, alternation, spread, machine facts, and honest failures."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

MODULE = '''
"""A benchmark of the tests."""
import os
from harness import Case, Side, Work, main

def prepare(folder, size):
    (folder / "count").write_text(str(size["n"]))

def side(tag, content=7, fail=False):
    def start(folder, size):
        n = int((folder / "count").read_text())
        def run():
            with open(os.environ["LOG"], "a") as log:
                print(tag, os.getpid(), file=log)
            if fail:
                raise ValueError("no such row: 3")
            return {"units": n, "rows skipped": 2}
        return Work(run, lambda: content)
    return start

CASES = [Case("adding up", "samples", SIDES, {"full": {"n": 40}, "smoke": {"n": 4}}, prepare)]

if __name__ == "__main__":
    main(__file__, CASES)
'''


def bench(tmp_path, sides, *words):
    module = tmp_path / "bench_of_test.py"
    module.write_text(MODULE.replace("SIDES", sides))
    env = os.environ | {
        "PYTHONPATH": str(BENCHMARKS),
        "THALWEG_BENCH_HOME": str(tmp_path / "home"),
        "LOG": str(tmp_path / "log"),
    }
    command = [sys.executable, str(module), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_sides_alternate_each_run_in_a_fresh_process(tmp_path):
    done = bench(tmp_path, '{"ours": Side(side("a")), "peer": Side(side("b"))}', "--rounds", "3", "--json")
    assert done.returncode == 0, done.stderr
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    runs = [log[i] for i in range(0, len(log), 2)]  # warm-up and measurement share a process
    assert [tag for tag, _ in runs] == ["a", "b", "b", "a", "a", "b"]
    assert all(log[i] == log[i + 1] for i in range(0, len(log), 2))
    assert len({pid for _, pid in runs}) == 6


def test_a_report_has_medians_spread_machine_versions_and_commit(tmp_path):
    done = bench(tmp_path, '{"ours": Side(side("a")), "peer": Side(side("b"))}', "--rounds", "3", "--json")
    report = json.loads(done.stdout)
    assert {"cpu", "cores", "memory_gib", "python"} <= report["machine"].keys()
    assert len(report["commit"]) >= 7
    (case,) = report["cases"]
    ours, peer = case["sides"].values()
    middle, low, high = ours["rate"]
    rates = sorted(run["rate"] for run in ours["runs"])
    assert [low, middle, high] == rates
    ratios = sorted(a["rate"] / b["rate"] for a, b in zip(ours["runs"], peer["runs"], strict=True))
    assert peer["ours_over_it"] == [ratios[1], ratios[0], ratios[2]]
    assert all(run["cpu_s"] >= 0 and run["units"] == 40 for run in ours["runs"])
    assert ours["figures"] == {"rows skipped": [2, 2, 2]}
    kept = list((tmp_path / "home" / "results").glob("*.json"))
    assert [json.loads(path.read_text()) for path in kept] == [report]


def test_smoke_runs_small_sizes_once_and_keeps_nothing(tmp_path):
    done = bench(tmp_path, '{"ours": Side(side("a"))}', "--smoke")
    assert done.returncode == 0, done.stderr
    assert "smoke" in done.stdout
    assert "samples/s" in done.stdout
    assert not (tmp_path / "home" / "results").exists()


def test_different_contents_make_the_run_fail_and_say_so(tmp_path):
    done = bench(tmp_path, '{"ours": Side(side("a", 7)), "peer": Side(side("b", 8))}', "--smoke")
    assert done.returncode == 1
    assert "DIFFERENT contents" in done.stdout


def test_a_side_that_fails_shows_its_error_and_the_others_still_run(tmp_path):
    done = bench(tmp_path, '{"ours": Side(side("a")), "peer": Side(side("b", fail=True))}', "--smoke")
    assert done.returncode == 1
    assert "ValueError: no such row: 3" in done.stdout
    assert "samples/s" in done.stdout


def test_a_peer_without_its_environment_is_named_in_smoke_and_never_replaced(tmp_path):
    done = bench(tmp_path, '{"ours": Side(side("a")), "peer": Side(side("b"), ("click==0.0.1",))}', "--smoke")
    assert done.returncode == 0, done.stderr
    assert "not run: no environment with click==0.0.1" in done.stdout
    assert "b " not in (tmp_path / "log").read_text()


def test_smoke_uses_this_interpreter_where_it_has_the_pinned_versions(tmp_path):
    sides = f'{{"ours": Side(side("a")), "peer": Side(side("b"), ("click=={version("click")}",))}}'
    done = bench(tmp_path, sides, "--smoke")
    assert done.returncode == 0, done.stderr
    assert "not run" not in done.stdout


def test_a_requirement_without_a_pin_is_refused(tmp_path):
    done = bench(tmp_path, '{"ours": Side(side("a")), "peer": Side(side("b"), ("click>=8",))}', "--rounds", "1")
    assert done.returncode == 1
    assert "must be pinned as name==version: click>=8" in done.stdout


def test_an_unknown_case_names_those_that_exist(tmp_path):
    done = bench(tmp_path, '{"ours": Side(side("a"))}', "--smoke", "--only", "multiplying")
    assert done.returncode == 2
    assert "adding up" in done.stderr


def test_cpu_seconds_count_workers_that_are_still_running(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import machine

    spin = "import sys\nfor i in range(3_000_000): pass\nprint('x', flush=True); sys.stdin.read()"
    before = machine.cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout.readline() == b"x\n"
        during = machine.cpu_seconds()
        worker.stdin.close()
    assert during > before


@pytest.mark.slow
def test_a_full_run_makes_the_peers_environment_from_its_pins(tmp_path):
    sides = '{"ours": Side(side("a")), "peer": Side(side("b"), ("toolz==1.0.0",))}'
    done = bench(tmp_path, sides, "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "home" / "venvs" / "peer" / ".ready").read_text().splitlines()[1:] == ["toolz==1.0.0"]
    assert "making the environment of peer" in done.stderr
