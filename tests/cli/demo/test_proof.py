"""The demo's own check: it must see a lost, doubled, foreign or moved sample, and losses that differ."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from xxhash import xxh3_64_hexdigest

from thalweg.cli.demo.proof import Seen, pieces, prove, read_log

STEPS, SAVED = 6, 3


def digest(n):
    return xxh3_64_hexdigest(np.full(4, n, "<i4").tobytes())


def run(world, accumulation, steps):
    """A job over rows 0, 1, 2, ...: two rows a step, one document a row."""
    seen = []
    for step in steps:
        for micro in range(accumulation):
            for rank in range(world):
                row = step * 2 + micro * world + rank
                seen.append(Seen(step, micro, rank, 10.0 / (step + 1), 4, 4, 0.0, 1.0, ((digest(row), 4),)))
    return seen


KNOWN = Counter(digest(row) for row in range(2 * STEPS))


def case():
    return run(2, 1, range(STEPS)), run(2, 1, range(SAVED + 2)), run(1, 2, range(SAVED, STEPS))


def test_a_job_continued_on_another_layout_is_exactly_once():
    proof = prove(*case(), SAVED, KNOWN)
    assert proof.exactly_once
    assert proof.same_losses
    assert (proof.steps, proof.segments) == (STEPS, 2 * STEPS)
    assert proof.fall == pytest.approx(1 - np.mean(proof.losses[-5:]) / np.mean(proof.losses[:5]))


def test_steps_of_the_killed_leg_after_its_checkpoint_do_not_count():
    whole, killed, went_on = case()
    assert max(entry.step for entry in killed) > SAVED
    assert prove(whole, killed, went_on, SAVED, KNOWN).segments == 2 * STEPS


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda entry: replace(entry, segments=((digest(0), 4),)), "samples came twice"),
        (lambda entry: replace(entry, segments=((digest(99), 4),)), "in no record set"),
        (lambda entry: replace(entry, segments=()), "other samples than in the uninterrupted run"),
        (lambda entry: replace(entry, step=STEPS), "in one of the two runs only"),
    ],
)
def test_a_wrong_sample_after_the_resume_is_seen(damage, words):
    whole, killed, went_on = case()
    went_on[-1] = damage(went_on[-1])
    if went_on[-1].step == STEPS:
        went_on[-2] = damage(went_on[-2])
    proof = prove(whole, killed, went_on, SAVED, KNOWN)
    assert not proof.exactly_once
    assert any(words in line for line in proof.against), proof.against


def test_rows_in_another_order_are_seen():
    whole, killed, went_on = case()
    a, b = went_on[:2]
    went_on[:2] = [replace(a, segments=b.segments), replace(b, segments=a.segments)]
    assert prove(whole, killed, went_on, SAVED, KNOWN).against == [
        f"step {SAVED + 1} has other samples than in the uninterrupted run"
    ]


def test_a_loss_that_differs_is_seen():
    whole, killed, went_on = case()
    went_on[0] = replace(went_on[0], loss=went_on[0].loss + 2e-4)
    proof = prove(whole, killed, went_on, SAVED, KNOWN)
    assert proof.exactly_once
    assert not proof.same_losses


def test_an_empty_log_proves_nothing():
    assert not prove([], [], [], 0, KNOWN).exactly_once


def test_pieces_are_the_hashes_of_a_documents_cuts():
    tokens = np.arange(10, dtype=np.int32)
    assert pieces([tokens, tokens[:4]], 4) == Counter(
        {
            xxh3_64_hexdigest(np.arange(4, dtype="<i4").tobytes()): 2,
            xxh3_64_hexdigest(np.arange(4, 8, dtype="<i4").tobytes()): 1,
            xxh3_64_hexdigest(np.arange(8, 10, dtype="<i4").tobytes()): 1,
        }
    )


def test_a_line_torn_by_a_kill_is_left_out(tmp_path):
    numbers = {"step": 0, "micro": 0, "loss": 1.5, "tokens": 4, "slots": 8, "wait_s": 0.1, "step_s": 1.0}
    line = json.dumps({**numbers, "segments": [["ab", 4]]}) + "\n"
    (tmp_path / "rank-0.jsonl").write_text(line + line[:40])
    (tmp_path / "rank-1.jsonl").write_text(line)
    assert [(entry.rank, entry.segments) for entry in read_log(tmp_path)] == [(0, (("ab", 4),)), (1, (("ab", 4),))]
