import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError
from thalweg.encode import EncodeError
from thalweg.encode.layouts import read, recognise

Q, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def turns(record, columns=None):
    return [(m.role, m.content) for m in read(record, recognise(record, columns)).messages]


# B29 B31
@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"messages": [Q, A]}, "messages"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "messages"),
        ({"messages": json.dumps([Q, A])}, "messages"),
        ({"messages": {"role": ["user", "assistant"], "content": ["q", "a"]}}, "messages"),
        ({"instruction": "q", "input": "", "output": "a"}, "alpaca"),
        ({"instruction": "q", "input": None, "output": "a", "history": None, "system": None}, "alpaca"),
        ({"prompt": "q", "response": "a"}, "prompt"),
        ({"prompt": [Q], "completion": [A]}, "prompt"),
        ({"question": "q", "answer": "a"}, "prompt"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "pair"),
        ({"prompt": [Q], "chosen": [A], "rejected": [{**A, "content": "b"}]}, "pair"),
        ({"chosen": [Q, A], "rejected": [Q, {**A, "content": "b"}]}, "pair"),
        (
            {
                "conversations": [{"from": "human", "value": "q"}],
                "chosen": {"from": "gpt", "value": "a"},
                "rejected": {"from": "gpt", "value": "b"},
            },
            "pair",
        ),
    ],
)
def test_each_layout_of_the_field_gives_one_conversation(record, kind):
    layout = recognise(record)
    assert layout.kind == kind
    conversation = read(record, layout)
    assert [(m.role, m.content) for m in conversation.messages] == [("user", "q"), ("assistant", "a")]
    if kind == "pair":
        assert [(m.role, m.content) for m in conversation.rejected] == [("user", "q"), ("assistant", "b")]


def test_alpaca_history_and_system_stand_before_the_question():
    record = {"instruction": "q", "input": "in", "output": "a", "history": [["p", "o"]], "system": "s"}
    said = [("system", "s"), ("user", "p"), ("assistant", "o"), ("user", "q\nin"), ("assistant", "a")]
    assert turns(record) == said


# B30
def test_message_keys_and_roles_may_have_other_names():
    columns = {
        "messages": "dialog_de",
        "role_tag": "wer",
        "content_tag": "was",
        "user_tag": "Frage",
        "assistant_tag": "Antwort",
        "observation_tag": None,
    }
    record = {"dialog_de": [{"wer": "Frage", "was": "q"}, {"wer": "Antwort", "was": "a"}]}
    assert turns(record, columns) == [("user", "q"), ("assistant", "a")]
    with pytest.raises(EncodeError, match="unknown role 'observation'"):
        turns({"dialog_de": [{"wer": "observation", "was": "x"}]}, columns)
    with pytest.raises(EncodeError, match="unknown role 'human'"):
        turns({"dialog_de": [{"wer": "human", "was": "x"}]}, columns)


def test_an_unknown_column_or_tag_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'messages'"):
        recognise({"messages": [Q, A]}, {"mesages": "messages"})
    with pytest.raises(ConfigError, match="did you mean 'role_tag'"):
        recognise({"messages": [Q, A]}, {"rol_tag": "role"})
    with pytest.raises(ConfigError, match="did you mean 'dialog'"):
        recognise({"dialog": [Q, A]}, {"messages": "dialogs"})


def test_tool_calls_and_results_are_read_in_every_notation():
    call = {"name": "add", "arguments": {"a": 1}}
    share = [
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "a"},
    ]
    openai = [
        Q,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "x", "function": {**call, "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "x"},
        A,
    ]
    typed = [
        Q,
        {"role": "assistant", "content": [{"type": "tool_call", "value": json.dumps(call)}]},
        {"role": "tool", "content": [{"type": "text", "value": "3"}]},
        A,
    ]
    schema = {"name": "add", "parameters": {}}
    alone = [openai[0], {**openai[1], "tool_calls": openai[1]["tool_calls"][0]}, *openai[2:]]  # a call for a list
    as_json = [openai[0], {**openai[1], "tool_calls": json.dumps(openai[1]["tool_calls"])}, *openai[2:]]
    for messages in (share, openai, typed, alone, as_json):
        record = {"messages": messages, "tools": json.dumps([schema])}
        conversation = read(record, recognise(record))
        assert [m.role for m in conversation.messages] == ["user", "assistant", "tool", "assistant"]
        (made,) = conversation.messages[1].tool_calls
        assert made["function"] == call
        assert conversation.messages[2].text() == "3"
        assert conversation.tools == [{"type": "function", "function": schema}]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": []}, "no messages"),
        ({"messages": "not json"}, "messages are no list"),
        ({"messages": 3}, "messages are no list"),
        ({"messages": ["q", "a"]}, "message is no object"),
        ({"messages": [{"content": "x"}]}, "no role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "unknown role"),
        ({"messages": [{"role": "user", "content": 3}]}, "content is no text"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "unknown content part"),
        ({"messages": [{"role": "user", "content": [3]}]}, "unknown content part"),
        ({"messages": [{"role": "assistant", "content": "x", "loss_weight": -1}]}, "bad loss weight"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "unreadable tool call"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "unreadable tool call"),
        ({"messages": [{"role": "assistant", "content": "x", "reasoning_content": ["y"]}]}, "content is no text"),
        ({"messages": [{"from": "function_call", "value": "{"}]}, "unreadable tool call"),
        ({"messages": [Q, A], "tools": "[3]"}, "unreadable tools"),
        ({"instruction": 3, "output": "a"}, "not text"),
        ({"instruction": "q", "output": "a", "history": [["x"]]}, "unreadable history"),
        ({"prompt": "q", "chosen": "a", "rejected": ""}, None),
        ({"chosen": [Q, A], "rejected": []}, "half a pair"),
        ({"body": "x"}, "unknown layout"),
        ({"messages": [{"role": "user", "content": "<image> x <image>"}, A], "images": ["1.jpg"]},
         "media and placeholders differ"),
    ],
)  # fmt: skip
def test_an_odd_shape_is_refused_by_its_rule_or_accepted(record, reason):
    if reason is None:
        read(record, recognise(record))
        return
    with pytest.raises(EncodeError) as caught:
        read(record, recognise(record))
    assert caught.value.reason == reason


# K17
def test_a_placeholder_counts_only_where_media_may_stand():
    messages = [
        {"role": "user", "content": "<image>\nParse <video>"},
        {"role": "assistant", "content": "![f](<image>)"},
    ]
    conversation = read(
        {"messages": messages, "images": ["1.jpg"]}, recognise({"messages": messages, "images": ["1.jpg"]})
    )
    asked, said = conversation.messages
    assert [p["type"] for p in asked.content] == ["image", "text"]
    assert asked.text() == "\nParse <video>"
    assert said.content == "![f](<image>)"
    assert conversation.media == {"image": ["1.jpg"]}
    bare = {"messages": messages, "images": []}
    assert turns(bare) == [("user", "<image>\nParse <video>"), ("assistant", "![f](<image>)")]


def test_media_without_a_placeholder_stand_before_the_first_question():
    record = {"messages": [Q, A], "images": ["1.jpg", "2.jpg"]}
    conversation = read(record, recognise(record))
    assert [p["type"] for p in conversation.messages[0].content] == ["image", "image", "text"]
    assert conversation.media == {"image": ["1.jpg", "2.jpg"]}
    array = {**record, "images": np.array(["1.jpg", "2.jpg"], object)}
    assert read(array, recognise(array)).media == conversation.media


@pytest.mark.parametrize(
    ("name", "kind", "n"),
    [
        ("alpaca_en_demo.json", "alpaca", 2),
        ("dpo_en_demo.json", "pair", 2),
        ("glaive_toolcall_en_demo.json", "messages", 2),
        ("identity.json", "alpaca", 2),
        ("kto_en_demo.json", "messages", 2),
        ("mllm_demo.json", "messages", 4),
        ("reason_tool_use_demo_50.jsonl", "messages", 3),
        ("v1_sft_demo.jsonl", "messages", 2),
        ("v1_multimodal_demo.jsonl", "messages", 2),
    ],
)
def test_real_sets_are_recognised_and_read_whole(records, name, kind, n):
    for record in records(name):
        layout = recognise(record)
        assert layout.kind == kind
        assert len(read(record, layout).messages) >= n


KEYS = st.sampled_from(["role", "content", "from", "type", "text"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


COLUMNS = [
    "messages",
    "tools",
    "images",
    "system",
    "instruction",
    "output",
    "prompt",
    "response",
    "chosen",
    "rejected",
    "history",
]


@settings(max_examples=400, deadline=None)
@given(record=st.dictionaries(st.sampled_from(COLUMNS), JSON, max_size=4))
def test_no_record_crashes_the_reader(record):
    with suppress(EncodeError):
        read(record, recognise(record))
