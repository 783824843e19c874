"""`thalweg explain`: what a pipeline would do: units, ranks, idle ranks, what is complete, what would be refused.

Decides the words. The file is run with `.run()` describing instead of doing; nothing is written.
"""

from typing import Any

import click

from thalweg.cli.output import json_option, own_prints_aside, print_json
from thalweg.run.show import counted, show_bytes


@click.command()
@click.argument("target")
@click.option("--workers", type=int, help="Ranks at once, whatever the file says.")
@json_option
def command(target: str, workers: int | None, as_json: bool) -> None:
    """Say what the pipeline in TARGET (FILE.py, or FILE.py:executor) would do, without doing it."""
    from thalweg.run.script import launching, run_target  # noqa: PLC0415

    found: list[dict[str, Any]] = []
    describing = launching(describe=lambda executor, plan: found.append(facts(executor, plan)), workers=workers)
    with describing, own_prints_aside(as_json):
        run_target(target)
    if as_json:
        print_json({"runs": found})
        return
    for number, run in enumerate(found):
        click.echo(("\n" if number else "") + text(run))


def facts(executor: Any, plan: Any) -> dict[str, Any]:
    """Collect what a launch of an executor would do."""
    from thalweg.run.manifest import step_ids  # noqa: PLC0415
    from thalweg.run.plan import changes  # noqa: PLC0415

    refused = changes(executor.home, plan.manifest) if executor.skip_completed else []
    missing = executor.get_incomplete_ranks() if executor.skip_completed and not refused else list(range(plan.tasks))
    busiest = max(plan.bytes_of_rank, default=0)
    return {
        "logging_dir": str(executor.home),
        "executor": type(executor).__name__,
        "workers": getattr(executor, "workers", None),
        "tasks": plan.tasks,
        "steps": step_ids(executor.pipeline),
        "inputs": {
            name: {"units": len(units), "files": len({u.file for u in units}), "bytes": sum(u.size for u in units)}
            for name, units in plan.units.items()
        },
        "outputs": plan.outputs,
        "idle_tasks": plan.idle,
        "largest_task_bytes": busiest,
        "complete": plan.tasks - len(missing),
        "to_run": len(missing),
        "refused": refused or [],
        "launch_refused": _refusal(executor, plan) if missing else None,
        "warnings": plan.warnings,
        "unprotected": plan.unprotected,
    }


def _refusal(executor: Any, plan: Any) -> str | None:
    """Say why a launch would stop before its first rank (a step that can't be sent, a credential in one), or None."""
    from thalweg.core.errors import ConfigError  # noqa: PLC0415

    try:
        executor.pickle_pipeline()
        executor.check_launch(plan)
    except ConfigError as error:
        return str(error)
    return None


def text(run: dict[str, Any]) -> str:
    """Write these facts for people."""
    workers = run["workers"]
    at_once = f", {counted(workers, 'worker')}" if workers not in {None, -1} else ""
    lines = [f"{run['executor']}: {counted(run['tasks'], 'task')}{at_once}"]
    lines += ["  steps    " + " -> ".join(s.partition(":")[2] for s in run["steps"])]
    for name, i in run["inputs"].items():
        units = f"{counted(i['units'], 'unit')} of {counted(i['files'], 'file')}"
        lines.append(f"  input    {name}: {units}, {show_bytes(i['bytes'])}")
    lines += [f"  output   {path}" for path in run["outputs"]]
    lines.append(f"  largest  {show_bytes(run['largest_task_bytes'])} for one task")
    lines.append(f"  run      {counted(run['to_run'], 'task')}; complete, to be skipped: {run['complete']:,}")
    lines += [f"  note     {note}" for note in run["warnings"] + run["unprotected"]]
    if run["launch_refused"]:
        lines.append(f"  REFUSED  {run['launch_refused']}")
    if run["refused"]:
        lines.append(f"  REFUSED  {run['logging_dir']} belongs to another run:")
        lines += [f"           {difference}" for difference in run["refused"][:20]]
    else:
        lines.append(f"  record   {run['logging_dir']}")
    return "\n".join(lines)
