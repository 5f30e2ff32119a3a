"""The context of one console's pages: its lake, its Kafka, its rights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipelines.console.kafka_cache import QueryCache
from pipelines.console.page_counts import PageCounts
from pipelines.console.session import SentForms, Sessions
from pipelines.health.facts import Facts
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.maintenance.limits import Retention


@dataclass(frozen=True)
class ConsoleContext:
    """One console.

    `open_lake` returns the lake, checked for completeness; `load_facts` returns the facts of the
    lake and of its Kafka. `settings`: None if only the lake was named. `token`: None if nobody can
    log in. `reads_need_token`: whether pages are shown only after a login. `hosts`: the names in
    the Host header that are allowed. `kafka`: the pages' queries to Kafka. `sessions`: the
    sessions. `sent_forms`: the results of forms. `shows_bodies`: whether pages show what is in
    messages. `counts`: the numbers beside the pages' names.
    """

    path: str
    open_lake: Callable[[], Lake]
    load_facts: Callable[[Lake], Facts]
    settings: Settings | None = None
    token: str | None = None
    allow_writes: bool = False
    reads_need_token: bool = False
    hosts: frozenset[str] = frozenset()
    port: int = 0
    kafka: QueryCache = field(default_factory=QueryCache)
    sessions: Sessions = field(default_factory=Sessions)
    sent_forms: SentForms = field(default_factory=SentForms)
    shows_bodies: bool = True
    counts: PageCounts = field(default_factory=PageCounts)

    @property
    def cookie_name(self) -> str:
        """Returns the session cookie's name: browsers do not part cookies by port."""
        return f"txlake-console-{self.port}"

    def retention(self) -> Retention | None:
        """Returns how long topics keep messages without limits of their own, if it is known."""
        return None if self.settings is None else self.settings.maintenance_limits().topics
