"""The page of the doctor names every check, and the checks are few lines each."""

import inspect
from pathlib import Path

from thalweg.check.checks.table import ALL

PAGE = Path(__file__).resolve().parents[3] / "docs" / "doctor.md"


def test_the_page_names_every_check_and_the_order_of_suspicion():  # E57
    text = PAGE.read_text("utf-8")
    assert [check.name for check in ALL if check.name not in text] == []
    recipe = text.index("suspect the data first")
    assert text.index("settings of training", recipe) < text.index("the model last", recipe)


def test_each_check_is_one_small_documented_function():
    for check in ALL:
        assert len(inspect.getsource(check.judge).splitlines()) <= 45, check.name
        assert inspect.getdoc(check.judge), check.name
