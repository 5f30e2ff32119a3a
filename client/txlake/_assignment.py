"""Which member of a group has which queues: balanced, and as before where nothing changed.

A pure function of what the lake says: each member computes the same from the same rows. It gives
no queue to anybody: a member takes a queue by a compare-and-set, when the one before has given it
back or its session is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Queue = tuple[str, int]


def assign(
    queues: Iterable[Queue],
    topics_by_member: Mapping[str, frozenset[str]],
    owners: Mapping[Queue, str],
) -> dict[Queue, str]:
    """Returns the member for each queue that some member reads.

    A queue stays with its owner. Then one that nobody has goes to the member with the fewest, and
    as long as two members of a topic differ by two queues or more, one changes from the larger to
    the smaller. Equal counts are decided by the members' names.

    Input: `owners`: of queues that a member has; other queues are free.
    """
    result: dict[Queue, str] = {}
    free: list[Queue] = []

    for queue in sorted(set(queues)):
        owner = owners.get(queue, "")
        if queue[0] in topics_by_member.get(owner, ()):
            result[queue] = owner
        else:
            free.append(queue)

    counts = dict.fromkeys(sorted(topics_by_member), 0)
    for member in result.values():
        counts[member] += 1

    for queue in free:
        readers = [member for member in counts if queue[0] in topics_by_member[member]]
        if readers:
            member = min(readers, key=lambda name: counts[name])
            result[queue] = member
            counts[member] += 1

    _balance(result, counts, topics_by_member)
    return result


def _balance(
    result: dict[Queue, str],
    counts: dict[str, int],
    topics_by_member: Mapping[str, frozenset[str]],
) -> None:
    """Moves queues from members with many to members with two fewer or less, in place."""
    is_moving = True

    while is_moving:
        is_moving = False
        for queue in sorted(result, reverse=True):  # the last queues move, the first stay
            owner = result[queue]
            readers = [member for member in counts if queue[0] in topics_by_member[member]]
            smallest = min(readers, key=lambda name: counts[name])

            if counts[owner] >= counts[smallest] + 2:
                result[queue] = smallest
                counts[owner] -= 1
                counts[smallest] += 1
                is_moving = True
