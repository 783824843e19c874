"""The plan read both ways: from a step to samples, from a sample to steps, and the figures of any layout."""

import json
import re
import sys
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

import thalweg as tw
from thalweg.cli import cli as main_group
from thalweg.core.errors import InputError
from thalweg.feed.rowsof import why_sample, why_step
from thalweg.feed.simulate import simulate
from thalweg.steps import JsonlReader
from thalweg.steps.encode import provenance


def source(name, n):
    rows = [
        {"input_ids": np.arange(1 + i % 9, dtype=np.int32), "id": f"{name}{i}", "unit": f"{name}.jsonl", "row": i}
        for i in range(n)
    ]
    return tw.from_dataset(rows, id="id")


def feed():
    return (
        tw.mix({"a": source("a", 40), "b": source("b", 60)}, by="tokens").shuffle(1).pack(16, overlong="drop").batch(2)
    )


@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (3, 2)])
def test_why_names_what_the_loader_gives_and_the_way_back(layout):
    world, accumulation = layout
    for rank in range(world):
        loader = tw.Loader(
            feed(),
            topology=tw.Topology(rank=rank, world=world),
            gradient_accumulation_steps=accumulation,
            epochs=2,
            return_tensors="np",
        )
        for batch in loader:
            found = why_step(feed(), batch.info.step, topology=loader.topology, accumulation=accumulation, epochs=2)
            micro = found[batch.info.micro]
            assert [[o.id for o in row] for row in micro.rows] == batch.info.ids
            assert micro.epoch == batch.info.epoch or batch.info.epoch < 2
            name = batch.info.ids[0][0]
            origins, seen = why_sample(feed(), name, world=world, accumulation=accumulation, epochs=2)
            assert (batch.info.step, batch.info.micro, rank) in [(s.step, s.micro, s.rank) for s in seen]
            assert (origins[0].file, origins[0].row) == (f"{name[0]}.jsonl", int(name[1:]))


@pytest.mark.parametrize("own", [{}, {"source": "book"}])
def test_a_sample_of_a_pipeline_is_found_in_the_raw_file_that_it_came_from(tmp_path, own):
    for part in ("x", "y"):
        rows = [{"text": f"{part} {i}", "id": f"{part}{i}", **own} for i in range(3)]
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with tw.create_records(tmp_path / "rec") as writer:
        for document in JsonlReader(str(tmp_path), glob_pattern="*.jsonl")(None, 0, 1):
            writer.write({"input_ids": [1, 2], **provenance(document)})
    feed = tw.from_records(tmp_path / "rec").batch(1)
    (origin,), _ = why_sample(feed, "y2")
    assert (origin.file, origin.line, origin.row) == (str(tmp_path / "y.jsonl"), None, 2)
    text = CliRunner().invoke(main_group, ["why", _in_a_file(tmp_path), "--sample", "y2"]).output
    assert text.startswith(f"y2  sample 5  {tmp_path / 'y.jsonl'} row 2\n"), text


def _in_a_file(folder):
    file = folder / "why_data.py"
    file.write_text(f"import thalweg as tw\nfeed = tw.from_records({str(folder / 'rec')!r}).batch(1)\n")
    return f"{file}:feed"


def test_an_id_that_is_nowhere_is_an_error():
    with pytest.raises(InputError, match="no sample has the id 'zzz'"):
        why_sample(feed(), "zzz")


def test_a_simulation_counts_what_a_loader_gives():  # C19 E49
    for world, accumulation in ((1, 1), (2, 1), (3, 2)):
        (figures,) = simulate(feed(), [world], accumulation=accumulation)
        ranks = [
            list(
                tw.Loader(
                    feed(),
                    topology=tw.Topology(rank=r, world=world),
                    gradient_accumulation_steps=accumulation,
                    return_tensors="np",
                )
            )
            for r in range(world)
        ]
        assert figures.steps * accumulation == len(ranks[0])
        tokens = [sum(b.info.num_tokens for b in part) for part in ranks]
        assert figures.rank_tokens == (min(tokens), sum(tokens) / world, max(tokens))
        places = sum(b["input_ids"].size for part in ranks for b in part)
        assert figures.padding == pytest.approx(1 - sum(tokens) / places)
        assert set(figures.shapes) == {
            f"{b['input_ids'].shape[0]}x{b['input_ids'].shape[1]}" for part in ranks for b in part
        }


def drawn():
    sizes = np.random.default_rng(1).integers(1, 40, 400).tolist()
    rows = [{"input_ids": np.arange(n, dtype=np.int32), "id": f"r{i}"} for i, n in enumerate(sizes)]
    parts = {"a": tw.from_dataset(rows[:250], id="id"), "b": tw.from_dataset(rows[250:], id="id")}
    return tw.mix(parts, by="tokens").shuffle(1)


SHAPED = {
    "buckets": lambda feed: feed.bucket((10, 20), (6, 4, 2)),
    "buckets to their boundary": lambda feed: feed.bucket(
        (10, 20), (6, 4, 2), remainder="drop", pad_to="boundary", pad_to_multiple_of=4
    ),
    "token budget": lambda feed: feed.token_budget(120, window=64, pad_to_multiple_of=8),
    "several row lengths": lambda feed: feed.pack((24, 40), overlong="error", max_docs=2).batch(2),
    "several row lengths, balanced": lambda feed: feed.pack((24, 96), overlong="error").balance(b=1).batch(1),
    "padded samples": lambda feed: feed.batch(3),
    "flat samples": lambda feed: feed.batch(2, pad="none"),
    "flat aligned rows": lambda feed: feed.pack(64, align=8).batch(2, pad="none"),
    "long ones alone, aligned": lambda feed: feed.pack(24, overlong="alone", align=4).batch(2),
}


# E49 E50
@pytest.mark.parametrize("name", SHAPED)
def test_a_simulation_knows_every_shape_tokens_and_padding_that_loaders_give(name):
    feed = SHAPED[name](drawn())
    for world, accumulation in ((1, 1), (3, 2)):
        (figures,) = simulate(feed, [world], accumulation=accumulation)
        ranks = [
            list(
                tw.Loader(
                    feed,
                    topology=tw.Topology(rank=r, world=world),
                    gradient_accumulation_steps=accumulation,
                    return_tensors="np",
                )
            )
            for r in range(world)
        ]
        every = [b for part in ranks for b in part]
        assert figures.steps * accumulation == len(ranks[0]) > 0
        tokens = [sum(b.info.num_tokens for b in part) for part in ranks]
        assert figures.rank_tokens == (min(tokens), sum(tokens) / world, max(tokens))
        seen = Counter("{}x{}".format(*b["input_ids"].shape) for b in every)
        assert figures.shapes == dict(seen)
        assert figures.distinct_shapes == len(seen)
        assert figures.padding == pytest.approx(1 - sum(tokens) / sum(b["input_ids"].size for b in every))
        documents = [sum(len(row) for b in part for row in b.info.ids) for part in ranks]
        assert figures.rank_requests_range == (min(documents), sum(documents) / world, max(documents))
        assert figures.rank_bytes_range == (4 * min(tokens), 4 * sum(tokens) / world, 4 * max(tokens))
        assert 1 <= figures.straggler <= figures.straggler_worst


def test_the_commands_answer_in_text_and_json(tmp_path):
    file = tmp_path / "data_here.py"
    file.write_text(
        "import numpy as np, thalweg as tw\n"
        "rows = [{'input_ids': np.arange(1 + i % 9, dtype=np.int32), 'id': f'r{i}'} for i in range(50)]\n"
        "feed = tw.from_dataset(rows, id='id').shuffle(1).pack(16, overlong='drop').batch(2)\n"
    )
    run = CliRunner().invoke
    try:
        text = run(main_group, ["simulate", f"{file}:feed", "--world", "1,2"])
        assert text.exit_code == 0, text.output
        assert "straggler" in text.output
        steps = json.loads(run(main_group, ["simulate", f"{file}:feed", "--world", "1,2", "--json"]).output)
        assert steps[0]["steps"] == steps[1]["steps"] * 2 or steps[0]["left_out"] != steps[1]["left_out"]
        rows = json.loads(run(main_group, ["why", f"{file}:feed", "--step", "1", "--json"]).output)
        name = rows[0]["rows"][0][0]["id"]
        seen = run(main_group, ["why", f"{file}:feed", "--sample", name])
        assert "step 1, epoch 0" in seen.output
        assert run(main_group, ["why", f"{file}:feed"]).exit_code != 0
    finally:
        sys.modules.pop("data_here", None)


# C41
def test_the_simulation_shows_shares_over_the_epoch_and_balance_on_a_page(tmp_path):
    even = (
        tw.mix({"a": source("a", 400), "b": source("b", 600)}, by="tokens")
        .shuffle(1)
        .pack(16, max_docs=3)
        .balance(b=1)
        .batch(1)
    )
    plain = tw.mix({"a": source("a", 400), "b": source("b", 600)}, by="tokens").shuffle(1).pack(16, max_docs=3).batch(1)
    balanced, contiguous = simulate(even, [4]), simulate(plain, [4])
    assert balanced[0].straggler < contiguous[0].straggler
    assert sum(balanced[0].shares.values()) == pytest.approx(1)
    for parts in zip(*balanced[0].shares_over.values(), strict=True):
        assert sum(parts) == pytest.approx(1)
    assert np.mean(balanced[0].shares_over["a"]) == pytest.approx(balanced[0].shares["a"], abs=0.03)
    loaders = [tw.Loader(even, topology=tw.Topology(rank=r, world=4), return_tensors="np") for r in range(4)]
    tokens = [sum(b.info.num_tokens for b in one) for one in loaders]
    assert balanced[0].rank_tokens == (min(tokens), sum(tokens) / 4, max(tokens))
    assert balanced[0].straggler == pytest.approx(loaders[0].stats()["straggler"], rel=1e-6)
    file = tmp_path / "mixed.py"
    file.write_text(
        "import numpy as np, thalweg as tw\n"
        "def data(name, n):\n"
        "    rows = [{'input_ids': np.ones(4, np.int32), 'id': f'{name}{i}'} for i in range(n)]\n"
        "    return tw.from_dataset(rows, id='id')\n"
        "feed = tw.mix({'web': data('w', 40), 'code': data('c', 40)}).shuffle().pack(16).batch(1)\n"
        "web = data('w', 40).batch(1)\n"
    )
    page = tmp_path / "page.html"
    out = CliRunner().invoke(main_group, ["simulate", f"{file}:feed", "--world", "1,2", "--html", str(page)])
    assert out.exit_code == 0, out.output
    assert "over the epoch, web" in out.output
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "Shares of tokens over the epoch" in text
    assert re.search(r"<td>web</td><td>(49|50|51)\.\d\d%</td>", text)
    shape = re.search(r"shapes (1x16 \(\d+\))", out.output)
    assert shape
    assert shape[1] in text
    assert "requests a rank" in out.output
    out = CliRunner().invoke(main_group, ["simulate", f"{file}:web", "--html", str(page)])
    assert out.exit_code == 0, out.output
    assert page.read_text().count("<svg") == 1  # one source has no shares to draw
    assert "web" in text
