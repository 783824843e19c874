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


def test_hf_hub_url_of_dataset_info_is_read_from_the_cache(hub, tmp_path):
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": {"hf_hub_url": hub}}))
    feed = load_dataset_info(tmp_path).feed("mine")
    assert [r["messages"][1]["content"] for r in feed] == [f"answer {i}" for i in range(7)]
