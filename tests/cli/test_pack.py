"""`thalweg pack` on a real record set: what it prints is what the plans are."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from thalweg.cli import cli
from thalweg.plan import pack
from thalweg.store.records import create_records

CAPACITY = 256


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "rec"
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4, 0.8, 400), 2, 600).astype(int)
    with create_records(str(path)) as w:
        for i, n in enumerate(lengths):
            spans = np.array([[n - 2, n]], np.int32)
            w.write({"input_ids": rng.integers(0, 99, n).astype(np.int32), "loss_spans": spans, "source": f"s{i % 2}"})
    return str(path), lengths


def run(*words):
    result = CliRunner().invoke(cli, ["pack", *words, "--json"])
    return result.exit_code, json.loads(result.stdout)


# C36
def test_policies_are_compared_by_the_plans_that_a_feed_would_use(records):
    path, lengths = records
    code, out = run(path, "-c", str(CAPACITY), "--overlong", "drop")
    assert code == 0
    fits = lengths[lengths <= CAPACITY]
    for p in out["plans"]:
        name = p["policy"]
        if name == "concat_split":
            assert p["rows"] == -(-lengths.sum() // CAPACITY)
            continue
        assert p["rows"] == len(pack.plan(lengths, CAPACITY, policy=name, overlong="drop").rows)
        assert p["lower_bound"] == -(-fits.sum() // CAPACITY)
        assert p["efficiency"] == pytest.approx(fits.sum() / (p["rows"] * CAPACITY))
        assert p["packed_tokens"] + p["left_out"]["overlong"]["tokens"] == lengths.sum() == p["tokens"]
    by_name = {p["policy"]: p for p in out["plans"]}
    assert by_name["fill"]["rows"] < by_name["next_fit"]["rows"]
    assert by_name["next_fit"]["lag"] == 0 < by_name["fill"]["lag"] < by_name["best_fit"]["lag"]
    # E18
    assert out["padding"]["to_longest"] == pytest.approx(1 - np.minimum(lengths, CAPACITY).sum() / (400 * CAPACITY))


# E50 E24
def test_truncation_and_shares_of_sources_are_counted_from_the_loss_spans(records):
    path, lengths = records
    code, out = run(path, "-c", str(CAPACITY), "-p", "best_fit", "--overlong", "truncate", "--by", "source")
    assert code == 0
    plan = out["plans"][0]
    long = lengths[lengths > CAPACITY]
    # the loss is on the last two tokens alone, so a document that is cut has none left
    refused = plan["left_out"]["no token in the loss after truncation"]
    assert refused == {"documents": len(long), "tokens": int(long.sum())}
    shares = plan["sources"]
    assert set(shares) == {"s0", "s1"}
    assert sum(s["tokens"] for s in shares.values()) == plan["packed_tokens"]
    assert sum(s["lost_documents"] for s in shares.values()) == len(long)


def test_documents_that_are_too_long_are_refused_with_their_share(records):
    path, lengths = records
    code, out = run(path, "-c", str(CAPACITY))
    assert code == 1
    assert f"{(lengths > CAPACITY).sum()} of 400 documents" in out["error"]["what"]


def test_text_has_a_line_for_each_policy(records):
    path, _ = records
    result = CliRunner().invoke(cli, ["pack", path, "-c", "1024", "-p", "auto", "-p", "next_fit", "--by", "source"])
    assert result.exit_code == 0, result.output
    assert "400 documents" in result.stdout
    assert "nothing left out" in result.stdout
    assert "s1:" in result.stdout


def a_feed(tmp_path, records, words):
    path, lengths = records
    code = f"import thalweg as tw\nfeed = tw.from_records({path!r}).shuffle(){words}\n"
    (tmp_path / "data.py").write_text(code)
    return f"{tmp_path}/data.py:feed", lengths


# E18 C36 C23
def test_a_feed_is_packed_ahead_and_its_rows_are_counted(tmp_path, records):
    target, lengths = a_feed(tmp_path, records, f".pack({CAPACITY}, overlong='drop').batch(2)")
    code, out = run(target, "--epochs", "2")
    assert code == 0
    fits = lengths[lengths <= CAPACITY]
    (plan,) = out["plans"]
    assert plan["policy"] == "best_fit"
    assert plan["rows"] == out["rows"]["0"]
    assert set(out["rows"]) == {"0", "1"}
    assert plan["packed_tokens"] == fits.sum()
    assert plan["left_out"]["overlong"] == {"documents": len(lengths) - len(fits), "tokens": lengths.sum() - fits.sum()}
    assert plan["tokens"] == lengths.sum()
    assert plan["documents"] == len(lengths)
    code, out = run(target, "-p", "fill", "-p", "concat_split", "-c", "512", "--overlong", "truncate")
    assert [p["policy"] for p in out["plans"]] == ["fill", "concat_split"]
    assert {p["capacity"] for p in out["plans"]} == {512}
    text = CliRunner().invoke(cli, ["pack", target]).stdout
    assert "rows counted ahead" in text
    assert "overlong" in text


# E19 E20 E49
@pytest.mark.parametrize("pad_to", ["boundary", "longest"])
def test_the_shapes_of_buckets_are_listed_with_what_they_waste(tmp_path, records, pad_to):
    words = f".bucket([32, 128, 600], [16, 4, 1, 1], pad_to={pad_to!r}, pad_to_multiple_of=8)"
    target, lengths = a_feed(tmp_path, records, words)
    code, out = run(target)
    assert code == 0
    b = out["batches"]
    assert b["samples"] == len(lengths)
    assert b["tokens"] == lengths.sum()
    assert sum(b["shapes"].values()) == b["batches"] == out["rows"]["0"]
    if pad_to == "boundary":
        assert set(b["shapes"]) == {"16x32", "4x128", "1x600"}
    assert b["distinct_shapes"] <= 3 * 75  # widths are multiples of 8, so their number is bounded
    waste = b["shares_of_padding"]
    assert waste["to_longest"] == pytest.approx(1 - lengths.sum() / (len(lengths) * lengths.max()))
    assert waste["packed"] < waste["padding"] < 0.8 * waste["to_longest"]
    assert "shapes" in CliRunner().invoke(cli, ["pack", target]).stdout


def test_a_feed_that_packs_nothing_says_what_to_add(tmp_path, records):
    target, _ = a_feed(tmp_path, records, ".batch(2)")
    code, out = run(target)
    assert code == 1
    assert "packs nothing" in out["error"]["what"]
    assert run(target, "-c", "600")[1]["plans"][0]["rows"] > 0
    assert run(records[0])[1]["error"]["fix"] == "-c 4096"
