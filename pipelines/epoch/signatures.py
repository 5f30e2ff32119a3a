"""Whether operations are signed: the driver, which has the keys, verifies them when they land.

The result is a column of `op`. So an epoch can be decided again without any key, and the removal of
a key changes nothing of what has landed.

Source: docs/protocol/wire.md "Signatures".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from checker.frames_ops.columns import Mask, to_mask
from pipelines.epoch.batch import Batch
from pipelines.settings import SecuritySettings
from storage.wire.record_kinds import OP
from txlake import protocol as p
from txlake.signing import SigningKey, is_signed_operation

_COLUMNS = [
    "queue_id",
    "body",
    "producer_group",
    "decision",
    "transaction_ids",
    "from_check",
    "check_id",
    "remark",
    "actor",
    "reason",
    "signature",
]


def verify_signatures(batch: Batch, security: SecuritySettings) -> None:
    """Sets `is_signed` of each operation of a batch whose group has a key.

    Input: records that were just landed from Kafka.
    """
    if security.keys and OP in batch.by_kind:
        batch.by_kind[OP] = with_verification(batch.by_kind[OP], security)


def with_verification(rows: pa.Table, security: SecuritySettings) -> pa.Table:
    """Returns operations with `is_signed`: null if the group has no key, or for unreadable ones.

    Input: the columns of `op`.
    """
    has_key = _has_key(rows, security)
    if not has_key.any():
        return rows

    operators = tuple(security.operators.values())
    rows_with_key = np.flatnonzero(has_key)
    operations = rows.select(_COLUMNS).take(pa.array(rows_with_key)).to_pylist()

    is_signed = np.zeros(rows.num_rows, bool)
    is_signed[rows_with_key] = [
        _is_signed(operation, security, operators) for operation in operations
    ]

    column = rows.schema.get_field_index("is_signed")
    values = pa.array(is_signed, mask=~has_key)
    return rows.set_column(column, rows.schema.field(column), values)


def _has_key(rows: pa.Table, security: SecuritySettings) -> Mask:
    """Returns of each operation whether it is readable and its group has a key."""
    is_readable = to_mask(rows["error"].is_null()) & to_mask(rows["producer_group"].is_valid())

    groups = rows["producer_group"].combine_chunks().dictionary_encode()
    group_has_key = np.array(
        [group in security.keys for group in groups.dictionary.to_pylist()], bool
    )
    if len(group_has_key) == 0:
        return np.zeros(rows.num_rows, bool)

    codes = groups.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return is_readable & group_has_key[codes]


def _is_signed(
    operation: Mapping[str, Any], security: SecuritySettings, operators: Sequence[SigningKey]
) -> bool:
    """Returns whether an operation has its group's signature, or an operator's if it names one."""
    group = operation["producer_group"]
    ids = operation["transaction_ids"]
    actor = operation["actor"]
    keys = security.keys[group] if actor is None else operators

    headers = {
        p.PGROUP: group,
        p.TRAN_TYPE: p.DECISION_CODES[operation["decision"]],
        p.UNIQ_KEY: None if ids is None else ",".join(ids),
        p.FROM_CHECK: "true" if operation["from_check"] else None,
        p.CHECK_ID: operation["check_id"],
        p.REMARK: operation["remark"],
        p.ACTOR: actor,
        p.REASON: operation["reason"],
    }
    return is_signed_operation(
        operation["signature"], keys, operation["queue_id"], operation["body"], headers
    )
