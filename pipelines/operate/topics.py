"""The limits of a topic, as targets of ALTER_TOPIC."""

from __future__ import annotations

from pipelines.errors import OperatorError
from pipelines.settings import Settings
from txlake.protocol import FOREVER, RETENTION_BYTES, RETENTION_MS, ConfigTarget


def topic_limits(
    settings: Settings, topic: str, retention_ms: int | None, retention_bytes: int | None
) -> list[ConfigTarget]:
    """Returns the targets that set how long and how much a topic keeps; None: as it is.

    Errors: OperatorError for a time that is shorter than a Spark stream may be away.
    """
    promise_ms = settings.maintenance.stream_retention_ms
    if retention_ms is not None and FOREVER < retention_ms < promise_ms:
        raise OperatorError(
            f"a retention of {retention_ms} ms is below [maintenance] stream_retention_ms = "
            f"{promise_ms}: a Spark stream that is away may read that long"
        )

    values = {RETENTION_MS: retention_ms, RETENTION_BYTES: retention_bytes}
    return [ConfigTarget(topic, name, value) for name, value in values.items() if value is not None]
