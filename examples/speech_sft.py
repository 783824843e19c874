"""Speech to text on real clips: counted by their headers, decoded when a batch is built, packed into rows.

Give a folder with clips (.wav) and a file `transcription` of lines "<s> text </s> (name)", such as Debian's
pocketsphinx-testdata unpacked.
"""

import pathlib
import re
import sys

import torch
from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration, WhisperFeatureExtractor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import thalweg as tw
from thalweg.encode import ChatEncoder
from thalweg.encode.media.batches import MediaCollator
from thalweg.encode.media.families import Media
from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
lines = next(folder.rglob("transcription"), None) or sys.exit(f"no file `transcription` below {folder}")
clips = [
    {"id": name, "prompt": "<audio>Write it down.", "response": text, "audios": [str(lines.with_name(f"{name}.wav"))]}
    for text, name in re.findall(r"<s> (.*) </s> \((.*)\)", lines.read_text(encoding="utf-8"))
]

# The tokenizer and template of Qwen2.5-Omni, made here of the vocabulary that is at hand.
tokenizer = load_tokenizer(qwen_tokenizer())
new = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|IMAGE|>", "<|VIDEO|>", "<|vision_bos|>", "<|vision_eos|>"]
tokenizer.add_special_tokens({"extra_special_tokens": new})
ids = dict(zip(new, tokenizer.convert_tokens_to_ids(new), strict=True))
sound = WhisperFeatureExtractor(feature_size=128, sampling_rate=16_000, hop_length=160, chunk_length=30, n_fft=400)
media = Media(Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=112 * 112), sound)
encoder = ChatEncoder(tokenizer, processor=media, chat_template="qwen2_omni")
feed = tw.from_dataset(clips, id="id").shuffle().map(encoder, mode="threads", workers=2)
feed = feed.pack(512, policy="fill", overlong="drop").batch(1, collate=MediaCollator(media, packed=True, kinds=False))

rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
text = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
text |= {"num_key_value_heads": 2, "rope_parameters": rope, "vocab_size": len(tokenizer)}
audio = {"num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
names = {"audio_token_index": "AUDIO", "image_token_index": "IMAGE", "video_token_index": "VIDEO"}
names |= {"audio_start_token_id": "audio_bos", "audio_end_token_id": "audio_eos"}
torch.manual_seed(0)
parts = {"text_config": text, "audio_config": {**audio, "d_model": 32, "output_dim": 64}, "vision_config": vision}
config = Qwen2_5OmniThinkerConfig(**parts, **{k: ids[f"<|{v}|>"] for k, v in names.items()})
model = Qwen2_5OmniThinkerForConditionalGeneration(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for batch in tw.Loader(feed, epochs=None, max_steps=4):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"{len(clips)} clips, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
assert losses[-1] < 0.9 * losses[0]
