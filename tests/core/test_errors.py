"""Errors say what, where and what to try, and survive the way out of a worker."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core import errors
from thalweg.core.errors import ConfigError, MissingExtraError, ThalwegError, nearest
from thalweg.core.extras import EXTRA_OF, need

KINDS = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, ThalwegError)]
texts = st.none() | st.text(min_size=1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
@given(what=st.text(), where=texts, fix=texts)
def test_every_error_pickles_and_copies_with_all_its_parts(kind, what, where, fix):
    error = kind(what, where=where, fix=fix)
    error.add_note("while mapping sample 7")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (again.what, again.where, again.fix) == (what, where, fix)
        assert str(again) == str(error)
        assert again.__notes__ == ["while mapping sample 7"]


def test_codes_are_stable_and_each_belongs_to_one_kind():
    codes = {kind.__name__: kind.code for kind in KINDS}
    assert len(set(codes.values())) == len(codes)
    assert codes["ConfigError"] == "TW100"
    assert codes["StateError"] == "TW600"


def test_a_message_is_code_what_where_and_what_to_try():
    error = ConfigError("capacity 0 is below 1", where="pack", fix="give at least 1")
    assert str(error) == "TW100 capacity 0 is below 1 [pack]. Try: give at least 1"
    assert str(ConfigError("capacity 0 is below 1")) == "TW100 capacity 0 is below 1"


def test_errors_are_also_the_standard_kinds_that_people_catch():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
    assert issubclass(errors.WorkerError, RuntimeError)
    assert issubclass(errors.IntegrityError, errors.RecordsError)


def test_nearest_names_the_word_that_is_meant_or_all():
    assert nearest("lenght", ["length", "label_tokens"]) == "did you mean 'length'?"
    assert nearest("zzz", ["b", "a"]) == "one of 'a', 'b'"


@pytest.mark.parametrize("module", sorted(EXTRA_OF))
def test_a_missing_library_is_named_with_its_pip_command(module, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        need(module, why="ChatEncoder")
    assert f'pip install "thalweg[{EXTRA_OF[module]}]"' in str(caught.value)
    assert "ChatEncoder" in str(caught.value)


def test_every_extra_that_a_message_names_exists_in_pyproject():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert set(EXTRA_OF.values()) - project["optional-dependencies"].keys() == set()


def test_a_library_that_is_there_and_broken_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all") as caught:
        need("half_there", why="x")
    assert not isinstance(caught.value, MissingExtraError)


def test_a_library_that_is_there_is_given():
    assert need("json.decoder", why="x").JSONDecoder
