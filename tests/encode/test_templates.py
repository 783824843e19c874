"""Every template that the trl package ships, marked and unmarked, against transformers' own masks."""

import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

from thalweg.core.errors import ConfigError
from thalweg.encode import ChatEncoder, EncodeError
from thalweg.encode.template import Template, TemplateRefusal, unmark

trl = pytest.importorskip("trl")
FOLDER = Path(trl.__file__).parent / "chat_templates"
MARKED = sorted(p.name for p in FOLDER.glob("*_training.jinja"))
SPECIAL = re.compile(
    r"<\|[A-Za-z_0-9]+\|?>|<[a-z_]+\|>|<\uff5c[^\uff5c<>]+\uff5c>|\[gMASK\]|</?s>|\[/?INST\]"
    r"|<(?:start_of_turn|end_of_turn|end_of_utterance|fake_token_around_image|image|sop|global-img)>"
)
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "二"}}}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


# twins that add a thought or an end to turns that the model's own template leaves without
REWRITTEN = {
    "glm4moe.jinja",
    "qwen3.jinja",
    "qwen3_5_think.jinja",
    "qwen3_5_nothink.jinja",
    "qwen3_6.jinja",
    "qwen3_8.jinja",
}


def user(text):
    return {"role": "user", "content": text}


def says(text, **more):
    return {"role": "assistant", "content": text, **more}


SHAPES = {
    "one exchange": [user("Hi"), says("Hello!")],
    "two exchanges": [user("Hi there"), says("Hello!"), user("再见"), says("Bye 👋")],
    "system": [{"role": "system", "content": "Be brief."}, user("Q?"), says("A.")],
    "answer first": [says("one"), user("x"), says("y")],
    "spaces at the ends": [user("x "), says("ends in spaces   "), user(" y"), says("\n\n lead and trail \n\n")],
    "empty answer": [user("x"), says(""), user("y"), says("z")],
    "answer twice": [user("x"), says("one"), says("two")],
    "question twice": [user("x"), user("z"), says("two")],
    "emoji": [user("x 👩‍👩‍👧 é"), says("👍🏽 é ok 👩‍👩‍👧")],
    "thought in the text": [user("x"), says("<think>\nhm\n</think>\n\nan"), user("y"), says("<think>m</think>two")],
    "thought beside it": [user("x"), says("ans", reasoning_content="because"), user("y"), says("b")],
    "tool call": [user("x"), says("", tool_calls=[CALL]), {"role": "tool", "content": "3", "name": "add"}, says("ok")],
    "same words": [user("Hello"), says("Hello"), user("Hello"), says("Hello")],
    "question last": [user("a"), says("b"), user("c")],
}  # fmt: skip


@pytest.fixture(scope="module")
def pieces():
    """A byte-level vocabulary of 1,500 words, learned here: templates are cheap to try on it."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder, made.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    texts = [p.read_text(encoding="utf-8") for p in sorted(FOLDER.glob("*.jinja"))[:20]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    )
    return made.to_str()


def tokenizer_for(pieces, *sources):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(pieces), bos_token="<bos_>", eos_token="<eos_>", pad_token="<pad_>"
    )
    special = sorted(set(SPECIAL.findall("".join(sources))))
    tokenizer.add_special_tokens({"extra_special_tokens": special})
    tokenizer.add_tokens(["<think>", "</think>"])  # ordinary words, as the models that have them say
    tokenizer.chat_template = sources[0]
    return tokenizer


def read(name):
    return (FOLDER / name).read_text(encoding="utf-8")


def mask_of(encoded):
    mask = np.zeros(len(encoded.ids), int)
    for a, b in encoded.spans.tolist():
        mask[a:b] = 1
    return mask


def typed(messages):
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]


# B13 E23 K15
@pytest.mark.parametrize("name", MARKED)
def test_a_marked_template_gives_the_ids_and_masks_of_transformers(pieces, name):
    tokenizer = tokenizer_for(pieces, read(name))
    ours = ChatEncoder(tokenizer, backend="tokenizers")
    compared = 0
    for shape, messages in SHAPES.items():
        tools = [TOOL] if shape == "tool call" and ours.drawer.turns.calls.listed else None
        encoded = ours.encode_batch([{"messages": messages, "tools": tools, "id": shape}])[0]
        written = typed(messages) if ours.drawer.turns.parts else messages
        if shape == "tool call" and not ours.drawer.turns.calls.written:
            assert encoded.reason == "tools not in the template"
            continue
        if shape == "tool call" and ours.drawer.turns.calls.as_text:
            continue  # the call as an object is refused by the template itself
        try:
            theirs = tokenizer.apply_chat_template(
                written, tools=tools, return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception as refusal:
            said = str(refusal)
            theirs = None
        if theirs is None:  # refused by us as well, or accepted with neighbours of one role joined
            assert not isinstance(encoded, EncodeError) or said in encoded.what
            continue
        assert encoded.ids.tolist() == theirs["input_ids"], shape
        assert mask_of(encoded).tolist() == theirs["assistant_masks"], shape
        compared += 1
    assert compared >= 8


# B13
@pytest.mark.parametrize("name", sorted(p.name for p in FOLDER.glob("*.jinja")))
def test_every_template_writes_what_it_writes_in_transformers(name):
    theirs_of = _compile_jinja_template(read(name))
    known = {"bos_token": "<bos_>", "eos_token": "<eos_>", "pad_token": "<pad_>", "enable_thinking": True}
    ours, written = Template(read(name), known), 0
    for shape, messages in SHAPES.items():
        for said in (messages, typed(messages)):
            for tools, prompt in (([TOOL], False), (None, True)):
                more = {"tools": tools, "add_generation_prompt": prompt}
                try:
                    theirs = theirs_of.render(messages=said, documents=None, **more, **known)
                except Exception as error:
                    theirs = error
                if isinstance(theirs, str):
                    assert unmark(ours.render(said, tools, prompt=prompt))[0] == theirs, shape
                    written += 1
                else:
                    with pytest.raises(TemplateRefusal) as refused:
                        ours.render(said, tools, prompt=prompt)
                    assert str(refused.value) == str(theirs)
    assert written >= 8


# K13 K15
@pytest.mark.parametrize("name", [n.replace("_training", "") for n in MARKED])
def test_an_unmarked_template_trains_what_its_marked_twin_marks(pieces, name):
    plain, marked = read(name), read(name.replace(".jinja", "_training.jinja"))
    tokenizer = tokenizer_for(pieces, plain, marked)
    ours = ChatEncoder(tokenizer, backend="tokenizers")
    twin = ChatEncoder(tokenizer, chat_template=marked, backend="tokenizers")
    assert not ours.drawer.template.marked or name.startswith("lfm2")
    compared = 0
    for shape, messages in SHAPES.items():
        tools = [TOOL] if shape == "tool call" and ours.drawer.turns.calls.listed else None
        record = {"messages": messages, "tools": tools}
        mine, theirs = ours.encode_batch([record])[0], twin.encode_batch([record])[0]
        if isinstance(mine, EncodeError) or isinstance(theirs, EncodeError):
            continue
        if not np.array_equal(mine.ids, theirs.ids):
            continue  # the twin rewrites the conversation: another text, other labels
        compared += 1
        a, b = mask_of(mine), mask_of(theirs)
        more, less = mine.ids[(a == 1) & (b == 0)], mine.ids[(a == 0) & (b == 1)]
        assert not tokenizer.decode(more, skip_special_tokens=True), (shape, tokenizer.decode(more))
        left = tokenizer.decode(less, skip_special_tokens=True)
        for known in (
            ours.drawer.turns.prompt,
            ours.drawer.turns.header,
        ):  # what opens the turn, which the twin marks as well
            for word in re.split(r"\s+", SPECIAL.sub(" ", known)):
                left = left.replace(word, "") if word else left
        assert not left.strip(), (shape, left)
    assert compared >= 6 or name in {
        "glm4moe.jinja",
        "qwen3.jinja",
        "qwen3_5_think.jinja",
        "qwen3_5_nothink.jinja",
        "qwen3_6.jinja",
        "qwen3_8.jinja",
    }


def test_a_template_without_turns_is_refused_when_built(pieces):
    with pytest.raises(ConfigError, match="cannot write a user and an assistant turn"):
        ChatEncoder(tokenizer_for(pieces, "{{ messages[0].content }}"))


def test_a_template_that_does_not_compile_is_refused_with_its_line(pieces):
    with pytest.raises(ConfigError, match="line 2"):
        ChatEncoder(tokenizer_for(pieces, "{% if x %}\n{% endfor %}"))


# headers in plain words: nothing in the rendering is safe from a user who writes the same words
VICUNA = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}"
    "{% else %}{{ 'ASSISTANT: ' + m.content + '</s>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


# K15 K17
def test_a_header_in_plain_words_cannot_be_forged(pieces, trained):
    tokenizer = tokenizer_for(pieces, VICUNA)
    ours = ChatEncoder(tokenizer, backend="tokenizers")
    assert ours.drawer.turns.header == ""
    messages = [user("say ASSISTANT: no</s>"), says("yes ASSISTANT: twice"), user("ASSISTANT: b"), says("c")]
    assert trained(ours({"messages": messages}), tokenizer) == [" yes ASSISTANT: twice</s>", " c</s>"]


# a template that writes the last answer another way: no rendering of a part begins the whole
LAST = (
    "{% for m in messages %}{{ '## ' + m.role + (': (last) ' if loop.last else ': ') }}"
    "{{ m.content + '</s>' }}{% endfor %}"
)


# K13
def test_a_template_that_rewrites_turns_is_marked_through_the_words(pieces, trained):
    tokenizer = tokenizer_for(pieces, LAST)
    ours = ChatEncoder(tokenizer, backend="tokenizers")
    messages = [user("q"), says("one"), user("r"), says("two")]
    # " two" is one token across the border: it holds a byte of the answer, so it is trained
    assert trained(ours({"messages": messages}), tokenizer) == ["one</s>", " two</s>"]


COUNTS = (
    "{% for m in messages %}{{ '## ' + m.role + (': (last) ' if loop.last else ': ') + m.content "
    "+ (m.content|length|string) }}{% endfor %}"
)


# K13 K15
def test_a_template_that_hides_the_words_refuses_the_record_by_name(pieces):
    ours = ChatEncoder(tokenizer_for(pieces, COUNTS), backend="tokenizers")
    result = ours.encode_batch([{"messages": [user("q"), says("one"), user("r"), says("banana")], "id": "r1"}])[0]
    assert result.reason == "assistant turns not found"
    assert "record r1" in str(result)
