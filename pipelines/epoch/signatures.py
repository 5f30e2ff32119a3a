"""Whether operations are signed: said once, when they land, by the driver, which has the keys.

The answer is a column of `op`. So what an epoch decides can be decided again without any key, and
a key that is taken away changes nothing of what has landed.

Source: PROTOCOL.md "Signatures".
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from checker.frames_ops.columns import to_mask
from pipelines.epoch.batch import Batch
from pipelines.settings import SecuritySettings
from storage.wire.record_kinds import OP
from txlake import protocol as p
from txlake.signing import is_signed_operation

_COLUMNS = [
    "queue_id", "body", "producer_group", "decision", "transaction_ids", "from_check", "check_id",
    "remark", "actor", "reason", "signature",
]  # fmt: skip


def verify_signatures(batch: Batch, security: SecuritySettings) -> None:
    """Says of each operation of a batch whether it is signed, if its group has a key.

    Input: records that were just landed from Kafka.
    """
    if security.keys and OP in batch.by_kind:
        batch.by_kind[OP] = with_verification(batch.by_kind[OP], security)


def with_verification(rows: pa.Table, security: SecuritySettings) -> pa.Table:
    """Returns operations with `is_signed`: null if the group has no key, or for unreadable ones.

    Input: the columns of `op`.
    """
    is_asked = to_mask(rows["error"].is_null()) & to_mask(rows["producer_group"].is_valid())
    groups = rows["producer_group"].combine_chunks().dictionary_encode()
    has_key = np.array([group in security.keys for group in groups.dictionary.to_pylist()], bool)
    codes = groups.indices.fill_null(0).to_numpy(zero_copy_only=False)
    is_asked &= has_key[codes] if len(has_key) else False
    if not is_asked.any():
        return rows
    is_signed = np.zeros(rows.num_rows, bool)
    operators = tuple(security.operators.values())
    at = np.flatnonzero(is_asked)
    asked = rows.select(_COLUMNS).take(pa.array(at))
    columns = (asked[name].to_pylist() for name in _COLUMNS)
    is_signed[at] = [
        is_signed_operation(
            signature,
            security.keys[group] if actor is None else operators,
            queue_id,
            body,
            {
                p.PGROUP: group,
                p.TRAN_TYPE: p.DECISION_CODES[decision],
                p.UNIQ_KEY: None if ids is None else ",".join(ids),
                p.FROM_CHECK: "true" if from_check else None,
                p.CHECK_ID: check_id,
                p.REMARK: remark,
                p.ACTOR: actor,
                p.REASON: reason,
            },
        )
        for queue_id, body, group, decision, ids, from_check, check_id, remark, actor, reason,
        signature in zip(*columns, strict=True)
    ]  # fmt: skip
    place = rows.schema.get_field_index("is_signed")
    return rows.set_column(place, rows.schema.field(place), pa.array(is_signed, mask=~is_asked))
