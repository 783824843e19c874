"""The demo from end to end: corpus, records, training, kill, resume, proof, report.

Decides the order of the parts and what counts as success. Each part lives beside this file and knows no other.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thalweg.cli.demo import corpus, prepare
from thalweg.cli.demo.legs import Leg, run_leg
from thalweg.cli.demo.prepare import Prepared
from thalweg.cli.demo.proof import Proof, Seen, pieces, prove, read_log

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a demo is. `limit`: source files and package texts at most, each; None takes all."""

    limit: int | None
    capacity: int
    steps: int
    kill_at: int
    learning_rate: float = 5e-3


FULL = Size(limit=None, capacity=1024, steps=40, kill_at=20)
SMOKE = Size(limit=150, capacity=256, steps=100, kill_at=50, learning_rate=1e-2)


@dataclass(slots=True)
class Outcome:
    """What a demo found out. `seconds`: wall time of each part, and of the first batch after the loader was made."""

    root: Path
    size: Size
    raw: corpus.Corpus
    sets: dict[str, Prepared]
    proof: Proof
    whole: list[Seen]
    counted: list[Seen]
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def packing_efficiency(self) -> float:
        """Share of the positions of all delivered rows that hold a token."""
        return sum(entry.tokens for entry in self.counted) / max(1, sum(entry.slots for entry in self.counted))

    @property
    def wait_share(self) -> float:
        """Share of step time that ranks waited for data, the first batch of a start left out."""
        later = [entry for entry in self.counted if not entry.first]
        return sum(entry.wait_s for entry in later) / max(1e-9, sum(entry.step_s for entry in later))

    @property
    def ok(self) -> bool:
        """True when the demo shows what it promises."""
        proof = self.proof
        return (
            proof.exactly_once and proof.same_losses and proof.fell and all(s.idle_second for s in self.sets.values())
        )


def run(root: Path, size: Size, say: Say) -> Outcome:
    """Run the demo below `root`; corpus and records that are there from an earlier run are taken as they are.

    Args:
        root: gets `corpus/`, `records/`, `logs/` and `training/`.
        size: FULL or SMOKE.
        say: takes lines of progress.

    Raises:
        RunError: a training process failed.
    """
    seconds: dict[str, float] = {}
    began = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        seconds[name] = time.perf_counter() - began
        began = time.perf_counter()

    raw = corpus.build(root / "corpus", say, limit=size.limit)
    lap("corpus")
    sets = prepare.records(root, raw, size.capacity, say)
    lap("records")
    training = root / "training"
    shutil.rmtree(training, ignore_errors=True)
    spec = {"pages": sets["pages"].path, "chat": sets["chat"].path, "capacity": size.capacity, "steps": size.steps}
    spec |= {"learning_rate": size.learning_rate, "save_every": size.kill_at // 2}
    say(f"training: 2 ranks, {size.steps} steps, never interrupted")
    whole = read_log(run_leg(Leg("uninterrupted", 2, 1), spec, training, say))
    lap("training, uninterrupted")
    say(f"training: the same once more, killed after step {size.kill_at}")
    killed = run_leg(Leg("killed", 2, 1, kill_at=size.kill_at), spec, training, say)
    lap("training, killed")
    checkpoint = killed / f"step-{size.kill_at}.pt"
    say("training: continued from the checkpoint on 1 rank with 2 micro-batches a step")
    went_on = read_log(run_leg(Leg("continued", 1, 2, resume=checkpoint), spec, training, say))
    lap("training, continued")
    say("proof: comparing what the training processes received")
    known: Counter[str] = Counter()
    for made in sets.values():
        known += pieces(prepare.documents(made.path), size.capacity)
    before = read_log(killed)
    proof = prove(whole, before, went_on, size.kill_at, known)
    lap("proof")
    counted = [entry for entry in before if entry.step < size.kill_at] + went_on
    seconds["first batch"] = max(entry.wait_s for entry in [*whole, *counted] if entry.first)
    return Outcome(root, size, raw, sets, proof, whole, counted, seconds)


def summary(outcome: Outcome) -> dict[str, Any]:
    """Give everything a program may want to know, as JSON-like data."""
    proof = outcome.proof
    return {
        "ok": outcome.ok,
        "exactly_once": proof.exactly_once,
        "against": proof.against,
        "documents": {
            name: {"in": made.taken, "out": made.out, "dropped": made.dropped, "second_launch_idle": made.idle_second}
            for name, made in outcome.sets.items()
        },
        "tokens": {
            "records": sum(made.tokens for made in outcome.sets.values()),
            "trained": sum(entry.tokens for entry in outcome.counted),
        },
        "packing_efficiency": outcome.packing_efficiency,
        "wait_share": outcome.wait_share,
        "first_batch_seconds": outcome.seconds["first batch"],
        "steps": proof.steps,
        "segments": proof.segments,
        "losses": proof.losses,
        "loss_difference": proof.loss_difference,
        "loss_fall": proof.fall,
        "seconds": outcome.seconds,
    }


def table(outcome: Outcome) -> dict[str, Any]:
    """Give the facts of the closing table, name -> value, in order."""
    proof = outcome.proof
    facts: dict[str, Any] = {}
    for name, made in outcome.sets.items():
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in made.dropped.items()) or "0"
        facts[f"documents, {name}"] = f"{made.taken:,} in, {made.out:,} out; dropped: {dropped}"
    facts["tokens in the records"] = sum(made.tokens for made in outcome.sets.values())
    facts["tokens trained on"] = sum(entry.tokens for entry in outcome.counted)
    facts["packing efficiency"] = f"{outcome.packing_efficiency:.2%}"
    facts["step time spent waiting for data"] = f"{outcome.wait_share:.2%}"
    facts["first batch after"] = f"{outcome.seconds['first batch']:.2f} s"
    same = "equal to the last bit" if proof.loss_difference == 0 else f"within {proof.loss_difference:.0e}"
    facts["losses after the kill"] = f"{same}, against the uninterrupted run"
    facts["loss"] = (
        f"{proof.losses[0]:.2f} to {proof.losses[-1]:.2f}, {proof.fall:.0%} lower" if proof.losses else "none"
    )
    facts["second launch of the pipeline"] = (
        f"{sum(made.idle_second for made in outcome.sets.values())} of 2 had nothing to do"
    )
    facts["exactly-once"] = proof.exactly_once
    return facts
