"""Supervised fine-tuning on conversations: loss on the answers only, documents packed, a tiny model that learns."""

import inspect
import json
import string
import textwrap

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import thalweg as tw
from thalweg.encode import ChatEncoder
from thalweg.encode.tokens import qwen_tokenizer

# Questions and answers from real docstrings.
with open("chat.jsonl", "w", encoding="utf-8") as file:
    for module in (json, string, textwrap, inspect):
        for name, value in sorted(vars(module).items()):
            answer = inspect.getdoc(value) if inspect.isfunction(value) or inspect.isclass(value) else None
            if answer:
                question = {"role": "user", "content": f"What does {module.__name__}.{name} do?"}
                turns = [question, {"role": "assistant", "content": answer}]
                file.write(json.dumps({"id": f"{module.__name__}.{name}", "messages": turns}) + "\n")

# Encode once and keep the samples; shuffle, fill rows of 256 tokens, two rows a batch.
feed = tw.from_files("chat.jsonl", id="id").map(ChatEncoder(qwen_tokenizer(), max_length=256))
feed = feed.cache().shuffle().pack(256).batch(2)
print(tw.inspect(feed, n=1))  # trained tokens stand in brackets

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
    trained = (batch["labels"][:, 1:] != -100).sum().item()
    assert trained == batch.info.num_label_tokens < batch.info.num_tokens

print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
assert losses[-1] < 0.9 * losses[0]
