"""LLaMA-Factory's `dataset_info.json`: its formats, columns and tags, as feeds."""

from thalweg.bind.llamafactory.attributes import Attributes
from thalweg.bind.llamafactory.info import DatasetInfo, Entry, load_dataset_info

__all__ = ["Attributes", "DatasetInfo", "Entry", "load_dataset_info"]
