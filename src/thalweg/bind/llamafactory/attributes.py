"""Where a data set keeps its conversations: format, columns and tags by LLaMA-Factory's names, with its defaults.

Decides which names may be said and what each is when it is not. Reads no record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg.core.errors import ConfigError, nearest

FORMATS = ("alpaca", "sharegpt", "openai")
# our way to say what is absent is None; a column that is None is not read
COLUMNS: dict[str, str | None] = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "history": None,
    "messages": "conversations",
    "system": None,
    "tools": None,
    "images": None,
    "videos": None,
    "audios": None,
    "chosen": None,
    "rejected": None,
    "kto_tag": None,
}
TAGS: dict[str, str | None] = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}


@dataclass(frozen=True, slots=True)
class Attributes:
    """How the records of a data set are to be read.

    Args:
        formatting: "alpaca", "sharegpt" or "openai".
        ranking: records hold a preferred answer and another.
        columns: LLaMA-Factory's name of a column -> its name in the records, None where there is none.
        tags: names of keys and roles within messages; a role that is None is not accepted.
        text_only: no answer column was named: the prompt is text to train on whole.
    """

    formatting: str = "alpaca"
    ranking: bool = False
    columns: dict[str, str | None] = field(default_factory=lambda: dict(COLUMNS))
    tags: dict[str, str | None] = field(default_factory=lambda: dict(TAGS))
    text_only: bool = False

    @classmethod
    def read(
        cls,
        formatting: str,
        columns: Mapping[str, Any],
        tags: Mapping[str, Any],
        *,
        ranking: bool = False,
        where: str = "dataset_info.json",
    ) -> "Attributes":
        """Fill in defaults and refuse unknown names.

        Raises:
            ConfigError: an unknown format, column or tag, with the nearest right one.
        """
        if formatting not in FORMATS:
            raise ConfigError(f"unknown formatting {formatting!r}", where=where, fix=nearest(formatting, FORMATS))
        for given, known, what in ((columns, COLUMNS, "column"), (tags, TAGS, "tag")):
            for name in given:
                if name not in known:
                    raise ConfigError(f"unknown {what} {name!r}", where=where, fix=nearest(name, known))
        said = {k: v for k, v in columns.items() if v is not None}
        text_only = formatting == "alpaca" and "prompt" in said and not {"response", "chosen", "kto_tag"} & set(said)
        return cls(formatting, ranking, {**COLUMNS, **columns}, {**TAGS, **tags}, text_only)
