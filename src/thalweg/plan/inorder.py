"""The waiting room: results that finished early wait until their number is next.

Decides the order of hand-over from numbers alone. Knows no threads, no clock and nothing of what a result is.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingRoom(Generic[T]):
    """Give arrivals back in the order of their numbers.

    Each arrival covers `count` consecutive numbers from `number` on, so that items mapped in one call wait as one.

    Args:
        first: the number that is handed over first.
    """

    __slots__ = ("_waiting", "next")

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self._waiting: dict[int, tuple[T, int]] = {}

    def __len__(self) -> int:
        """Count the arrivals that wait."""
        return len(self._waiting)

    def arrive(self, number: int, value: T, count: int = 1) -> None:
        """Take an arrival.

        Raises:
            ValueError: the number has passed already, came twice, or covers no number.
        """
        if number < self.next or number in self._waiting or count < 1:
            raise ValueError(f"arrival {number} (of {count}) while {self.next} is next")
        self._waiting[number] = (value, count)

    def ready(self) -> bool:
        """Say whether the next number is here."""
        return self.next in self._waiting

    def coming(self) -> Iterator[T]:
        """Look at the arrivals that can be handed over now, in order, without taking them."""
        number = self.next
        while number in self._waiting:
            value, count = self._waiting[number]
            yield value
            number += count

    def take(self) -> T:
        """Hand over the arrival whose number is next, and move on past all it covers.

        Raises:
            KeyError: it has not arrived yet.
        """
        value, count = self._waiting.pop(self.next)
        self.next += count
        return value
