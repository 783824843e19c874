"""MindSpeed-MM's configuration files: JSON of the Megatron path and YAML of the FSDP2 path, loaded as they stand.

Decides which sections are the data's, which are passed on to the trainer, and what is said of each key. What a key of
the data does is decided where it acts.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg.bind.mindspeed.keys import DatasetParam, Unknown, read_dataloader
from thalweg.core.errors import ConfigError, nearest
from thalweg.store.settings import read_settings

MEGATRON, FSDP2 = "megatron", "fsdp2"
PASSED = ("parallel", "model", "training", "tools", "features")
_DATA = ("dataset_param", "dataloader_param")


@dataclass(frozen=True)
class MindSpeedConfig:
    """One file.

    `print` shows every key as used (the data layer acts on it), passed (it is the trainer's) or unknown, with the
    nearest right one.

    Args:
        path: of the file.
        kind: "megatron" (data sections at the top) or "fsdp2" (below `data`).
        dataset_param, dataloader_param: as written.
        parallel, model, training, tools: as written; left to the trainer.
        passed: all sections that are left to the trainer.
        unknown: (dotted key, advice).
    """

    path: str
    kind: str
    dataset_param: dict[str, Any]
    dataloader_param: dict[str, Any]
    passed: dict[str, Any] = field(default_factory=dict[str, Any])
    unknown: Unknown = field(default_factory=list[tuple[str, str]])

    def __getattr__(self, name: str) -> dict[str, Any]:
        """Give a section of the trainer; an empty one where the file has none."""
        if name in PASSED:
            section: dict[str, Any] = self.passed.get(name) or {}
            return section
        raise AttributeError(f"a MindSpeedConfig has no {name!r}")

    def rows(self) -> list[tuple[str, str, Any]]:
        """Give (dotted key, "used" | "passed" | "unknown", value or advice) of every key of the file."""
        unknown = dict(self.unknown)
        out: list[tuple[str, str, Any]] = []
        for name in _DATA:
            for key, value in _leaves(getattr(self, name), name):
                # a key may be unknown itself, or lie below an unknown one
                known = next((u for u in unknown if key == u or key.startswith(f"{u}.")), None)
                out.append((key, "used", value) if known is None else (key, "unknown", unknown[known]))
        for name, section in self.passed.items():
            out += [(key, "passed", value) for key, value in _leaves(section, name)]
        seen = {key for key, _, _ in out}
        return out + [(k, "unknown", advice) for k, advice in self.unknown if not any(s.startswith(k) for s in seen)]

    def __str__(self) -> str:
        """Write the table."""
        rows = self.rows()
        width = max((len(key) for key, _, _ in rows), default=0)
        head = f"{self.path}: {self.kind}, {sum(r[1] == 'used' for r in rows)} keys used"
        return "\n".join([head, *(f"  {key:<{width}}  {what:<7}  {value}" for key, what, value in rows)])


def _leaves(section: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(section, Mapping) or not section:
        yield name, section
        return
    for key, value in section.items():
        yield from _leaves(value, f"{name}.{key}")


def load_config(path: str | os.PathLike[str], *, strict: bool = False) -> MindSpeedConfig:
    """Read a configuration of MindSpeed-MM.

    Args:
        path: JSON with `dataset_param` and `dataloader_param`, or YAML with both below `data`.
        strict: refuse unknown keys in place of warning of them.

    Raises:
        ConfigError: values or combinations that cannot be right; with `strict` also a key that is unknown.
    """
    where = os.fspath(path)
    told = read_settings(where)
    kind = FSDP2 if "data" in told else MEGATRON
    data: dict[str, Any] = dict(told["data"] or {}) if kind == FSDP2 else told
    if "dataset_param" not in data:
        raise ConfigError("dataset_param is missing", where=where, fix="at the top (Megatron) or below data (FSDP2)")
    prefix = "data." if kind == FSDP2 else ""
    unknown: Unknown = []
    top = ("data", *PASSED) if kind == FSDP2 else (*_DATA, *PASSED)
    unknown += [(key, nearest(key, top)) for key in told if key not in top]
    if kind == FSDP2:
        unknown += [(f"{prefix}{key}", nearest(str(key), _DATA)) for key in data if key not in _DATA]
    read = DatasetParam.read(data["dataset_param"])
    loader, more = read_dataloader(data.get("dataloader_param") or {})
    unknown += [*read.unknown, *more]
    if kind == MEGATRON and "cutoff_len" in read.said:
        raise ConfigError(
            "cutoff_len is a key of the FSDP2 path; here seq_length decides", where=f"{where}, basic_parameters",
            fix="take it out, and give build_mm_dataloader(seq_length=...)",
        )  # fmt: skip
    passed = {key: told[key] for key in told if key in PASSED}
    _check_model(passed.get("model") or {}, where)
    if loader.dataloader_mode == "sampler" and read.basic.streaming:
        raise ConfigError(
            "dataloader_mode 'sampler' needs the number of samples, and a stream has none", where=where,
            fix="dataloader_mode: base, or streaming: false",
        )  # fmt: skip
    config = MindSpeedConfig(
        where, kind, dict(data["dataset_param"]), dict(data.get("dataloader_param") or {}), passed, unknown
    )
    report(unknown, where, strict=strict)
    return config


def report(unknown: Unknown, where: str, *, strict: bool = False) -> None:
    """Say what is no key: once, all together.

    Raises:
        ConfigError: `strict`.
    """
    if not unknown:
        return
    said = "; ".join(f"{key} ({advice})" for key, advice in unknown)
    if strict:
        raise ConfigError(f"{len(unknown)} unknown keys: {said}", where=where)
    warnings.warn(f"{where}: {len(unknown)} unknown keys, which do nothing: {said}", UserWarning, stacklevel=3)


def _check_model(model: Mapping[str, Any], where: str) -> None:
    loss = (model.get("loss_cfg") or {}).get("loss_type", "default")
    if loss == "raw" and model.get("enable_chunk_loss"):
        raise ConfigError(
            'enable_chunk_loss must be false where loss_type is "raw"', where=f"{where}, model",
            fix="enable_chunk_loss: false",
        )  # fmt: skip
