"""What the operator remembers of a resource between two looks. All of it can be lost: a look finds it out again."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph_api.resources.model import Namespace, Tenant, Topic

from heliograph_operator.decide.archive_runs import Run
from heliograph_operator.decide.resource_stats import Figures
from heliograph_operator.objects.kinds import Body, Key

PolicyResource = Tenant | Namespace | Topic


@dataclass(slots=True)
class Memory:
    """Of one resource, of one uid."""

    uid: str
    #: The generation that ``model`` was read from.
    generation: int = -1
    model: PolicyResource | None = None
    problem: str = ""
    #: The figures last written to the status, and when (of the loop's clock).
    written: Figures | None = None
    written_at: float = 0.0
    #: Refusals in a row.
    refused: int = 0
    #: Whether it waits for a broker that did not answer.
    unreachable: bool = False
    #: Where it is in which broker, if it is.
    http_url: str = ""
    name: str = ""
    #: What the API server last said of its archive's CronJob and jobs; None: there are none.
    archive_seen: list[object] | None = None
    #: The last run of its archive that ended, with what its pod said.
    archive_run: Run | None = None
    #: What the broker last said of it, but for its figures; None: it is to be looked at again.
    settled: object = None


@dataclass(slots=True)
class Memories:
    """By key; of a resource that was recreated nothing is known."""

    _known: dict[Key, Memory] = field(default_factory=dict)

    def of(self, key: Key, body: Body) -> Memory:
        uid = str(body["metadata"].get("uid", ""))
        memory = self._known.get(key)
        if memory is None or memory.uid != uid:
            memory = self._known[key] = Memory(uid)
        return memory

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)

    def all(self) -> list[tuple[Key, Memory]]:
        return list(self._known.items())
