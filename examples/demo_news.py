"""What is worth telling between two looks, as pure functions: two `Seen` in, sentences out."""

from __future__ import annotations

from examples.demo_agreement import CHECK_MAX, REMINDER_MS, Seen


def counted(count: int, singular: str) -> str:
    """Returns the count with its noun, singular or plural."""
    return f"{count} {singular}" if count == 1 else f"{count} {singular}s"


def milestones(before: Seen, now: Seen) -> list[str]:
    """Tell what was reached since the look before, a sentence each."""
    told = []
    if now.killed in now.delivered and now.killed not in before.delivered:
        times = counted(now.checks.get(now.killed, 0), "time")
        told.append(
            f"check-back: the restarted order service was asked {times} about {now.killed} "
            "and answered COMMIT: delivered"
        )
    reminded = set(now.reminded) - set(before.reminded)
    if reminded:
        least_ms = min(now.reminded_after_ms.get(one, 0) for one in reminded)
        told.append(
            f"{counted(len(reminded), 'reminder')} delivered, {least_ms / 1000:.1f} s after the "
            f"order, or more; the delay is {REMINDER_MS // 1000} s"
        )
    for one in set(now.given_up) - set(before.given_up):
        told.append(
            f"always UNKNOWN: asked {now.checks.get(one, 0)} of {CHECK_MAX} times, given up: "
            f"{one} is in TRANS_CHECK_MAX_TIME_TOPIC"
        )
    return told


def changes(before: Seen, now: Seen) -> str:
    """Returns in one line the counts that changed since the last look; empty if none did."""
    return ", ".join(
        new for old, new in zip(_counts(before), _counts(now), strict=True) if new != old
    )


def _counts(seen: Seen) -> list[str]:
    asked = sum(seen.checks.get(one, 0) for one in seen.forgotten)
    return [
        f"{counted(len(seen.committed), 'order')} committed",
        f"{len(seen.refused)} refused",
        f"{len(seen.delivered)} delivered",
        f"{len(seen.published)} in Kafka",
        f"{len(seen.rolled_back)} rolled back",
        f"{len(seen.pointed)} with points",
        f"killed one asked {counted(seen.checks.get(seen.killed, 0), 'time')}",
        f"always UNKNOWN asked {asked} of {CHECK_MAX} times",
    ]
