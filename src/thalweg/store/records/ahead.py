"""What is read next, known in advance: fetched before it is asked for, and kept until it was read.

The reader says which rows come, call by call. Threads fetch the pieces that hold them in that order, as far as the
cache has room for all processes that say so, and a note in the cache tells everybody what is needed and how soon.
Decides what is fetched when. Knows no feed.
"""

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence

from thalweg.core.errors import ThalwegError
from thalweg.store.cache import Needs
from thalweg.store.records.pieces import Piece, Pieces

THREADS = 4
NOTED = 4096  # pieces in the note for those who evict
RECOUNT = 64  # announcements between counts of the readers that share the cache


class Ahead:
    """Fetches pieces ahead of the reader. Safe to use after a fork, where it begins anew.

    Args:
        pieces: of the set.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._state: _State | None = None

    def say(self, pieces: Sequence[Piece], calls: int) -> None:
        """Announce the pieces of one more read; the reads announced before the last `calls` are over."""
        state = self._state
        if state is None or state.pid != os.getpid():
            state = self._state = _State(self._pieces)
            state.finish = weakref.finalize(self, _State.end, state)
        state.say(pieces, calls)

    def end(self) -> None:
        """Stop fetching, and need nothing. Twice is fine."""
        if self._state is not None and self._state.pid == os.getpid():
            self._state.end()
        self._state = None


class _State:
    """What the threads share. They hold it, and not the one that ends it."""

    def __init__(self, pieces: Pieces) -> None:
        self.pid = os.getpid()
        self.finish: weakref.finalize[..., Ahead] | None = None
        self._pieces = pieces
        self._reads: deque[Sequence[Piece]] = deque()
        self._order: list[Piece] = []
        self._under_way: set[Piece] = set()
        self._there: set[Piece] = set()  # fetched, or tried in vain: whoever reads it is told
        self._said, self._readers = 0, 1
        self._more = threading.Condition()
        self._over = False
        self._needs = Needs(pieces.cache)
        for k in range(THREADS):
            threading.Thread(target=self._work, name=f"thalweg-ahead-{k}", daemon=True).start()

    def say(self, pieces: Sequence[Piece], calls: int) -> None:
        with self._more:
            self._reads.append(pieces)
            while len(self._reads) > max(calls, 1):
                self._reads.popleft()
            if self._said % RECOUNT == 0:
                self._readers = self._needs.count()
            self._said += 1
            coming = list(dict.fromkeys(p for read in self._reads for p in read))
            self._order = self._pieces.fitting(coming, self._readers)
            self._there &= set(self._order)
            keys = [self._pieces.key(p) for p in coming[:NOTED]]
            self._more.notify_all()
        self._needs.say(keys)

    def _next(self) -> Piece | None:
        """Wait for a piece to fetch; None: it is over."""
        with self._more:
            while not self._over:
                for piece in self._order:
                    if piece not in self._under_way and piece not in self._there:
                        self._under_way.add(piece)
                        return piece
                self._more.wait()
        return None

    def _work(self) -> None:
        while (piece := self._next()) is not None:
            with contextlib.suppress(ThalwegError, OSError):
                self._pieces.path(piece)
            with self._more:
                self._under_way.discard(piece)
                self._there.add(piece)

    def end(self) -> None:
        if self.pid != os.getpid():
            return  # a fork's copy: the threads and the note are the parent's
        with self._more:
            if self._over:
                return
            self._over = True
            self._more.notify_all()
        self._needs.end()
