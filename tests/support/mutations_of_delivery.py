"""Violations of what is said of messages, delays, commands and topics."""

from __future__ import annotations

from tests.support.lake_rows import LakeRows
from tests.support.mutation import (
    COPIES,
    LAST,
    ORDERS,
    at_ms,
    deliver_again,
    move,
    set_parameter,
    violates,
)
from txlake.protocol import CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC


@violates("queues_contiguous", topic="orders", queue_id=2, queue_offset=2)
def gap_in_a_queue(rows: LakeRows) -> None:
    _place_silent(rows, 2, 2)


@violates("queues_contiguous", topic="orders", queue_id=2, queue_offset=0)
def queue_offset_given_twice(rows: LakeRows) -> None:
    _place_silent(rows, 2, 0)


def _place_silent(rows: LakeRows, queue_id: int, queue_offset: int) -> None:
    """Put the message of `silent`, the last one of its queue, elsewhere."""
    message = rows.find(ORDERS, transaction_id="silent")
    message.update(queue_id=queue_id, queue_offset=queue_offset)
    outcome = rows.find("outcomes", transaction_id="silent", outcome="COMMITTED")
    outcome.update(real_queue_id=queue_id, real_queue_offset=queue_offset)
    rows.keep_books()


@violates("next_offsets_agree", epoch=9, topic="orders", queue_id=2)
def next_offset_is_wrong(rows: LakeRows) -> None:
    rows.commit(9)["next_offsets"] = [
        {**r, "next_offset": r["next_offset"] + (r["topic"] == "orders" and r["queue_id"] == 2)}
        for r in rows.commit(9)["next_offsets"]
    ]


@violates("messages_have_their_commit", topic="orders", queue_id=2, queue_offset=2)
def delivered_twice(rows: LakeRows) -> None:
    deliver_again(rows, rows.find(ORDERS, transaction_id="silent"), 2, 2)
    rows.keep_books()


@violates("messages_have_their_commit", topic="orders", queue_id=1, queue_offset=0)
def rolled_back_and_delivered(rows: LakeRows) -> None:
    half = rows.find("half", transaction_id="rollback")
    wanted = {k: half[k] for k in ("transaction_id", "body")}

    deliver_again(
        rows,
        {
            **wanted,
            "half_queue_id": 0,
            "half_queue_offset": 1,
            "source": "half",
            "producer_group": "g",
        },
        1,
        0,
    )
    rows.keep_books()


@violates("commits_arrive", queue_id=0, queue_offset=2, real_topic="orders")
def message_is_dropped(rows: LakeRows) -> None:
    rows.take(ORDERS, transaction_id="silent")
    rows.keep_books()


@violates("commits_arrive", queue_id=0, queue_offset=2)
def committed_and_nowhere(rows: LakeRows) -> None:
    rows.take(ORDERS, transaction_id="silent")
    outcome = rows.find("outcomes", transaction_id="silent", outcome="COMMITTED")
    outcome.update(real_queue_id=None, real_queue_offset=None)
    rows.keep_books()


@violates("messages_equal_their_record", topic="orders", queue_id=0, queue_offset=1)
def one_byte_of_a_body(rows: LakeRows) -> None:
    message = rows.find(ORDERS, transaction_id="commit")
    message["body"] = message["body"][:-1] + b"x"


@violates("messages_equal_their_record", topic="orders", queue_id=0, queue_offset=1)
def one_property(rows: LakeRows) -> None:
    rows.find(ORDERS, transaction_id="commit")["properties"] = [("colour", "green")]


@violates("messages_equal_their_record", topic=CHECK_MAX_TOPIC, half_queue_offset=3)
def body_of_a_copy(rows: LakeRows) -> None:
    rows.find(COPIES, transaction_id="patient")["body"] = None


@violates("messages_in_their_queue", topic="orders", queue_id=1, queue_offset=0)
def another_queue(rows: LakeRows) -> None:
    _place_silent(rows, 1, 0)


@violates("queues_in_order", topic="orders", queue_id=0, queue_offset=2)
def two_messages_change_places(rows: LakeRows) -> None:
    for transaction_id, offset in (("commit", 2), ("contested", 1)):
        rows.find(ORDERS, transaction_id=transaction_id)["queue_offset"] = offset
        outcome = rows.find("outcomes", transaction_id=transaction_id)
        outcome["real_queue_offset"] = offset


@violates("delayed_is_state", source="half", queue_id=0, queue_offset=6)
def due_too_early(rows: LakeRows) -> None:
    rows.find("delayed", source="half", queue_offset=6, change="put")["deliver_at"] -= 1


@violates("delayed_is_state", source="schedule", queue_id=0, queue_offset=2)
def schedule_record_is_not_delayed(rows: LakeRows) -> None:
    rows.take("delayed", source="schedule", queue_offset=2, change="put")
    rows.keep_books()


@violates("delayed_is_state", source="half", queue_id=0, queue_offset=7)
def delayed_to_another_topic(rows: LakeRows) -> None:
    rows.find("delayed", source="half", queue_offset=7, change="put")["real_topic"] = "parts"


@violates("delayed_is_state", source="half", queue_id=0, queue_offset=6)
def delayed_by_another_group(rows: LakeRows) -> None:
    rows.find("delayed", source="half", queue_offset=6, change="put")["producer_group"] = "other"


@violates("delayed_arrive_on_time", source="half", queue_id=0, queue_offset=6)
def delivered_early(rows: LakeRows) -> None:
    move(rows, rows.find(ORDERS, transaction_id="delayed"), 2)
    move(rows, rows.find("deliveries", source="half", queue_offset=6), 2)
    rows.keep_books()


@violates("delayed_arrive_on_time", source="schedule", queue_id=0, queue_offset=0)
def delivered_late(rows: LakeRows) -> None:
    move(rows, rows.find(ORDERS, source="schedule", half_queue_id=0), 7)
    move(rows, rows.find("deliveries", source="schedule", queue_id=0), 7)
    rows.keep_books()


@violates("delayed_arrive_on_time", source="schedule", queue_id=0, queue_offset=0)
def never_delivered(rows: LakeRows) -> None:
    rows.take("deliveries", source="schedule", queue_id=0, queue_offset=0)
    rows.take(ORDERS, source="schedule", half_queue_id=0, half_queue_offset=0)
    rows.keep_books()


@violates("delayed_arrive_on_time", source="half", queue_id=0, queue_offset=7)
def cancelled_and_delivered(rows: LakeRows) -> None:
    half = rows.find("half", transaction_id="cancelled")
    wanted = {k: half[k] for k in ("transaction_id", "body", "producer_group")}
    deliver_again(
        rows, {**wanted, "half_queue_id": 0, "half_queue_offset": 7, "source": "half"}, 1, 0
    )
    delivery = rows.find("deliveries", action="CANCELLED")
    delivery = {**delivery, "action": "DELIVERED", "real_queue_id": 1, "real_queue_offset": 0}
    move(rows, delivery, LAST)
    rows.tables["deliveries"].append({**delivery, "admin_offset": None})
    rows.keep_books()


@violates("deliveries_have_their_reason", source="half", queue_id=0, queue_offset=0)
def undeliverable_without_a_commit(rows: LakeRows) -> None:
    delivery = {**rows.find("deliveries", action="UNDELIVERABLE", queue_offset=8)}
    move(rows, delivery, LAST)
    rows.tables["deliveries"].append({**delivery, "queue_offset": 0})
    rows.keep_books()


@violates("deliveries_have_their_reason", source="half", queue_id=0, queue_offset=8)
def delivery_row_twice(rows: LakeRows) -> None:
    delivery = rows.find("deliveries", action="UNDELIVERABLE", queue_offset=8)
    rows.tables["deliveries"].append(dict(delivery))
    rows.keep_books()


@violates("commands_have_effect", admin_offset=1, result="cancelled")
def nothing_was_cancelled(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=1)["result"] = "cancelled"


@violates("commands_have_effect", admin_offset=3, problem="no such result")
def unknown_result(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=3)["result"] = "done"


@violates("commands_have_effect", admin_offset=9, problem="its target cannot be read")
def target_cannot_be_read(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=9)["target"] = "half:0-" + "0" * 19


@violates("commands_have_effect", admin_offset=8, problem="no such result")
def result_of_another_command(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=8)["command"] = "CANCEL"


@violates("commands_have_effect", admin_offset=5, result="created")
def topic_was_there_before(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=5)["result"] = "created"


@violates("commands_have_effect", admin_offset=3, problem="there is no such topic")
def topic_that_is_altered_is_not_there(rows: LakeRows) -> None:
    config = {"command": "ALTER_TOPIC", "target": "config:nobodys:retention.ms=1"}
    rows.find("admin", queue_offset=3).update(config, result="altered")


@violates("commands_have_effect", admin_offset=3, problem="there was such a topic")
def topic_that_is_not_altered_is_there(rows: LakeRows) -> None:
    config = {"command": "ALTER_TOPIC", "target": "config:orders:retention.ms=1"}
    rows.find("admin", queue_offset=3).update(config, result="no_such_topic")


@violates("nothing_was_there", admin_offset=9, problem="the half was discarded, and not re-armed")
def discarded_half_is_not_re_armed(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=9)["target"] = "half:0-10"


@violates("nothing_was_there", admin_offset=1, problem="the message waited")
def delayed_message_is_not_cancelled(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=1)["target"] = "schedule:0-0"


@violates("nothing_was_there", admin_offset=4, problem="the message was there")
def undeliverable_message_is_not_found(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=4)["result"] = "not_undeliverable"


@violates("nothing_was_there", admin_offset=4, problem="there was no such message")
def no_message_is_still_undeliverable(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=4)["target"] = "undeliverable:9"


@violates("nothing_was_there", admin_offset=7, problem="the topic had 6 queues")
def message_with_a_queue_is_still_undeliverable(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=7)["result"] = "still_undeliverable"


@violates("nothing_was_there", admin_offset=12, problem="the topic had 6 queues")
def topic_has_not_grown(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=12)["target"] = "topic:orders:7"


@violates("nothing_was_there", admin_offset=11, problem="the half was pending")
def pending_half_was_not_found(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=11)["result"] = "not_pending"


@violates("commands_have_effect", admin_offset=10, problem="the half had ended")
def ended_half_was_asked_about(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=10)["result"] = "resent"


@violates("nothing_was_there", admin_offset=1, problem="the target can be read")
def target_is_not_read(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=1)["result"] = "bad_target"


@violates("undeliverable_have_reason", queue_offset=0, real_topic="orders")
def another_reason(rows: LakeRows) -> None:
    message = rows.find(f"topics/{UNDELIVERABLE_TOPIC}", transaction_id="outside")
    message["reason"] = "topic_not_allowed"


@violates("undeliverable_have_reason", queue_offset=1, real_topic="fourth")
def topic_could_be_made(rows: LakeRows) -> None:
    set_parameter(rows, 2, "topics_max", 3)


@violates("undeliverable_have_reason", real_topic="fifth", problem="its group had made 1 topics")
def group_could_make_one_more(rows: LakeRows) -> None:
    set_parameter(rows, 12, "group_topics_max", 2)


@violates("catalog_grows", topic="parts", problem="its group had made 1 topics")
def group_has_made_too_many(rows: LakeRows) -> None:
    set_parameter(rows, 1, "group_topics_max", 0)


@violates(
    "catalog_grows", topic="orders", problem="no message of that group went there in this epoch"
)
def topic_has_another_maker(rows: LakeRows) -> None:
    rows.find("catalog", topic="orders", epoch=1)["producer_group"] = "other"


@violates("catalog_grows", topic=CHECK_MAX_TOPIC, problem="no message made it")
def our_own_topic_has_a_maker(rows: LakeRows) -> None:
    rows.find("catalog", topic=CHECK_MAX_TOPIC)["producer_group"] = "g"


@violates("catalog_grows", topic="parts", epoch=12)
def topic_does_not_grow(rows: LakeRows) -> None:
    row = {**rows.find("catalog", topic="parts"), "epoch": 12}
    rows.tables["catalog"].append({**row, "created_at": at_ms(rows, 12)})


@violates("catalog_grows", topic=CHECK_MAX_TOPIC, queue_count=2)
def our_own_topic_has_two_queues(rows: LakeRows) -> None:
    rows.find("catalog", topic=CHECK_MAX_TOPIC)["queue_count"] = 2


@violates("catalog_grows", topic="new", table_id=9)
def table_id_is_left_out(rows: LakeRows) -> None:
    row = {**rows.find("catalog", topic="parts"), "topic": "new", "table_id": 9, "epoch": 12}
    rows.tables["catalog"].append({**row, "created_at": at_ms(rows, 12)})
