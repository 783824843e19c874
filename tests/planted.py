"""Faults to find: for each check a target that has the fault, and its twin that has not.

Targets are what users give: feeds, loaders of batches as other libraries make them, pretended ranks. Where no target
of ours can have the fault, the evidence itself is planted.
"""

import numpy as np

import thalweg as tw
from thalweg.check.evidence import Evidence

PAD, BOS, EOS = 0, 1, 2


class Letters:
    """A tokenizer whose tokens are characters, with three special tokens."""

    bos_token_id = BOS

    def __init__(self, pad=PAD, eos=EOS):
        self.added_tokens_decoder = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}
        self.pad_token_id, self.eos_token_id = pad, eos

    def __len__(self):
        return 256

    def convert_tokens_to_ids(self, token):
        return ord(token)

    def encode(self, text, add_special_tokens=False):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(chr(i) if i > EOS else self.added_tokens_decoder[i] for i in ids)


def talk(n, words=1):
    """One conversation; `words` makes it longer."""
    return {
        "messages": [
            {"role": "user", "content": f"what about the number {n} please? "},
            {"role": "assistant", "content": f"it is {n}" + " indeed" * words},
        ]
    }


def encoded(record, train_prompt=False):
    """Tokens and labels of a conversation, as they should be."""
    prompt, answer = (m["content"] for m in record["messages"])
    ids = [BOS, *map(ord, prompt), *map(ord, answer), EOS]
    labels = list(ids)
    if not train_prompt:
        labels[: 1 + len(prompt)] = [-100] * (1 + len(prompt))
    return {"input_ids": ids, "labels": labels}


TALKS = [talk(n, 1 + n % 5) for n in range(60)]
SAMPLES = [encoded(t) for t in TALKS]


def feed(change=None, records=TALKS):
    """Conversations through an encoder; `change` spoils every tenth sample, or all where it says so."""

    def encode(record):
        sample = encoded(record)
        number = int("".join(c for c in record["messages"][0]["content"] if c.isdigit()))
        if change is not None and (getattr(change, "all", False) or number % 10 == 0):
            change(sample)
        return sample

    return tw.from_dataset(list(records)).map(encode, remove_columns="all")


def everywhere(change):
    change.all = True
    return change


def raising(sample):
    raise ValueError("broken")


def floats(sample):
    sample["input_ids"] = [float(i) for i in sample["input_ids"]]


def emptied(sample):
    sample["input_ids"], sample["labels"] = [], []


def bos_twice(sample):
    sample["input_ids"].insert(0, BOS)
    sample["labels"].insert(0, -100)


def short_labels(sample):
    sample["labels"].pop()


def wild_label(sample):
    sample["labels"][-2] = 999


def other_label(sample):
    sample["labels"][-2] = ord("#")


def untrained(sample):
    sample["labels"] = [-100] * len(sample["labels"])


@everywhere
def all_trained(sample):
    sample["labels"] = list(sample["input_ids"])


def half_trained(sample):
    at = next(i for i, label in enumerate(sample["labels"]) if label != -100)
    sample["labels"][at : at + 3] = [-100] * 3


@everywhere
def without_end(sample):
    sample["input_ids"].pop()
    sample["labels"].pop()


@everywhere
def cut(sample):
    sample["input_ids"], sample["labels"] = sample["input_ids"][:50], sample["labels"][:50]


def padded(samples, side="right", width=None, mask=None):
    """A batch as a collator makes it."""
    width = width or max(len(s["input_ids"]) for s in samples)
    ids, labels, masks = (np.full((len(samples), width), fill) for fill in (PAD, -100, 0))
    for r, s in enumerate(samples):
        n = len(s["input_ids"])
        part = slice(0, n) if side == "right" else slice(width - n, width)
        ids[r, part], labels[r, part], masks[r, part] = s["input_ids"], s["labels"], 1
    return {"input_ids": ids, "labels": labels, "attention_mask": masks if mask is None else mask(ids)}


def batches(of=4, samples=SAMPLES, **more):
    return [padded(samples[i : i + of], **more) for i in range(0, len(samples), of)]


def packed(masked=True, apart=True):
    """Rows of three samples end to end."""
    out = []
    for at in range(0, 30, 3):
        three = SAMPLES[at : at + 3]
        ids = np.concatenate([s["input_ids"] for s in three])[None]
        labels = np.concatenate([s["labels"] for s in three])[None].copy()
        positions = np.concatenate([np.arange(len(s["input_ids"])) for s in three])[None]
        if not masked:
            labels[positions == 0] = ids[positions == 0]
        batch = {"input_ids": ids, "labels": labels, "position_ids": positions}
        out.append(batch if apart else {**batch, "attention_mask": np.ones_like(ids)})
    return out


def shifted():
    out = batches()
    for batch in out:
        batch["labels"] = np.concatenate([batch["labels"][:, 1:], np.full((4, 1), -100)], axis=1)
    return out


def left(restart):
    out = batches(side="left")
    for batch in out:
        mask = batch["attention_mask"]
        count = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        batch["position_ids"] = count if restart else np.tile(np.arange(mask.shape[1]), (len(mask), 1))
    return out


def ranks(*parts):
    """Loaders of pretended ranks: lists of batches of one sample."""
    return [[padded([SAMPLES[i]]) for i in part] for part in parts]


class Loader:
    """A loader over samples, as torch's looks from outside."""

    def __init__(self, samples):
        self.dataset, self.collate_fn = samples, padded

    def __iter__(self):
        return iter(batches(samples=self.dataset))


def with_image(asked, brought):
    def record(n):
        t = talk(n)
        t["messages"][0]["content"] += "<image>" * asked
        return {**t, "images": ["a.png"] * brought}

    return tw.from_dataset([record(n) for n in range(30)]).map(encoded, remove_columns="all")


def unanswered(n):
    """One conversation each: with nobody's answer, an empty one, and roles that nobody knows."""
    question = {"role": "user", "content": f"what about the number {n}?"}
    answer = [[], [{"role": "assistant", "content": " "}], [{"role": "bott", "content": "it is"}]][n % 3]
    return {"messages": [question, *answer]}


def systems(constant):
    return tw.from_dataset([{**talk(n), "system": "same" if constant else str(n)} for n in range(30)]).map(
        encoded, remove_columns="all"
    )


def batched(**more):
    return tw.from_dataset(SAMPLES).shuffle().batch(4, **more)


def mixed_lengths(longest):
    return tw.from_dataset(
        [{"input_ids": [5 + n % 9] * (longest if n == 7 else 20 + n % 7)} for n in range(64)]
    ).shuffle()


LETTERS = {"tokenizer": Letters()}
FAULTS = {  # name of the check: (target with the fault, its twin without, what doctor is told)
    "there is data": (lambda: tw.from_dataset([]), feed, {}),
    "samples can be made": (lambda: feed(raising), feed, {}),
    "batches can be made": (
        lambda: tw.from_dataset([{**s, "odd": "text"} for s in SAMPLES]).batch(4), batched, {},
    ),
    "columns and dtypes": (lambda: feed(floats), feed, {}),
    "empty samples": (lambda: feed(emptied), feed, {}),
    "ids inside the embedding table": (feed, lambda: tw.from_dataset([{"input_ids": [9, 8, 7]}]), {"vocab_size": 100}),
    "beginning of text once": (lambda: feed(bos_twice), feed, LETTERS),
    "padding is no real token": (lambda: Loader(SAMPLES), None, {"tokenizer": Letters(pad=EOS)}),
    "media where announced": (lambda: with_image(2, 1), lambda: with_image(1, 1), LETTERS),
    "samples come once": (lambda: feed(records=[talk(n % 20) for n in range(60)]), feed, {}),
    "answers are there": (
        lambda: tw.from_dataset([unanswered(n) for n in range(9)]), lambda: tw.from_dataset(TALKS), {},
    ),
    "columns say something": (lambda: systems(True), lambda: systems(False), {}),
    "equal lengths": (lambda: feed(short_labels), feed, {}),
    "labels inside the vocabulary": (lambda: feed(wild_label), feed, LETTERS),
    "labels not shifted": (shifted, batches, {}),
    "labels are their tokens": (lambda: feed(other_label), feed, {}),
    "mask ends at padding": (lambda: batches(mask=np.ones_like), batches, LETTERS),
    "mask hides no token": (lambda: batches(mask=lambda ids: (ids != EOS) & (ids != PAD)), batches, LETTERS),
    "documents are apart": (lambda: packed(apart=False), packed, {}),
    "documents begin untrained": (lambda: packed(masked=False), packed, {}),
    "padding side": (lambda: left(False), lambda: left(True), {}),
    "something is trained": (lambda: feed(untrained), feed, {}),
    "prompts off the loss": (lambda: feed(all_trained), feed, LETTERS),
    "answers in the loss": (lambda: feed(half_trained), feed, LETTERS),
    "answers end": (lambda: feed(without_end), feed, LETTERS),
    "truncation": (lambda: feed(cut), feed, LETTERS),
    "longer than a row": (
        lambda: tw.from_dataset(SAMPLES).pack(48, overlong="drop").batch(1),
        lambda: tw.from_dataset(SAMPLES).pack(200).batch(1), {},
    ),
    "shapes of batches": (lambda: mixed_lengths(900).batch(4), lambda: mixed_lengths(30).batch(4), {}),
    "padding wasted": (lambda: batched(pad_to=256), batched, {}),
    "lengths of one order": (lambda: mixed_lengths(900).batch(4), lambda: mixed_lengths(30).batch(4), {}),
    "order changes": (lambda: tw.from_dataset(SAMPLES).batch(4), batched, {}),
    "ranks have their own": (lambda: ranks([0, 1, 2], [2, 3, 4]), lambda: ranks([0, 1, 2], [3, 4, 5]), {}),
    "last ids": (lambda: ranks([0, 1, 2], [3, 4, 2]), lambda: ranks([0, 1, 2], [3, 4, 5]), {}),
    "steps are equal": (lambda: ranks([0, 1, 2], [3, 4]), lambda: ranks([0, 1, 2], [3, 4, 5]), {}),
    "ranks share the work": (lambda: ranks([4, 9, 14, 19], [0, 5, 10, 15]), lambda: ranks([0, 1], [5, 6]), {}),
    "sources as weighted": (
        lambda: Evidence("mix", weights={"a": 3.0, "b": 1.0}, drawn={"a": 0.5, "b": 0.5}, drawn_of=1000),
        lambda: tw.mix({"a": tw.from_dataset(SAMPLES[:40]), "b": tw.from_dataset(SAMPLES[40:])},
                       weights={"a": 3, "b": 1}).shuffle().batch(2), {},
    ),
    "memory predicted": (
        lambda: Evidence("big", asked=10, total=10**9, sample_bytes=4000.0),
        lambda: Evidence("small", asked=10, total=10**3, sample_bytes=4000.0), {},
    ),
    "functions are quick": (
        lambda: Evidence("slow", asked=100, seconds={"read": 0.01, "map(slow)": 2.0}),
        lambda: Evidence("quick", asked=100, seconds={"read": 0.01, "map(quick)": 0.02}), {},
    ),
}  # fmt: skip
