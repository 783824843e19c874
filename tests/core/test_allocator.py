"""Freed memory is kept where the C library allows it, and asking twice or elsewhere is harmless."""

import subprocess
import sys

from thalweg.core import allocator

FAULTS = """
import resource, sys
import numpy as np
from thalweg.core.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory() and keep_freed_memory()
def work():
    for _ in range(50):
        a, b = np.ones(300_000), np.ones(300_000)
        del a, b
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_kept_memory_faults_no_page_in_anew():
    if not allocator.keep_freed_memory():  # another C library: nothing is promised
        return
    assert faults("kept") * 10 < faults("plain")


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert allocator.keep_freed_memory() is False
