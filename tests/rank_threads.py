"""Ranks of a stream as threads of one process, for tests of what they agree on."""

import threading

from thalweg.core.topology import Topology
from thalweg.feed.loader import FeedLoader


class Ranks:
    """Ranks as threads that ask each other, as a process group would let them."""

    def __init__(self, world):
        self.world, self.texts = world, [""] * world
        self.barrier = threading.Barrier(world)

    def agree(self, rank):
        def gather(text):
            self.texts[rank] = text
            self.barrier.wait(60)
            out = list(self.texts)
            self.barrier.wait(60)
            return out

        return gather

    def run(self, feed, *, ended=None, **more):
        results = [None] * self.world

        def one(rank):
            loader = FeedLoader(feed, topology=Topology(rank, self.world), agree=self.agree(rank), **more)
            got = []
            try:
                for batch in loader:
                    got.append((batch.info.step, [i for row in batch.info.ids for i in row], batch.info.weight.sum()))
                results[rank] = (got, None)
            except BaseException as error:
                self.error = error
                results[rank] = (got, error)
            finally:
                if ended is not None:
                    ended()
                loader.close()

        threads = [threading.Thread(target=one, args=(r,)) for r in range(self.world)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(180)
        assert not any(t.is_alive() for t in threads)
        return results
