"""A small real dataset that stands where a Trainer's constructor wants one.

TRL's trainers look at the first sample and prepare the data while they are made; a feed is prepared already. Decides
what they see: the feed's first sample.
"""

from typing import Any

import numpy as np

from thalweg.core.extras import need
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed


def first_sample(feed: Feed) -> dict[str, Any]:
    """Give the first sample of a feed, as it goes into rows, with lists for arrays."""
    ends = (*st.BATCHING, st.Pack, st.Balance)
    stages = feed.stages
    while isinstance(stages[-1], ends):
        stages = stages[:-1]
    sample: Any = Feed(stages).peek()[0]
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in dict(sample).items()}


def stand_in(feed: Feed) -> Any:
    """Give a `datasets.Dataset` of one row; columns that it can't hold are left out."""
    datasets = need("datasets", why="with_feed")
    columns: dict[str, Any] = {}
    for name, value in first_sample(feed).items():
        try:
            datasets.Dataset.from_dict({name: [value]})
        except (TypeError, ValueError, OverflowError):
            continue
        columns[name] = [value]
    return datasets.Dataset.from_dict(columns)
