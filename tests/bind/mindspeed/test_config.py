"""Configurations of MindSpeed-MM: both examples as they stand, every key known, nothing unknown swallowed."""

import json

import pytest
import yaml

from reference_files import STARTS, ours, theirs
from thalweg.bind.mindspeed import load_config
from thalweg.bind.mindspeed.keys import Basic, DatasetParam, Preprocess
from thalweg.bind.mindspeed.place import place_of
from thalweg.core.errors import ConfigError

GOOD = {
    "dataset_param": {
        "dataset_type": "huggingface",
        "preprocess_parameters": {"model_name_or_path": "m", "image_max_pixels": 262144},
        "basic_parameters": {"dataset": "a.json", "cutoff_len": 64},
        "attr": {"messages": "messages"},
    },
    "dataloader_param": {"dataloader_mode": "base", "collate_param": {"model_name": "qwen2vl"}},
}


def write(tmp_path, told, name="c.json"):
    (tmp_path / name).write_text(json.dumps(told))
    return tmp_path / name


def changed(where, value, told=None):
    told = json.loads(json.dumps(GOOD if told is None else told))
    *path, last = where.split(".")
    at = told
    for key in path:
        at = at.setdefault(key, {})
    at[last] = value
    return told


# B1 B40 B41 B42 B43 B44 B45 B46
def test_both_examples_load_as_they_stand_and_every_key_of_them_is_known(files):
    megatron, fsdp2 = load_config("data_7b.json"), load_config("qwen3omni.yaml")
    assert (megatron.kind, fsdp2.kind) == ("megatron", "fsdp2")
    for cfg in (megatron, fsdp2):
        assert cfg.unknown == []
        assert all(what in {"used", "passed"} for _, what, _ in cfg.rows())
    assert megatron.dataset_param["basic_parameters"]["max_samples"] is None
    assert megatron.dataset_param["attr"]["system"] is None
    path = fsdp2.dataset_param["preprocess_parameters"]["model_name_or_path"]
    assert path.startswith("./ckpt/")
    assert fsdp2.model["model_name_or_path"] == path  # by its anchor
    assert fsdp2.training["lr"] == 1e-5
    assert fsdp2.training["plugin"][1].endswith("huggingface")
    assert fsdp2.parallel["fsdp_plan"]["apply_modules"][1] == "audio_tower.layers.{*}"
    assert fsdp2.tools["profile"]["static_param"]["aic_metrics_type"] == "PipeUtilization"
    assert fsdp2.tools["memory_profile"]["max_entries"] is None
    rows = {key: what for key, what, _ in fsdp2.rows()}
    assert rows["training.micro_batch_size"] == "passed"
    assert rows["dataset_param.basic_parameters.streaming"] == "used"
    assert "training.save_interval" in str(fsdp2)
    assert megatron.training == {}


def keys(told, path=""):
    if not isinstance(told, dict):
        return {path}
    return set().union(*(keys(v, f"{path}.{k}") for k, v in told.items()))


# B46
@pytest.mark.parametrize("name", STARTS)
def test_our_example_files_say_every_key_that_those_of_the_document_say(name):
    text = theirs(name)
    if text is None:
        pytest.skip("../shared/documents is not beside the checkout")
    assert keys(yaml.safe_load(ours(name))) == keys(yaml.safe_load(text))


# B46
@pytest.mark.parametrize(
    ("where", "nearest"),
    [
        ("dataset_param.basic_parameters.preprocesing_num_workers", "preprocessing_num_workers"),
        ("dataset_param.preprocess_parameters.image_max_pixel", "image_max_pixels"),
        ("dataset_param.attr.message", "messages"),
        ("dataset_param.atr", "attr"),
        ("dataloader_param.drop_lst", "drop_last"),
        ("dataloader_param.collate_param.model_nam", "model_name"),
        ("dataloadr_param", "dataloader_param"),
        ("trainin", "training"),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest_right_one(tmp_path, where, nearest):
    told = changed(where, {"x": 1} if where in {"trainin", "dataset_param.atr"} else 1)
    del told["dataset_param"]["basic_parameters"]["cutoff_len"]
    path = write(tmp_path, told)
    with pytest.warns(UserWarning, match=rf"{where} \(did you mean '{nearest}'"):
        cfg = load_config(path)
    assert [key for key, _ in cfg.unknown] == [where]
    assert any(what == "unknown" and nearest in str(advice) for key, what, advice in cfg.rows())
    assert "unknown" in str(cfg)
    with pytest.raises(ConfigError, match=nearest):
        load_config(path, strict=True)


# B1 B26 B32 B43
@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("dataset_param.dataset_type", "hugingface", r"'hugingface' is unknown.*'huggingface'"),
        ("dataset_param.basic_parameters.cutoff_len", 64, r"cutoff_len is a key of the FSDP2 path.*seq_length"),
        ("dataset_param.basic_parameters.streaming", "yes", r"'yes' is str, not bool"),
        ("dataset_param.basic_parameters.max_samples", 0, "max_samples is 0"),
        ("dataset_param.preprocess_parameters.image_max_pixels", True, "True is bool, not int"),
        ("dataset_param.preprocess_parameters.crop_to_patches", True, "crop_to_patches"),
        ("dataset_param.basic_parameters.stage", "rm", "stage 'rm'"),
        ("dataset_param.attr.formatting", "sharegp", r"unknown formatting.*'sharegpt'"),
        ("dataloader_param.dataloader_mode", "bse", r"'bse' is unknown.*'base'"),
        ("dataloader_param.dataloader_mode", "variable", r"'variable' is unknown"),
        ("model", {"loss_cfg": {"loss_type": "raw"}, "enable_chunk_loss": True}, "enable_chunk_loss must be false"),
    ],
)
def test_a_value_that_cannot_be_right_is_refused(tmp_path, where, value, message):
    told = changed(where, value)
    if "cutoff_len" not in where:
        del told["dataset_param"]["basic_parameters"]["cutoff_len"]
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, told))


# B18 B34 A47
def test_keys_that_contradict_each_other_are_refused_with_the_remedy(tmp_path):
    both = changed("dataset_param.basic_parameters", {"train_on_prompt": True, "mask_history": True})
    with pytest.raises(ConfigError, match="train_on_prompt and mask_history are both true"):
        load_config(write(tmp_path, both))
    told = changed("dataset_param.basic_parameters", {"streaming": True})
    told["dataloader_param"]["dataloader_mode"] = "sampler"
    with pytest.raises(ConfigError, match=r"'sampler' needs the number of samples.*dataloader_mode: base"):
        load_config(write(tmp_path, told))
    told = changed("dataset_param.basic_parameters", {"streaming": True, "val_rate": 0.1})
    with pytest.raises(ConfigError, match="val_rate needs the number"):
        load_config(write(tmp_path, told))
    told = changed("dataloader_param", {"dataloader_mode": "sampler", "sampler_type": "BaseRandomSampler"})
    del told["dataset_param"]["basic_parameters"]["cutoff_len"]
    with pytest.raises(ConfigError, match=r"sampler_type 'BaseRandomSampler'.*'BaseRandomBatchSampler'"):
        load_config(write(tmp_path, told))
    told["dataloader_param"]["dataloader_mode"] = "base"  # which has no sampler
    assert load_config(write(tmp_path, told)).unknown == []


# B41
def test_null_is_accepted_for_every_optional_key_and_stands_for_its_default():
    told = {
        "dataset_type": "huggingface",
        "preprocess_parameters": dict.fromkeys(Preprocess.__dataclass_fields__),
        "basic_parameters": dict.fromkeys(Basic.__dataclass_fields__),
        "attr": dict.fromkeys(
            ("system", "images", "videos", "audios", "observation_tag", "function_tag", "system_tag")
        ),
    }
    read = DatasetParam.read(told)
    assert read.preprocess == Preprocess()
    assert read.basic == Basic(enable_thinking=None)
    assert read.attributes.tags["system_tag"] is None


# B5 B6 B7 B8 B9 B10 B11 B12 B31
def test_keys_that_are_left_out_have_the_defaults_of_the_original():
    read = DatasetParam.read({"dataset_type": "huggingface"})
    p = read.preprocess
    assert (p.image_max_pixels, p.image_min_pixels, p.video_max_pixels, p.video_min_pixels) == (
        589824,
        1024,
        65536,
        256,
    )
    assert (p.video_fps, p.video_maxlen, p.audio_sampling_rate, p.use_audio_in_video) == (2.0, 128, 16000, False)
    assert (read.basic.cutoff_len, read.basic.preprocessing_batch_size, read.basic.dataset_dir) == (1024, 1000, "data")
    assert read.attributes.formatting == "sharegpt"
    assert read.attributes.columns["messages"] == "conversations"
    assert list(read.attributes.tags.values()) == [
        "from",
        "value",
        "human",
        "gpt",
        "observation",
        "function_call",
        "system",
    ]


# A39 B42
@pytest.mark.parametrize(
    ("sizes", "world", "places"),
    [
        ({"tensor_parallel_size": 2}, 4, [(2, 0), (2, 0), (2, 1), (2, 1)]),
        ({"tensor_parallel_size": 2, "ulysses_parallel_size": 2}, 8, [(2, r // 4) for r in range(8)]),
        ({"ring_attention_size": 2, "ulysses_parallel_size": 2, "tensor_parallel_size": 2}, 8, [(1, 0)] * 8),
        ({"expert_parallel_size": 4}, 4, [(4, r) for r in range(4)]),
        ({"fully_shard_parallel_size": "auto"}, 2, [(2, 0), (2, 1)]),
    ],
)
def test_peers_of_a_data_parallel_rank_are_worked_out_from_the_sizes(sizes, world, places):
    assert [place_of(sizes, rank, world) for rank in range(world)] == places


def test_sizes_that_do_not_divide_the_processes_are_refused():
    with pytest.raises(ConfigError, match="tensor_parallel_size 3"):
        place_of({"tensor_parallel_size": 3}, 0, 4)
    with pytest.raises(ConfigError, match="rank 4 of 4"):
        place_of({}, 4, 4)
