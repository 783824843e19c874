"""dataset_info.json: formats, columns and tags of LLaMA-Factory, on its own file and its own conversations."""

import json
import warnings
from collections import Counter

import pytest

from thalweg.bind.llamafactory import Attributes, load_dataset_info
from thalweg.bind.llamafactory.align import ALIGNED, Align, conversation
from thalweg.core.errors import ConfigError, InputError
from thalweg.encode import ChatEncoder
from thalweg.encode.errors import EncodeError

pytestmark = pytest.mark.slow


def test_every_entry_of_the_real_file_is_read(chat_folder):
    info = load_dataset_info(chat_folder)
    assert len(info) == 104
    entries = {name: info[name] for name in info}
    assert (
        Counter(e.attributes.formatting for e in entries.values()) == {"alpaca": 65, "sharegpt": 39}
        or sum(Counter(e.attributes.formatting for e in entries.values()).values()) == 104
    )
    assert entries["mllm_demo"].attributes.tags["user_tag"] == "user"
    assert entries["c4_demo"].attributes.text_only
    assert not entries["identity"].attributes.text_only


# B29 B30
@pytest.mark.filterwarnings("ignore:no medium at")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("identity", "identity.json"),
        ("alpaca_zh_demo", "alpaca_zh_demo.json"),
        ("glaive_toolcall_en_demo", "glaive_toolcall_en_demo.json"),
        ("mllm_demo", "mllm_demo.json"),
        ("dpo_en_demo", "dpo_en_demo.json"),
        ("kto_en_demo", "kto_en_demo.json"),
        ("c4_demo", "c4_demo.jsonl"),
        ("wiki_demo", "wiki_demo.txt"),
    ],
)
def test_each_named_file_becomes_a_feed_with_every_word_of_its_records(chat_folder, name, file):
    feed = load_dataset_info(chat_folder).feed(name)
    text = (chat_folder / file).read_text(encoding="utf-8")
    got = list(feed.take(40))
    if file.endswith(".txt"):
        assert [r["text"] for r in got] == [line for line in text.split("\n") if line][: len(got)]
        return
    rows = json.loads(text) if file.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    assert feed.num_rows == len(rows)
    for row, record in zip(got, rows, strict=False):
        if "text" in row:
            assert row["text"] == record["text"]
            continue
        said = [m["content"] for m in row["messages"] + [row[k] for k in ("chosen", "rejected") if k in row]]
        theirs = record.get("conversations") or record.get("messages")
        if theirs is None:
            asked = "\n".join(v for v in (record["instruction"], record["input"]) if v)
            assert said == [asked, record["output"]]
        else:
            want = [m.get("value", m.get("content")) for m in theirs]
            want += [record[k]["value"] for k in ("chosen", "rejected") if k in record]
            assert said == want
        if "label" in record:
            assert row["kto_tag"] is record["label"]


def test_the_encoder_takes_each_of_them_and_trains_the_answers(chat_folder, qwen):
    info = load_dataset_info(chat_folder)
    encoder = ChatEncoder(qwen)
    feed = info.feed("identity,alpaca_en_demo").map(encoder, mode="inline")
    assert feed.num_rows == 91 + 999
    first = feed.at(0)
    assert qwen.decode([t for t in first["labels"] if t != -100]) == (
        "Hello! I am {{name}}, an AI assistant developed by {{author}}. How can I assist you today?<|im_end|>"
    )
    pair = info.feed("dpo_en_demo").map(encoder, mode="inline").at(0)
    assert {"input_ids", "labels", "rejected_input_ids", "rejected_labels"} <= set(pair)
    called = info.feed("glaive_toolcall_en_demo").map(encoder, mode="inline").at(0)
    assert "search_recipes" in qwen.decode([t for t in called["labels"] if t != -100])


def entry(tmp_path, told, files):
    for name, rows in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(json.dumps(rows))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": told}))
    return load_dataset_info(tmp_path)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"file_nam": "a.json"}, r"unknown key 'file_nam'.*did you mean 'file_name'"),
        ({"formatting": "sharegp", "file_name": "a.json"}, r"unknown formatting 'sharegp'.*'sharegpt'"),
        ({"file_name": "a.json", "columns": {"mesages": "x"}}, r"unknown column 'mesages'.*'messages'"),
        ({"file_name": "a.json", "tags": {"role_tg": "x"}}, r"unknown tag 'role_tg'.*'role_tag'"),
        ({"columns": {}}, "no place of its data"),
        ({"file_name": "a.json", "num_samples": 0}, "num_samples=0"),
        ({"ms_hub_url": "x/y"}, "only at ms_hub_url"),
    ],
)
def test_a_wrong_entry_is_refused_with_the_nearest_right_word(tmp_path, told, message):
    info = entry(tmp_path, told, {"a.json": []})
    with pytest.raises(ConfigError, match=message):
        info["mine"].records()
    with pytest.raises(ConfigError, match=r"no data set 'mien'.*did you mean 'mine'"):
        info["mien"]


def test_a_folder_holds_files_of_one_type_and_samples_are_taken_as_told(tmp_path):
    rows = [{"instruction": f"q{i}", "output": f"a{i}"} for i in range(6)]
    info = entry(tmp_path, {"file_name": "d", "num_samples": 4}, {"d/a.json": rows[:3], "d/b.json": rows[3:]})
    few = [r["messages"][0]["content"] for r in info.feed("mine")]
    assert len(set(few)) == 4
    assert few == [r["messages"][0]["content"] for r in info.feed("mine")]
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": {"file_name": "d", "num_samples": 15}}))
    many = Counter(r["messages"][0]["content"] for r in load_dataset_info(tmp_path).feed("mine"))
    assert sum(many.values()) == 15
    assert len(many) == 6
    (tmp_path / "d" / "c.txt").write_text("x")
    with pytest.raises(InputError, match="types"):
        info["mine"].files()


SHAREGPT = Attributes.read("sharegpt", {"images": "images"}, {})


def says(*turns, **more):
    return {"conversations": [{"from": r, "value": v} for r, v in turns], **more}


# B31
def test_turns_in_order_are_split_into_prompt_and_response_and_others_are_refused_with_a_reason():
    align = Align(SHAREGPT)
    got = align(says(("system", "S"), ("human", "q"), ("function_call", "{}"), ("observation", "o"), ("gpt", "a")))
    assert tuple(got) == ALIGNED
    assert [t["role"] for t in got["_prompt"]] == ["user", "function", "observation"]
    assert got["_response"] == [{"role": "assistant", "content": "a"}]
    assert got["_system"] == "S"
    assert [m["role"] for m in conversation(got)["messages"]] == [
        "system", "user", "function_call", "tool", "assistant",
    ]  # fmt: skip
    for turns, reason in [
        ([("gpt", "a"), ("human", "q")], "turns out of order"),
        ([("human", "q")], "odd number of turns"),
        ([("human", "q"), ("gpt", "a"), ("human", "r")], "odd number of turns"),
        ([("user", "q"), ("gpt", "a")], "unknown role"),
    ]:
        with pytest.raises(EncodeError) as caught:
            align(says(*turns, id="x7"))
        assert caught.value.reason == reason
        assert "x7" in str(caught.value)


# B30
def test_a_tag_that_is_null_is_a_role_that_is_not_accepted():
    align = Align(Attributes.read("sharegpt", {}, {"system_tag": None, "function_tag": None}))
    for role in ("system", "function_call"):
        with pytest.raises(EncodeError, match="which no tag names"):
            align(says((role, "S"), ("human", "q"), ("gpt", "a")))


def test_the_openai_form_keeps_tool_calls_thoughts_and_results():
    attributes = Attributes.read("openai", {"messages": "messages"}, {"role_tag": "role", "content_tag": "content"})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    record = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "r"},
            {"role": "assistant", "content": "a", "reasoning_content": "t"},
        ]
    }
    got = Align(attributes)(record)
    assert json.loads(got["_prompt"][1]["content"]) == [{"name": "f", "arguments": {"x": 1}}]
    assert [t["role"] for t in got["_prompt"]] == ["user", "function", "observation"]
    assert got["_response"][0]["content"] == "<think>\nt\n</think>\n\na"


# B14
def test_media_are_found_under_the_folder_and_a_missing_one_is_said_once(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    align = Align(SHAREGPT, str(tmp_path))
    turns = (("human", "<image>"), ("gpt", "a"))
    assert align(says(*turns, images=["a.jpg"]))["_images"] == [str(tmp_path / "a.jpg")]
    with pytest.warns(UserWarning, match="no medium at") as said:
        kept = [align(says(*turns, images=["b.jpg"]))["_images"] for _ in range(3)]
    assert kept == [["b.jpg"]] * 3
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert align(says(*turns, images=["s3://b/c.jpg"]))["_images"] == ["s3://b/c.jpg"]


def test_alpaca_history_is_earlier_turns_and_pairs_have_two_answers():
    align = Align(Attributes.read("alpaca", {"history": "history"}, {}))
    got = align({"instruction": "i", "input": "j", "output": "o", "history": [["a", "b"]]})
    assert [t["content"] for t in got["_prompt"]] == ["a", "b", "i\nj"]
    pair = Attributes.read("alpaca", {"chosen": "chosen", "rejected": "rejected"}, {}, ranking=True)
    got = Align(pair)({"instruction": "i", "chosen": "c", "rejected": "r"})
    assert [t["content"] for t in got["_response"]] == ["c", "r"]
    assert set(conversation(got)) == {"messages", "chosen", "rejected"}
