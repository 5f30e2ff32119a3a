"""The process of a publisher: it waits to be elected, publishes, and begins again when it must."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from pipelines.errors import JobError, KafkaAwayError, KafkaRefusedError
from pipelines.kafka_client.group_member import ElectedProcess, Member
from pipelines.publish.committed import open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.errors import FencedError
from pipelines.publish.publisher import Turn
from pipelines.publish.transaction_limit import TransactionLimit
from pipelines.publish.transactions import transactional_id
from pipelines.settings import PublisherSettings, Settings, SettingsError
from txlake.errors import StoreAwayError

log = logging.getLogger("txlake.publish")

_WAIT_S: Final = 0.2
_PAUSE_S: Final = 0.2
_PAUSE_MAX_S: Final = 5.0
_WARNED_EVERY_S: Final = 60.0
# After this time a process that was suspended knows that another one is elected.
_FENCED_S: Final = 4.0


def publisher_of(settings: Settings, name: str | None) -> PublisherSettings:
    """Returns a publisher by its name; without a name the only one. Errors: SettingsError."""
    publishers = settings.publish
    names = ", ".join(sorted(publishers)) or "none"

    if name is None and len(publishers) == 1:
        return next(iter(publishers.values()))
    if not publishers:
        raise SettingsError(
            "the settings have no publisher: an empty section [publish.main] publishes all topics"
        )
    if name is None:
        raise SettingsError(
            f"the settings name {len(publishers)} publishers, {names}: say one with --name"
        )

    if name not in publishers:
        raise SettingsError(f"the settings have no [publish.{name}]; the publishers are {names}")

    return publishers[name]


def group_of(lake_id: str, publisher: str) -> str:
    """Returns the consumer group in which Kafka elects the active process of a publisher."""
    return transactional_id(lake_id, publisher)


def elected_process(publisher: str) -> ElectedProcess:
    """Returns the process that this group elects, as errors name it."""
    return ElectedProcess(f"the active process of publisher {publisher}", program="it")


class PublisherProcess:
    """A publisher, as one process runs it. Of several of one name, Kafka elects the active one."""

    def __init__(self, settings: Settings, publisher: PublisherSettings) -> None:
        self._settings = settings
        self._publisher = publisher
        self._stop = threading.Event()
        self._limit = TransactionLimit(publisher)
        self._away_since: float | None = None  # Kafka, or the lake's store; monotonic s
        self._warned_at = 0.0

    def stop(self) -> None:
        """Lets `run` end after the running transaction."""
        self._stop.set()

    def run(self) -> None:
        """Publishes whenever it is elected, until `stop`.

        Errors: JobError, LakeError: those that waiting does not mend, in one sentence.
        """
        member = self._join()
        if member is None:
            return

        try:
            is_reported = False
            while not self._stop.is_set():
                if not member.wait(_WAIT_S):
                    if member.is_waiting and not is_reported:
                        log.info("publisher %s stands by: another is active", self._publisher.name)
                        is_reported = True
                    continue

                is_reported = False
                if member.is_confirmed_leader:
                    self._run_turn(member)
                else:
                    self._stop.wait(_WAIT_S)
        finally:
            member.leave()

    def _join(self) -> Member | None:
        """Joins the publisher's group; waits for Kafka and the store. Output: None if stopped."""
        pause_s = _PAUSE_S
        while not self._stop.is_set():
            try:
                lake = open_lake(self._settings.lake.path, self._settings.lake.store)
                Destination(self._publisher).make_progress_topic()
            except (KafkaAwayError, StoreAwayError) as error:
                pause_s = self._wait(error, pause_s)
                continue

            member = Member(
                self._publisher.bootstrap_servers,
                self._publisher.client,
                self._publisher.progress_topic,
                group_of(lake.lake_id, self._publisher.name),
                elected_process(self._publisher.name),
                f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}",
            )

            member.join()
            return member

        return None

    def _run_turn(self, member: Member) -> None:
        """Publishes until another process is elected; begins again when Kafka or the store is back.

        Errors: as `run`.
        """
        pause_s = _PAUSE_S
        is_active = self._activity_check(member)

        while not self._stop.is_set() and member.is_active:
            turn: Turn | None = None
            try:
                turn = Turn(self._settings, self._publisher, self._stop, is_active, self._limit)
                turn.run()
                return
            except FencedError as error:
                log.warning("publisher %s starts again: %s", self._publisher.name, error)
                self._stop.wait(_FENCED_S)
                return
            except (KafkaAwayError, StoreAwayError) as error:
                is_refused = isinstance(error, KafkaRefusedError) and member.is_active
                if is_refused and turn is not None and turn.record_refusal(error):
                    raise  # a Kafka that takes the record of it is not away
                pause_s = self._wait(error, pause_s)

    def _activity_check(self, member: Member) -> Callable[[], bool]:
        """Returns a function that says whether this process is still elected.

        A turn calls it when it has reached Kafka and the store. So its first call after an outage
        logs that the outage is over.
        """

        def is_active() -> bool:
            if self._away_since is not None:
                away_s = time.monotonic() - self._away_since
                log.info("publisher %s goes on after %.0f s", self._publisher.name, away_s)
                self._away_since = None

            return member.is_active

        return is_active

    def _wait(self, error: JobError | StoreAwayError, pause_s: float) -> float:
        """Waits after an error that can pass; logs it at once, and once a minute.

        Output: the next pause.
        Errors: `error` itself, if Kafka refuses a process that is not in an outage: its settings or
        rights are wrong.
        """
        if isinstance(error, KafkaRefusedError) and self._away_since is None:
            raise error

        now = time.monotonic()
        if self._away_since is None or now - self._warned_at > _WARNED_EVERY_S:
            log.warning("publisher %s tries again: %s", self._publisher.name, error)
            self._warned_at = now
        if self._away_since is None:
            self._away_since = now

        self._stop.wait(pause_s)
        return min(2 * pause_s, _PAUSE_MAX_S)
