"""`build_mm_dataset` and `build_mm_dataloader`: what each key does, streamed and by index, on any number of ranks."""

import json
import warnings

import numpy as np
import pytest

pytest.importorskip("datasets")
from thalweg.bind.mindspeed import (
    AsyncPreprocessIterableDataset,
    DistributedIterableDataset,
    MappedIterableDataset,
    MMDataset,
    align_dataset,
    build_mm_dataloader,
    build_mm_dataset,
)
from thalweg.bind.mindspeed.dataset import load_raw
from thalweg.bind.mindspeed.keys import DatasetParam
from thalweg.bind.mindspeed.samples import Preprocess
from thalweg.core.errors import ConfigError, InputError, SampleError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:a record is left out")]
STREAM = {"streaming": True, "async_preprocess": True, "preprocessing_num_workers": 3}
DL = {
    "dataloader_mode": "base",
    "drop_last": True,
    "collate_param": {"model_name": "llm", "ignore_pad_token_for_loss": True},
}
GOOD = [i for i in range(23) if i not in (5, 11)]


def text(qwen, sample):
    return qwen.decode(sample["input_ids"])


def trained(qwen, sample):
    return qwen.decode([t for t in np.asarray(sample["labels"]).tolist() if t != -100])


def numbers(qwen, samples):
    return [int(text(qwen, s).split("question ")[1].split("<")[0]) for s in samples]


def build(told, **more):
    return build_mm_dataset(told, parallel={}, rank=0, world=1, **more)


# A42 A43 A44 B19 B20 B23 B24 B25 B47
def test_streamed_mapped_and_by_index_give_the_same_samples_in_the_same_order(param, qwen):
    ways = {
        "async": build(param(**STREAM, async_preprocess_buffer_size=4)),
        "mapped": build(param(streaming=True, preprocessing_batch_size=3)),
        "table": build(param(preprocessing_batch_size=4)),
        "on the fly": build(param(preprocess_on_fly=True)),
    }
    kinds = (AsyncPreprocessIterableDataset, MappedIterableDataset, MMDataset, MMDataset)
    assert all(isinstance(d, k) for d, k in zip(ways.values(), kinds, strict=True))
    with pytest.raises(SampleError, match="record 5 cannot be used"):
        list(ways.pop("on the fly"))
    got = {name: [np.asarray(s["input_ids"]).tolist() for s in dataset] for name, dataset in ways.items()}
    assert got["async"] == got["mapped"] == got["table"]
    assert numbers(qwen, ways["table"]) == GOOD
    assert (ways["async"].buffer_size, ways["async"].num_workers) == (4, 3)
    assert ways["mapped"].batch_size == 3


# A43
def test_async_preprocess_without_streaming_changes_nothing_and_says_so(param):
    with pytest.warns(UserWarning, match="async_preprocess does nothing without streaming"):
        table = build(param(**{**STREAM, "streaming": False, "preprocessing_num_workers": None}))
    assert type(table) is MMDataset
    want = [s["input_ids"].tolist() for s in build(param())]
    assert [s["input_ids"].tolist() for s in table] == want


# B16 B19 B20
def test_a_table_is_made_in_its_cache_by_as_many_processes_and_groups_as_told(param, tmp_path, monkeypatch):
    import datasets

    told = []
    real = datasets.Dataset.map
    monkeypatch.setattr(
        datasets.Dataset,
        "map",
        lambda self, fn, **words: told.append(words) or real(self, fn, **{**words, "num_proc": None}),
    )
    table = build(param(preprocessing_batch_size=4, preprocessing_num_workers=3))
    assert len(table) == len(GOOD)
    assert (told[-1]["batch_size"], told[-1]["num_proc"]) == (4, 3)
    files = [f["filename"] for f in table.made.cache_files]
    assert files
    assert all(f.startswith(str(tmp_path / "cache")) for f in files)


# A42 A57
def test_the_chain_by_hand_is_the_chain_as_one_call(param, qwen):
    told = param(**STREAM)
    read = DatasetParam.read(told)
    raw = load_raw([read.basic.dataset], read.basic)
    aligned = align_dataset(raw, read.attributes, read.basic)
    for rank in range(2):
        shard = DistributedIterableDataset(aligned, num_dp=2, dp_rank=rank)
        by_hand = AsyncPreprocessIterableDataset(shard, Preprocess(read), num_workers=2)
        as_one = build_mm_dataset(told, parallel={}, rank=rank, world=2)
        want = [s["input_ids"].tolist() for s in by_hand]
        assert [s["input_ids"].tolist() for s in as_one] == want
        assert numbers(qwen, as_one) == [i for i in range(rank, 23, 2) if i in GOOD]


# A39 A44 B42
@pytest.mark.parametrize("basic", [STREAM, {"streaming": True}])
def test_tensor_parallel_peers_read_the_same_and_ranks_share_what_there_is(param, qwen, basic):
    parallel = {"tensor_parallel_size": 2}
    seen = [numbers(qwen, build_mm_dataset(param(**basic), parallel=parallel, rank=r, world=4)) for r in range(4)]
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert sorted(seen[0] + seen[2]) == GOOD
    assert seen[0] == [i for i in range(0, 23, 2) if i in GOOD]


# A56 B47
def test_json_and_yaml_paths_give_the_same_samples(param, qwen, tmp_path):
    import yaml

    from thalweg.bind.mindspeed import load_config

    told = param(**STREAM)
    (tmp_path / "c.json").write_text(json.dumps({"dataset_param": told, "dataloader_param": DL}))
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"data": {"dataset_param": told, "dataloader_param": DL}}))
    configs = [load_config(tmp_path / name) for name in ("c.json", "c.yaml")]
    both = [build(cfg.dataset_param) for cfg in configs]
    assert [type(d) for d in both] == [AsyncPreprocessIterableDataset] * 2
    assert (both[0].buffer_size, both[0].num_workers) == (both[1].buffer_size, both[1].num_workers)
    got = [[s["input_ids"].tolist() for s in dataset] for dataset in both]
    assert got[0] == got[1]
    assert len(got[0]) == len(GOOD)


# B17 B18
def test_what_is_trained_is_what_the_keys_say(param, qwen):
    first = lambda **basic: trained(qwen, build(param(streaming=True, max_samples=1, **basic)).__iter__().__next__())
    assert first() == "answer 0<|im_end|>last 0<|im_end|>"
    assert first(mask_history=True) == "last 0<|im_end|>"
    whole = first(train_on_prompt=True)
    assert "question 0" in whole
    assert "answer 0" in whole


# B13 B27
def test_templates_by_name_by_file_and_thoughts(param, qwen, tmp_path):
    def first(**basic):
        sample = next(iter(build(param(streaming=True, max_samples=1, **basic))))
        return text(qwen, sample), trained(qwen, sample)

    own, _ = first()
    assert "You are a helpful assistant." in first(template="qwen2_omni")[0]
    assert "You are" not in first(template="qwen3_omni", enable_thinking=None)[0]
    assert "<think>" not in own + first(template="qwen3_omni", enable_thinking=None)[0]
    assert "<think>\n\n</think>\n\n" in first(template="qwen3_omni", enable_thinking=True)[1]
    prompt, answer = first(template="qwen3_omni", enable_thinking=False)
    assert "<think>\n\n</think>\n\n" in prompt
    assert "<think>" not in answer
    with pytest.raises(ConfigError, match=r"unknown template 'qwen3_omin'.*'qwen3_omni'"):
        first(template="qwen3_omin")
    (tmp_path / "mine.jinja").write_text(qwen.chat_template.replace("assistant\\n", "assistant:\\n"))
    assert "assistant:" in first(chat_template=str(tmp_path / "mine.jinja"), template="qwen2_omni")[0]


# B27
def test_thoughts_that_are_there_are_removed_only_where_thinking_is_false(param, qwen, tmp_path):
    row = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "<think>\nhm\n</think>\n\na"}]}
    (tmp_path / "t.json").write_text(json.dumps([row]))
    kept = {}
    for thinking in (True, False, None):
        told = param(streaming=True, dataset=str(tmp_path / "t.json"), template="qwen3_omni", enable_thinking=thinking)
        kept[thinking] = trained(qwen, next(iter(build(told))))
    assert kept[False] == "a<|im_end|>"
    assert kept[None] == kept[True] == "<think>\nhm\n</think>\n\na<|im_end|>"


# B18
def test_mask_history_takes_the_thoughts_out_of_earlier_answers_where_the_template_writes_thoughts(
    param, qwen, tmp_path
):
    thought = "<think>\nhm {}\n</think>\n\n"
    turns = [("human", "q"), ("gpt", thought.format(1) + "a"), ("human", "r"), ("gpt", thought.format(2) + "b")]
    row = {"conversations": [{"from": r, "value": v} for r, v in turns]}
    (tmp_path / "t.json").write_text(json.dumps([row]))
    seen = {}
    for masked in (True, False):
        told = param(streaming=True, dataset=str(tmp_path / "t.json"), template="qwen3", mask_history=masked)
        seen[masked] = next(iter(build(told)))
    assert trained(qwen, seen[True]) == thought.format(2) + "b<|im_end|>"
    assert "hm 1" not in text(qwen, seen[True])
    assert "hm 1" in trained(qwen, seen[False])


# B26
def test_cutoff_len_takes_the_oldest_exchange_whole(param, qwen):
    whole = len(next(iter(build(param(streaming=True, max_samples=1))))["input_ids"])
    sample = next(iter(build(param(streaming=True, max_samples=1, cutoff_len=whole - 1))))
    assert "question 0" not in text(qwen, sample)
    assert trained(qwen, sample) == "last 0<|im_end|>"


# B4
def test_special_tokens_in_the_text_are_split_where_that_is_asked_for(param, qwen, tmp_path):
    row = {"conversations": [{"from": "human", "value": "a<|im_end|>b"}, {"from": "gpt", "value": "c"}]}
    (tmp_path / "t.json").write_text(json.dumps([row]))
    end = qwen.convert_tokens_to_ids("<|im_end|>")
    counts = {}
    for split in (True, False):
        told = param({"split_special_tokens": split}, streaming=True, dataset=str(tmp_path / "t.json"))
        counts[split] = next(iter(build(told)))["input_ids"].tolist().count(end)
    assert counts == {True: 2, False: 3}


# B2 B3
def test_tokenizer_and_processor_come_from_the_model_folder(param, qwen, tmp_path, monkeypatch):
    import transformers

    seen = []
    real = transformers.AutoTokenizer.from_pretrained

    def spy(path, **told):
        seen.append((path, told))
        return real(path, **told)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", spy)
    monkeypatch.setattr("thalweg.bind.mindspeed.samples._LOADED", {})
    for fast in (True, False):
        fn = Preprocess(DatasetParam.read(param({"use_fast_tokenizer": fast})))
        assert fn.encoder.tokenizer is not None
        assert seen[-1][1]["use_fast"] is fast
        assert seen[-1][1]["local_files_only"] is True
    with pytest.raises(ConfigError, match="'nowhere' is no folder"):
        next(iter(build(param({"model_name_or_path": "nowhere"}, streaming=True))))


# B15 B14 B29
def test_files_are_a_path_a_list_a_folder_or_a_name_of_dataset_info(param, qwen, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.jsonl").write_text((tmp_path / "rows.jsonl").read_text())
    info = {"mine": {"file_name": "rows.jsonl", "formatting": "sharegpt"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    one = numbers(qwen, build(param(**STREAM)))
    for told in (str(tmp_path / "rows.jsonl"), "rows.jsonl", str(tmp_path / "d"), "mine"):
        assert numbers(qwen, build(param(**STREAM, dataset=told))) == one
    both = [str(tmp_path / "rows.json"), "rows.jsonl"]
    for told in (both, ", ".join(both)):
        assert numbers(qwen, build(param(**STREAM, dataset=told))) == one + one
    with pytest.raises(InputError, match="no such file"):
        build(param(dataset="nothing.json"))
    with pytest.raises(ConfigError, match="names no file"):
        build(param(dataset=None))


# B29 B30
def test_columns_and_tags_are_those_of_attr(param, qwen, tmp_path):
    row = {"chat": [{"who": "U", "says": "question 7"}, {"who": "B", "says": "a"}], "sys": "Be kind."}
    (tmp_path / "t.json").write_text(json.dumps([row]))
    attr = {"messages": "chat", "system": "sys", "role_tag": "who", "content_tag": "says", "user_tag": "U",
            "assistant_tag": "B", "observation_tag": None, "function_tag": None}  # fmt: skip
    sample = next(iter(build(param(attr=attr, streaming=True, dataset=str(tmp_path / "t.json")))))
    assert "Be kind." in text(qwen, sample)
    assert trained(qwen, sample) == "a<|im_end|>"
    with warnings.catch_warnings(record=True):
        assert not list(build(param(attr={**attr, "user_tag": "X"}, streaming=True, dataset=str(tmp_path / "t.json"))))


# B21
@pytest.mark.parametrize("basic", [STREAM, {"streaming": True}, {}])
def test_max_samples_takes_the_first_records_streamed_or_not(param, qwen, basic):
    assert numbers(qwen, build(param(**basic, max_samples=8))) == [0, 1, 2, 3, 4, 6, 7]


# A45
@pytest.mark.parametrize("basic", [STREAM, {"streaming": True}, {}])
def test_validation_data_get_the_same_treatment(param, qwen, tmp_path, basic):
    train, val = build(param(**basic, val_dataset=str(tmp_path / "rows.jsonl"), val_max_samples=3))
    assert type(train) is type(val)
    assert numbers(qwen, train) == GOOD
    assert numbers(qwen, val) == [0, 1, 2]
    parts = build(param(val_rate=0.2))
    assert [len(p) for p in parts] == [17, 4]
    assert sorted(numbers(qwen, parts[0]) + numbers(qwen, parts[1])) == GOOD


# B16 B28
def test_a_second_start_reads_the_cache_and_overwrite_cache_does_not(param, monkeypatch):
    calls = []
    real = Preprocess.__call__
    monkeypatch.setattr(Preprocess, "__call__", lambda self, examples: calls.append(1) or real(self, examples))
    assert len(build(param())) == len(GOOD)
    made = len(calls)
    assert made >= 1
    assert len(build(param())) == len(GOOD)
    assert len(calls) == made
    assert len(build(param(overwrite_cache=True))) == len(GOOD)
    assert len(calls) > made


# B22
def test_tool_calls_are_written_as_asked(param, qwen, tmp_path):
    turns = [("human", "q"), ("function_call", '{"name": "f", "arguments": {}}'), ("observation", "r"), ("gpt", "a")]
    row = {"conversations": [{"from": r, "value": v} for r, v in turns], "tools": '[{"name": "f"}]'}
    (tmp_path / "t.json").write_text(json.dumps([row]))
    for form in (None, "qwen"):
        told = param(attr={"tools": "tools"}, streaming=True, dataset=str(tmp_path / "t.json"), tool_format=form)
        assert '"name": "f"' in trained(qwen, next(iter(build(told))))
    with pytest.raises(ConfigError, match="unknown tool_format 'qwn'"):
        next(iter(build(param(streaming=True, tool_format="qwn"))))


def loader(told, dl=None, rank=0, world=1, **more):
    dataset = build_mm_dataset(told, parallel={}, rank=rank, world=world)
    return build_mm_dataloader(dataset, {**DL, **(dl or {})}, **more)


# B26
def test_the_budget_of_a_sample_is_cutoff_len_or_seq_length_and_never_both(param):
    lengths = {
        "cutoff": [b["attention_mask"].sum().item() for b in loader(param(**STREAM, cutoff_len=24))],
        "seq": [b["attention_mask"].sum().item() for b in loader(param(**STREAM), seq_length=24)],
        "table": [b["attention_mask"].sum().item() for b in loader(param(), seq_length=24)],
        "free": [b["attention_mask"].sum().item() for b in loader(param(**STREAM))],
    }
    assert lengths["cutoff"] == lengths["seq"] == lengths["table"]
    assert max(lengths["seq"]) <= 24 < max(lengths["free"])
    with pytest.raises(ConfigError, match=r"seq_length=24 and cutoff_len=30 both limit"):
        loader(param(**STREAM, cutoff_len=30), seq_length=24)


# B32 B33 B36 A46 A47 A48 A54
def test_modes_shuffle_and_last_batches(param, qwen):
    order = lambda batches: [
        int(qwen.decode(row).split("question ")[1].split("<")[0]) for b in batches for row in b["input_ids"]
    ]
    assert order(loader(param(**STREAM), micro_batch_size=4)) == GOOD[:20]
    last = list(loader(param(**STREAM), {"drop_last": False}, micro_batch_size=4))
    assert [len(b["input_ids"]) for b in last] == [4] * 6
    assert last[-1].info.weight.tolist() == [1, 0, 0, 0]
    assert (last[-1]["labels"][1:] == -100).all()
    assert order(last)[:21] == GOOD
    with pytest.raises(ConfigError, match=r"'sampler' needs len\(dataset\).*streaming: false"):
        loader(param(**STREAM), {"dataloader_mode": "sampler"})
    sampler = {"dataloader_mode": "sampler", "sampler_type": "BaseRandomBatchSampler", "shuffle": True}
    by_index = loader(param(), sampler, micro_batch_size=3, seed=5)
    first, second = order(by_index), order(by_index)
    assert sorted(first) == sorted(second) == GOOD
    assert first != second
    assert first == order(loader(param(), sampler, micro_batch_size=3, seed=5))
    assert first != order(loader(param(), sampler, micro_batch_size=3, seed=6))
    assert len(by_index) == 7
    assert order(loader(param(), {"dataloader_mode": "sampler"}, micro_batch_size=3)) == GOOD
    windows = {"shuffle": True, "shuffle_buffer_size": 8}
    moved = order(loader(param(**STREAM), windows, micro_batch_size=3))
    assert sorted(moved) == GOOD
    assert moved != GOOD
    assert max(moved[:8]) <= 9
    assert moved == order(loader(param(**STREAM), windows, micro_batch_size=3))


# B35 B37 B38 B39
def test_the_collator_is_found_by_name_and_pads_as_told(param, qwen, monkeypatch):
    import torch

    batch = next(iter(loader(param(**STREAM), micro_batch_size=4)))
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert isinstance(batch["input_ids"], torch.Tensor)
    assert batch["input_ids"].shape[1] % 8 == 0
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    told = {"collate_param": {"collator_id": "llm", "ignore_pad_token_for_loss": False, "pad_to_multiple_of": 100}}
    other = next(iter(loader(param(**STREAM), told, micro_batch_size=4)))
    assert other["input_ids"].shape[1] % 100 == 0
    assert (other["attention_mask"] == 0).any()
    assert (other["labels"][other["attention_mask"] == 0] == qwen.pad_token_id).all()
    assert (other["labels"][:, : batch["labels"].shape[1]] == batch["labels"])[batch["attention_mask"] == 1].all()
    with pytest.raises(ConfigError, match=r"collator 'qwn2vl' is unknown.*'qwen2vl'"):
        loader(param(**STREAM), {"collate_param": {"model_name": "qwn2vl"}})
    with pytest.raises(ConfigError, match=r"collator 'lm' is unknown.*'llm'"):  # the newer name wins
        loader(param(**STREAM), {"collate_param": {"collator_id": "lm", "model_name": "llm"}})
    with pytest.raises(ConfigError, match="needs a model with image_processor"):
        loader(param(**STREAM), {"collate_param": {"model_name": "qwen2vl"}})
    pinned = []
    monkeypatch.setattr("thalweg.bind.mindspeed.loader._has_gpu", lambda: True)
    monkeypatch.setattr("thalweg.core.batch.Batch.pin_memory", lambda self: pinned.append(1) or self)
    next(iter(loader(param(**STREAM), {"pin_memory": True})))
    assert pinned == [1]
    assert loader(param(), {"num_workers": 3}).options.workers == 3
    assert loader(param(), {"num_workers": 3}, num_workers=0).options.workers == 0


# A51 B44
@pytest.mark.parametrize("basic", [STREAM, {"streaming": True, "preprocessing_batch_size": 3}, {}])
@pytest.mark.parametrize("dl", [{}, {"shuffle": True, "shuffle_buffer_size": 6}])
def test_a_run_that_stops_anywhere_goes_on_with_the_next_batch(param, basic, dl):
    make = lambda: loader(param(**basic), dl, micro_batch_size=2, gradient_accumulation_steps=2, seed=3)
    ids = lambda batches: [b["input_ids"].tolist() for b in batches]
    whole = ids(make())
    assert [b.info.last for b in make()] == [False, True] * (len(whole) // 2)
    for stop in (1, 2, 4):
        one = make()
        walk = iter(one)
        head = ids(next(walk) for _ in range(2 * stop))
        state = json.loads(json.dumps(one.state_dict()))
        one.close()
        other = make()
        other.load_state_dict(state)
        assert head + ids(other) == whole


# A40 A41 A50
def test_each_rank_reads_every_second_record_in_order_and_repeats_run_for_run(param, qwen):
    runs = [
        [
            [b["input_ids"].tolist() for b in loader(param(**STREAM), rank=r, world=2, micro_batch_size=2)]
            for r in (0, 1)
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    for rank, batches in enumerate(runs[0]):
        mine = [i for i in GOOD if i % 2 == rank]  # a record that is left out moves no other to the other rank
        got = numbers(qwen, [{"input_ids": row} for batch in batches for row in batch])
        assert got == mine[: len(mine) // 2 * 2]


def test_packing_puts_whole_samples_into_rows_that_do_not_see_each_other(param):
    batches = list(loader(param(**STREAM, packing=True, cutoff_len=256)))
    assert all(b["input_ids"].shape[1] <= 256 for b in batches)
    docs = sum(int((b["position_ids"] == 0).sum()) for b in batches)
    assert docs >= len(GOOD)
    assert "attention_mask" not in batches[0]


def test_a_dataset_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="list is not of build_mm_dataset"):
        build_mm_dataloader([1], DL)
