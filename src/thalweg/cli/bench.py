"""`thalweg bench`: the benchmarks of a checkout, listed and run.

Decides which modules are benchmarks and where the checkout is. How a benchmark measures is the business of
`benchmarks/harness.py`, which runs in a process of its own: this command passes words on and collects results.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from thalweg.cli.output import json_option, print_json
from thalweg.core.errors import ConfigError, nearest


def find_benchmarks(*starts: Path) -> Path:
    """Find the folder `benchmarks/` of a checkout, in the folders given or above them.

    Raises:
        ConfigError: there is none, as in an installation without the sources.
    """
    for start in starts:
        for folder in (start, *start.parents):
            if (folder / "benchmarks" / "harness.py").is_file():
                return folder / "benchmarks"
    raise ConfigError(
        "benchmarks are part of the source tree, and there is none here",
        where=str(starts[0]),
        fix="clone the repository and run `thalweg bench` (or `make bench`) in the clone",
    )


def modules(folder: Path) -> dict[str, tuple[Path, str]]:
    """Give each benchmark's name, file, and the first line of what it says of itself."""
    found: dict[str, tuple[Path, str]] = {}
    for path in sorted(folder.glob("bench_*.py")):
        head = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem.removeprefix("bench_")] = (path, head.partition("\n")[0])
    return found


@click.command("bench")
@click.argument("names", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Say which benchmarks there are and run none.")
@click.option("--smoke", is_flag=True, help="Tiny sizes, one round, no new environments: do they run?")
@click.option("--rounds", type=click.IntRange(min=1), help="Measured rounds of ours and of each peer.")
@click.option("--only", multiple=True, metavar="WORD", help="Only cases with this word in their name.")
@json_option
def command(
    *, names: tuple[str, ...], only_list: bool, smoke: bool, rounds: int | None, only: tuple[str, ...], as_json: bool
) -> None:
    """Measure this checkout beside its peers: all benchmarks, or those named.

    Ours and each peer run in turn, each in a fresh process and its own environment under .bench/. Results are kept
    as JSON in .bench/results.
    """
    there = modules(find_benchmarks(Path.cwd(), Path(__file__).resolve().parent))
    for name in names:
        if name not in there:
            raise ConfigError(f"no benchmark is called {name!r}", fix=nearest(name, there))
    if only_list:
        listed = [{"name": name, "file": str(path), "about": about} for name, (path, about) in there.items()]
        if as_json:
            print_json(listed)
        else:
            click.echo("\n".join(_rows(listed)))
        return
    words = [*(["--smoke"] if smoke else []), *(["--rounds", str(rounds)] if rounds else [])]
    words += [word for w in only for word in ("--only", w)]
    reports: list[Any] = []
    failed: list[str] = []
    for name in names or there:
        if not as_json:
            click.echo(f"\n## {name}: {there[name][1]}\n")
        code, report = _run(there[name][0], words, as_json=as_json)
        reports.extend(report)
        if code:
            failed.append(name)
    if as_json:
        print_json(reports)
    if failed:
        click.echo(f"failed: {', '.join(failed)}", err=True)
        sys.exit(1)


def _run(path: Path, words: list[str], *, as_json: bool) -> tuple[int, list[Any]]:
    """Run one module; its exit status, and its report where JSON was asked for."""
    command = [sys.executable, str(path), *words]
    if not as_json:
        sys.stdout.flush()
        return subprocess.run(command, check=False).returncode, []  # noqa: S603 (our own file)
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    return done.returncode, [json.loads(done.stdout)] if done.stdout.strip() else []


def _rows(listed: list[dict[str, str]]) -> Iterator[str]:
    width = max((len(entry["name"]) for entry in listed), default=0)
    for entry in listed:
        yield f"{entry['name']:<{width}}  {entry['about']}"
