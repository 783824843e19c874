"""Pretraining on text: files to token records once, then packed rows without padding, and a tiny model that learns."""

import json
import pathlib
import textwrap

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import thalweg as tw
from thalweg.encode.tokens import qwen_tokenizer
from thalweg.run import LocalPipelineExecutor
from thalweg.steps import EncodeText, JsonlReader, RecordsWriter

# Real text: the source of Python's own library, one document a file.
pathlib.Path("raw").mkdir(exist_ok=True)
sources = sorted(pathlib.Path(textwrap.__file__).parent.glob("*.py"))[:60]
texts = {path.name: path.read_text(encoding="utf-8", errors="replace")[:20_000] for path in sources}
if not pathlib.Path("raw/python.jsonl").exists():  # a run belongs to its files
    with open("raw/python.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())

# Offline, on as many ranks as you like; kill it and run it again, and nothing is lost or done twice.
executor = LocalPipelineExecutor(
    [JsonlReader("raw"), EncodeText(qwen_tokenizer()), RecordsWriter("tokens")], tasks=1, workers=1, logging_dir="logs"
)
executor.run()
records = tw.open_records("tokens")
print(f"{len(records)} documents, {records.num_tokens:,} tokens")

# Online: documents end to end, cut into rows of 256 tokens; those of one row do not see each other.
feed = tw.from_records(records).shuffle().pack(256, policy="concat_split").batch(2)
print(feed)

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 32}
model = Qwen3ForCausalLM(Qwen3Config(vocab_size=151_936, num_key_value_heads=1, tie_word_embeddings=True, **sizes))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

losses = []
loader = tw.Loader(feed, epochs=None, max_steps=12)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    assert batch.info.num_tokens == 512  # no padding

print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
assert losses[-1] < 0.9 * losses[0]
