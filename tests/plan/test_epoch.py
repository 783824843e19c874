"""The order of rows: blocks never cross a change of the weights, every draw once, any block alone is the same."""

import numpy as np
import pytest
from hypothesis import given, settings

from planned_oracle import CAP, arguments, best_fit, make_order, rows_of
from thalweg.plan.epoch import Order, Packed
from thalweg.plan.schedule import Schedule
from thalweg.plan.table import SourceTable


@settings(max_examples=100, deadline=None)
@given(arguments())
def test_blocks_hold_every_draw_once_and_cross_no_change(given_arguments):
    lengths, more = given_arguments
    order = make_order(lengths, **more)
    for epoch in range(2):
        got = []
        for b in range(order.num_blocks(epoch)):
            start, stop, entry = order.bounds(epoch, b)
            assert stop - start <= more["block"]
            assert {
                s.entry for s in order.schedule.segments(epoch) if s.start < stop and start < s.start + s.length
            } == {entry}
            assert order.block_at(epoch, start) == b == order.block_at(epoch, stop - 1)
            block = order.block(epoch, b)
            assert order.num_rows(epoch, b) == len(block)
            for row in rows_of(order, epoch, b):
                assert sum(lengths["abc"[s]][i] for s, i in row) <= CAP
                got += row
        source, index, _ = order.drawn(epoch, 0, order.num_draws(epoch))
        want = list(zip(source.tolist(), index.tolist(), strict=True))
        assert sorted(got) == sorted(want)


@settings(max_examples=60, deadline=None)
@given(arguments())
def test_any_block_alone_is_the_block_of_the_walk(given_arguments):  # C8 C18 E14
    lengths, more = given_arguments
    whole, alone = make_order(lengths, **more), make_order(lengths, **more)
    places = [(e, b) for e in range(2) for b in range(whole.num_blocks(e))]
    walked = {p: rows_of(whole, *p) for p in places}
    for p in reversed(places):
        assert rows_of(alone, *p) == walked[p]


def plain(n, seed, *, packer=None, repack=True, block=None):
    table = SourceTable("a", n, None, np.full(n, 4, np.int32), seed)
    return Order([table], Schedule(["a"], [n]), packer=packer, seed=seed, repack=repack, block=block)


def indices(order, epoch):
    return np.concatenate([order.block(epoch, b).index for b in range(order.num_blocks(epoch))])


def test_each_epoch_is_another_permutation_and_repeats_from_the_seed():  # E12 E14 E45
    one, two = plain(5_000, 7), plain(5_000, 7)
    first, second = indices(one, 0), indices(one, 1)
    assert np.array_equal(np.sort(first), np.arange(5_000))
    assert np.array_equal(np.sort(second), np.arange(5_000))
    assert np.mean(first == second) < 0.01
    assert np.array_equal(indices(two, 1), second)
    assert not np.array_equal(indices(plain(5_000, 8), 1), second)


def test_without_a_shuffle_rows_come_in_the_order_of_their_first_sample():
    order = plain(100, None, packer=best_fit)
    firsts = [min(i for _, i in row) for row in rows_of(order, 0, 0)]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("block", [16, 1000])
def test_rows_that_are_never_packed_again_are_only_permuted(block):  # C16 C18
    order = plain(100, 3, packer=best_fit, repack=False, block=block)

    def rows(epoch):
        return [frozenset(r) for b in range(order.num_blocks(epoch)) for r in rows_of(order, epoch, b)]

    assert set(rows(0)) == set(rows(1)) == set(rows(2))
    assert rows(0) != rows(1) != rows(2)
    assert [order.num_rows(1, b) for b in range(order.num_blocks(1))] == [
        len(rows_of(order, 1, b)) for b in range(order.num_blocks(1))
    ]


def test_pieces_keep_their_bounds():
    def halves(lengths, source, index):
        m = len(lengths)
        return Packed(np.repeat(np.arange(m), 2), np.arange(2 * m + 1), np.tile([0, 2], m), np.tile([2, 4], m))

    block = plain(10, 1, packer=halves).block(0, 0)
    got = sorted(zip(block.index.tolist(), block.start.tolist(), block.stop.tolist(), strict=True))
    assert got == [(i, a, a + 2) for i in range(10) for a in (0, 2)]
    assert block.lengths.tolist() == [2] * 20


def test_a_place_in_a_thousand_million_samples_needs_no_walk():
    table = SourceTable("a", 10**9, None, None, 5)
    order = Order([table], Schedule(["a"], [10**9]), seed=5)
    assert order.num_blocks(3) == -(-(10**9) // order.size)
    block = order.block(3, 12_345)
    draw = np.int64(3 * 10**9 + 12_345 * order.size + 77)
    assert table.draw_of(int(block.index[77]), 3) == draw
