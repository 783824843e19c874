"""Runs of ours and of peers, alternated in one session, each in a fresh process and its own environment.

A benchmark module declares its cases and ends in `main(__file__, CASES)`. This file decides how a side is run and
measured, what is recorded and how the table reads; it knows no benchmark. A figure is never asserted: a run fails only
when a side fails, or when two sides hand over different contents. Standard library only, since it runs in peers'
environments too.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

import machine
from environments import NoEnvironmentError, python_for

# Environments, prepared data and results; about 1 GiB a peer with torch.
HOME = Path(os.environ.get("THALWEG_BENCH_HOME", machine.ROOT / ".bench"))
MARK = "@@result "  # starts the one line of a child's output that is its result


@dataclass(frozen=True)
class Work:
    """What a side does once set up.

    Args:
        run: does the measured work once and returns how many units it did, or {"units": n, "name of figure": number}.
        content: called after the measurement; JSON that must be equal on all sides that have it (a count, a sum).
    """

    run: Callable[[], int | Mapping[str, float]]
    content: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Side:
    """One way to do the work.

    Args:
        start: (data folder, parameters) -> Work. Imports what it needs inside: its module is loaded in every side's
            environment. Its own time is reported as set-up.
        needs: pinned requirements of a peer's environment; empty for ours, which runs where the harness runs.
    """

    start: Callable[[Path, Mapping[str, Any]], Work]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One table row group: the same work by several sides.

    Args:
        name: what is done, in words.
        unit: what `Work.run` counts, such as "samples".
        sides: name -> side; the first is ours.
        sizes: "full" and "smoke" -> parameters, handed to `prepare` and `start`.
        prepare: (data folder, parameters) -> None, once for all sides and rounds, in our environment.
        warmup: how often the work is done before it is measured.
        rounds: measured rounds of all sides (--rounds overrides).
    """

    name: str
    unit: str
    sides: Mapping[str, Side]
    sizes: Mapping[str, Mapping[str, Any]]
    prepare: Callable[[Path, Mapping[str, Any]], None] | None = None
    warmup: int = 1
    rounds: int = 5


@dataclass
class Outcome:
    """All rounds of one side, or the reason why there are none."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    failed: bool = False

    def spread(self, figure: str) -> tuple[float, float, float]:
        """(median, smallest, largest) of a figure over the rounds."""
        values = [run[figure] for run in self.runs]
        return median(values), min(values), max(values)


def main(module: str, cases: Sequence[Case], argv: Sequence[str] | None = None) -> None:
    """Run a benchmark module from the command line; exits 1 where a side failed or contents differ."""
    parser = argparse.ArgumentParser(Path(module).name, description=(sys.modules["__main__"].__doc__ or "").strip())
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round, no new environments: does it run?")
    parser.add_argument("--rounds", type=int, help="measured rounds of all sides")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="cases whose name has this word")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one run of one side may take")
    parser.add_argument("--child", nargs=3, metavar=("CASE", "SIDE", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        _child(cases, args)
        return
    chosen = [c for c in cases if not args.only or any(word in c.name for word in args.only)]
    if not chosen:
        parser.error(f"no case has {args.only} in its name; there are: " + "; ".join(c.name for c in cases))
    results: list[dict[str, Any]] = []
    report = {
        "benchmark": Path(module).stem,
        "smoke": args.smoke,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "machine": machine.facts(),
        "cases": results,
    }
    for case in chosen:
        results.append(_case(Path(module).resolve(), case, args))
        if not args.smoke:
            _keep(report)  # after each case: a long run that is broken off keeps what it has measured
    print(json.dumps(report, indent=1) if args.json else table(report))
    if any(case["failed"] for case in results):
        sys.exit(1)


def _case(module: Path, case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Prepare once, then run all sides in turn, round by round; the side that begins changes each round."""
    size = "smoke" if args.smoke else "full"
    params = case.sizes[size]
    rounds = 1 if args.smoke else args.rounds or case.rounds
    folder = _prepared(module, case, size)
    pythons: dict[str, Path] = {}
    outcomes = {name: Outcome() for name in case.sides}
    for name, side in case.sides.items():
        try:
            pythons[name] = _python(name, side, args)
        except NoEnvironmentError as error:
            outcomes[name].reason, outcomes[name].failed = str(error), not args.smoke
    names = list(pythons)
    for r in range(rounds):
        for name in names[r % len(names) :] + names[: r % len(names)]:
            outcome = outcomes[name]
            if outcome.reason is not None:
                continue
            _say(f"{case.name}: round {r + 1} of {rounds}, {name}")
            ran = _spawn(pythons[name], module, [case.name, name, str(folder)], size, args.timeout)
            if isinstance(ran, str):
                outcome.reason, outcome.failed, outcome.runs = ran, True, []
            else:
                outcome.runs.append(ran)
    return _summary(case, params, rounds, outcomes)


def _python(name: str, side: Side, args: argparse.Namespace) -> Path:
    if not side.needs:
        return Path(sys.executable)
    return python_for(name, side.needs, HOME / "venvs", make=not args.smoke, say=_say)


def _prepared(module: Path, case: Case, size: str) -> Path:
    """Folder with the case's data; cases with the same `prepare` and parameters share it.

    Made anew for each commit and each smoke run: what wrote the data may have changed.
    """
    made_by = case.prepare.__qualname__ if case.prepare else case.name
    key = blake2b(repr((made_by, sorted(case.sizes[size].items()))).encode(), digest_size=6).hexdigest()
    folder = HOME / "data" / module.stem / f"{size}-{key}"
    ready, made_at = folder / ".ready", f"{os.getpid()}" if size == "smoke" else machine.commit()
    if not ready.exists() or ready.read_text() != made_at:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if case.prepare:
            _say(f"{case.name}: preparing data ({size})")
            ran = _spawn(Path(sys.executable), module, [case.name, "", str(folder)], size, None)
            if isinstance(ran, str):
                raise SystemExit(f"{case.name}: preparing the data failed: {ran}")
        ready.write_text(made_at)
    return folder


def _spawn(python: Path, module: Path, child: list[str], size: str, timeout: float | None) -> dict[str, Any] | str:
    """Run one child; its result, or in words why there is none."""
    ours = python == Path(sys.executable)
    paths = [str(machine.ROOT / "benchmarks"), *([str(machine.ROOT / "src")] if ours else [])]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": os.pathsep.join(paths)}
    command: list[str | Path] = [python, module, *(["--smoke"] if size == "smoke" else []), "--child", *child]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {timeout:.0f} s"
    for text in done.stdout.splitlines():
        if text.startswith(MARK):
            return dict(json.loads(text.removeprefix(MARK)))
    last = done.stderr.strip().splitlines() or ["no output"]
    return f"exit status {done.returncode}: {last[-1]}"


def _child(cases: Sequence[Case], args: argparse.Namespace) -> None:
    """Do one side's work in this process and print what was measured."""
    name, side_name, folder = args.child[0], args.child[1], Path(args.child[2])
    case = next(c for c in cases if c.name == name)
    params = case.sizes["smoke" if args.smoke else "full"]
    if not side_name:
        assert case.prepare is not None
        case.prepare(folder, params)
        print(MARK + "{}")
        return
    begun = time.perf_counter()
    work = case.sides[side_name].start(folder, params)
    setup = time.perf_counter() - begun
    for _ in range(case.warmup):
        work.run()
    cpu, wall = machine.cpu_seconds(), time.perf_counter()
    done = work.run()
    wall, cpu = time.perf_counter() - wall, machine.cpu_seconds() - cpu
    figures = {"units": done} if isinstance(done, int) else dict(done)
    units = figures.pop("units")
    result = {
        "units": units,
        "wall_s": wall,
        "cpu_s": cpu,
        "rate": units / wall if wall else 0.0,
        "setup_s": setup,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / (2**20 if sys.platform == "darwin" else 2**10),
        "figures": figures,
        "content": work.content() if work.content else None,
        "versions": machine.loaded_versions(),
    }
    print(MARK + json.dumps(result), flush=True)


def _summary(case: Case, params: Mapping[str, Any], rounds: int, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Medians and spread of each side; the ratio is taken within each round, then its median."""
    ours = next(iter(outcomes.values()))
    sides: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        if not outcome.runs:
            sides[name] = {"reason": outcome.reason}
            continue
        entry: dict[str, Any] = {f: outcome.spread(f) for f in ("rate", "wall_s", "cpu_s", "setup_s", "peak_rss_mb")}
        for figure in outcome.runs[0]["figures"]:
            values = [run["figures"][figure] for run in outcome.runs]
            entry.setdefault("figures", {})[figure] = (median(values), min(values), max(values))
        if outcome is not ours and ours.runs:
            ratios = [a["rate"] / b["rate"] for a, b in zip(ours.runs, outcome.runs, strict=True)]
            entry["ours_over_it"] = (median(ratios), min(ratios), max(ratios))
        entry |= {"versions": outcome.runs[0]["versions"], "content": outcome.runs[0]["content"], "runs": outcome.runs}
        sides[name] = entry
    contents = {json.dumps(run["content"], sort_keys=True) for o in outcomes.values() for run in o.runs} - {"null"}
    return {
        "case": case.name,
        "unit": case.unit,
        "parameters": dict(params),
        "rounds": rounds,
        "sides": sides,
        "same_content": len(contents) <= 1,
        "failed": len(contents) > 1 or any(o.failed for o in outcomes.values()),
    }


def table(report: Mapping[str, Any]) -> str:
    """Write a report as a Markdown table, fit for docs/benchmarks.md."""
    out = [
        f"`{report['benchmark']}` at {report['commit']}{' (smoke: sizes too small to mean anything)' * report['smoke']}"
    ]
    out += [machine.line(report["machine"]), ""]
    out += [
        "| case | side | rate (min to max) | CPU s | set-up s | peak MB | ours over it |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = []
    for case in report["cases"]:
        for name, side in case["sides"].items():
            if "rate" not in side:
                out.append(f"| {case['case']} | {name} | not run: {side['reason']} | | | | |")
                continue
            rate, low, high = map(_short, side["rate"])
            ratio = "{} ({} to {})".format(*map(_short, side["ours_over_it"])) if "ours_over_it" in side else ""
            out.append(
                f"| {case['case']} | {name} | {rate} {case['unit']}/s ({low} to {high}) | {side['cpu_s'][0]:.2f} "
                f"| {side['setup_s'][0]:.2f} | {side['peak_rss_mb'][0]:.0f} | {ratio} |"
            )
            for figure, values in side.get("figures", {}).items():
                notes.append(f"{case['case']}, {name}: {figure} {_short(values[0])}")
        if not case["same_content"]:
            notes.append(f"{case['case']}: the sides handed over DIFFERENT contents; the figures do not compare")
    return "\n".join([*out, *([""] if notes else []), *notes])


def _short(value: float) -> str:
    """Three significant digits, with k and M."""
    for limit, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {suffix}"
    return f"{value:.3g}"


def _keep(report: Mapping[str, Any]) -> None:
    folder = HOME / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = str(report["taken"]).replace(":", "").partition("+")[0]
    path = folder / f"{report['benchmark']}-{stamp}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    _say(f"results so far kept in {path}")


def _say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)
