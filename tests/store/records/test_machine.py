"""A record set behaves like a Python list through write, append, merge, crash, reopen and verify."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from records_rows import equal

import thalweg as tw
from thalweg.core.errors import RecordsError
from thalweg.store.records import PartWriter, declare_parts, merge_parts
from thalweg.store.records.place import files_of, read_manifest

tokens = st.lists(st.integers(0, 70_000), max_size=5).map(lambda v: np.array(v, np.int32))
row = st.fixed_dictionaries(
    {"input_ids": tokens},
    optional={"id": st.text("xyz", max_size=3), "n": st.none() | st.integers() | st.text("ab", max_size=2)},
)
some = st.lists(row, max_size=5)


def die_after(steps):
    """Let this process die by kill -9 before its next change to a directory, after `steps` of them."""
    left = [steps]

    def counted(call):
        def run(*args, **options):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args, **options)

        return run

    for name in ("link", "rename", "unlink", "open", "write", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    for name in ("rename", "unlink", "open", "mkdir"):
        setattr(Path, name, counted(getattr(Path, name)))


class RecordsAsList(RuleBasedStateMachine):
    """Keeps a list beside the set and compares them after every step."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "set"
        self.model = None
        self.history = {}
        self.parts = None

    @initialize(rows=some)
    def begin(self, rows):
        self._write(rows)
        self.model = list(rows)
        self.history = {0: list(rows)}

    def _write(self, rows, **options):
        with tw.create_records(self.path, sync=False, shard_bytes=600, **options) as w:
            for r in rows:
                w.write(r)

    @precondition(lambda self: self.parts is None)
    @rule(rows=some)
    def append(self, rows):
        self._write(rows, append=True)
        self.model = self.model + rows
        self.history[tw.open_records(self.path).generation] = list(self.model)

    @precondition(lambda self: self.parts is None)
    @rule(rows=some)
    def overwrite(self, rows):
        self._write(rows, overwrite=True)
        self.model = list(rows)
        self.history = {tw.open_records(self.path).generation: list(rows)}

    @rule(rows=some)
    def fail_while_writing(self, rows):
        w = tw.create_records(self.path, sync=False, append=True)
        for r in rows:
            w.write(r)
        w.__exit__(ValueError, ValueError(), None)

    @precondition(lambda self: self.parts is None)
    @rule(rows=some, steps=st.integers(0, 12), replace=st.booleans())
    def crash(self, rows, steps, replace):
        """A writer dies after some number of changes to the directory: the old set is there, or the new one."""
        child = os.fork()
        if child == 0:
            die_after(steps)
            self._write(rows, append=not replace, overwrite=replace)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        rec = tw.open_records(self.path)
        if rec.generation > max(self.history):
            self.model = list(rows) if replace else self.model + rows
            self.history = {} if replace else self.history
            self.history[rec.generation] = list(self.model)
        else:
            assert os.WIFSIGNALED(status)
        with tw.create_records(self.path, sync=False, append=True) as w:
            w.__exit__(ValueError, ValueError(), None)  # the next start cleans up
        left = {p.name for p in self.path.iterdir()}
        assert not [name for name in left if name.startswith(".")]
        manifests = [read_manifest(self.path / name) for name in left if name.startswith("manifest.")]
        named = set().union(*map(files_of, manifests))
        assert {name for name in left if name.startswith("data-")} == {n for n in named if n.startswith("data-")}

    @precondition(lambda self: self.parts is None)
    @rule(parts=st.lists(some, min_size=1, max_size=3))
    def declare(self, parts):
        declare_parts(self.path, len(parts), append=True)
        self.parts = dict(enumerate(parts))
        self.done = []

    @precondition(lambda self: self.parts and len(self.done) < len(self.parts))
    @rule(data=st.data())
    def write_part(self, data):
        number = data.draw(st.sampled_from([k for k in self.parts if k not in self.done]))
        with PartWriter(self.path, number, len(self.parts), append=True, sync=False, shard_bytes=600) as w:
            for r in self.parts[number]:
                w.write(r)
        self.done.append(number)

    @precondition(lambda self: self.parts is not None)
    @rule()
    def merge(self):
        if len(self.done) < len(self.parts):
            with pytest.raises(RecordsError, match="missing"):
                merge_parts(self.path)
            return
        merge_parts(self.path)
        self.model = self.model + [r for k in sorted(self.parts) for r in self.parts[k]]
        self.history[tw.open_records(self.path).generation] = list(self.model)
        self.parts = None

    @rule(data=st.data())
    def gather(self, data):
        rec = tw.open_records(self.path)
        n = len(self.model)
        order = data.draw(st.lists(st.integers(0, max(n - 1, 0)), max_size=8 if n else 0))
        if "input_ids" in rec.columns:
            got = rec.read(order, ["input_ids"])["input_ids"]
            assert [g.tolist() for g in got] == [self.model[i]["input_ids"].tolist() for i in order]
        assert rec.ids(order) == [self.model[i].get("id", str(i)) for i in order]

    @rule()
    def verify_everything(self):
        tw.open_records(self.path, verify=True).verify("full")

    @invariant()
    def is_the_list(self):
        if self.model is None:
            return
        rec = tw.open_records(self.path)
        assert len(rec) == len(self.model)
        assert equal(list(rec), list(self.model))
        for number, rows in self.history.items():
            assert len(tw.open_records(self.path, generation=number)) == len(rows)

    def teardown(self):
        shutil.rmtree(self.folder)


RecordsAsList.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestRecordsAsList = pytest.mark.slow(RecordsAsList.TestCase)


# Writes rows numbered from a start until it is killed. A new generation holds all of a call's rows or none.
WORK = """
import sys, os, signal
import numpy as np
from thalweg.store.records import PartWriter, create_records, merge_parts
from thalweg.core.errors import RecordsError
path, mode, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(seed)
rows = [{"input_ids": np.full(int(rng.integers(0, 50)), k % 30000, np.int32), "k": k} for k in range(400)]
print("ready", flush=True)
while True:
    if mode == "append":
        with create_records(path, append=True, shard_bytes=4000, sync=False) as w:
            for r in rows:
                w.write(r)
    else:
        part = int(mode)
        try:
            with PartWriter(path, part, 3, shard_bytes=4000, sync=False, append=True) as w:
                for r in rows:
                    w.write({**r, "part": part})
            merge_parts(path)
        except RecordsError:
            pass
"""


def spawn(path, mode, seed):
    return subprocess.Popen([sys.executable, "-c", WORK, str(path), mode, str(seed)], stdout=subprocess.PIPE, text=True)


def kill_later(process, delay):
    """Kill after `delay` seconds of work; the place is where the clock falls, which is the point."""
    process.stdout.readline()
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait()
    process.stdout.close()


def kill_rounds(path, rounds, seed):
    rng = np.random.default_rng(seed)
    with tw.create_records(path, sync=False) as w:
        w.write({"k": -1})
    for k in range(rounds):
        kill_later(spawn(path, "append", seed + k), float(rng.uniform(0, 0.25)))
        rec = tw.open_records(path)
        assert (len(rec) - 1) % 400 == 0
        assert [r["k"] for r in rec][1:] == list(range(400)) * ((len(rec) - 1) // 400)
        rec.verify("full")
        with tw.create_records(path, sync=False, append=True):
            pass  # the next start cleans up
        left = [p.name for p in path.iterdir() if p.name.endswith((".tmp", ".life"))]
        assert left == []
        named = {s.name for g in range(rec.generation + 2) for s in _shards(path, g)}
        assert {p.name for p in path.glob("*.arrow")} == named


def _shards(path, generation):
    from thalweg.store.records.place import manifest_path, read_manifest

    return read_manifest(manifest_path(path, generation)).shards


def kill_parts(path, rounds, seed):
    rng = np.random.default_rng(seed)
    for k in range(rounds):
        target = path / str(k)
        running = [spawn(target, str(p), seed + 10 * k + p) for p in range(3)]
        for process in running:
            kill_later(process, float(rng.uniform(0, 0.2)))
        for p in range(3):
            with PartWriter(target, p, 3, shard_bytes=4000, sync=False, append=True) as w:
                pass_rows(w, p, seed + 10 * k + p)
        merge_parts(target)
        rec = tw.open_records(target)
        expected = [(p, i) for p in range(3) for i in range(400)]
        assert len(rec) % len(expected) == 0
        assert [(r["part"], r["k"]) for r in rec] == expected * (len(rec) // len(expected))
        rec.verify("full")


def pass_rows(w, part, seed):
    rng = np.random.default_rng(seed)
    for k in range(400):
        w.write({"input_ids": np.full(int(rng.integers(0, 50)), k % 30000, np.int32), "k": k, "part": part})


# E38
@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_set_or_the_new_one(tmp_path):
    kill_rounds(tmp_path / "set", 3, seed=11)


# E38 E41
@pytest.mark.slow
def test_killed_parallel_writers_lose_and_double_nothing(tmp_path):
    kill_parts(tmp_path, 3, seed=12)


@pytest.mark.soak
def test_two_hundred_kills_lose_and_double_nothing(tmp_path):
    kill_rounds(tmp_path / "set", 100, seed=100)
    kill_parts(tmp_path / "parts", 100, seed=200)
