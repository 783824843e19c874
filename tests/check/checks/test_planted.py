"""Every check finds the fault that is planted for it, and is silent on the twin without it."""

import pytest

import thalweg as tw
from planted import FAULTS, packed
from thalweg.check.checks.check import GROUPS
from thalweg.check.checks.table import ALL
from thalweg.check.doctor import doctor, judge
from thalweg.check.evidence import Evidence


def verdicts(make, told):
    target = make()
    report = judge(target) if isinstance(target, Evidence) else doctor(target, **told)
    return {finding.check: finding for _, finding in report.verdicts}


def test_every_check_has_a_planted_fault_and_a_name_and_group_of_its_own():
    assert {check.name for check in ALL} == set(FAULTS)
    assert len({check.name for check in ALL}) == len(ALL)
    assert [GROUPS.index(check.group) for check in ALL] == sorted(GROUPS.index(check.group) for check in ALL)


# E9 E53 E55 E46 E48 E49 E50
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    fault, _, told = FAULTS[name]
    found = verdicts(fault, told)[name]
    assert found.level in {"error", "warning"}, found
    assert found.what


@pytest.mark.parametrize("name", [n for n, (_, twin, _) in FAULTS.items() if twin is not None])
def test_the_twin_without_the_fault_passes(name):
    _, twin, told = FAULTS[name]
    found = verdicts(twin, told)[name]
    assert found.level == "ok", found


def at_a_limit(below):
    """Fifty samples, ten of which reach the limit of 30 and have nothing in the loss; `below`: whether others have."""
    ids = [[9 + n % 7] * (30 if n % 5 == 0 else 12 + n % 9) for n in range(50)]
    labels = [[-100] * (len(i) - 2) + (i[-2:] if below and len(i) < 30 else [-100] * 2) for i in ids]
    return tw.from_dataset([{"input_ids": i, "labels": m} for i, m in zip(ids, labels, strict=True)])


# E53
def test_answers_count_as_cut_off_only_where_samples_below_the_limit_have_some():
    told = [verdicts(lambda b=b: at_a_limit(b), {"max_length": 30})["truncation"] for b in (True, False)]
    assert [(f.level, f.numbers["without an answer"]) for f in told] == [("error", 10), ("warning", 0)]
    assert [(f.count, f.of) for f in told] == [(10, 50)] * 2


def test_only_documents_behind_another_must_begin_off_the_loss():
    """The first token of a row is predicted from nothing, so its label is harmless; the next document's is not."""
    first, later = packed(), packed()
    for batch in first:
        batch["labels"][0, 0] = batch["input_ids"][0, 0]
    for batch in later:
        at = int((batch["position_ids"][0] == 0).nonzero()[0][1])
        batch["labels"][0, at] = batch["input_ids"][0, at]
    levels = [next(f for _, f in doctor(b).verdicts if f.check == "documents begin untrained") for b in (first, later)]
    assert [f.level for f in levels] == ["ok", "error"]
    assert (levels[1].count, levels[1].of) == (10, 20)
