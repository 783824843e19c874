"""How one attempt's work becomes visible: each rule whose lack killed a simpler design, on both kinds of store."""

import json
from pathlib import Path

import pytest

from thalweg.core.errors import RunError
from thalweg.run.logging_dir import Made, logging_dir_at
from thalweg.run.objects import Objects

RECORD = {"manifest": {"tasks": 1}, "tasks": 1, "outside": [], "fresh_outputs": True}

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


class World:
    """A logging directory and an output folder of one kind, seen from outside."""

    def __init__(self, log, out, options, server=None):
        self.home = logging_dir_at((log, options) if options else log)
        self.out, self.options, self.server = out, options, server
        self.folders = {out: options} if options else {}

    def start(self, generation=0, **changes):
        return self.home.start(generation, RECORD | changes, self.folders)

    def attempt(self, run, files, who="mine", patterns=None):
        """Make an attempt that wrote these files."""
        attempt = run.begin(0)
        stage = Path(run.stage(attempt, 0, self.out))
        for name, content in files.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_text(content)
        run.seal(attempt, Made({self.out: str(stage)}, {}, {"who": who}, patterns or {}))
        return attempt

    def seen(self):
        """What is among the outputs."""
        if self.options:
            store = Objects(self.out, self.options)
            return {name: store.get(name).decode() for name, _, _ in store.names("")}
        out = Path(self.out)
        return {str(p.relative_to(out)): p.read_text() for p in out.rglob("*") if p.is_file()}

    def put(self, name, text):
        """Let somebody else write an output."""
        if self.options:
            Objects(self.out, self.options).put(name, text.encode())
        else:
            Path(self.out).mkdir(exist_ok=True)
            (Path(self.out) / name).write_text(text)

    def left(self, run):
        """What attempts have left: local directories and uploads."""
        uploads = list(Objects(self.out, self.options).uploads()) if self.options else []
        return sorted(run.begun()), uploads


def late(act):
    """Do what comes too late: (its result, None), or (None, the refusal), which must say that it is fenced."""
    try:
        return act(), None
    except RunError as error:
        if "begun this run anew" not in str(error):
            raise
        return None, error


@pytest.fixture(params=["posix", "s3", "posix with outputs on s3"])
def world(request, tmp_path, monkeypatch):
    (tmp_path / "log").mkdir()
    if request.param == "posix":
        return World(str(tmp_path / "log"), str(tmp_path / "out"), None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    url, options = request.getfixturevalue("bucket")
    server = request.getfixturevalue("s3_server")
    if request.param == "s3":
        return World(f"{url}/log", f"{url}/out", options, server)
    made = World(str(tmp_path / "log"), f"{url}/out", None, server)
    made.options, made.folders = options, {made.out: options}
    return made


@pytest.fixture
def run(world):
    return world.start()


# D12
def test_files_appear_then_stats_then_the_empty_mark_and_nothing_is_left(world, run):
    attempt = world.attempt(run, {"a": "one", "b/c": "two"})
    assert world.seen() == {}
    assert run.commit(attempt)
    assert world.seen() == {}
    run.publish(0)
    assert world.seen() == {"a": "one", "b/c": "two"}
    assert json.loads(world.home.read("stats/00000.json")) == {"who": "mine"}
    assert world.home.read("completions/00000") == b""
    assert run.marked() == world.home.marked() == {0}
    assert world.left(run) == ([], [])


def test_an_attempt_without_files_and_one_with_an_empty_file_are_complete(world, run):
    assert run.commit(world.attempt(run, {"empty": ""}))
    run.publish(0)
    assert world.seen() == {"empty": ""}


def test_a_commit_whose_answer_was_lost_is_recognised_as_ones_own(world, run):
    attempt = world.attempt(run, {"a": "one"})
    assert run.commit(attempt)
    assert run.commit(attempt)  # the retry reads back its own id: it must not drop its files
    run.publish(0)
    assert world.seen() == {"a": "one"}


# D16
def test_of_two_attempts_one_counts_with_its_own_files_and_stats_whoever_publishes(world, run):
    a = world.attempt(run, {"a": "from a", "a2": "only a"}, "a")
    other = world.home.join(0, run.record, world.folders)  # another process
    b = world.attempt(other, {"a": "from b"}, "b")
    assert a.path != b.path
    assert other.commit(b)
    assert not run.commit(a)
    run.abandon(a)
    run.publish(0)  # by the loser
    assert world.seen() == {"a": "from b"}
    assert json.loads(world.home.read("stats/00000.json")) == {"who": "b"}
    run.sweep()
    assert world.left(run) == ([], [])


# D16
def test_an_attempt_that_wakes_after_its_rank_is_done_changes_nothing(world, run):
    sleeper = world.attempt(run, {"a": "old", "z": "old"})
    other = world.home.join(0, run.record, world.folders)
    assert other.commit(world.attempt(other, {"a": "new"}))
    other.publish(0)
    other.sweep()  # its directory and its uploads have been taken away
    won, said = late(lambda: run.commit(sleeper))
    if said is None:
        assert not won
        run.abandon(sleeper)
        run.publish(0)
    assert world.seen() == {"a": "new"}
    assert json.loads(world.home.read("stats/00000.json")) == {"who": "mine"}


def test_a_file_of_equal_size_from_an_earlier_run_is_replaced(world, run):
    world.put("a", "OLD")
    assert run.commit(world.attempt(run, {"a": "new"}))
    run.publish(0)
    assert world.seen() == {"a": "new"}


# D19
def test_stale_parts_of_an_earlier_run_go_and_what_is_not_ours_stays(world):
    run = world.start(fresh_outputs=False)
    for name in ("000_00000.txt", "002_00000.txt", "000_00001.txt", "other.txt"):
        world.put(name, "OLD")
    patterns = {world.out: [r"(\d{3,}_)?00000\.txt"]}
    assert run.commit(world.attempt(run, {"000_00000.txt": "new"}, patterns=patterns))
    run.publish(0)
    assert world.seen() == {"000_00000.txt": "new", "000_00001.txt": "OLD", "other.txt": "OLD"}


# D16 D17
def test_a_new_generation_stops_every_late_act_of_the_old_one(world, run):
    committed = world.attempt(run, {"a": "old", "gone": "old"})
    assert run.commit(committed)
    newer = world.start(1, manifest={"tasks": 2})
    assert newer.commit(world.attempt(newer, {"a": "new"}))
    newer.publish(0)
    working, _ = late(lambda: world.attempt(run, {"a": "late"}))
    if working is not None:  # on an object store nobody is asked before the commit
        assert not run.commit(working)
        run.abandon(working)
    before = world.seen()
    assert list(before.values()) == ["new"]
    _, refused = late(lambda: run.publish(0))  # the old publisher
    assert world.seen() == before
    if "://" in str(world.home):  # its uploads were ended, and it says so before it marks anything
        assert refused is not None
        assert run.marked() == set()
    assert world.left(newer) == ([], [])
    assert newer.marked() == world.home.marked() == {0}


def test_a_rank_that_no_one_had_committed_can_never_commit_in_an_old_generation(world, run):
    working = world.attempt(run, {"a": "late"})
    newer = world.start(1, manifest={"tasks": 2})
    with pytest.raises(RunError, match="begun this run anew"):
        run.commit(working)
    assert newer.committed() == set()
    assert newer.marked() == set()


def test_two_launches_that_begin_different_runs_at_once_do_not_both_win(world, run):
    world.start(1, manifest={"tasks": 2})
    with pytest.raises(RunError, match="another launch began a different run"):
        world.start(1, manifest={"tasks": 3})
    assert world.start(1, manifest={"tasks": 2}).generation == 1
    assert world.home.newest()[0] == 1


def test_any_launch_publishes_a_commit_without_a_mark_and_does_it_once(world, run):
    assert run.commit(world.attempt(run, {"a": "1"}))
    assert world.seen() == {}
    next_launch = world.home.join(0, run.record, world.folders)
    assert next_launch.sweep() == [0]
    assert next_launch.sweep() == []
    run.publish(0)  # the first one wakes
    assert world.seen() == {"a": "1"}
    assert json.loads(world.home.read("stats/00000.json")) == {"who": "mine"}


def test_what_a_killed_attempt_has_left_goes_when_its_rank_is_complete(world, run):
    world.attempt(run, {"00000.txt": "killed"}, patterns={world.out: [r"00000\.txt"]})
    other = world.home.join(0, run.record, world.folders)
    assert other.commit(world.attempt(other, {"00000.txt": "new"}, patterns={world.out: [r"00000\.txt"]}))
    other.publish(0)
    other.sweep()
    assert world.left(other) == ([], [])
    assert world.seen() == {"00000.txt": "new"}


def test_files_whose_names_tell_no_rank_leave_no_upload_of_a_killed_attempt_behind(world, run):
    world.attempt(run, {"english.txt": "killed", "a/b.txt": "killed"})
    other = world.home.join(0, run.record, world.folders)
    assert other.commit(world.attempt(other, {"english.txt": "new"}))
    other.publish(0)
    assert world.left(other) == ([], [])
    assert world.seen() == {"english.txt": "new"}


def test_a_starter_that_wakes_late_takes_nothing_from_the_new_generation(world, run):
    assert run.commit(world.attempt(run, {"a": "old"}))
    run.publish(0)
    newer = world.start(1, manifest={"tasks": 2})
    assert newer.commit(world.attempt(newer, {"a": "new"}))
    newer.publish(0)
    before = world.seen()
    assert list(before.values()) == ["new"]
    if world.options:  # the removals of another launch that began the same generation arrive now
        Objects(world.out, world.options).delete("a")
    world.home.join(1, newer.record, world.folders)
    assert world.seen() == before
