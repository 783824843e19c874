"""Was every sample seen exactly once? Decided from what the training processes wrote down about their tokens.

Decides over logs alone: which documents arrived (by a hash of their tokens), in which step, with which loss. Knows
neither plan nor loader, so it can contradict them.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

SAME_LOSS = 1e-4
MUST_FALL = 0.10

Segment: TypeAlias = tuple[str, int]  # xxh3_64 of the tokens as int32, length


@dataclass(frozen=True, slots=True)
class Seen:
    """One micro-batch as a training process saw it. `loss` is its share of the step's mean over label tokens."""

    step: int
    micro: int
    rank: int
    loss: float
    tokens: int
    slots: int
    wait_s: float
    step_s: float
    segments: tuple[Segment, ...]
    first: bool = False  # the first micro-batch after the loader was made


@dataclass(slots=True)
class Proof:
    """What the logs show; `against` lists everything that speaks against exactly-once."""

    steps: int = 0
    segments: int = 0
    against: list[str] = field(default_factory=list[str])
    loss_difference: float = 0.0
    losses: list[float] = field(default_factory=list[float])

    @property
    def exactly_once(self) -> bool:
        """True when nothing speaks against it."""
        return not self.against

    @property
    def same_losses(self) -> bool:
        """True when the job that was killed and continued has the losses of the one that was not."""
        return self.loss_difference <= SAME_LOSS

    @property
    def fell(self) -> bool:
        """True when the loss fell as far as a model that learns lets it."""
        return self.fall >= MUST_FALL

    @property
    def fall(self) -> float:
        """How far the mean loss of the last 5 steps lies under that of the first 5, as a share."""
        return 1 - float(np.mean(self.losses[-5:])) / float(np.mean(self.losses[:5])) if self.losses else 0.0


def read_log(folder: Path) -> list[Seen]:
    """Read the logs of all ranks of a leg, in the order of the rows; a line torn by a kill is left out."""
    seen: list[Seen] = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        rank = int(path.stem.removeprefix("rank-"))
        for number, line in enumerate(path.read_text("utf-8").split("\n")[:-1]):
            entry = json.loads(line)
            segments = tuple((digest, length) for digest, length in entry.pop("segments"))
            seen.append(Seen(rank=rank, segments=segments, first=number == 0, **entry))
    return sorted(seen, key=lambda entry: (entry.step, entry.micro, entry.rank))


def pieces(documents: Iterable[NDArray[np.int32]], capacity: int) -> Counter[str]:
    """Count the hashes of the pieces that documents have in rows of `capacity` tokens."""
    found: Counter[str] = Counter()
    for tokens in documents:
        whole = np.ascontiguousarray(tokens, "<i4")
        found.update(xxh3_64_hexdigest(whole[at : at + capacity].tobytes()) for at in range(0, len(whole), capacity))
    return found


def prove(
    whole: Sequence[Seen], killed: Sequence[Seen], went_on: Sequence[Seen], saved: int, known: Counter[str]
) -> Proof:
    """Compare a job that was killed and continued with one that was not.

    Args:
        whole: log of the uninterrupted job.
        killed: log of the leg that was killed; its steps from `saved` on never reached a checkpoint and don't count.
        went_on: log of the leg that continued from the checkpoint.
        saved: steps in the checkpoint.
        known: how often each piece exists in the record sets.
    """
    counted = [entry for entry in killed if entry.step < saved] + list(went_on)
    proof = Proof(segments=sum(len(entry.segments) for entry in counted))
    ours, theirs = by_step(counted), by_step(whole)
    proof.steps = len(ours)
    proof.losses = [sum(entry.loss for entry in ours[step]) for step in sorted(ours)]
    if not theirs or sorted(ours) != list(range(len(theirs))):
        proof.against.append(f"steps {sorted(set(theirs) ^ set(ours))} are in one of the two runs only")
    for step in sorted(set(ours) & set(theirs)):
        if _rows(ours[step]) != _rows(theirs[step]):
            proof.against.append(f"step {step + 1} has other samples than in the uninterrupted run")
        difference = abs(sum(entry.loss for entry in ours[step]) - sum(entry.loss for entry in theirs[step]))
        proof.loss_difference = max(proof.loss_difference, difference)
    proof.against += _counts(counted, known)
    return proof


def by_step(seen: Iterable[Seen]) -> dict[int, list[Seen]]:
    """Group micro-batches by their optimiser step."""
    steps: defaultdict[int, list[Seen]] = defaultdict(list)
    for entry in seen:
        steps[entry.step].append(entry)
    return dict(steps)


def _rows(entries: Iterable[Seen]) -> list[tuple[Segment, ...]]:
    """Give the rows of a step in their global order: micro-batch by micro-batch, rank by rank."""
    return [entry.segments for entry in sorted(entries, key=lambda entry: (entry.micro, entry.rank))]


def _counts(seen: Iterable[Seen], known: Counter[str]) -> list[str]:
    arrived = Counter(digest for entry in seen for digest, _ in entry.segments)
    unknown = [digest for digest in arrived if digest not in known]
    twice = [digest for digest, count in arrived.items() if digest in known and count > known[digest]]
    against = [f"{len(unknown)} documents are in no record set, such as {unknown[0]}"] if unknown else []
    return against + ([f"{len(twice)} samples came twice, such as {twice[0]}"] if twice else [])
