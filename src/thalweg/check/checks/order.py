"""Checks of order: does it change, does every rank get its own, do all end together, are weights kept.

Decides what orders of ranks and epochs must have in common. Judges ids and counts that were seen, never a plan.
"""

from collections import Counter
from itertools import chain

from thalweg.check.checks.check import Check, fine, graver
from thalweg.check.evidence import Evidence
from thalweg.check.finding import Finding

STRAGGLER = 1.2  # times the mean rank's tokens


def order_changes(e: Evidence) -> Finding | None:
    """Compare the order of two epochs."""
    if len(e.epochs) < 2 or not any(len(r.ids) > 2 for r in e.epochs[0]):
        return None
    same = [[r.ids for r in epoch] for epoch in e.epochs[:2]]
    if same[0] != same[1]:
        return fine("another order in each epoch")
    if len(set(chain.from_iterable(same[0]))) < 3:
        return None
    fix = "add .shuffle() before pack and batch; in other loaders call set_epoch(e)"
    if e.shuffled:
        return Finding("error", "the order is meant to change and is the same in each epoch", fix=fix)
    return Finding("warning", "the order is the same in each epoch", fix=fix)


def ranks_have_their_own(e: Evidence) -> Finding | None:
    """Find samples that two ranks see in one epoch, or that one epoch leaves out."""
    if not e.epochs or len(e.epochs[0]) < 2 or e.repeats:
        return None
    for number, ranks in enumerate(e.epochs):
        counts = Counter(chain.from_iterable(set(r.ids) for r in ranks))
        shared = sorted(i for i, n in counts.items() if n > 1)
        if shared:
            fix = "let one permutation be cut by rank, with one seed on all ranks; shard before map, not after"
            return Finding(
                "error", f"ranks see the same samples in epoch {number}; the first: {shared[0]}", len(shared),
                len(counts), None, fix,
            )  # fmt: skip
    seen = [set(chain.from_iterable(r.ids for r in ranks)) for ranks in e.epochs]
    every = set.union(*seen)
    lost = [len(every) - len(s) for s in seen]
    if not e.weights and any(n > 0.05 * len(every) for n in lost):
        fix = 'tail="carry" or "pad" keeps the rows behind the last whole step'
        return Finding("warning", "an epoch leaves out samples that another has", max(lost), len(every), None, fix)
    return fine("no sample on two ranks", ranks=len(e.epochs[0]), samples=len(every))


def last_ids(e: Evidence) -> Finding | None:
    """Print the last sample of each rank and epoch: ranks that drift apart or run in step show here."""
    if not e.epochs or len(e.epochs[0]) < 2:
        return None
    last = [[r.ids[-1] if r.ids else "none" for r in ranks] for ranks in e.epochs]
    table = {f"epoch {n}": " ".join(ids) for n, ids in enumerate(last)}
    for number, ids in enumerate(last):
        twice = [i for i, n in Counter(i for i in ids if i != "none").items() if n > 1]
        if twice and not e.repeats:
            fix = "give each rank its own place: look at rank and world size that the loader was told"
            return Finding("error", f"two ranks end epoch {number} at {twice[0]}", None, None, None, fix, numbers=table)
    return fine("ranks end at samples of their own", **table)


def steps_are_equal(e: Evidence) -> Finding | None:
    """Compare the steps of ranks: one more on one rank, and all wait for ever."""
    if not e.epochs or len(e.epochs[0]) < 2:
        return None
    for number, ranks in enumerate(e.epochs):
        steps = [r.steps for r in ranks]
        if len(set(steps)) > 1:
            what = f"ranks take {min(steps):,} to {max(steps):,} steps in epoch {number}: a collective call never ends"
            fix = "let the loader cut steps, not samples, by rank; on streams say until="
            return Finding("error", what, None, None, None, fix, numbers={"spread": max(steps) - min(steps)})
    return fine("all ranks take the same number of steps", steps=e.epochs[0][0].steps)


def ranks_share_the_work(e: Evidence) -> Finding | None:
    """Compare the tokens of ranks: all wait for the fullest."""
    if not e.epochs or len(e.epochs[0]) < 2:
        return None
    tokens = [r.tokens for r in e.epochs[0]]
    mean = sum(tokens) / len(tokens)
    if not mean:
        return None
    worst = max(tokens) / mean
    if worst <= STRAGGLER:
        return fine("ranks have alike many tokens", fullest_over_mean=round(worst, 3))
    fix = ".balance() or .pack(...); a size that the ranks divide"
    return Finding("warning", "one rank has far more tokens than the mean", fix=fix, numbers={"times": round(worst, 2)})


def sources_as_weighted(e: Evidence) -> Finding | None:
    """Compare delivered shares of sources with their weights."""
    total = sum(e.weights.values())
    if not total or not e.drawn or e.drawn_of < 1:
        return None
    off: dict[str, float] = {name: e.drawn.get(name, 0.0) - weight / total for name, weight in e.weights.items()}
    name = max(off, key=lambda n: abs(off[n]))
    wanted = e.weights[name] / total
    slack = 3 * (wanted * (1 - wanted) / e.drawn_of) ** 0.5 + 0.01
    numbers = {n: f"{e.drawn.get(n, 0.0):.1%} of {w / total:.1%}" for n, w in e.weights.items()}
    if abs(off[name]) <= slack:
        return fine("sources come as weighted", **numbers)
    fix = 'packing and filters change shares of tokens: weigh by="tokens"; see that no source is used up early'
    return Finding(
        graver(abs(off[name]), error=0.1), f"source {name!r} does not come as weighted", fix=fix, numbers=numbers
    )


CHECKS = (
    Check("order changes", "order", order_changes),
    Check("ranks have their own", "order", ranks_have_their_own),
    Check("last ids", "order", last_ids),
    Check("steps are equal", "order", steps_are_equal),
    Check("ranks share the work", "order", ranks_share_the_work),
    Check("sources as weighted", "order", sources_as_weighted),
)
