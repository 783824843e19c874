"""What a failed call leaves behind: outputs that came before, then the error, as the exception the user raised.

Decides which exceptions travel as themselves. Knows nothing of items except the words that describe them.
"""

import traceback
from typing import Any

from thalweg.core.errors import WorkerError

# Raised as themselves these would end a training job with status 0, or end an iteration without a word.
_DISGUISED = (StopIteration, StopAsyncIteration, SystemExit, KeyboardInterrupt, GeneratorExit)


class Failure:
    """The outcome of an item whose call failed.

    Args:
        error: what to raise at the item's place.
        outputs: outputs that came before the error, in order.
    """

    __slots__ = ("error", "outputs")

    def __init__(self, error: BaseException, outputs: list[Any] | None = None) -> None:
        self.error = error
        self.outputs: list[Any] = [] if outputs is None else outputs

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with error and outputs."""
        return (Failure, (self.error, self.outputs))


def travel(error: BaseException, where: str | None) -> BaseException:
    """Give the exception to raise in the consumer's thread.

    The user's own exception stays itself, with a note that says where. Exceptions that would end a program or an
    iteration quietly become WorkerError with the original as cause.
    """
    if isinstance(error, _DISGUISED):
        text = f"user code raised {type(error).__name__}" + (f"({error})" if str(error) else "")
        wrapped = WorkerError(text, where=where, fix="raise an ordinary exception; return None to drop a sample")
        wrapped.__cause__ = error
        return wrapped
    if where is not None:
        note = f"while mapping {where}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return error


def lines_of(error: BaseException) -> str:
    """Format an exception with its traceback, as text that survives any way out of a process."""
    return "".join(traceback.format_exception(error)).rstrip()
