"""Encoding: plain text beside the engines' own calls, and conversations with labels beside TRL's preparation.

Texts are the Python files of the standard library, cut at about 1,200 characters; conversations are its docstrings,
two questions and two answers each. Contents are compared: the sum of all ids, and of all ids in the loss. Plain text is
measured over several passes after as many: the engine keeps words that it has seen, a store for each of its threads.
"""

import ast
import json
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main

TRL = ("trl==1.16.0", "torch==2.13.0", "transformers==5.24.0", "datasets==5.2.0", "numpy==2.4.6")
BATCH = 1024


def _sources() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path.read_text(encoding="utf-8", errors="replace")


def prepare_texts(folder: Path, size: Mapping[str, Any]) -> None:
    """Cut sources into documents at the ends of lines."""
    from thalweg.encode import qwen_tokenizer

    documents: list[str] = []
    for source in _sources():
        part: list[str] = []
        for line in source.splitlines(keepends=True):
            part.append(line)
            if sum(map(len, part)) > 1200:
                documents.append("".join(part))
                part = []
        if len(documents) >= size["documents"]:
            break
    (folder / "texts.json").write_text(json.dumps(documents[: size["documents"]]))
    (folder / "tokenizer").write_text(qwen_tokenizer())


def prepare_chat(folder: Path, size: Mapping[str, Any]) -> None:
    """Ask for the docstrings of functions and classes, two by two."""
    from thalweg.encode import qwen_tokenizer

    said: list[tuple[str, str]] = []
    for source in _sources():
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and len(text := ast.get_docstring(node) or "") > 200:
                said.append((f"What does {node.name} do?", text))
        if len(said) >= 2 * size["conversations"]:
            break
    rows = [
        {
            "messages": [
                m for q, a in pair for m in ({"role": "user", "content": q}, {"role": "assistant", "content": a})
            ]
        }
        for pair in zip(said[::2], said[1::2], strict=False)
    ]
    (folder / "chat.json").write_text(json.dumps(rows[: size["conversations"]]))
    (folder / "tokenizer").write_text(qwen_tokenizer())


def _texts(folder: Path) -> tuple[list[str], str]:
    return json.loads((folder / "texts.json").read_text()), (folder / "tokenizer").read_text()


def _parts(items: list[Any]) -> Iterator[list[Any]]:
    return (items[i : i + BATCH] for i in range(0, len(items), BATCH))


def text_ours(backend: str) -> Any:
    """Our encoder: ids of each document with an end token, as columns of one flat array."""

    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from thalweg.encode import TextEncoder

        texts, tokenizer = _texts(folder)
        encoder = TextEncoder(tokenizer, backend=backend)
        encoder.encode_batch(texts[:BATCH])
        kept: list[Any] = []

        def run() -> int:
            for _ in range(size["passes"]):
                kept[:] = [encoder.encode_batch(part) for part in _parts(texts)]
            return size["passes"] * sum(len(rows.values) - len(rows) for rows in kept)

        eos = encoder.after[0]
        return Work(run, lambda: sum(int(r.values.astype(np.int64).sum()) - eos * len(r) for r in kept))

    return start


def raw_fastokens(folder: Path, size: Mapping[str, Any]) -> Work:
    """`fastokens` alone: its flat call over the same batches, special tokens unread."""
    from fastokens import Tokenizer

    texts, tokenizer = _texts(folder)
    engine = Tokenizer.from_json_str((Path(tokenizer) / "tokenizer.json").read_text())
    kept: list[Any] = []

    def run() -> int:
        for _ in range(size["passes"]):
            kept[:] = [engine.encode_batch_flat(part, split_special_tokens=True) for part in _parts(texts)]
        return size["passes"] * sum(len(ids) // 4 for ids, _ in kept)

    return Work(run, lambda: sum(int(np.frombuffer(ids, np.uint32).astype(np.int64).sum()) for ids, _ in kept))


def raw_tokenizers(folder: Path, size: Mapping[str, Any]) -> Work:
    """`tokenizers` alone: its fastest batch call, ids read out."""
    from tokenizers import Tokenizer

    texts, tokenizer = _texts(folder)
    engine = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
    engine.encode_special_tokens = True
    kept: list[Any] = []

    def run() -> int:
        for _ in range(size["passes"]):
            made = (engine.encode_batch_fast(part, add_special_tokens=False) for part in _parts(texts))
            kept[:] = [[e.ids for e in part] for part in made]
        return size["passes"] * sum(len(ids) for part in kept for ids in part)

    return Work(run, lambda: sum(sum(ids) for part in kept for ids in part))


def chat_ours(folder: Path, _size: Mapping[str, Any]) -> Work:
    """Our encoder: ids and labels of each conversation, by the engine that "auto" comes to after its first megabyte."""
    from thalweg.encode import ChatEncoder

    rows, tokenizer = json.loads((folder / "chat.json").read_text()), (folder / "tokenizer").read_text()
    encoder = ChatEncoder(tokenizer, backend="fastokens")
    encoder.encode_batch(rows[:64])
    kept: list[Any] = []

    def run() -> int:
        kept[:] = [e for part in _parts(rows) for e in encoder.encode_batch(part)]
        return sum(len(e.ids) for e in kept)

    def content() -> list[int]:
        trained = sum(int(e.ids[a:b].sum(dtype=np.int64)) for e in kept for a, b in e.spans.tolist())
        return [sum(int(e.ids.sum(dtype=np.int64)) for e in kept), trained]

    return Work(run, content)


def chat_trl(folder: Path, _size: Mapping[str, Any]) -> Work:
    """TRL's preparation of a conversational data set, as SFTTrainer does it, its cache switched off."""
    import datasets
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    datasets.disable_caching()
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_list(json.loads((folder / "chat.json").read_text()))
    tokenizer = AutoTokenizer.from_pretrained((folder / "tokenizer").read_text())
    tiny = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    settings = SFTConfig(
        str(folder / "trl"), assistant_only_loss=True, max_length=None, use_cpu=True, report_to=[], bf16=False
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(tiny), settings, train_dataset=rows.select(range(4)), processing_class=tokenizer
    )
    seen: dict[str, Any] = {}

    def run() -> int:
        seen["rows"] = trainer._prepare_dataset(rows, tokenizer, settings, False, None, "train")  # noqa: SLF001
        return len(seen["rows"].data.column("input_ids").combine_chunks().flatten())

    def content() -> list[int]:
        ids, trained = 0, 0
        for row in seen["rows"]:
            labels = np.array(row["labels"], np.int64)
            ids += int(np.array(row["input_ids"], np.int64).sum())
            trained += int(labels[labels != -100].sum())
        return [ids, trained]

    return Work(run, content)


CASES = [
    Case(
        name="plain text to ids, fastokens",
        unit="tokens",
        prepare=prepare_texts,
        sides={"thalweg": Side(text_ours("fastokens")), "fastokens alone": Side(raw_fastokens)},
        sizes={"full": {"documents": 4_000, "passes": 10}, "smoke": {"documents": 50, "passes": 1}},
    ),
    Case(
        name="plain text to ids, tokenizers",
        unit="tokens",
        prepare=prepare_texts,
        sides={"thalweg": Side(text_ours("tokenizers")), "tokenizers alone": Side(raw_tokenizers)},
        sizes={"full": {"documents": 4_000, "passes": 1}, "smoke": {"documents": 50, "passes": 1}},
    ),
    Case(
        name="conversations to ids and labels",
        unit="tokens",
        prepare=prepare_chat,
        sides={"thalweg": Side(chat_ours), "TRL": Side(chat_trl, TRL)},
        sizes={"full": {"conversations": 1000}, "smoke": {"conversations": 20}},
    ),
]

if __name__ == "__main__":
    main(__file__, CASES)
