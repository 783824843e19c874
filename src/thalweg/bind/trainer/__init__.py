"""Hugging Face's Trainer and its subclasses, TRL's included, on a feed.

Decides which class a user gets. What the class does is `bind.trainer.mixin`.
"""

from importlib import import_module
from typing import Any, TypeVar, cast

from thalweg.core.errors import ConfigError
from thalweg.core.extras import need

T = TypeVar("T")

__all__ = ["with_feed"]

_made: dict[Any, Any] = {}


def with_feed(trainer: type[T]) -> type[T]:
    """Give a subclass of a Trainer class whose datasets may be feeds.

    `train_dataset=feed`, `eval_dataset=feed` or `{"name": feed}`, `resume_from_checkpoint=True`: the data go on with
    the next row, at once, on any number of processes. `args` decide rows of a micro-batch, accumulation, seed and
    workers; what is said in `args` and in the feed with two values is refused. Without a feed the class is unchanged.

    Args:
        trainer: `transformers.Trainer` or a subclass, such as `trl.SFTTrainer`.

    Raises:
        ConfigError: something else was given.
        MissingExtraError: transformers is not installed.
    """
    base = need("transformers", why="with_feed").Trainer
    if not isinstance(trainer, type) or not issubclass(trainer, base):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{trainer!r} is no Trainer class", where="with_feed", fix="with_feed(SFTTrainer)")
    mixin = import_module("thalweg.bind.trainer.mixin").FeedMixin
    if issubclass(trainer, mixin):
        return trainer
    if trainer not in _made:
        words = {"__module__": trainer.__module__, "__doc__": trainer.__doc__}
        _made[trainer] = type(trainer.__name__, (mixin, trainer), words)
    return cast("type[T]", _made[trainer])
