"""The S3 policy that each role needs for a lake's store.

A producer, and an operator's machine that only writes to Kafka, need no store. Consumers can read
delivered messages, never halves, operations or state. An operator reads all, and writes what
`consumer reset`, `consumer dead resume` and `consumer dead drop` do.
"""

from __future__ import annotations

from typing import Any, Final

from storage.errors import NotALakeError
from storage.files.location import LakeLocation, is_s3
from storage.schemas import CONSUMER_TABLES

_READ: Final = ("s3:GetObject",)
_WRITE: Final = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")
ALL_TABLES: Final = ("",)
# The tables that the SDK's consumer opens, beside those that it makes and writes.
_DELIVERED: Final = ("lake", "epochs", "catalog", "topics")
# The tables that `txlake publish` reads: of halves and schedule records when they were stored.
_PUBLISHED: Final = ("lake", "epochs", "catalog", "topics", "half", "schedule")
# role -> (tables, actions on their files)
_RIGHTS: Final = {
    "producer": (),
    "job": ((ALL_TABLES, _WRITE),),
    "operator": ((ALL_TABLES, _READ), (CONSUMER_TABLES, _WRITE)),
    "consumer": ((_DELIVERED, _READ), (CONSUMER_TABLES, _WRITE)),
    "metrics": ((ALL_TABLES, _READ),),
    "publisher": ((_PUBLISHED, _READ),),
}


def s3_policy(location: LakeLocation, role: str) -> dict[str, Any]:
    """Returns the policy of a role for a lake in S3; without a statement if it needs none.

    Errors: NotALakeError if the lake is not in S3.
    """
    if not is_s3(location):
        raise NotALakeError(f"the lake {location.path} is not in S3: a policy is about s3://")

    bucket, _, prefix = location.path.partition("://")[2].partition("/")
    statements: list[dict[str, Any]] = []
    for tables, actions in _RIGHTS[role]:
        folders = [f"{prefix}/{table}".rstrip("/") for table in tables]
        statements += [
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [f"arn:aws:s3:::{bucket}"],
                "Condition": {"StringLike": {"s3:prefix": [f"{at}/*" for at in folders]}},
            },
            {
                "Effect": "Allow",
                "Action": list(actions),
                "Resource": [f"arn:aws:s3:::{bucket}/{at}/*" for at in folders],
            },
        ]

    return {"Version": "2012-10-17", "Statement": statements}
