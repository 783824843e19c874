"""The row that is filled exactly: the oldest document, the next ones in order, then a set of later ones that fits.

A big integer holds which amounts of room can be left: bit r is set where some set of the waiting documents leaves
r tokens. Bounded by the window it is given. Knows no stream and no state (`plan.pack_stream` does).
"""


def head_room(capacity: int) -> int:
    """Give the room below which a document is no longer taken just because it is next.

    A thousand tokens are enough for some set of a few waiting documents to fit them exactly; more only costs time.
    """
    return min(1024, capacity // 4)


def take_fill(lengths: list[int], keys: list[int], capacity: int) -> tuple[list[int], int]:
    """Take the documents of the next row out of those that wait.

    Args:
        lengths: tokens of the waiting documents, oldest first, each 1 to capacity; the chosen ones are removed.
        keys: what stands for each document; the chosen ones are removed.
        capacity: tokens of a row.

    Returns:
        Keys of the row in arrival order, and the tokens left free.
    """
    stop, head, coming = head_room(capacity), 1, iter(lengths)
    room = capacity - next(coming, 0)
    for length in coming:
        rest = room - length
        if rest < stop:
            break
        room = rest
        head += 1
    row = keys[:head]
    del lengths[:head], keys[:head]
    if not room or not lengths:
        return row, room
    left = 1 << room
    steps = [left]
    step = steps.append
    for length in lengths:
        left |= left >> length
        step(left)
        if left & 1:
            spare = free = 0
            break
    else:
        spare = free = (left & -left).bit_length() - 1
    if free == room:
        return row, free
    chosen: list[int] = []
    bit = 1 << spare
    for at in range(len(steps) - 2, -1, -1):
        if not steps[at] & bit:  # this amount could not be left before: the document is in the set
            length = lengths.pop(at)
            spare += length
            chosen.append(keys.pop(at))
            if spare == room:
                break
            bit <<= length
    chosen.reverse()
    row += chosen
    return row, free


def take_capped(lengths: list[int], keys: list[int], capacity: int, max_docs: int) -> tuple[list[int], int]:
    """Take at most max_docs documents for the next row: the oldest, then the longest that fit."""
    room, chosen = capacity - lengths[0], [0]
    for at in sorted(range(1, len(lengths)), key=lambda i: (-lengths[i], i)):
        if len(chosen) == max_docs:
            break
        if lengths[at] <= room:
            room -= lengths[at]
            chosen.append(at)
    chosen.sort()
    row = [keys[at] for at in chosen]
    for at in reversed(chosen):
        del lengths[at], keys[at]
    return row, room
