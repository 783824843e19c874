"""The identity of a function has the settings and functions of its module in it."""

from thalweg.core.uses import uses

LIMIT, WORDS, TABLE = 5, ["a", "b"], {"x": [1, (2, 3)]}
UNUSED, OBJECT, LONG = 1, object(), list(range(20_000))


def inner(text):
    return len(text) > LIMIT and outer is not None


def outer(text):
    return inner(text) or text in WORDS or [w for w in WORDS if TABLE]


def loops():
    return [OBJECT, LONG, len, loops]


def test_settings_and_functions_are_found_directly_and_through_one_another():
    values, functions = uses(outer)
    assert values == {"LIMIT": 5, "TABLE": {"x": [1, (2, 3)]}, "WORDS": ["a", "b"]}
    assert functions == {"inner": inner}


def test_objects_long_data_builtins_and_itself_are_no_settings():
    assert uses(loops) == ({}, {})
    assert uses(len) == ({}, {})
    assert uses(lambda: UNUSED + LIMIT) == ({"LIMIT": 5, "UNUSED": 1}, {})


SEEN, LIMITS, MEMO = [], [3, 4], {}


def counting(sample):
    SEEN.append(sample)
    MEMO[sample] = 1
    return sample in LIMITS


def test_what_a_function_notes_down_is_no_setting_of_it():
    assert set(uses(counting)[0]) == {"LIMITS"}
