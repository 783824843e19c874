"""Streams from a socket: read as it comes, ended by the other side, left in peace when nobody reads on."""

import json
import socket
import threading

import pytest

import thalweg as tw
from thalweg.core.topology import Topology
from thalweg.feed.loader import FeedLoader
from thalweg.work import turns


def reading(sock):
    """A source: a function that gives the lines of a connection."""

    def lines():
        with sock.makefile("r") as file:
            for line in file:
                yield json.loads(line)

    return lines


def loader(sock):
    feed = tw.from_stream(reading(sock)).map(lambda s: {"n": s["n"] + 1}, mode="threads", workers=2)
    return FeedLoader(feed.batch(1, collate="raw"), topology=Topology())


def send(sock, numbers):
    for n in numbers:
        sock.sendall(json.dumps({"n": n}).encode() + b"\n")


def test_what_was_sent_comes_before_more_is_sent_and_the_end_is_the_end():
    ours, theirs = socket.socketpair()
    run = loader(ours)
    got, batches = [], iter(run)
    for n in range(12):
        send(theirs, [n])  # the next is sent only when this one has come: nothing waits for a fuller job
        got.append(next(batches)["samples"][0]["n"]) if n else got
        if n == 0:
            send(theirs, [100])
            got += [next(batches)["samples"][0]["n"]]
    theirs.close()
    got += [b["samples"][0]["n"] for b in batches]
    assert got == [1, 101, *range(2, 13)]
    run.close()
    ours.close()


def test_a_broken_connection_is_an_error_behind_all_that_came():
    ours, theirs = socket.socketpair()
    send(theirs, range(5))
    theirs.sendall(b"{broken")
    theirs.close()
    run, got = loader(ours), []
    with pytest.raises(json.JSONDecodeError) as caught:
        got.extend(b["samples"][0]["n"] for b in run)
    assert got == [1, 2, 3, 4, 5]
    assert "while reading item 5 of the stream" in caught.value.__notes__[0]
    run.close()
    ours.close()


def test_closing_while_the_source_waits_names_the_thread_and_leaves_it_until_the_source_returns(monkeypatch):
    monkeypatch.setattr(turns.Core.close, "__defaults__", (0.1,))
    ours, theirs = socket.socketpair()
    run = loader(ours)
    send(theirs, range(3))
    batches = iter(run)
    assert [next(batches)["samples"][0]["n"] for _ in range(2)] == [1, 2]
    with pytest.warns(RuntimeWarning, match="still inside user code"):
        run.close()
    theirs.close()
    for thread in threading.enumerate():
        if thread.name.startswith("thalweg-"):
            thread.join(20)
    assert [t.name for t in threading.enumerate() if t.name.startswith("thalweg-")] == []
    ours.close()
