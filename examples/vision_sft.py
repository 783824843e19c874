"""Vision-language tuning on real pictures: counted by their headers, decoded when a batch is built, packed with text.

Give a folder with pictures (.png) that have their captions (.txt) beside them, such as Debian's
tuxpaint-stamps-default unpacked.
"""

import inspect
import pathlib
import sys
import textwrap

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import thalweg as tw
from thalweg.encode import ChatEncoder
from thalweg.encode.media.families import Media
from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
pictures = sorted(p for p in folder.rglob("*.png") if p.with_suffix(".txt").exists())[:16]
assert pictures, f"no .png with a .txt beside it below {folder}"
captions = [p.with_suffix(".txt").read_text(encoding="utf-8").splitlines()[0] for p in pictures]
shown = [
    {"id": p.name, "prompt": "<image>What is this?", "response": text, "images": [str(p)]}
    for p, text in zip(pictures, captions, strict=True)
]
spoken = [  # conversations without a picture, in the same rows
    {"id": name, "prompt": f"What does {name} do?", "response": inspect.getdoc(value)}
    for name, value in sorted(vars(textwrap).items())
    if inspect.isfunction(value)
]

tokenizer = load_tokenizer(qwen_tokenizer())
media = Media(Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=112 * 112))
encoder = ChatEncoder(tokenizer, processor=media, max_length=256)
feed = tw.from_dataset(shown + spoken, id="id").map(encoder, mode="threads", workers=2).cache()
feed = feed.shuffle().pack(512, overlong="drop").batch(1)  # the encoder's own collator decodes
print(feed)

ids = {n: tokenizer.convert_tokens_to_ids(f"<|{n}|>") for n in ("image_pad", "video_pad", "vision_start", "vision_end")}
rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
text = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
text |= {"vocab_size": len(tokenizer), "num_key_value_heads": 2, "rope_parameters": rope, "tie_word_embeddings": True}
vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
torch.manual_seed(0)
words = {f"{k.replace('pad', 'token')}{'_token' * k.startswith('vision')}_id": v for k, v in ids.items()}
model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **words))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses, seen = [], set()
for batch in tw.Loader(feed, epochs=None, max_steps=5):
    loss = model(**batch).loss  # documents of a row do not see each other, pictures included
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    seen |= {name for row in batch.info.ids for name in row}
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, {len(seen)} of {len(shown) + len(spoken)} samples")
assert losses[-1] < 0.9 * losses[0]
