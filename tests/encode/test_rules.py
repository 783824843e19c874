"""What is trained, what a limit takes, and where tokens stand that no template wrote."""

import logging
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from thalweg.core.errors import ConfigError
from thalweg.encode import ChatEncoder, EncodeError, TextEncoder
from thalweg.encode import backend as backends
from thalweg.encode.backend import Fastokens, Tokenizers, choose

Q, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def toy(*, post, template):
    """The tokenizer of case K13: three letters, one merge across a border, `<s>` where the post-processor puts it."""
    vocab = {"<s>": 0, "a": 1, "b": 2, ":": 3, ":a": 4, "</s>": 5, "<u>": 6, " ": 7}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[(":", "a")]))
    made.add_special_tokens(["<s>", "</s>", "<u>"])
    if post:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


PLAIN = "{% for m in messages %}{{ '<u>' + m.content if m.role == 'user' else m.content + '</s>' }}{% endfor %}"


# K11
@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("says_bos", [True, False])
def test_one_beginning_token_on_every_path(post, says_bos):
    tokenizer = toy(post=post, template=("{{ bos_token }}" if says_bos else "") + PLAIN)
    wanted = int(post or says_bos)
    chat = ChatEncoder(tokenizer, backend="tokenizers", chat_template=tokenizer.chat_template)
    sample = chat({"messages": [{**Q, "content": "bb"}, A]})
    assert sample["input_ids"].tolist().count(0) == wanted
    pair = chat({"prompt": "bb", "response": "a"})
    assert np.array_equal(pair["input_ids"], sample["input_ids"])
    if wanted:
        assert sample["input_ids"][0] == 0
        assert sample["labels"][0] == -100
        everything = ChatEncoder(tokenizer, train_on="all", backend="tokenizers")(
            {"messages": [Q | {"content": "b"}, A]}
        )
        assert everything["labels"][0] == -100
    text = TextEncoder(tokenizer, backend="tokenizers")
    for words in ("ab", "<s>ab"):
        ids = text({"text": words})["input_ids"].tolist()
        assert ids.count(0) == int(post)
    read = TextEncoder(tokenizer, split_special_tokens=False, backend="tokenizers")({"text": "<s>ab"})
    assert read["input_ids"].tolist() == [0, 1, 2, 5]
    assert TextEncoder(tokenizer, add_bos=True, backend="tokenizers")({"text": "ab"})["labels"].tolist() == [
        -100,
        1,
        2,
        5,
    ]


# K13
def test_a_token_across_the_border_is_trained_and_nothing_is_shifted():
    marked = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
        "{% generation %}{{ m.content + '</s>' }}{% endgeneration %}{% endif %}{% endfor %}"
    )
    tokenizer = toy(post=False, template=marked)
    encoder = ChatEncoder(tokenizer, backend="tokenizers")
    sample = encoder({"messages": [{**Q, "content": "b:"}, {**A, "content": "ab"}]})
    assert sample["input_ids"].tolist() == [2, 4, 2, 5]  # ":a" is one token: it holds the first byte of the answer
    assert sample["labels"].tolist() == [-100, 4, 2, 5]


# K13
@pytest.mark.parametrize("asked", ["b: ", "b:  ", " "])
def test_spaces_at_the_end_of_the_prompt_move_no_label(qwen, trained, asked):
    sample = ChatEncoder(qwen)({"messages": [{**Q, "content": asked}, {**A, "content": "ab"}]})
    assert trained(sample) == ["ab<|im_end|>"]


# B18 B17
def test_weights_of_messages_decide_what_is_trained(qwen, trained):
    encoder = ChatEncoder(qwen)
    messages = [Q, {**A, "loss_weight": 0.0}, Q, {**A, "content": "half", "weight": 0.5}, Q, {**A, "content": "whole"}]
    sample = encoder({"messages": messages})
    assert trained(sample) == ["half<|im_end|>", "whole<|im_end|>"]
    assert sample["loss_weights"].tolist() == [0.5, 1.0]
    assert sample["loss_weights"].dtype == np.float32
    assert "loss_weights" not in encoder({"messages": [Q, {**A, "loss_weight": 1.0}]})


def test_a_preference_pair_is_one_sample_with_both_answers(qwen, trained, records):
    encoder = ChatEncoder(qwen)
    sample = encoder({"prompt": "q", "chosen": "good", "rejected": "bad one"})
    assert trained(sample) == ["good<|im_end|>"]
    other = {"input_ids": sample["rejected_input_ids"], "labels": sample["rejected_labels"]}
    assert trained(other) == ["bad one<|im_end|>"]
    for record in records("dpo_en_demo.json")[:50]:
        made = encoder(record)
        assert trained(made) == [record["chosen"]["value"] + "<|im_end|>"]  # no answer of the prompt
        assert made["rejected_labels"].shape == made["rejected_input_ids"].shape


# B22
def test_tools_are_the_template_s_or_text_or_refused_but_never_lost(qwen, trained, records):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        Q,
        {**A, "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {**A, "content": "3."},
    ]
    record = {"messages": messages, "tools": [{"name": "add", "parameters": {}}], "id": "t"}
    said = ['<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>', "3.<|im_end|>"]
    assert trained(ChatEncoder(qwen)(record)) == said
    bare = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    (refused,) = ChatEncoder(qwen, chat_template=bare).encode_batch([record])
    assert refused.reason == "tools not in the template"
    assert "record t" in str(refused)
    text = ChatEncoder(qwen, chat_template=bare, tool_format="qwen")
    sample = text(record)
    assert trained(sample) == said
    assert "<tools>" in qwen.decode(sample["input_ids"])
    with pytest.raises(ConfigError, match="did you mean 'qwen'"):
        ChatEncoder(qwen, tool_format="qwn")
    for row in records("glaive_toolcall_en_demo.json")[:40]:
        answers = sum(m["from"] in {"gpt", "function_call"} for m in row["conversations"])
        assert len(trained(text(row))) == len(trained(_encoder(qwen)(row))) == answers


# B13
def test_named_families_write_their_own_places_of_media(qwen):
    for name, place in [("qwen2_omni", "<|IMAGE|>"), ("qwen3_omni", "<|audio_pad|>"), ("qwen3_vl", "<|image_pad|>")]:
        encoder = ChatEncoder(qwen, chat_template=name)
        assert place in encoder.drawer.template.source
        assert "@" not in encoder.drawer.template.source
    with pytest.raises(ConfigError, match="did you mean 'qwen2_omni'"):
        ChatEncoder(qwen, chat_template="qwen2_omi")


# B27
def test_thoughts_are_kept_asked_for_or_taken_out(qwen, trained):
    thinks = [Q, {**A, "content": "<think>\nhm\n</think>\n\nyes"}]
    assert trained(ChatEncoder(qwen)({"messages": thinks})) == ["<think>\nhm\n</think>\n\nyes<|im_end|>"]
    beside = [Q, {**A, "reasoning_content": "hm", "content": "yes"}]
    assert trained(ChatEncoder(qwen)({"messages": beside})) == ["<think>\nhm\n</think>\n\nyes<|im_end|>"]
    asked = ChatEncoder(qwen, enable_thinking=True)({"messages": [Q, A]})
    assert trained(asked) == ["<think>\n\n</think>\n\na<|im_end|>"]
    for messages in (thinks, beside):
        sample = ChatEncoder(qwen, enable_thinking=False)({"messages": messages})
        assert trained(sample) == ["yes<|im_end|>"]
        assert "<think>\n\n</think>\n\nyes" in qwen.decode(sample["input_ids"])


# B26 E24
def test_a_limit_takes_the_oldest_exchanges_whole_and_then_the_end_of_the_answer(qwen, trained):
    messages = [{"role": "system", "content": "s"}]
    for i in range(4):
        messages += [{**Q, "content": f"question {i}"}, {**A, "content": f"answer number {i}"}]
    whole = ChatEncoder(qwen)({"messages": messages})
    lengths = {}
    for limit in range(len(whole["input_ids"]), 12, -1):
        encoder = ChatEncoder(qwen, max_length=limit)
        (result,) = encoder.encode_batch([{"messages": messages, "id": "x"}])
        if isinstance(result, EncodeError):
            assert result.reason == "no trained token"
            continue
        text = qwen.decode(result.ids)
        assert len(result.ids) <= limit
        assert text.startswith("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n")
        assert "question 3" in text
        kept = [i for i in range(4) if f"question {i}" in text]
        assert kept == list(range(kept[0], 4))
        ends = trained({"input_ids": result.ids, "labels": _labels(result)})
        if encoder.counts["answers cut"]:
            assert kept == [3]
            assert "<|im_end|>" not in ends[-1]
        else:
            assert ends == [f"answer number {i}<|im_end|>" for i in kept]
        lengths[len(kept)] = limit
    assert set(lengths) == {1, 2, 3, 4}


def _labels(encoded):
    labels = np.full(len(encoded.ids), -100, np.int64)
    for a, b in encoded.spans.tolist():
        labels[a:b] = encoded.ids[a:b]
    return labels


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TURN = st.tuples(WORDS, WORDS.filter(lambda t: t.strip()))


@settings(max_examples=150, deadline=None)
@given(exchanges=st.lists(TURN, min_size=1, max_size=4), system=st.none() | WORDS)
def test_fuzzed_conversations_have_the_labels_of_the_oracle(qwen, exchanges, system):
    messages = [] if system is None else [{"role": "system", "content": system}]
    for q, a in exchanges:
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    encoder = _encoder(qwen)
    (ours,) = encoder.encode_batch([{"messages": messages, "id": 1}])
    if any("\ufdd0" <= c <= "\ufdd2" for m in messages for c in m["content"]):
        return
    assert not isinstance(ours, EncodeError), ours
    theirs = qwen.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    if not any(t in m["content"] for m in messages for t in qwen.added_tokens_encoder):
        assert ours.ids.tolist() == theirs["input_ids"]
        mask = (_labels(ours) != -100).astype(int)
        assert mask.tolist() == theirs["assistant_masks"]


_MADE = {}


def _encoder(qwen):
    if id(qwen) not in _MADE:
        _MADE[id(qwen)] = ChatEncoder(qwen)
    return _MADE[id(qwen)]


def test_a_lone_surrogate_costs_one_conversation(qwen):
    bad = [Q, {**A, "content": "x \ud83d"}]
    first, second = _encoder(qwen).encode_batch([{"messages": bad, "id": "r"}, {"messages": [Q, A]}])
    assert first.reason == "not valid Unicode"
    assert "record r" in str(first)
    assert not isinstance(second, EncodeError)


# the same words in vocabularies that count no bytes: pieces of words, and a tokenizer in plain Python
def _wordpiece():
    vocab = {w: i for i, w in enumerate(["[UNK]", "[SEP]", "[USR]", "[BOT]", "he", "##llo", "hi", "##gh", "you", "a"])}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(["[SEP]", "[USR]", "[BOT]"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="[SEP]", unk_token="[UNK]")


def _pieces_of_sentences():
    words = [
        "<unk>",
        "</s>",
        "<u>",
        "<b>",
        "▁",
        "▁he",
        "llo",
        "▁hi",
        "gh",
        "▁you",
        "h",
        "e",
        "l",
        "o",
        "i",
        "a",
        "y",
        "u",
    ]
    made = Tokenizer(models.Unigram([(w, -float(i)) for i, w in enumerate(words)], unk_id=0, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.add_special_tokens(["</s>", "<u>", "<b>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="<unk>")


def _bytes():
    tokenizer = ByT5Tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<u>", "<b>"]})
    return tokenizer


def _template(user, bot, end):
    return (
        "{% for m in messages %}{{ '"
        + user
        + "' + m.content if m.role == 'user' else '"
        + bot
        + "' + m.content + '"
        + end
        + "' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '" + bot + "' }}{% endif %}"
    )


# K15
@pytest.mark.parametrize(
    ("make", "marks"),
    [
        (_wordpiece, ("[USR]", "[BOT]", "[SEP]")),
        (_pieces_of_sentences, ("<u>", "<b>", "</s>")),
        (_bytes, ("<u>", "<b>", "</s>")),
    ],
)
def test_tokenizers_that_count_no_bytes_have_exact_labels_too(make, marks):
    tokenizer = make()
    encoder = ChatEncoder(tokenizer, chat_template=_template(*marks))
    messages = [
        {**Q, "content": "hi you"},
        {**A, "content": "hello"},
        {**Q, "content": "high"},
        {**A, "content": "you he"},
    ]
    sample = encoder({"messages": messages})
    ids, labels = sample["input_ids"].tolist(), sample["labels"].tolist()
    text = "".join(
        marks[m["role"] != "user"] + m["content"] + (marks[2] if m["role"] != "user" else "") for m in messages
    )
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    bot, end = tokenizer.convert_tokens_to_ids([marks[1], marks[2]])
    inside, wanted = False, []
    for i in ids:
        wanted.append(i if inside else -100)
        inside = (inside or i == bot) and i != end
    assert labels == wanted


@pytest.mark.parametrize("make", [_wordpiece, _pieces_of_sentences])
def test_a_special_token_in_the_text_is_kept_apart_or_the_record_refused(make):
    tokenizer = make()
    marks = ("[USR]", "[BOT]", "[SEP]") if make is _wordpiece else ("<u>", "<b>", "</s>")
    encoder = ChatEncoder(tokenizer, chat_template=_template(*marks))
    (result,) = encoder.encode_batch(
        [{"messages": [{**Q, "content": f"hi {marks[2]}"}, {**A, "content": "you"}], "id": "r"}]
    )
    assert isinstance(result, EncodeError)
    assert result.reason == "special token in the text"


# B4
def test_the_fast_engine_is_taken_where_it_is_equal_and_left_with_a_message_where_not(qwen, monkeypatch, caplog):
    pytest.importorskip("fastokens")
    assert choose(qwen, "auto", ["some text"]).name == "fastokens"

    def wrong(self, texts, *, special):
        ids, offsets = right(self, texts, special=special)
        return np.where(ids == ids[-1], 0, ids).astype(np.int32), offsets

    right = Fastokens.encode
    monkeypatch.setattr(Fastokens, "encode", wrong)
    with caplog.at_level(logging.WARNING, "thalweg.encode"):
        assert choose(qwen, "auto", ["some text"]).name == "tokenizers"
    assert "gives other ids" in caplog.text


def test_without_the_fast_engine_the_reference_is_used(qwen, monkeypatch):
    def absent(*args, **kwargs):
        raise ImportError

    monkeypatch.setattr(backends, "Fastokens", type("Fastokens", (), {"name": "none", "__init__": absent}))
    assert choose(qwen, "auto", []).name == "tokenizers"


def test_an_engine_that_a_tokenizer_cannot_have_is_refused():
    with pytest.raises(ConfigError, match="needs a fast tokenizer"):
        TextEncoder(_bytes(), backend="fastokens")
    with pytest.raises(ConfigError, match="did you mean 'tokenizers'"):
        TextEncoder(_wordpiece(), backend="tokenizer")


@pytest.mark.parametrize("kind", [Fastokens, Tokenizers])
def test_a_forked_child_encodes_what_its_parent_does_and_never_hangs(qwen, kind):
    if kind is Fastokens:
        pytest.importorskip("fastokens")
    engine = kind(qwen)
    texts = [f"text number {i} 中文" for i in range(64)]
    ids, _ = engine.encode(texts, special=True)  # the parent's threads exist now
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(into, engine.encode(texts, special=True)[0].tobytes())
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        assert pipe.read() == ids.tobytes()
    assert os.waitpid(child, 0)[1] == 0
