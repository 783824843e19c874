"""LLaVA's pictures: a fixed number of tokens, or by tiles, against the processors and models of transformers."""

import numpy as np
import pytest

from thalweg.core.errors import ConfigError
from thalweg.encode import ChatEncoder, EncodeError
from thalweg.encode.media.batches import MediaCollator
from thalweg.encode.media.families import Limits
from thalweg.encode.media.models import media_of
from thalweg.encode.media.references import Folder
from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
import transformers
from PIL import Image

pytestmark = pytest.mark.skipif(
    not hasattr(transformers.ProcessorMixin, "replace_image_token"),
    reason="this transformers writes no placeholders by itself",
)

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Onevision(transformers.LlavaOnevisionProcessor):
    """The model's processor without its part for clips, which loads beside torchvision only."""

    def __init__(self, image_processor=None, tokenizer=None, num_image_tokens=None, **kwargs):
        self.num_image_tokens, self.vision_feature_select_strategy = num_image_tokens, "full"
        self.image_token, self.video_token, self.vision_aspect_ratio = "<image>", "<video>", "anyres_max_2"
        self.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer)


@pytest.fixture(scope="module")
def tokenizer():
    made = load_tokenizer(qwen_tokenizer())
    made.add_special_tokens({"extra_special_tokens": ["<image>"]})
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="module", params=["llava", "llava_next", "llava_onevision"])
def family(request, tokenizer):
    """A processor and a small random model."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    pins = [[28, 56], [56, 28], [56, 56], [84, 28]]
    text = {"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id}  # fmt: skip
    seen = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 28, "patch_size": 7}  # fmt: skip
    place = tokenizer.convert_tokens_to_ids("<image>")
    told = {"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    torch.manual_seed(0)
    if request.param == "llava":
        processor = transformers.LlavaProcessor(CLIPImageProcessorPil(**sizes), tokenizer, **told)
        config = transformers.LlavaConfig(vision_config=seen, text_config=text, image_token_id=place)
        return processor, transformers.LlavaForConditionalGeneration(config).eval()
    if request.param == "llava_onevision":
        from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
            LlavaOnevisionImageProcessorPil,
        )

        images = LlavaOnevisionImageProcessorPil(size=sizes["crop_size"], image_grid_pinpoints=pins)
        processor = Onevision(images, tokenizer, num_image_tokens=16)
        config = transformers.LlavaOnevisionConfig(
            vision_config={**seen, "model_type": "siglip_vision_model"}, text_config=text, image_token_id=place,
            image_grid_pinpoints=pins, vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_2",
            vision_feature_layer=-1,
        )  # fmt: skip
        return processor, transformers.LlavaOnevisionForConditionalGeneration(config).eval()
    images = LlavaNextImageProcessorPil(**sizes, image_grid_pinpoints=pins)
    processor = transformers.LlavaNextProcessor(images, tokenizer, **told)
    config = transformers.LlavaNextConfig(
        vision_config=seen, text_config=text, image_token_id=place, image_grid_pinpoints=pins
    )
    return processor, transformers.LlavaNextForConditionalGeneration(config).eval()


def says(asked, answered, *pictures):
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return {"messages": turns, **({"images": list(pictures)} if pictures else {})}


RECORDS = [
    says("<image>What is this?", "A wave.", "wide.jpg"),
    says("First <image>then <image>?", "Two.", "tall.png", "grey.png"),
    says("Nothing.", "Right."),
]


def encoder_of(processor, media_files, **more):
    return ChatEncoder(processor, processor=media_of(processor, folder=Folder(str(media_files)), **more))


# C47
def test_ids_and_pixels_are_those_of_the_models_processor(family, tokenizer, media_files):
    processor, _ = family
    encoder = encoder_of(processor, media_files)
    for record in RECORDS[:2]:
        sample = encoder(record)
        turns = [dict(m) for m in record["messages"]]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        pictures = [Image.open(media_files / name).convert("RGB") for name in record["images"]]
        wanted = processor(text=[text], images=pictures, return_tensors="np")
        assert sample["input_ids"].tolist() == wanted["input_ids"][0].tolist()
        assert "position_ids" not in sample
        batch = MediaCollator(encoder.media)([sample])
        assert np.array_equal(batch["pixel_values"], wanted["pixel_values"])
        if encoder.media.tells_sizes:
            assert np.array_equal(batch["image_sizes"], wanted["image_sizes"])
        assert set(batch) == {"input_ids", "labels", "attention_mask", "pixel_values"} | ({"image_sizes"} & set(wanted))
        assert (
            tokenizer.decode([t for t in sample["labels"] if t != -100])
            == record["messages"][1]["content"] + "<|im_end|>"
        )


def total(model, batch):
    batch = {k: torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for k, v in batch.items()}
    logits, wanted = model(**batch).logits[:, :-1], batch["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")


# C45 C46
@pytest.mark.slow
def test_the_model_takes_them_padded_and_packed_with_the_losses_of_each_alone(family, media_files):
    processor, model = family
    encoder = encoder_of(processor, media_files)
    samples = [encoder(r) for r in RECORDS]
    with torch.no_grad():
        alone = float(sum(total(model, MediaCollator(encoder.media)([s])) for s in samples[:2]))
        text = float(total(model, MediaCollator(encoder.media)(samples[2:])))
        padded = float(total(model, MediaCollator(encoder.media)(samples)))
    packed = total(model, MediaCollator(encoder.media, packed=True)([samples]))
    packed.backward()
    assert padded == pytest.approx(alone + text, rel=1e-5)
    assert float(packed.detach()) == pytest.approx(alone + text, rel=1e-5)
    projector = [p for n, p in model.named_parameters() if "projector" in n]
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in projector)
    model.zero_grad()
    with_dummy = total(model, encoder.collator(packed=False, always_media=True)(samples[2:]))
    with_dummy.backward()
    assert float(with_dummy.detach()) == pytest.approx(text, rel=1e-5)
    assert all(p.grad is not None and p.grad.abs().max() == 0 for p in projector)


# B5
def test_areas_are_limited_before_the_processor_and_a_changed_picture_is_named(family, media_files, tmp_path):
    processor, _ = family
    small = media_of(processor, folder=Folder(str(media_files)), limits=Limits(image_max_pixels=900))
    whole = media_of(processor, folder=Folder(str(media_files)))
    assert small._sized(320, 200) == (37, 23)
    with pytest.raises(EncodeError, match="takes no video"):
        whole.measure("video", "clip.mp4")
    if not whole.tells_sizes:
        return
    assert small.measure("image", "wide.jpg").size == (23, 37)
    assert whole.measure("image", "wide.jpg").size == (200, 320)
    Image.new("RGB", (60, 60)).save(tmp_path / "x.png")
    encoder = encoder_of(processor, tmp_path)
    sample = encoder(says("<image>?", "a", "x.png"))
    Image.new("RGB", (90, 60)).save(tmp_path / "x.png")
    with pytest.raises(EncodeError, match=r"x\.png changed since"):
        MediaCollator(encoder.media)([sample])


# B2
def test_a_folder_brings_its_processor_and_others_are_refused_with_what_to_do(family, media_files, tmp_path):
    processor, _ = family
    if not isinstance(processor, Onevision):  # a folder's clips would have to load as well
        _folder_brings(processor, media_files, tmp_path)

    class Rows(type(processor)):
        def replace_image_token(self, made, i):
            return super().replace_image_token(made, i) + "\n"

    odd = Rows.__new__(Rows)
    odd.__dict__.update(processor.__dict__)
    with pytest.raises(ConfigError, match=r"Rows does not write one token.*your own function"):
        media_of(odd)


def _folder_brings(processor, media_files, tmp_path):
    processor.save_pretrained(tmp_path)
    found = media_of(str(tmp_path), folder=Folder(str(media_files)))
    assert type(found.processor) is type(processor)
    assert found.measure("image", "tall.png") == encoder_of(processor, media_files).media.measure("image", "tall.png")
