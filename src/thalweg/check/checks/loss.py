"""Checks of what is learned: prompts off the loss, answers in it to their end token, nothing without a trained token.

Decides what of a conversation must be trained. Where the record behind a sample is known, its texts are looked for;
else the marks that chat formats put before a user's turn.
"""

from collections.abc import Sequence

from thalweg.check.checks.check import Check, among, fine, graver
from thalweg.check.dialogue import SHORT, USER_MARKS, plain, said
from thalweg.check.evidence import Evidence, Segment, Words
from thalweg.check.finding import Finding

ENOUGH = 200  # samples whose texts are compared


def something_is_trained(e: Evidence) -> Finding | None:
    """Find samples without a token in the loss: their loss is nothing, or not a number."""
    some = [s for s in e.judged if len(s.ids)]
    if not some:
        return None
    count, of, first = among(not s.trained.any() for s in some)
    if not count:
        tokens = sum(len(s.ids) for s in some)
        trained = sum(int(s.trained.sum()) for s in some)
        return fine("every sample has tokens in the loss", share_in_the_loss=round(trained / max(tokens, 1), 3))
    fix = "drop them: .filter(lambda n: n > 0, columns=['label_tokens']); look whether truncation took the answers"
    return Finding(graver(count / of, error=0.01), "no token is trained", count, of, some[first].name, fix)


def prompts_off_the_loss(e: Evidence) -> Finding | None:
    """Find prompts that the model is trained to write: it learns to parrot the user."""
    if e.words is None or not e.words.reads:
        return None
    known = [(s, spoken) for s in e.documents[:ENOUGH] if s.raw is not None and (spoken := said(s.raw)) is not None]
    known = [(s, spoken) for s, spoken in known if any(len(plain(p)) >= SHORT for p in spoken[0])]
    if not known:
        return _marks_off_the_loss(e, e.words)
    inside, of_tokens, all_tokens = 0, 0, 0
    first = None
    for s, (prompts, answers) in known:
        text = plain(e.words.decode(s.ids[s.trained].tolist()))
        answered = plain("".join(answers))
        trained = int(s.trained.sum())
        all_tokens += trained
        if any(plain(p) in text and plain(p) not in answered for p in prompts if len(plain(p)) >= SHORT):
            inside += 1
            first = first or s.name
            of_tokens += max(trained - sum(len(e.words.encode(a)) for a in answers), 0)
    if not inside:
        return fine("no prompt is in the loss", compared=len(known))
    share = of_tokens / max(all_tokens, 1)
    meant = e.train_on == "all"
    fix = 'say train_on="assistant"' if e.encoder else "set the labels of prompts to -100"
    return Finding(
        "error" if inside > 0.01 * len(known) else "warning", "prompt tokens in the loss", inside, len(known),
        e.encoder if meant or not first else first, fix, numbers={"share of label tokens": f"{share:.0%}"},
    )  # fmt: skip


def _marks_off_the_loss(e: Evidence, words: Words) -> Finding | None:
    """The same where only tokens are known: by the marks before a user's turn."""
    some = [s for s in e.judged[:ENOUGH] if len(s.ids)]
    marked = [(s, mark) for s in some for mark in _marks_in(words.decode(s.ids.tolist()))]
    if not marked:
        return None
    count, of, first = among(mark in words.decode(s.ids[s.trained].tolist()) for s, mark in marked)
    if not count:
        return fine("no user's turn is in the loss", compared=of)
    fix = "set the labels of prompts to -100"
    return Finding("error", "prompt tokens in the loss", count, of, marked[first][0].name, fix)


def _marks_in(text: str) -> list[str]:
    return [mark for mark in USER_MARKS if mark in text][:1]


def answers_in_the_loss(e: Evidence) -> Finding | None:
    """Find answers of which a part is not trained."""
    if e.words is None or not e.words.reads:
        return None
    known = [(s, spoken[1]) for s in e.documents[:ENOUGH] if s.raw is not None and (spoken := said(s.raw)) is not None]
    known = [(s, answers) for s, answers in known if answers and any(map(plain, answers)) and s.trained.any()]
    if not known:
        return None
    words, last = e.words, e.train_on == "last"

    def lacks(s: Segment, answers: Sequence[str]) -> bool:
        text = plain(words.decode(s.ids[s.trained].tolist()))
        return any(plain(a) not in text for a in (answers[-1:] if last else answers))

    count, of, first = among(lacks(s, answers) for s, answers in known)
    if not count:
        return fine("answers are in the loss, whole", compared=of)
    fix = "look at one with thalweg inspect: truncation, or a boundary between prompt and answer inside a token"
    level = graver(count / of, error=0.5)
    return Finding(level, "answers are not wholly in the loss", count, of, known[first][0].name, fix)


def answers_end(e: Evidence) -> Finding | None:
    """Find answers whose end token is missing or not trained: the model never learns to stop."""
    words = e.words
    if words is None or not words.ends:
        return None
    ends = words.ends
    whole = [s for s in e.judged if s.trained.any() and (e.capacity is None or len(s.ids) < e.capacity)]
    if not whole:
        return None

    def untrained(s: Segment) -> bool:
        last = int(s.trained.nonzero()[0][-1])
        return int(s.ids[last]) not in ends and last + 1 < len(s.ids) and int(s.ids[last + 1]) in ends

    def missing(s: Segment) -> bool:
        tail = s.ids[int(s.trained.nonzero()[0][-1]) :]
        used = s.ids[s.trained]
        return not any(int(t) in ends for t in used[-3:]) and not any(int(t) in ends for t in tail[:3])

    count, of, first = among(map(untrained, whole))
    if count:
        fix = "train the end token too; where it equals the padding id, give padding an id of its own"
        what = "the end token is there and not in the loss: the model never learns to stop"
        return Finding(graver(count / of, error=0.1), what, count, of, whole[first].name, fix)
    count, of, first = among(map(missing, whole))
    if not count:
        return fine("answers end in a trained end token")
    fix = "add the end token when encoding (add_eos=True, or the model's own template)"
    level = graver(count / of, error=0.9, warning=0.02)
    return Finding(level, "samples end without an end token", count, of, whole[first].name, fix)


CHECKS = (
    Check("something is trained", "masks", something_is_trained),
    Check("prompts off the loss", "masks", prompts_off_the_loss),
    Check("answers in the loss", "masks", answers_in_the_loss),
    Check("answers end", "masks", answers_end),
)
