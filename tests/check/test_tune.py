"""Tuning: from low upward, one past the best, within memory, and near the best of the whole grid."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import thalweg as tw
from thalweg.check import tune as room
from thalweg.check.climb import Seen, climb
from thalweg.check.memory import available, resident
from thalweg.check.tune import Setting, applied, tune, write_settings
from thalweg.cli import cli
from thalweg.core.errors import ConfigError, ThalwegError


def double(sample):
    return {"input_ids": [2 * i for i in sample["input_ids"]]}


FEED = tw.from_dataset([{"input_ids": [1, 2, 3]}] * 64).map(double).batch(4)


def curve(rates):
    tried = []

    def measure(value):
        tried.append(value)
        return Seen(value, rates[value], 100 * value)

    return tried, measure


def test_a_sweep_goes_upward_and_ends_one_past_the_best():  # E26
    tried, measure = curve({1: 10, 2: 19, 4: 30, 8: 29, 16: 50})
    found = climb([1, 2, 4, 8, 16], measure)
    assert tried == [1, 2, 4, 8]
    assert found.best.value == 4
    assert found.ended == "past the best"


def test_of_nearly_equal_settings_the_lowest_is_taken_and_a_fall_is_seen():
    _, measure = curve({1: 10, 2: 10.2, 4: 10.3})
    found = climb([1, 2, 4], measure)
    assert found.best.value == 1
    assert not found.falls
    _, measure = curve({1: 10, 2: 8})
    assert climb([1, 2], measure).falls


def test_a_setting_that_takes_too_much_memory_ends_the_sweep_and_is_not_taken():  # E28
    tried, measure = curve({1: 10, 2: 20, 4: 40, 8: 80})
    found = climb([1, 2, 4, 8], measure, memory=250)
    assert tried == [1, 2, 4]
    assert found.best.value == 2
    assert "memory" in found.ended


def test_time_that_is_up_ends_a_sweep_after_its_first_value():
    tried, measure = curve({1: 10, 2: 20})
    assert climb([1, 2], measure, left=lambda: False).ended == "time is up"
    assert tried == [1]


def model(kind, best, rng):
    """Rates of a machine as they are seen: work that waits, that holds the interpreter, or that is cheap."""
    noise = {}

    def rate(setting):
        n = max(setting.workers, 1)
        if kind == "waits":
            got = min(n, best) if setting.mode != "inline" else 1.0
            got *= 0.9 if setting.mode == "processes" else 1.0
        elif kind == "python":
            got = {"inline": 1.0, "threads": 0.95, "processes": float(min(n, best))}[setting.mode]
        else:
            got = 1.0 if setting.mode == "inline" else 0.4
        got *= 1.0 if n <= best else 0.9 ** (n / best)
        return got * noise.setdefault(setting, float(rng.uniform(0.99, 1.01)))

    return rate


# E26 E27
@pytest.mark.parametrize("kind", ["waits", "python", "cheap"])
@pytest.mark.parametrize("best", [2, 4, 8])
def test_tuning_reaches_95_percent_of_the_best_of_the_whole_grid(kind, best, monkeypatch):
    rate = model(kind, best, np.random.default_rng(best))
    monkeypatch.setattr(room, "usable_cpus", lambda: 8)
    monkeypatch.setattr(
        room, "_measured", lambda feed, told, setting, train, *, steps, seconds: Seen(setting, rate(setting), 1)
    )
    found = tune(FEED, seconds=60)
    grid = [Setting()] + [Setting(m, n) for m in ("threads", "processes") for n in (1, 2, 4, 8, 16)]
    assert rate(found.best) >= 0.95 * max(map(rate, grid))
    assert found.tried[0].value == Setting()
    if kind == "cheap":
        assert found.best.mode == "inline"


# E28
@pytest.mark.parametrize(("told", "there"), [(250, 10_000), (None, 312), (None, None)])
def test_a_setting_that_took_more_memory_than_allowed_or_left_is_never_chosen(told, there, monkeypatch):
    """Four fifths of what is left bound a search that is told nothing; where that cannot be known, nothing does."""
    monkeypatch.setattr(room, "usable_cpus", lambda: 8)
    monkeypatch.setattr(room, "available", lambda: there)

    def measured(feed, how, setting, train, *, steps, seconds):
        return Seen(setting, 1.0 + setting.workers, 100 * setting.workers)

    monkeypatch.setattr(room, "_measured", measured)
    found = tune(FEED, seconds=60, max_memory=told)
    assert found.best.workers == (16 if told is None and there is None else 2)
    assert any(s.memory > 250 for s in found.tried)


def test_a_search_runs_the_real_loop_and_says_every_trial():
    found = tune(FEED, seconds=1, steps=4)
    assert found.tried[0].value.mode == "inline"
    assert all(s.rate > 0 and s.memory > 10e6 for s in found.tried)
    assert str(found.best) in str(found)
    assert [b["input_ids"].tolist() for b in tw.Loader(applied(FEED, found.best), return_tensors="np")] == [
        b["input_ids"].tolist() for b in tw.Loader(FEED, return_tensors="np")
    ]


def test_what_was_found_is_written_into_a_file_of_settings_and_reads_back(tmp_path):
    (tmp_path / "my_code_of_tune.py").write_text("def double(s):\n    return s\n")
    (tmp_path / "raw.jsonl").write_text('{"input_ids": [1, 2]}\n' * 8)
    file, out = tmp_path / "data.yaml", tmp_path / "tuned.yaml"
    file.write_text(
        f"train:\n  - from_files: {tmp_path}/raw.jsonl\n  - map: {{fn: 'my_code_of_tune:double'}}\n"
        "  - batch: {size: 2}\nloader: {train: {seed: 5}}\n"
    )
    found = room.Tuned(str(file), Setting("threads", 4, 8), [Seen(Setting("threads", 4, 8), 1.0)])
    write_settings(found, str(file), out)
    data = yaml.safe_load(out.read_text())
    assert data["loader"]["train"] == {"seed": 5, "prefetch": 8}
    assert data["train"][1]["map"] == {"fn": "my_code_of_tune:double", "mode": "threads", "workers": 4}
    feed = tw.load_config(out).feed("train")
    assert (feed.stages[1].mode, feed.stages[1].workers) == ("threads", 4)
    write_settings(found, str(file), out, ["train.batch.size=16"])
    assert yaml.safe_load(out.read_text())["train"][2]["batch"] == {"size": 16}
    write_settings(found, "data.py:feed", out)
    assert yaml.safe_load(out.read_text()) == found.settings()


WATCHED = """
import os, time
import numpy as np
from thalweg.check.memory import Peak, resident
before = resident(os.getpid())
with Peak(os.getpid()) as peak:
    held = np.ones(40_000_000, np.uint8)
    end = time.monotonic() + 60
    while peak.most < before + 30e6 and time.monotonic() < end:
        time.sleep(0.01)
    kept = held[0]
del held
print(before, peak.most, kept)
"""


def test_memory_of_a_process_is_seen_while_a_block_runs():  # E28
    if available() is None:
        pytest.skip("no /proc here")
    done = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=True)
    before, most, _ = map(int, done.stdout.split())
    assert before > 10e6
    assert before + 30e6 <= most < before + 200e6


def test_memory_of_children_counts():  # E28
    if available() is None:
        pytest.skip("no /proc here")
    hold = "import sys; held = bytearray(b'x') * 60_000_000; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline()
    with_child = resident(os.getpid())
    alone = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    child.communicate()
    assert with_child >= alone + 50e6


def test_the_command_tunes_and_writes(tmp_path):
    file = tmp_path / "feed_of_tune.py"
    file.write_text("import thalweg as tw\nfeed = tw.from_dataset([{'input_ids': [1]}] * 40).map(dict).batch(2)\n")
    out = tmp_path / "best.yaml"
    done = CliRunner().invoke(cli, ["tune", f"{file}:feed", "--seconds", "1", "--steps", "2", "--write", str(out)])
    assert done.exit_code == 0, done.output
    assert "best: " in done.stdout
    assert set(yaml.safe_load(out.read_text())) == {"map", "loader"}


def test_what_fails_inline_is_the_error_of_the_search_and_an_interrupt_ends_it():
    rows = [{"input_ids": [1, 2], "text": "x"} for _ in range(20)]
    with pytest.raises(ThalwegError, match="column 'text' can't be collated"):
        tune(tw.from_dataset(rows).map(dict).batch(2), seconds=1)

    def interrupted(sample):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(tw.from_dataset(rows).map(interrupted).batch(2), seconds=1)


def test_a_feed_without_a_function_says_so():
    with pytest.raises(ConfigError, match="nothing to tune"):
        tune(tw.from_dataset([{"input_ids": [1]}]).batch(1))
