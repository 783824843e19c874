"""A clip with its own sound, and sounds of any length: token by token what the Omni models and their processors do."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

from thalweg.encode.chat import ChatEncoder
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.families import Measured, Media, Time, window_tokens
from thalweg.encode.media.places import expand_mixed, positions
from thalweg.encode.media.references import Folder
from thalweg.encode.media.together import interleave
from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

V, A, I = 11, 12, 13  # noqa: E741
VO, VC, AO, AC = 21, 22, 23, 24
TOKENS = {"video": V, "audio": A, "image": I}
EARLY, LATE = Time(25.0, 50.0, shared=True), Time(13.0)


def halved(frames):
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def family(time):
    """The processor and model class that a way to count time belongs to, with what they ask of themselves."""
    if time is EARLY:
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as model
        from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor as Processor

        kind = model.Qwen2_5OmniPreTrainedModelForConditionalGeneration
    else:
        from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as model
        from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor as Processor

        kind = model.Qwen3OmniMoePreTrainedModelForConditionalGeneration
    config = SimpleNamespace(
        image_token_id=I, video_token_id=V, audio_token_id=A, vision_start_token_id=VO, audio_start_token_id=AO,
        position_id_per_seconds=time.step, seconds_per_chunk=2.0, audio_config=SimpleNamespace(n_window=50),
    )  # fmt: skip
    me = SimpleNamespace(config=config, spatial_merge_size=2)
    me.get_llm_pos_ids_for_vision = lambda *a: kind.get_llm_pos_ids_for_vision(me, *a)
    me.get_chunked_index = lambda *a: kind.get_chunked_index(me, *a)
    return Processor, kind, me


CASES = hs.fixed_dictionaries({
    "time": hs.sampled_from([EARLY, LATE]),
    "t": hs.integers(1, 12),
    "h": hs.integers(1, 4),
    "w": hs.integers(1, 4),
    "seconds": hs.sampled_from([1.0, 2.0, 0.5, 4.0]),
    "frames": hs.integers(8, 1500),
    "text": hs.lists(hs.integers(1, 5), min_size=3, max_size=3),
    "picture": hs.booleans(),
})  # fmt: skip


# B11 C47
@settings(max_examples=60, deadline=None)
@given(CASES)
def test_tokens_and_positions_of_a_clip_with_sound_are_those_of_processor_and_model(case):
    time = case["time"]
    Processor, kind, me = family(time)  # noqa: N806
    heard = halved(case["frames"]) if time is EARLY else window_tokens(case["frames"])
    clip = Measured(case["t"] * case["h"] * case["w"], (case["t"], 2 * case["h"], 2 * case["w"]), case["seconds"])
    # what the processor writes
    them = SimpleNamespace(video_processor=SimpleNamespace(merge_size=2), audio_bos_token="o", audio_eos_token="c",
                           video_token="V", audio_token="A")  # fmt: skip
    them.get_chunked_index = lambda *a: Processor.get_chunked_index(them, *a)
    text = Processor.replace_video_with_audio_token(
        them, {"video_grid_thw": np.array([clip.grid]), "video_second_per_grid": [case["seconds"]]}, 0,
        {"num_audio_tokens": np.array([heard])}, 0, position_id_per_seconds=time.step, seconds_per_chunk=2.0,
    )  # fmt: skip
    # ours: text, a picture or none, the clip and its sound, text
    before, between, after = ([7] * n for n in case["text"])
    seen = [VO, I, VC, *between] if case["picture"] else []
    ids = np.array([*before, *seen, VO, V, VC, AO, A, AC, *after], np.int32)
    media = [("video", clip), ("audio", Measured(heard))]
    media = [("image", Measured(4, (1, 4, 4))), *media] if case["picture"] else media
    out, kinds, borders, mixes = expand_mixed(ids, media, TOKENS, lambda a, b: interleave(a, b, 2, time))
    stretch = "".join({V: "V", A: "A", AO: "o", AC: "c"}.get(t, "") for t in out.tolist())
    assert stretch == text
    assert out.tolist().index(AO) == out.tolist().index(VO, len(before) + (1 if case["picture"] else 0)) + 1
    assert (np.diff(borders) >= 0).all()
    assert borders[-1] == len(out)
    # the model's positions
    place = positions(kinds, media, 2, clip_step=time.step, behind="largest", mixes=mixes, shared=time.shared)
    grids = torch.tensor([[1, 4, 4]]) if case["picture"] else None
    whole = torch.tensor(out[None].astype(np.int64))
    theirs, _ = kind.get_rope_index(
        me, whole, grids, torch.tensor([clip.grid]), torch.ones_like(whole), True,
        torch.tensor([case["frames"]]), torch.tensor([case["seconds"]]),
    )  # fmt: skip
    assert np.array_equal(np.floor(theirs[:, 0].numpy()).astype(np.int64), place)


@pytest.mark.parametrize("ids", [[VO, V, VC, 7, AO, A, AC], [VO, V, VC], [AO, A, AC, VO, V, VC]])
def test_a_clip_without_its_sound_behind_it_is_refused(ids):
    media = [({V: "video", A: "audio"}[t], Measured(4, (1, 4, 4))) for t in ids if t in (V, A)]
    with pytest.raises(EncodeError) as caught:
        expand_mixed(np.array(ids, np.int32), media, TOKENS, lambda a, b: interleave(a, b, 2, LATE))
    assert caught.value.reason == "clips and sounds differ"


@settings(deadline=None)
@given(hs.integers(1, 20_000))
def test_a_sound_in_windows_counts_as_the_model_counts_it(frames):
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

    wanted = _get_feat_extract_output_lengths(torch.tensor(frames)).item()
    if wanted < 1:
        with pytest.raises(EncodeError):
            window_tokens(frames)
    else:
        assert window_tokens(frames) == wanted


@pytest.fixture(scope="module")
def says():
    def say(text, **media):
        return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}], **media}

    return say


# B11
def test_an_encoder_puts_clip_and_sound_together_only_where_that_is_asked_for(
    image_processor, feature_extractor, media_files, says
):
    tokenizer = load_tokenizer(qwen_tokenizer())
    new = ["<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"]
    tokenizer.add_special_tokens({"extra_special_tokens": new})

    def encoder(together):
        media = Media(
            image_processor,
            feature_extractor,
            folder=Folder(str(media_files)),
            hears="windows",
            audio_in_video=together,
        )
        return ChatEncoder(tokenizer, processor=media, chat_template="qwen3_omni")

    record = says("<video><audio>What is it?", videos=["clip.mp4"], audios=["mono.flac"])
    apart, mixed = encoder(False)(record), encoder(True)(record)
    assert sorted(apart["input_ids"].tolist()) == sorted(mixed["input_ids"].tolist())
    kinds = mixed["mm_token_type_ids"]
    runs = kinds[np.flatnonzero(np.diff(kinds, prepend=-1))].tolist()
    assert runs.count(2) > 1
    assert apart["mm_token_type_ids"][np.flatnonzero(np.diff(apart["mm_token_type_ids"], prepend=-1))].tolist() == [
        0, 2, 0, 3, 0,
    ]  # fmt: skip
    assert np.array_equal(mixed["labels"][mixed["labels"] != -100], apart["labels"][apart["labels"] != -100])
    with pytest.raises(EncodeError, match="right behind it"):
        encoder(True)(says("<video>and<audio>?", videos=["clip.mp4"], audios=["mono.flac"]))
    with pytest.raises(EncodeError, match="1 videos and 0 audios"):
        encoder(True)(says("<video>?", videos=["clip.mp4"]))


def test_features_of_long_and_short_sounds_have_as_many_frames_as_were_counted(feature_extractor):
    media = Media(None, feature_extractor, hears="windows")
    rng = np.random.default_rng(0)
    sounds = [
        {"array": rng.normal(size=n).astype(np.float32) * 0.1, "sampling_rate": 16_000} for n in (16_050, 560_123)
    ]
    made = media.features("audio", sounds)
    frames = made["feature_attention_mask"].sum(1).tolist()
    assert frames == [100, 3500]
    assert [media.measure("audio", s).tokens for s in sounds] == [window_tokens(f) for f in frames]
    assert made["input_features"].shape[-1] >= 3500
