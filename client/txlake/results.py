"""The results of sending."""

from __future__ import annotations

from dataclasses import dataclass

from txlake.listener import LocalTransactionState


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """The outcome of a transaction, as the producer knows it.

    (`queue_id`, `queue_offset`) is the place of its first half. `operation_sent` False: Kafka did
    not take the end in time, and the job will ask the group. `remark` says why a listener's
    answer counts as UNKNOWN.
    """

    transaction_id: str
    queue_id: int
    queue_offset: int
    local_state: LocalTransactionState
    operation_sent: bool
    remark: str = ""
    queue_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message without a transaction stands in the schedule topic."""

    message_id: str
    queue_id: int
    queue_offset: int
