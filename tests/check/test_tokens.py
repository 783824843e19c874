"""Tokens made visible: every token is shown once, under the right kind."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from thalweg.check.tokens import View, pieces, view_row, view_sample


def byte_decode(ids):
    """A byte-level vocabulary: a token is a byte, a character may be several."""
    return bytes(ids).decode("utf-8", "replace")


@given(st.text(max_size=40), st.data())
def test_pieces_show_every_token_once_and_the_text_unharmed(text, data):
    ids = list(text.encode())
    kinds = data.draw(st.lists(st.sampled_from(["loss", "context"]), min_size=len(ids), max_size=len(ids)))
    found = pieces(ids, kinds, byte_decode)
    assert [i for piece in found for i in piece.ids] == ids
    assert "".join(piece.text for piece in found) == text


def test_a_part_of_a_character_at_the_end_is_shown_as_broken():
    found = pieces(list("é".encode())[:1], ["loss"], byte_decode)
    assert [(piece.text, piece.ids) for piece in found] == [("\ufffd", (0xC3,))]


def test_spans_and_labels_show_the_same_and_a_first_token_is_never_trained_on():
    ids = np.array(list(b"abcdef"))
    by_spans = view_sample("s", {"input_ids": ids, "loss_spans": np.array([[0, 2], [4, 6]])}, byte_decode)
    labels = np.array([97, 98, -100, -100, 101, 102])
    assert by_spans == view_sample("s", {"input_ids": ids, "labels": labels}, byte_decode)
    assert by_spans.marked() == "a⟦b⟧cd⟦ef⟧"
    assert view_sample("s", {"input_ids": ids}, byte_decode).marked() == "a⟦bcdef⟧"
    assert view_sample("s", {"input_ids": ids, "loss_spans": np.empty((0, 2))}, byte_decode).count("loss") == 0


def test_a_packed_row_is_cut_where_positions_restart_and_padding_is_counted():
    ids = np.array(list(b"abcde\0\0\0"))
    labels = np.array([-100, 98, -100, 100, 101, -100, -100, -100])
    positions = np.array([0, 1, 0, 1, 2, 0, 1, 2])
    view = view_row("row", ids, labels=labels, positions=positions, real=np.arange(8) < 5, decode=byte_decode)
    assert view.marked() == "a⟦b⟧\n────\nc⟦de⟧\n────\n(3 padding tokens)"
    assert (view.num_tokens, view.count("loss"), view.count("padding")) == (5, 3, 3)


def test_an_empty_sample_is_an_empty_view():
    assert view_sample("none", {"input_ids": np.empty(0, np.int32)}, byte_decode) == View("none", ((),))
