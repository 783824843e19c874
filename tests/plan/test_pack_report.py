"""The packing report adds up, over blocks and over sources."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.plan import pack
from thalweg.plan.pack_report import PackingReport


@given(
    st.lists(st.integers(0, 60), max_size=200),
    st.sampled_from(["best_fit", "fill", "next_fit", "concat_split"]),
    st.sampled_from(["drop", "truncate", "split", "alone"]),
    st.sampled_from([7, 1000]),
)
@settings(max_examples=150, deadline=None)
def test_tokens_given_are_tokens_in_rows_and_tokens_left_out(lengths, policy, overlong, block):
    n = np.array(lengths, np.int64)
    which = np.arange(len(n)) % 3
    got = PackingReport()
    rows, per_row, lag = 0, [], 0
    for first in range(0, len(n), block):
        part = n[first : first + block]
        made = pack.plan(part, 40, policy=policy, overlong=None if policy == "concat_split" else overlong)
        got.add(made, part, sources=which[first : first + block], names=["a", "b", "c"])
        rows += len(made.rows)
        per_row += made.rows.documents.tolist()
        order = made.rows.order.tolist()
        lag = max([lag, *(max(order[: i + 1]) - d for i, d in enumerate(order))])
    out = got.to_dict()
    assert out["tokens"] == n.sum() == out["packed_tokens"] + got.loss.tokens
    assert out["documents"] == len(n)
    assert out["rows"] == rows == sum(out["policies"].values())
    assert sum(out["documents_per_row"][k] for k in ("max",)) == max(per_row, default=0)
    assert out["documents_per_row"]["p50"] == (int(np.percentile(per_row, 50, method="inverted_cdf")) if per_row else 0)
    assert out["lag"] == lag
    assert 0 <= out["efficiency"] <= 1
    if len(n):
        shares = out["sources"]
        assert sum(s["tokens"] for s in shares.values()) == out["packed_tokens"]
        assert sum(s["documents"] + s["lost_documents"] for s in shares.values()) == len(n)
        assert sum(s["lost_tokens"] for s in shares.values()) == got.loss.tokens


def test_cut_documents_are_counted_once():
    n = np.array([30, 95, 40, 41])
    got = PackingReport()
    got.add(pack.plan(n, 40, overlong="split"), n)
    assert (got.cut, got.pieces) == (2, 7)
    assert got.bound == -(-n.sum() // 40)
