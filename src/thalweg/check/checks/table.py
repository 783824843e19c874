"""All checks, in the order of suspicion: data, masks, lengths, order, speed.

Decides that order alone.
"""

from thalweg.check.checks import data, lengths, loss, masks, order, speed
from thalweg.check.checks.check import Check

ALL: tuple[Check, ...] = (
    *data.CHECKS,
    *masks.CHECKS,
    *loss.CHECKS,
    *lengths.CHECKS,
    *order.CHECKS,
    *speed.CHECKS,
)
