"""A chain of the datatrove package's blocks, unchanged, with ours among them, beside what their own executor gives."""

import json
from pathlib import Path

from thalweg.steps import JsonlWriter, LambdaFilter

TASKS = 2
PROSE = "The river bends to the west, and that is where the deepest water of the valley flows. "
MIX = (PROSE * 4, PROSE, PROSE * 5 + "#" * 30, PROSE * 6)  # kept, too short, too many hashes, kept


def write_inputs(folder):
    """Write four files of 12 documents and a tokenizer: (folder of the files, path of the tokenizer)."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    source = folder / "raw"
    source.mkdir()
    for f in range(4):
        rows = [{"text": MIX[i % 4], "id": f"{f}-{i}", "metadata": {"n": i}} for i in range(12)]
        (source / f"{f}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = {w: k for k, w in enumerate(["<unk>", "<eos>", *dict.fromkeys(PROSE.replace(",", " ,").split())])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return str(source), str(folder / "tokenizer.json")


def chain(source, tokenizer, out, *, ours):
    """Reader, filter, Gopher filter, writers and tokenizer; `ours`: with steps of thalweg between them."""
    from datatrove.pipeline import filters, readers, tokens, writers

    odd = (LambdaFilter if ours else filters.LambdaFilter)(lambda doc: doc.metadata["n"] != 3)
    excluded = writers.JsonlWriter(f"{out}/excluded", compression=None)
    return [
        readers.JsonlReader(source),
        odd,
        filters.GopherQualityFilter(exclusion_writer=excluded),
        writers.JsonlWriter(f"{out}/kept", compression=None),
        *([JsonlWriter(f"{out}/ours", compression=None)] if ours else []),
        tokens.DocumentTokenizer(f"{out}/tokens", tokenizer, eos_token="<eos>", shuffle_documents=False),
    ]


def check(tmp_path, run):
    """Run the chain by `run(pipeline)`, which gives statistics, and by their executor: the same files."""
    from datatrove.executor import LocalPipelineExecutor as Theirs

    source, tokenizer = write_inputs(tmp_path)
    Theirs(chain(source, tokenizer, f"{tmp_path}/peer", ours=False), TASKS, 1, f"{tmp_path}/peer_log").run()
    stats = run(chain(source, tokenizer, f"{tmp_path}/out", ours=True))
    found = content(tmp_path / "out")
    written = {name: found.pop(name) for name in list(found) if name.startswith("ours/")}
    assert found == content(tmp_path / "peer")
    assert sorted({name.partition("/")[0] for name in found}) == ["excluded", "kept", "tokens"]
    assert sum(data.count(b"\n") for data in written.values()) == 4 * 5
    tallies = [step.tally.to_dict()["dropped"] for step in stats]
    assert tallies[1:3] == [{"filtered": 4}, {"gopher_short_doc": 12, "gopher_too_many_hashes": 12}]
    assert stats[5]["tokens"].total > 1000
    assert stats.unbalanced == []


def content(folder):
    """All files but notes about the tokenizer, which hold its path."""
    files = [p for p in Path(folder).rglob("*") if p.is_file() and p.suffix != ".metadata"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}
