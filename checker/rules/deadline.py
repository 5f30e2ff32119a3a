"""Until when a producer's own end of a half counts: the immunity that it asked for, as a deadline.

A half that carries CHECK_IMMUNITY_TIME_IN_SECONDS says how long its local transaction takes at
most. Its group is asked from then on, and a check decides. The deadline counts from the instant at
which the broker stored the record, also after a re-arm: so it depends on two records alone, and on
no epoch. A set has the deadline of its first landed half.

Source: PROTOCOL.md "Which operation ends a half", test 7; RocketMQ 5.1.2's EndTransactionProcessor
(rejectCommitOrRollback), which counts by the producer's clock.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames_ops.columns import Mask, to_mask
from txlake.protocol import INSTANT_MS_MAX

# Of a half's own record; null if it asks for no immunity.
DEADLINE_SQL: Final = f"""
CASE WHEN immunity_ms IS NOT NULL THEN least(stored_at + immunity_ms, {INSTANT_MS_MAX}) END
"""


def deadlines(halves: pa.Table) -> pa.ChunkedArray:
    """Returns the deadline of each half's own record; null if it asks for no immunity.

    Input: `stored_at` of the record, `immunity_ms`.
    """
    at = pc.add(halves["stored_at"], halves["immunity_ms"])
    return pc.min_element_wise(at, INSTANT_MS_MAX, skip_nulls=False)


def is_late(namings: pa.Table, deadline_at: pa.ChunkedArray) -> Mask:
    """Returns for each naming whether it is a producer's own end that comes after its deadline.

    Input: NAMINGS; the deadline of the unit that each names, or null.
    """
    is_own_end = to_mask(pc.equal(namings["cause"], "operation"))
    is_own_end &= ~to_mask(pc.equal(namings["decision"], "UNKNOWN"))
    return is_own_end & to_mask(pc.greater(namings["stored_at"], deadline_at))
