"""The sentences of a report, each with its line of PROTOCOL.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EPOCH_RULES: Final = "What happens to a half at an epoch"
END_RULES: Final = "Which operation ends a half"
SETS: Final = "Sets"
RETENTION: Final = "Retention"
DELIVERY: Final = "Delivery"
DELAY: Final = "Delay"
COMMANDS: Final = "Operator commands"
READABLE: Final = "What can be read"


@dataclass(frozen=True)
class Rule:
    """A sentence, and its source in PROTOCOL.md: a section, and its line where lines count."""

    sentence: str
    section: str
    line: int | None = None

    @property
    def source(self) -> str:
        """Returns the place in PROTOCOL.md."""
        line = "" if self.line is None else f", line {self.line}"
        return f'PROTOCOL.md "{self.section}"{line}'

    def __str__(self) -> str:
        return f"{self.sentence} ({self.source})"


# Outcome, the decision that makes it, its line in the table of EPOCH_RULES.
_ENDS = (("COMMITTED", "COMMIT", 1), ("ROLLED_BACK", "ROLLBACK", 2))
# By (outcome, cause).
OUTCOMES: Final = {
    **{
        (outcome, cause): Rule(
            f"its winner is a {decision}, {origin}: the valid COMMIT or ROLLBACK with the smallest "
            "op offset",
            EPOCH_RULES,
            line,
        )
        for outcome, decision, line in _ENDS
        for cause, origin in (
            ("operation", "the producer's own operation"),
            ("check_answer", "the answer to a check"),
            ("operator", "written by an operator"),
        )
    },
    **{
        (outcome, "late_end"): Rule(
            f"it was given up before, and a valid {decision} after the discard still ends it",
            END_RULES,
        )
        for outcome, decision, _ in _ENDS
    },
    ("ROLLED_BACK", "duplicate_in_set"): Rule(
        "another half of smaller offset has this TRAN_SEQ", SETS, 2
    ),
    ("DISCARDED", "expired"): Rule("it is older than half_retention_ms", EPOCH_RULES, 3),
    ("DISCARDED", "check_max"): Rule(
        "it was asked check_max times, and the last check kept its whole interval", EPOCH_RULES, 4
    ),
}
AFTER_ROLLBACK: Final = Rule("it landed after its set was rolled back", SETS, 8)
AFTER_DISCARD: Final = Rule("it landed after its set was discarded", SETS, 8)

CONFLICTS: Final = {
    "unreadable_operation": Rule("the record cannot be read", END_RULES, 1),
    "unknown_half": Rule("there is no such half", END_RULES, 2),
    "below_floor": Rule("it is below the floor of its queue, deleted or about to be", RETENTION),
    "unreadable_half": Rule("that half cannot be read", END_RULES, 3),
    "wrong_producer_group": Rule("it is another group's half", END_RULES, 4),
    "bad_signature": Rule(
        "its group has a key, and it has no valid signature under one", END_RULES, 5
    ),
    "no_transaction_id": Rule(
        "it names no transaction (UNIQ_KEY), and require_transaction_id asks for one", END_RULES, 6
    ),
    "wrong_transaction_id": Rule("it is another transaction's half", END_RULES, 6),
    "after_immunity": Rule(
        "it came after its deadline, the immunity that its half had asked for; a check decides",
        END_RULES,
        7,
    ),
    "duplicate_end": Rule("ended before, by the same decision", END_RULES, 8),
    "conflicting_end": Rule("ended before, by the other decision", END_RULES, 8),
    "end_after_discard": Rule(
        'too late: the half is discarded and late_end_policy is "reject"', END_RULES
    ),
    "orphan_expired": Rule("waited longer than orphan_operation_ttl_ms for its half", END_RULES, 2),
}

RESULTS: Final = {
    "rearmed": "the half is pending again",
    "not_discarded": "no discarded half stands there",
    "resent": "the half waits as if it were stored now: its group is asked anew",
    "not_pending": "no half waits there for its end",
    "resumed": "the message takes part in that epoch's delivery",
    "still_undeliverable": "its topic still cannot take it",
    "not_undeliverable": "no message waits there, or it was delivered already",
    "cancelled": "it will not be delivered",
    "not_delayed": "nothing waits under this name",
    "created": "the topic is made",
    "grown": "the topic has more queues from that epoch on",
    "unchanged": "the topic has as many queues, or more",
    "altered": "the topic has these limits from that epoch on",
    "no_such_topic": "there is no such topic",
    "accepted": "the job does it step by step, between epochs",
    "noted": "the job goes on without these offsets, if they are all that Kafka has lost there",
    "bad_target": "the target cannot be read, or such a topic may not be made",
}
# Results of commands that did not change what the operator wanted.
REFUSALS: Final = frozenset(
    {
        "not_discarded",
        "not_pending",
        "still_undeliverable",
        "not_undeliverable",
        "not_delayed",
        "bad_target",
        "no_such_topic",
        "unknown_command",
        "newer_version",
    }
)

UNDELIVERABLE: Final = {
    "topic_not_allowed": Rule("there is no such topic and none may be made", DELIVERY),
    "group_topics_max": Rule(
        "its producer group has made as many topics as group_topics_max allows", DELIVERY
    ),
    "queue_out_of_range": Rule("the topic has, or would have, no such queue", DELIVERY),
}


# Of a message that was delivered.
DELETED: Final = "; deleted since: the topic keeps messages for some time only"


def actor_text(actor: str | None, reason: str | None) -> str:
    """Returns the actor of a command and the reason, as far as they are known."""
    by = "" if actor is None else f" by {actor}"
    return by if reason is None else f"{by}, because: {reason}"
