"""What the console can write: each action's words, its targets, its preview and its command.

They are the commands' own functions: the console and `txlake` foretell and write the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pipelines.errors import OperatorError
from pipelines.explain import rule_texts
from pipelines.health.transactions import Filters
from pipelines.operate.bulk import dead_targets, pending_targets
from pipelines.operate.preview import Preview, preview_commands, preview_ends
from pipelines.operate.records import Record
from pipelines.settings import SecuritySettings
from storage.lake.lake import Lake
from storage.wire.record_kinds import ADMIN, HALF, OP
from txlake import protocol as p

FindTargets = Callable[[Lake, Filters], Sequence[p.Target]]
_QUEUE = re.compile(r", queue [0-9]+$")


@dataclass(frozen=True)
class Action:
    """One thing that an operator can do.

    `name`: its address; `decision`: COMMIT, ROLLBACK or a command; `does`: the verb of its button.
    `confirms`: what its form lets the actor confirm. `command`: the command line that does the
    same, without its reason. `returns_to`: the page to go on with. `find_targets`: all that match
    filters; None if it is only done to a named target.
    """

    name: str
    decision: str
    does: str
    title: str
    nothing: str
    confirms: str
    command: str
    returns_to: str
    find_targets: FindTargets | None = None

    @property
    def is_end(self) -> bool:
        """Returns whether it writes an operation, which ends a half."""
        return self.decision in (p.COMMIT, p.ROLLBACK)

    def target(self, text: str) -> p.Target | None:
        """Returns the target that a text names; None if the action can have no such target."""
        if not self.is_end:
            return p.command_target(self.decision, text)
        target = p.read_target(text)
        return target if isinstance(target, p.RecordTarget) and target.kind == HALF else None

    def previews(
        self,
        lake: Lake,
        targets: Sequence[p.Target],
        actor: str,
        reason: str,
        security: SecuritySettings | None,
    ) -> list[Preview | OperatorError]:
        """Returns for each target the record to write, and what would come of it."""
        halves = [target for target in targets if isinstance(target, p.RecordTarget)]
        if self.is_end and len(halves) == len(targets):
            return preview_ends(lake, halves, self.decision, actor, reason, security)
        return preview_commands(lake, self.decision, targets, actor, reason)

    def written_record(self, target: p.Target) -> Record:
        """Returns as much of a written record as its result is found by."""
        if self.is_end and isinstance(target, p.RecordTarget):
            return Record(OP, target.queue_id, [], target.queue_offset)
        return Record(ADMIN, 0, [])


ACTIONS: Final = {
    action.name: action
    for action in (
        Action(
            "resume", p.RESUME, "Resume", "What a resume would do", "Nothing that is dead fits.",
            "resumes {count} of these", "txlake dead resume {target}", "/dead", dead_targets,
        ),
        Action(
            "commit", p.COMMIT, "Commit", "What a commit would do", "Nothing pending fits.",
            "commits {count} of these", "txlake tx commit {target}", "/transactions",
            pending_targets,
        ),
        Action(
            "rollback", p.ROLLBACK, "Roll back", "What a rollback would do",
            "Nothing pending fits.", "rolls back {count} of these", "txlake tx rollback {target}",
            "/transactions", pending_targets,
        ),
        Action(
            "ask", p.RESEND, "Ask again", "What asking again would do", "Nothing pending fits.",
            "asks again about {count} of these", "txlake check resend {target}", "/transactions",
            pending_targets,
        ),
        Action(
            "cancel", p.CANCEL, "Cancel the delay", "What cancelling would do",
            "Nothing is delayed under this name.", "cancels {count} of these",
            "txlake schedule cancel {target}", "/delayed",
        ),
        Action(
            "create_topic", p.CREATE_TOPIC, "Make the topic", "What making the topic would do",
            "Name a topic.", "makes the topic",
            "txlake topic create {topic} --queues {queue_count}", "/topics",
        ),
        Action(
            "alter_topic", p.ALTER_TOPIC, "Set the limits", "What setting the limits would do",
            "Name a limit.", "sets the limits", "txlake topic alter {topic}", "/topics",
        ),
    )
}  # fmt: skip


def command_line(action: Action, target: p.Target) -> str:
    """Returns the command line that does an action to a target."""
    if isinstance(target, p.TopicTarget):
        command = action.command.format(topic=target.topic, queue_count=target.queue_count)
    elif isinstance(target, p.ConfigTarget):
        option = "--retention" if target.name == p.RETENTION_MS else "--retention-bytes"
        unit = "s" if option == "--retention" else ""
        value = target.value // 1_000 if unit else target.value
        limit = "forever" if target.value == p.FOREVER else f"{value}{unit}"
        command = f"{action.command.format(topic=target.topic)} {option} {limit}"
    else:
        command = action.command.format(target=target)
    return f'{command} --reason "..." --conf job.toml'


def result_text(result: str | None) -> str:
    """Returns a written record's result in words."""
    if result is None:
        return "not landed yet"
    if result in rule_texts.RESULTS:
        return f"{result}: {rule_texts.RESULTS[result]}"
    if result in rule_texts.CONFLICTS:
        return f"{result}: {rule_texts.CONFLICTS[result]}"
    return result


def changes_nothing(text: str) -> bool:
    """Returns whether an expectation or a result is a refusal or a conflict."""
    code = text.partition(":")[0]
    return code in rule_texts.REFUSALS or code in rule_texts.CONFLICTS


def summary(expected: Sequence[tuple[str, bool]]) -> str:
    """Returns previews in one sentence: `2 would be delivered to topic orders; 1 cannot: ...`.

    Input: each expectation, and whether it is an error.
    """
    phrases = Counter(map(_phrase, expected))
    return "; ".join(f"{count} {phrase}" for phrase, count in phrases.most_common())


def _phrase(expectation: tuple[str, bool]) -> str:
    text, is_error = expectation
    head, *places = text.split("; ")

    if is_error:
        return f"cannot: {text}"
    if changes_nothing(text):
        why = places[0] if places else head.partition(": ")[2]
        return f"cannot: {why}"
    if places:
        return f"would be {_QUEUE.sub('', places[0])}"
    code, _, words = head.partition(": ")
    return f"would be {code} ({words})" if words else f"would be {code}"
