"""Hub ids without a hub: `datasets` finds what an earlier run left in its cache, and so do our faces."""

import json
import shutil
from collections import Counter

import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")
import datasets

from thalweg.bind.llamafactory import load_dataset_info
from thalweg.bind.lmms import DatasetConfig, MultiModalDataset, MultiModalIterableDataset
from thalweg.core.errors import InputError

pytestmark = pytest.mark.slow
ROWS = [{"instruction": f"question {i}", "input": "", "output": f"answer {i}"} for i in range(7)]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Leave "owner/pages" in a cache of datasets as its own download would, then be offline."""
    import huggingface_hub

    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "ours"))
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "pages.parquet"))
    datasets.load_dataset("parquet", data_files=str(tmp_path / "pages.parquet"), cache_dir=str(tmp_path / "made"))
    (info,) = (tmp_path / "made").rglob("dataset_info.json")
    kept = tmp_path / "cache" / "owner___pages" / "default" / "0.0.0" / info.parent.name
    shutil.copytree(info.parent, kept)
    (kept / "parquet-train.arrow").rename(kept / "pages-train.arrow")
    told = json.loads((kept / "dataset_info.json").read_text())
    told |= {"dataset_name": "pages", "config_name": "default"}
    (kept / "dataset_info.json").write_text(json.dumps(told))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return "owner/pages"


# C6 C14 K36
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_dataset_path_may_be_a_hub_id_and_its_table_stays_on_disk(hub, qwen, cls):
    told = {"processor_type": "chat", "processor_name": qwen}
    config = DatasetConfig(dataset_type="vision", dataset_format="hf_dataset", dataset_path=hub, processor_config=told)
    dataset = cls(config)
    dataset.build()
    said = Counter(qwen.decode([t for t in s["labels"] if t != -100]) for s in dataset)
    assert said == Counter(f"answer {i}<|im_end|>" for i in range(7))
    rows = dataset._rows if cls is MultiModalDataset else dataset._feed.stages[0].source.obj
    assert rows.cache_files[0]["filename"].endswith("pages-train.arrow")


# C2 C6 C25
@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_texts_of_a_hub_id_are_packed_as_fineweb_edu(hub, qwen, cls):
    dataset = cls(
        DatasetConfig(
            dataset_type="fineweb_edu", dataset_format="hf_dataset", dataset_path=hub, packing=True, packing_length=9,
            processor_config={"processor_type": "text", "processor_name": qwen}, extra_kwargs={"text": "output"},
        )
    )  # fmt: skip
    dataset.build()
    rows = [dataset[i] for i in range(len(dataset))] if cls is MultiModalDataset else list(dataset)
    said = Counter(qwen.decode(sample["input_ids"][:-1]) for row in rows for sample in row)
    assert said == Counter(f"answer {i}" for i in range(7))
    assert all(len(row) > 1 for row in rows[:3])
    assert set(dataset.get_collator()(rows[:2])) >= {"input_ids", "labels", "position_ids"}


@pytest.mark.parametrize("cls", [MultiModalDataset, MultiModalIterableDataset])
def test_what_is_neither_there_nor_on_the_hub_is_said(hub, qwen, cls):
    told = {"processor_type": "text", "processor_name": qwen}
    for place in ("owner/page", "./page"):
        config = DatasetConfig(
            dataset_type="fineweb_edu", dataset_format="hf_dataset", dataset_path=place, processor_config=told
        )
        with pytest.raises(InputError, match=rf"no folder, and no data set of the hub.*{place}"):
            cls(config).build()


def test_hf_hub_url_of_dataset_info_is_read_from_the_cache(hub, tmp_path):
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": {"hf_hub_url": hub}}))
    feed = load_dataset_info(tmp_path).feed("mine")
    assert [r["messages"][1]["content"] for r in feed] == [f"answer {i}" for i in range(7)]
