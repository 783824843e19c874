"""Oracles and strategies that prove a node, step or store of your own, as they prove ours.

`strategies` needs hypothesis and is imported by its own name: `from thalweg.testing.strategies import lengths`.
"""

from thalweg.testing.compare import difference
from thalweg.testing.elastic import Leg, assert_continues_anywhere
from thalweg.testing.killing import kill_loop, run_crashing
from thalweg.testing.resume import assert_resumes_everywhere

__all__ = ["Leg", "assert_continues_anywhere", "assert_resumes_everywhere", "difference", "kill_loop", "run_crashing"]
