"""Which operations are signed, as the driver finds it when they land."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipelines.epoch.signatures import with_verification
from pipelines.settings import SecuritySettings
from storage.wire.decode import RECORDS
from txlake import protocol as p
from txlake.signing import SigningKey, sign_operation

OLD, NEW = SigningKey("old", b"o" * 32), SigningKey("new", b"n" * 32)
OTHERS, ANNA = SigningKey("old", b"p" * 32), SigningKey("anna", b"a" * 32)
SECURITY = SecuritySettings({"shop": (OLD, NEW), "bank": (OTHERS,)}, {"anna": ANNA})
ROW: dict[str, Any] = {
    "kind": "op", "queue_id": 2, "body": b"17,18,", "producer_group": "shop",
    "decision": "COMMIT", "half_offsets": [17, 18], "transaction_ids": ["a", "b"],
    "from_check": False,
}  # fmt: skip


def signed(key: SigningKey, **columns: Any) -> dict[str, Any]:
    """Return an operation's row, signed as its sender would sign what it sends."""
    row = {**ROW, **columns}
    headers = p.operation_headers(row["producer_group"], row["decision"], row["transaction_ids"])
    texts: dict[str, bytes | str | None] = dict(headers)
    texts |= {p.FROM_CHECK: "true"} if row["from_check"] else {}
    names = {p.CHECK_ID: "check_id", p.REMARK: "remark", p.ACTOR: "actor", p.REASON: "reason"}
    texts |= {name: row.get(column) for name, column in names.items()}
    return {**row, "signature": sign_operation(key, row["queue_id"], row["body"], texts)}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (signed(OLD), True),
        (signed(NEW), True),
        (signed(OLD, from_check=True, check_id="2-17-0-1", remark="líne\nbreak"), True),
        (signed(ANNA, actor="anna", reason="she said so"), True),
        (ROW, False),
        ({**signed(OLD), "decision": "ROLLBACK"}, False),
        ({**signed(OLD), "body": b"17,19,"}, False),
        ({**signed(OLD), "queue_id": 1}, False),
        ({**signed(OLD), "transaction_ids": None}, False),
        ({**signed(OLD), "producer_group": "bank"}, False),
        ({**signed(OLD), "actor": "anna"}, False),
        (signed(OTHERS), False),
        (signed(ANNA), False),
        (signed(OLD, actor="anna"), False),
        ({**ROW, "producer_group": "keyless"}, None),
        (signed(OLD, producer_group="keyless"), None),
        (signed(ANNA, producer_group="keyless", actor="anna"), None),
        ({**ROW, "error": "bad_offsets", "decision": None, "half_offsets": None}, None),
        ({**ROW, "producer_group": None, "error": "bad_producer_group"}, None),
    ],
    ids=[
        "the first key", "the second key of a rotation", "all headers of an answer",
        "an operator's", "no signature", "another decision", "another half", "another queue",
        "no ids", "another group that has a key", "a group's as an operator's",
        "a key of another group with that id", "an operator's key without ACTOR",
        "a group's key with ACTOR", "a group without a key", "signed, and the group has no key",
        "an operator's for a group without a key", "unreadable", "unreadable, without a group",
    ],
)  # fmt: skip
def test_operations_are_judged_by_the_keys_of_their_group_or_of_operators(
    row: dict[str, Any], expected: bool | None
) -> None:
    rows = pa.Table.from_pylist([row], schema=RECORDS)
    assert with_verification(rows, SECURITY)["is_signed"].to_pylist() == [expected]


def test_each_operation_is_judged_for_itself() -> None:
    rows = [ROW, signed(OLD), {**ROW, "producer_group": "keyless"}, signed(NEW), ROW]
    table = pa.Table.from_pylist(rows, schema=RECORDS)
    assert with_verification(table, SECURITY)["is_signed"].to_pylist() == [
        False,
        True,
        None,
        True,
        False,
    ]
    assert with_verification(table, SecuritySettings())["is_signed"].null_count == 5
    assert with_verification(table.slice(0, 0), SECURITY).num_rows == 0
