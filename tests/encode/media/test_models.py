"""Small real models run on our batches: what we count, place and lay out is what they take."""

import json

import numpy as np
import pytest

from thalweg.core.errors import ConfigError
from thalweg.encode import ChatEncoder, EncodeError
from thalweg.encode.media.batches import MediaCollator
from thalweg.encode.media.families import Limits, Media
from thalweg.encode.media.references import Folder
from thalweg.encode.media.videos import Sampling

torch = pytest.importorskip("torch")
ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_parameters": ROPE,
}


def says(asked, answered, **media):
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return {"messages": messages, **media}


@pytest.fixture(scope="module")
def vl(qwen, image_processor, media_files):
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    ids = {n: qwen.convert_tokens_to_ids(f"<|{n}|>") for n in ("image_pad", "video_pad", "vision_start", "vision_end")}
    vision = {
        "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config={**TEXT, "vocab_size": len(qwen), "pad_token_id": qwen.pad_token_id, "tie_word_embeddings": True},
        vision_config=vision,
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
    )
    torch.manual_seed(0)
    limits = Limits(sampling=Sampling(fps=2, most=8), video_max_pixels=56 * 56)
    media = Media(image_processor, folder=Folder(str(media_files)), limits=limits)
    return Qwen2VLForConditionalGeneration(config).eval(), ChatEncoder(qwen, processor=media)


RECORDS = [
    says("<image>What is this?", "A wave."),
    says("No picture here.", "Right."),
    says("First <image> then <image>?", "Both are waves, the second is tall."),
    says("<video>What happens?", "It moves."),
]
RECORDS[0]["images"] = ["wide.jpg"]
RECORDS[2]["images"] = ["tall.png", "grey.png"]
RECORDS[3]["videos"] = ["clip.mp4"]


def tensors(batch):
    return {k: torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for k, v in batch.items()}


def total_loss(model, batch):
    """Sum of the loss over all labels, and its gradient in the vision tower."""
    model.zero_grad()
    batch = tensors(batch)
    labels = batch.pop("labels")
    logits = model(**batch).logits[:, :-1]
    wanted = labels[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), wanted.reshape(-1), reduction="sum")
    loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None and "visual" in n}
    return float(loss.detach()), grads


# C45 C46 C47
@pytest.mark.slow
def test_a_packed_row_has_the_loss_of_its_documents_alone_with_pictures_and_clips(vl):
    model, encoder = vl
    samples = [encoder(r) for r in RECORDS]
    alone = [total_loss(model, MediaCollator(encoder.media)([s])) for s in samples]
    padded, _ = total_loss(model, MediaCollator(encoder.media)(samples))
    packed, grads = total_loss(model, MediaCollator(encoder.media, packed=True)([samples]))
    two_rows, _ = total_loss(model, MediaCollator(encoder.media, packed=True)([samples[:2], samples[2:]]))
    wanted = sum(loss for loss, _ in alone)
    for found in (padded, packed, two_rows):
        assert abs(found - wanted) / wanted < 1e-5
    assert grads
    for name, grad in grads.items():
        apart = sum(g[name] for _, g in alone if name in g)
        assert float((grad - apart).abs().max()) <= 1e-4 * float(apart.abs().max()) + 1e-6


# C47
@pytest.mark.slow
def test_positions_and_kinds_are_those_that_the_model_computes(vl):
    model, encoder = vl
    for record in RECORDS:
        sample = encoder(record)
        if "mm_token_type_ids" not in sample:
            continue
        batch = tensors(MediaCollator(encoder.media)([sample]))
        theirs, _ = model.model.get_rope_index(
            batch["input_ids"],
            batch["mm_token_type_ids"],
            image_grid_thw=batch.get("image_grid_thw"),
            video_grid_thw=batch.get("video_grid_thw"),
        )
        assert np.array_equal(theirs[:, 0].numpy(), sample["position_ids"])
        pads = {encoder.placer.tokens[k] for k in ("image", "video")}
        assert (np.isin(sample["input_ids"], list(pads)) == (sample["mm_token_type_ids"] > 0)).all()


@pytest.fixture(scope="module")
def omni(image_processor, feature_extractor, media_files):
    from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

    from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

    tokenizer = load_tokenizer(qwen_tokenizer())
    new = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|IMAGE|>", "<|VIDEO|>", "<|vision_bos|>", "<|vision_eos|>"]
    tokenizer.add_special_tokens({"extra_special_tokens": new})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
        "{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
        "{% elif p.type == 'audio' %}{{ '<|audio_bos|><|AUDIO|><|audio_eos|>' }}"
        "{% elif p.type == 'image' %}{{ '<|vision_bos|><|IMAGE|><|vision_eos|>' }}{% endif %}{% endfor %}{% endif %}"
        "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    ids = dict(zip(new, tokenizer.convert_tokens_to_ids(new), strict=True))
    config = Qwen2_5OmniThinkerConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id},
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        audio_config={
            "num_mel_bins": 128, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
            "d_model": 32, "output_dim": 64,
        },
        audio_token_index=ids["<|AUDIO|>"],
        image_token_index=ids["<|IMAGE|>"],
        video_token_index=ids["<|VIDEO|>"],
        audio_start_token_id=ids["<|audio_bos|>"],
        audio_end_token_id=ids["<|audio_eos|>"],
        vision_start_token_id=ids["<|vision_bos|>"],
        vision_end_token_id=ids["<|vision_eos|>"],
    )  # fmt: skip
    torch.manual_seed(0)
    media = Media(image_processor, feature_extractor, folder=Folder(str(media_files)))
    encoder = ChatEncoder(tokenizer, processor=media)
    encoder.placer.tokens |= {"image": ids["<|IMAGE|>"], "audio": ids["<|AUDIO|>"]}
    return Qwen2_5OmniThinkerForConditionalGeneration(config).eval(), encoder


# C45 C47
@pytest.mark.slow
def test_sounds_and_pictures_of_a_packed_row_have_the_loss_of_their_documents_alone(omni):
    model, encoder = omni
    records = [
        says("<audio>What do you hear?", "A high tone.", audios=["mono.flac"]),
        says("Nothing to hear.", "Right."),
        says("<image>and<audio>?", "A wave and two tones.", images=["tall.png"], audios=["stereo.wav"]),
        # 102 steps of the spectrogram and a begun one
        says("<audio>And?", "Noise.", audios=[{"array": np.random.default_rng(0).normal(0, 0.1, 16_370)}]),
    ]
    samples = [encoder(r) for r in records]
    kinds = MediaCollator(encoder.media, kinds=False)
    alone = [total_loss(model, kinds([s])) for s in samples]
    packed, grads = total_loss(model, MediaCollator(encoder.media, packed=True, kinds=False)([samples]))
    wanted = sum(loss for loss, _ in alone)
    assert abs(packed - wanted) / wanted < 1e-5
    assert grads
    sample = samples[2]
    batch = tensors(kinds([sample]))
    theirs, _ = model.get_rope_index(
        batch["input_ids"],
        image_grid_thw=batch["image_grid_thw"],
        attention_mask=torch.ones_like(batch["input_ids"]),
        audio_seqlens=batch["feature_attention_mask"].sum(-1),
    )
    assert np.array_equal(theirs[:, 0].numpy(), sample["position_ids"])


@pytest.mark.slow
def test_a_batch_without_media_gets_one_masked_dummy_where_it_is_asked_for(vl, qwen):
    model, encoder = vl
    samples = [encoder(says("Hello?", "Hi.")), encoder(says("Two?", "Yes, two."))]
    dummies = {"image": tuple(qwen.convert_tokens_to_ids(["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]))}
    assert encoder.placer.dummies == dummies
    plain, _ = total_loss(model, MediaCollator(encoder.media)(samples))
    for packed in (False, True):
        full = sum(len(s["input_ids"]) for s in samples) if packed else None  # there is no room for a dummy
        collate = encoder.collator(packed=packed, capacity=full, always_media=True)
        batch = collate([samples] if packed else samples)
        assert "pixel_values" in batch
        loss, grads = total_loss(model, batch)
        assert abs(loss - plain) / plain < 1e-5
        assert grads  # the vision tower took part, with gradients of zero
        assert all(float(g.abs().max()) == 0 for g in grads.values())
    with_media = MediaCollator(encoder.media, always_media=True, dummies=dummies)([encoder(RECORDS[0])])
    assert len(with_media["image_grid_thw"]) == 1
    with pytest.raises(ConfigError, match="no tokens for a dummy"):
        MediaCollator(encoder.media, always_media=True)


@pytest.mark.slow
def test_each_tower_of_an_omni_model_takes_part_in_a_batch_without_its_media(omni):
    model, encoder = omni
    hears = encoder(says("<audio>?", "A tone.", audios=["mono.flac"]))
    sees = encoder(says("<image>?", "A wave.", images=["tall.png"]))
    for samples in ([encoder(says("Hello?", "Hi."))], [hears], [sees], [hears, sees]):
        plain = MediaCollator(encoder.media, kinds=False)(samples)
        batch = MediaCollator(encoder.media, kinds=False, always_media=True, dummies=encoder.placer.dummies)(samples)
        assert {"pixel_values", "input_features"} <= set(batch)
        assert len(batch["image_grid_thw"]) == len(batch["input_features"]) == 1
        wanted, (loss, _) = total_loss(model, plain)[0], total_loss(model, batch)
        assert abs(loss - wanted) / wanted < 1e-5
        towers = {n.split(".")[1] for n, p in model.named_parameters() if p.grad is not None}
        assert {"visual", "audio_tower"} <= towers


# B2
def test_a_model_folder_brings_its_processor(qwen, image_processor, media_files, tmp_path):
    qwen.save_pretrained(tmp_path)
    image_processor.save_pretrained(tmp_path)
    encoder = ChatEncoder(str(tmp_path), media_dir=str(media_files))
    sample = encoder(RECORDS[0])
    assert sample["images"] == ["wide.jpg"]
    grid = sample["image_grid_thw"][0]
    assert (sample["mm_token_type_ids"] == 1).sum() == grid.prod() // 4 == sample["media_tokens"]
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["patch_size"] == 14
    now = ChatEncoder(str(tmp_path), media_dir=str(media_files), decode="now")(RECORDS[0])
    assert len(now["pixel_values"]) == grid.prod()
    assert "images" not in now


# B5
def test_a_smaller_area_has_fewer_tokens(qwen, image_processor, media_files):
    whole = ChatEncoder(qwen, processor=Media(image_processor, folder=Folder(str(media_files))))(RECORDS[0])
    limits = Limits(image_max_pixels=5000)
    media = Media(image_processor, folder=Folder(str(media_files)), limits=limits)
    small = ChatEncoder(qwen, processor=media)(RECORDS[0])
    assert small["media_tokens"] < whole["media_tokens"]
    batch = MediaCollator(media)([small])
    assert len(batch["pixel_values"]) == 4 * small["media_tokens"]


# K17 K19
def test_a_limit_never_cuts_a_medium_and_all_fields_agree(qwen, image_processor, media_files):
    media = Media(image_processor, folder=Folder(str(media_files)))
    record = {
        "messages": [
            {"role": "user", "content": "first <image> one"}, {"role": "assistant", "content": "a tall one"},
            {"role": "user", "content": "second <image> one"}, {"role": "assistant", "content": "a grey one, small"},
        ],
        "images": ["tall.png", "grey.png"],
    }  # fmt: skip
    whole = ChatEncoder(qwen, processor=media)(record)
    n = len(whole["input_ids"])
    assert len(whole["image_grid_thw"]) == 2
    pad = qwen.convert_tokens_to_ids("<|image_pad|>")
    kept = set()
    for limit in range(n, 4, -1):
        (result,) = ChatEncoder(qwen, processor=media, max_length=limit).encode_batch([record])
        if isinstance(result, EncodeError):
            assert result.reason in {"no trained token", "medium over the limit"}
            continue
        assert len(result.ids) <= limit
        grids = result.more["image_grid_thw"]
        assert (result.ids == pad).sum() == sum(g.prod() // 4 for g in grids) == result.more["media_tokens"]
        assert len(result.more["images"]) == len(grids)
        assert result.more["mm_token_type_ids"].shape == (len(result.ids),)
        assert result.more["position_ids"].shape == (3, len(result.ids))
        kept.add(len(grids))
    assert kept == {1, 2}


# K19
def test_a_medium_behind_trained_text_is_never_cut_either(qwen, image_processor, media_files):
    media = Media(image_processor, folder=Folder(str(media_files)))
    answer = [
        {"type": "text", "text": "here it stands: "}, {"type": "image", "image": "grey.png"},
        {"type": "text", "text": " and that is all of it"},
    ]  # fmt: skip
    record = {"messages": [{"role": "user", "content": "draw it"}, {"role": "assistant", "content": answer}]}
    whole = ChatEncoder(qwen, processor=media)(record)
    pad = qwen.convert_tokens_to_ids("<|image_pad|>")
    (places,) = np.nonzero(np.asarray(whole["input_ids"]) == pad)
    seen = set()
    for limit in range(places[0] - 1, len(whole["input_ids"]) + 1):
        (result,) = ChatEncoder(qwen, processor=media, max_length=int(limit)).encode_batch([record])
        inside = limit <= places[-1]
        if isinstance(result, EncodeError):
            assert result.reason == "medium over the limit"
            seen.add("refused")
            assert limit < len(whole["input_ids"])
        else:
            assert not inside or limit < places[0]
            assert (result.ids == pad).sum() in {0, len(places)}
            assert len(result.more["image_grid_thw"]) == ((result.ids == pad).sum() > 0)
            seen.add("kept")
    assert seen == {"refused", "kept"}


# K17
def test_a_placeholder_in_plain_text_makes_no_place_for_a_picture(qwen, image_processor, media_files):
    media = Media(image_processor, folder=Folder(str(media_files)))
    record = says(
        "<image>\nParse this <|image_pad|>", "![fig](<image>) and <|image_pad|> <|im_end|>", images=["wide.jpg"]
    )
    sample = ChatEncoder(qwen, processor=media)(record)
    pad, end = qwen.convert_tokens_to_ids(["<|image_pad|>", "<|im_end|>"])
    assert (sample["input_ids"] == pad).sum() == sample["media_tokens"]
    assert (sample["input_ids"] == end).sum() == 2
    bare = ChatEncoder(qwen)(says("quote <image>", "yes", images=[]))
    assert pad not in bare["input_ids"]


def test_weights_are_not_lost_in_a_batch_of_media(qwen, image_processor):
    media = Media(image_processor)
    record = says("q", "a")
    record["messages"][1]["weight"] = 0.5
    with pytest.raises(ConfigError, match="'loss_weights' can't be collated"):
        MediaCollator(media)([ChatEncoder(qwen, processor=media)(record)])


def test_a_missing_or_changed_medium_costs_one_record_with_its_name(qwen, image_processor, media_files, tmp_path):
    from PIL import Image

    Image.new("RGB", (60, 60)).save(tmp_path / "x.png")
    media = Media(image_processor, folder=Folder(str(tmp_path)))
    encoder = ChatEncoder(qwen, processor=media)
    good, gone = says("<image>?", "ok", images=["x.png"], id="a"), says("<image>?", "ok", images=["gone.png"], id="b")
    first, second = encoder.encode_batch([good, gone])
    assert not isinstance(first, EncodeError)
    assert second.reason == "medium not found"
    assert "record b" in str(second)
    sample = encoder(good)
    Image.new("RGB", (300, 60)).save(tmp_path / "x.png")
    with pytest.raises(EncodeError, match=r"x\.png changed since the sample was encoded \[record a\]"):
        MediaCollator(media)([sample])
    with pytest.raises(EncodeError, match="the conversation has 1 media"):
        ChatEncoder(qwen)(good)
