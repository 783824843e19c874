"""LMMS Engine's two datasets by one configuration: every format in every mode, packs, order, places, migration."""

import gc
import json
import threading
import tracemalloc
import warnings
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")
import datasets
import torch
from torch.utils.data import DataLoader, IterableDataset

from thalweg.bind.lmms import (
    DatasetConfig,
    MultiModalDataset,
    MultiModalIterableDataset,
    register_processor,
    sequence_metrics,
)
from thalweg.bind.lmms.formats import open_rows
from thalweg.bind.lmms.processors import _REFUSED, KINDS, PROCESSORS, kind_of
from thalweg.bind.lmms.streaming import check_steps
from thalweg.core.errors import BudgetError, ConfigError, InputError
from thalweg.core.topology import Topology
from thalweg.encode.text import TextEncoder

pytestmark = pytest.mark.slow
N = 31


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def made(qwen):
    """A text processor under a name of its own, on a tokenizer that is loaded already."""
    register_processor("test_text", lambda config: TextEncoder(qwen, max_length=None))
    yield "test_text"
    del PROCESSORS["test_text"]


ROWS = [{"text": " ".join(f"word{i}" for _ in range(3 + 7 * i % 23)), "n": i} for i in range(N)]


@pytest.fixture
def place(tmp_path):
    """Write the same rows in a format; give what dataset_path is."""

    def write(kind):
        table = datasets.Dataset.from_list(ROWS)
        path = tmp_path / f"data.{kind}"
        if kind == "json":
            path.write_text(json.dumps(ROWS))
        elif kind == "jsonl":
            path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
        elif kind == "csv":
            table.to_csv(str(path), index=False)
        elif kind == "parquet":
            table.to_parquet(str(path))
        elif kind == "arrow":
            with datasets.arrow_writer.ArrowWriter(path=str(path)) as writer:
                for row in ROWS:
                    writer.write(row)
                writer.finalize()
        elif kind == "hf_dataset":
            table.save_to_disk(str(path))
        else:
            for name, part in (("a", ROWS[:10]), ("b", ROWS[10:])):
                (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in part))
            listed = [{"path": str(tmp_path / f"{n}.jsonl"), "data_type": "jsonl"} for n in "ab"]
            path.write_text(json.dumps({"datasets": listed}))
        return str(path)

    return write


def config(path, kind, made, **more):
    told = {"dataset_type": "fineweb_edu", "processor_config": {"processor_type": made}, "packing_length": 96}
    return DatasetConfig(dataset_format=kind, dataset_path=path, **{**told, **more})


def built(cls, *args, **more):
    dataset = cls(*args, **more)
    dataset.build()
    return dataset


def texts(qwen, items):
    out = []
    for item in items:
        for sample in item if isinstance(item, list) else [item]:
            out.append(qwen.decode(np.asarray(sample["input_ids"])[:-1]))
    return out


FORMATS = ("json", "jsonl", "csv", "yaml", "hf_dataset", "arrow", "parquet")


# C1 C3 C4 C5 C6 C12 C44
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_every_format_works_in_every_mode(place, made, qwen, kind, packing, cls):
    dataset = built(cls, config(place(kind), kind, made, packing=packing, packing_strategy="window_10"))
    items = list(dataset) if cls is MultiModalIterableDataset else [dataset[i] for i in range(len(dataset))]
    assert Counter(texts(qwen, items)) == Counter(r["text"] for r in ROWS)
    assert all(isinstance(item, list) == packing for item in items)
    batch = dataset.get_collator()(items[:2])
    assert isinstance(batch["input_ids"], torch.Tensor)
    if packing:
        assert all(sum(len(s["input_ids"]) for s in item) <= 96 for item in items)
        assert "attention_mask" not in batch


# C1
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_a_record_without_text_is_left_out(tmp_path, made, qwen, cls, packing):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in ("", "one page", "", "another page")))
    told = config(str(path), "jsonl", made, packing=packing, extra_kwargs={"max_bad": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dataset = built(cls, told)
        items = list(dataset) if cls is MultiModalIterableDataset else [dataset[i] for i in range(len(dataset))]
    assert Counter(texts(qwen, items)) == {"one page": 1, "another page": 1}


# C14
@pytest.mark.parametrize("kind", ["hf_dataset", "arrow"])
def test_tables_are_mapped_and_not_loaded(place, made, kind):
    assert [f["filename"] for f in open_rows(config(place(kind), kind, made)).cache_files]


# C14
@pytest.mark.parametrize("kind", ["json", "jsonl", "csv"])
def test_files_are_read_where_they_lie_and_not_loaded(tmp_path, made, kind):
    rows = [{"text": "word " * 2000, "n": i} for i in range(160)]
    path = tmp_path / f"long.{kind}"
    if kind == "csv":
        datasets.Dataset.from_list(rows).to_csv(str(path), index=False)
    else:
        path.write_text(json.dumps(rows) if kind == "json" else "".join(json.dumps(r) + "\n" for r in rows))
    gc.collect()
    tracemalloc.start()
    try:
        opened = open_rows(config(str(path), kind, made))
        kept = [opened[i] for i in range(0, 160, 16)]
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [int(r["n"]) for r in kept] == list(range(0, 160, 16))
    assert held < path.stat().st_size / 4


# C8 C16 C17 C18 C19 C23
def test_the_map_style_dataset_keeps_one_arrangement_for_every_rank_run_and_epoch(place, made):
    told = config(place("jsonl"), "jsonl", made, packing=True)
    one, two = built(MultiModalDataset, told), built(MultiModalDataset, told)
    assert one.indices == two.indices
    assert sorted(i for row in one.indices for i in row) == list(range(N))
    assert len(one) == len(one.indices)
    other = built(MultiModalDataset, config(place("jsonl"), "jsonl", made, packing=True, data_seed=7))
    assert other.indices != one.indices
    plain = built(MultiModalDataset, config(place("jsonl"), "jsonl", made, shuffle=False))
    assert plain.indices == [[i] for i in range(N)]
    shuffled = built(MultiModalDataset, config(place("jsonl"), "jsonl", made))
    assert shuffled.indices != plain.indices
    assert one.modality_length == [sum(len(s["input_ids"]) for s in one[i]) for i in range(len(one))]


# C20 C27 C50
def test_the_stream_fills_rows_in_order_of_arrival_and_has_another_order_in_each_epoch(place, made, qwen):
    told = config(place("jsonl"), "jsonl", made, packing=True)
    stream = built(MultiModalIterableDataset, told)
    first, second = list(stream), list(stream)
    assert texts(qwen, first) != texts(qwen, second)
    assert Counter(texts(qwen, first)) == Counter(texts(qwen, second))
    assert texts(qwen, built(MultiModalIterableDataset, told)) == texts(qwen, first)
    sizes = [[len(s["input_ids"]) for s in row] for row in first]
    for row, following in pairwise(sizes):
        assert sum(row) + following[0] > 96
    plain = built(MultiModalIterableDataset, config(place("jsonl"), "jsonl", made, packing=True, shuffle=False))
    assert texts(qwen, plain) == [r["text"] for r in ROWS]


# C24 C25 C26
@pytest.mark.parametrize("packing", [False, True])
def test_the_first_rows_of_a_stream_come_before_most_of_the_data_are_read(made, monkeypatch, packing):
    read = set()

    class Rows(list):
        def __getitem__(self, i):
            read.add(i)
            return super().__getitem__(i)

    rows = Rows({"text": f"word {i}"} for i in range(20_000))
    monkeypatch.setattr("thalweg.bind.lmms.streaming.open_rows", lambda config: rows)
    stream = built(MultiModalIterableDataset, config("rows", "jsonl", made, packing=packing))
    walk = iter(stream)
    for _ in range(5):
        next(walk)
    walk.close()
    assert 5 <= len(read) < 2000


# C31 C33 C41 C50
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_of_a_stream_share_the_data_without_overlap(place, made, qwen, world):
    told = config(place("jsonl"), "jsonl", made)
    parts = [texts(qwen, built(MultiModalIterableDataset, told, Topology(rank=r, world=world))) for r in range(world)]
    together = Counter(t for part in parts for t in part)
    assert max(together.values()) == 1
    assert len({len(part) for part in parts}) == 1
    assert sum(together.values()) == N - N % world


# C48
@pytest.mark.parametrize("packing", [False, True])
def test_a_stream_goes_on_exactly_where_its_state_was_taken(place, made, qwen, packing):
    told = config(place("jsonl"), "jsonl", made, packing=packing)
    whole = texts(qwen, built(MultiModalIterableDataset, told))
    for stop in (1, 3, 5):
        one = built(MultiModalIterableDataset, told)
        walk = iter(one)
        head = texts(qwen, [next(walk) for _ in range(stop)])
        state = json.loads(json.dumps(one.state_dict()))
        other = built(MultiModalIterableDataset, told)
        other.load_state_dict(state)
        assert head + texts(qwen, other) == whole


# C11 C15 C21 C22
def test_what_is_longer_than_a_row_is_left_out_by_its_true_length_or_stands_alone(place, made, qwen):
    lengths = [len(qwen(r["text"]).input_ids) + 1 for r in ROWS]
    limit = sorted(lengths)[-4]
    long = sum(n > limit for n in lengths)
    told = {"packing": True, "packing_length": limit}
    for cls in (MultiModalDataset, MultiModalIterableDataset):
        kept = built(cls, config(place("jsonl"), "jsonl", made, **told))
        items = [kept[i] for i in range(len(kept))] if cls is MultiModalDataset else list(kept)
        assert sum(map(len, items)) == N - long
        alone = built(cls, config(place("jsonl"), "jsonl", made, **told, filter_overlong=False))
        items = [alone[i] for i in range(len(alone))] if cls is MultiModalDataset else list(alone)
        assert sum(map(len, items)) == N
        over = [item for item in items if sum(len(s["input_ids"]) for s in item) > limit]
        assert [len(item) for item in over] == [1] * long


# C22 C44
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_a_sample_above_max_length_is_left_out_by_both_classes(place, made, qwen, cls, packing):
    lengths = [len(qwen(r["text"]).input_ids) + 1 for r in ROWS]
    limit = max(lengths) - 1
    kept = built(cls, config(place("jsonl"), "jsonl", made, packing=packing, max_length=limit))
    items = [kept[i] for i in range(len(kept))] if cls is MultiModalDataset else list(kept)
    short = Counter(r["text"] for r, n in zip(ROWS, lengths, strict=True) if n <= limit)
    assert Counter(texts(qwen, items)) == short


# C15 C21
def test_lengths_are_counted_anew_where_a_setting_changes_them(place, qwen):
    told = {"processor_config": {"processor_type": "text", "processor_name": qwen}, "packing": True}
    for capacity in (16, 64, 32):  # texts are cut at packing_length
        dataset = built(MultiModalDataset, config(place("jsonl"), "jsonl", None, packing_length=capacity, **told))
        assert dataset.modality_length == [sum(len(s["input_ids"]) for s in dataset[i]) for i in range(len(dataset))]
        assert max(dataset.modality_length) <= capacity


# C15
def test_lengths_are_counted_by_as_many_threads_as_told_and_once(place, qwen):
    meet, calls = threading.Barrier(3), []

    class Meets(TextEncoder):
        def __call__(self, record):
            calls.append(threading.current_thread().name)
            if len(calls) <= 3:
                meet.wait(20)  # three count at the same time, or none goes on
            return super().__call__(record)

    register_processor("test_meets", lambda config: Meets(qwen, max_length=None))
    try:
        for _ in range(2):  # the second start finds the counts
            built(MultiModalDataset, config(place("jsonl"), "jsonl", "test_meets", filter_overlong_workers=3))
            assert len(calls) == N
    finally:
        del PROCESSORS["test_meets"]
    assert len(set(calls)) == 3


# C39
def test_the_memory_of_both_forms_is_estimated_by_the_formulas_of_the_guide(place, made):
    dataset = built(MultiModalDataset, config(place("jsonl"), "jsonl", made))
    tokens = sum(len(dataset[i]["input_ids"]) for i in range(N))
    told = dataset.estimated_memory()
    assert told["naive"] == pytest.approx(1.2 * tokens * 12)  # ids of 4 bytes, labels of 8
    assert told["streaming"] == 96 * 12


# C2 C7 C13
def test_types_and_processors_are_known_by_name_or_refused_with_advice(tmp_path, made):
    for name in ("vision", "vision_audio", "fineweb_edu", "qwen_omni", "vision_iterable", "qwen3_vl", "llava_video"):
        kind_of(name)
    for name in _REFUSED:
        with pytest.raises(ConfigError, match=r"trains a model that makes pictures.*tw\.from"):
            kind_of(name)
    with pytest.raises(ConfigError, match=r"unknown dataset_type 'visoin'.*'vision'"):
        kind_of("visoin")
    with pytest.raises(ConfigError, match=r"unknown dataset_type 'fineweb_ed'.*'fineweb_edu'"):
        kind_of("fineweb_ed")
    assert set(KINDS) | set(_REFUSED) >= {
        "vision",
        "vision_audio",
        "fineweb_edu",
        "rae",
        "sit",
        "qwen_omni",
        "bagel_iterable",
    }
    told = config(str(tmp_path / "x.jsonl"), "jsonl", "your_processor")
    with pytest.raises(KeyError, match=r"unknown processor_type 'your_processor'.*qwen2_5_vl"):
        MultiModalDataset(told).build()
    with pytest.raises(ConfigError, match=r"not built.*build\(\)"):
        len(MultiModalDataset(told))
    with pytest.raises(InputError):
        MultiModalDataset(config(str(tmp_path / "x.jsonl"), "jsonl", made)).build()


# C9 C10 C11 C12 C37
def test_yaml_and_python_configurations_are_equal_and_defaults_are_those_of_the_guide(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "dataset:\n  dataset_type: vision\n  dataset_format: hf_dataset\n  dataset_path: your/dataset/path\n"
        "  shuffle: true\n  packing: true\n  packing_length: 32000\n  filter_overlong: true\n"
        "  processor_config:\n    processor_type: your_processor\n"
    )
    python = DatasetConfig(
        dataset_type="vision", dataset_format="hf_dataset", dataset_path="your/dataset/path", packing=True,
        packing_length=32000, filter_overlong=True, processor_config={"processor_type": "your_processor"},
    )  # fmt: skip
    assert DatasetConfig.from_yaml(tmp_path / "c.yaml") == python
    bare = DatasetConfig(dataset_type="vision", dataset_format="json", processor_config={}, dataset_path="x")
    assert (bare.packing, bare.packing_length, bare.filter_overlong) == (False, 32000, True)
    assert (bare.packing_strategy, bare.shuffle, bare.data_seed) == ("first_fit", True, 42)
    assert DatasetConfig(**{**bare.__dict__, "packing_strategy": "window_100"}).window == 100


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"pakcing": True}, r"no 'pakcing'.*did you mean 'packing'"),
        ({"dataset_format": "parqet"}, r"'parqet' is unknown.*'parquet'"),
        ({"packing_strategy": "window_"}, r"'window_' is unknown.*first_fit"),
        ({"packing_strategy": "best"}, "'best' is unknown"),
        ({"packing_length": 0}, "packing_length must be"),
        ({"video_backend": "torchvision"}, "'torchvision' is unknown"),
        ({"dataset_path": None}, "no data"),
        ({"object_storage": "gcs"}, "'gcs' and bucket_name=None go together"),
        ({"bucket_name": "mine"}, "'none' and bucket_name='mine' go together"),
    ],
)
def test_a_configuration_that_cannot_be_right_is_refused(more, message):
    told = {"dataset_type": "vision", "dataset_format": "json", "processor_config": {}, "dataset_path": "x"}
    with pytest.raises(ConfigError, match=message):
        DatasetConfig(**{**told, **more})


# C28 C32 C43
def test_a_stream_has_no_length_and_says_what_to_give_instead(place, made):
    stream = built(MultiModalIterableDataset, config(place("jsonl"), "jsonl", made))
    assert isinstance(stream, IterableDataset)
    with pytest.raises(TypeError, match="max_steps"):
        len(stream)
    with pytest.raises(ConfigError, match="max_steps is needed"):
        check_steps(None)
    with pytest.warns(UserWarning, match="num_train_epochs"):
        check_steps(10, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_steps(10, 1)


# C29 C30 C40
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_the_calls_that_the_engines_trainer_makes_are_answered(place, made):
    """As prepare_dataloader calls them: len, modality_length and [i] for its samplers, a collator for its loader."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    told = config(place("jsonl"), "jsonl", made, packing=True)
    naive = built(MultiModalDataset, told)
    samplers = [torch.utils.data.DistributedSampler(naive, num_replicas=2, rank=r, drop_last=True) for r in (0, 1)]
    seen = [list(s) for s in samplers]
    assert not set(seen[0]) & set(seen[1])
    assert naive.modality_length == [sum(len(s["input_ids"]) for s in naive[i]) for i in range(len(naive))]
    loader = stateful.StatefulDataLoader(
        naive, batch_size=1, collate_fn=naive.get_collator(), sampler=samplers[0], drop_last=True
    )
    assert sum(1 for _ in loader) == len(naive) // 2
    stream = built(MultiModalIterableDataset, told)
    assert isinstance(stream, IterableDataset)
    whole = [b["input_ids"].tolist() for b in DataLoader(stream, batch_size=1, collate_fn=stream.get_collator())]
    one = stateful.StatefulDataLoader(built_again := built(MultiModalIterableDataset, told), batch_size=1,
                                      collate_fn=built_again.get_collator(), sampler=None)  # fmt: skip
    walk = iter(one)
    head = [next(walk)["input_ids"].tolist() for _ in range(2)]
    state = one.state_dict()
    other = built(MultiModalIterableDataset, told)
    two = stateful.StatefulDataLoader(other, batch_size=1, collate_fn=other.get_collator(), sampler=None)
    two.load_state_dict(state)
    assert head + [b["input_ids"].tolist() for b in two] == whole


# C38
def test_the_three_figures_of_a_step_are_the_tokens_of_its_batch(place, made):
    dataset = built(MultiModalDataset, config(place("jsonl"), "jsonl", made))
    batch = dataset.get_collator()([dataset[0], dataset[1]])
    tokens = len(dataset[0]["input_ids"]) + len(dataset[1]["input_ids"])
    assert sequence_metrics(batch) == {f"perf/global_seq_len_{k}": float(tokens) for k in ("avg", "min", "max")}


# C38 C40
def test_the_three_figures_are_over_ranks_of_one_number_each(monkeypatch):
    import torch.distributed as dist

    def gather(out, mine):
        assert mine.shape == (1,)  # whatever the batches of the ranks are
        for place, more in zip(out, (0, 4, 2), strict=True):
            place.copy_(mine + more)

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "all_gather", gather)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    told = sequence_metrics({"input_ids": mask, "attention_mask": mask})
    assert told == {"perf/global_seq_len_avg": 7, "perf/global_seq_len_min": 5, "perf/global_seq_len_max": 9}


# C3 C5 C44
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_records_that_cannot_be_encoded_are_counted_and_more_than_the_budget_stops_the_run(tmp_path, made, qwen, cls):
    rows = [*ROWS, {"text": None}, {"text": 7}]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    path = str(tmp_path / "odd.jsonl")
    with pytest.raises(BudgetError, match=r"2 of \d+ (records|samples).*max_bad=0.01"):
        list(built(cls, config(path, "jsonl", made)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = built(cls, config(path, "jsonl", made, extra_kwargs={"max_bad": 2}))
        assert Counter(texts(qwen, list(kept))) == Counter(r["text"] for r in ROWS)
    if cls is MultiModalIterableDataset:  # other ranks take a step where this one has nothing: it takes one, too
        told = config(path, "jsonl", made, extra_kwargs={"max_bad": 2})
        parts = [list(built(cls, told, Topology(rank=r, world=2))) for r in range(2)]
        assert len(parts[0]) == len(parts[1]) == len(rows) // 2
        filler = [s for part in parts for s in part if (np.asarray(s["labels"]) == -100).all()]
        assert 1 <= len(filler) <= 2
