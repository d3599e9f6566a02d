"""Clients, operators and trouble around one machine: carries out a history and keeps the record that is checked."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import lmdb
from google.protobuf.message import DecodeError
from heliograph_api.values.names import InvalidName
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.store import LedgerStore

from . import (
    acknowledging,
    administration,
    chunking,
    connections,
    consuming,
    damage,
    entries,
    expectations,
    faults,
    hostile,
    producing,
    slow_clients,
)
from .action import Action
from .client import SimulatedClient
from .disk import Crashed
from .history import CLIENTS, Operation, switches, varied
from .idle_reasons import IdleReasons
from .loop import BusyLoop
from .machine import Machine
from .model import (
    DEAD_LETTERS,
    ConsumerModel,
    Ledger,
    Message,
    Position,
    TopicModel,
    Violation,
)
from .situations import SITUATIONS

#: The function of each kind of operation.
ACTIONS: dict[str, Action] = {
    **producing.ACTIONS,
    **chunking.ACTIONS,
    **slow_clients.ACTIONS,
    **consuming.ACTIONS,
    **acknowledging.ACTIONS,
    **administration.ACTIONS,
    **connections.ACTIONS,
    **faults.ACTIONS,
    **hostile.ACTIONS,
    **damage.ACTIONS,
    **SITUATIONS,
}
#: Loads that a start may meet while something is wrong with the disk.
_STARTS = 8
#: Time within which the broker accepts that the wall clock was set.
_BELIEVED_AFTER_MS = 70_000


class World:
    """See the module. Raises :class:`Violation` from whatever finds one."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"world {seed}")
        capacity = self.rng.choice([1 << 40, 1 << 40, 4 << 20])
        self.machine = Machine(random.Random(self.rng.getrandbits(64)), capacity, switches(seed))
        #: Whether policies that are rarely used are set, and subscriptions asked for their reasons, which reads.
        self.varied = varied(seed)
        self._idle = IdleReasons()
        self.clients = [SimulatedClient(self, number) for number in range(CLIENTS + 1)]
        self.messages = Ledger()
        self.topics: dict[str, TopicModel] = {}
        letters = self.topics[DEAD_LETTERS] = TopicModel(DEAD_LETTERS)
        letters.dead_letters = True
        self.names: dict[int, int] = {}
        self._suspects: list[tuple[ConsumerModel, ConsumerModel, Message]] = []
        self._digest = hashlib.sha256()
        self.lines: list[str] = []
        self.keep_lines = False
        self.tenants: set[str] = set()
        self.namespaces: set[str] = set()
        #: Met while the broker was writing.
        self.found: list[Violation] = []
        self.crashes = 0
        #: The stored entries that were damaged.
        self.damages: list[str] = []
        self.stepped = False
        #: When (virtual ms) it was noted last which messages may have expired.
        self.expired_noted_ms = 0
        self.power_cut = False
        #: Recent lead of the wall clock, and the time (virtual ms) until which the broker may still go by it.
        self.offsets: list[tuple[int, int]] = []
        self.damaged_ledgers: set[int] = set()

    @property
    def acknowledges_parts(self) -> bool:
        """Whether the broker takes acknowledgments of a part of a batch."""
        return self.machine.settings.get("batch_index_ack", True)

    # -- record --------------------------------------------------------------------------------------------------

    def trace(self, line: str) -> None:
        """Note something of what happens: two runs of a seed have the same notes."""
        line = f"{self.machine.clock.passed_ms} {line}"
        self._digest.update(line.encode())
        if self.keep_lines:
            self.lines.append(line)

    def digest(self) -> str:
        return self._digest.hexdigest()

    def identify(self, consumer: ConsumerModel, frame: bytes, position: Position) -> Message | None:
        """Return the message whose bytes a consumer was sent, None for a letter of the broker's own."""
        message = self.messages.by_frame.get(frame)
        if message is not None:
            return message
        if consumer.subscription.topic.dead_letters:
            consumer.unacknowledged.append(position)
            try:
                consumer.letters.append(entries.properties_of(frame))
            except DecodeError:
                # A letter that cannot be opened arrives unchanged.
                self.trace("a letter that nobody can read")
            return None
        raise Violation(
            "bytes that nobody sent", f"{position} to consumer {consumer.number} of {consumer.subscription!r}"
        )

    def suspect(self, holder: ConsumerModel, consumer: ConsumerModel, message: Message) -> None:
        """Two consumers seem to hold one message: unless one is closed before the next rest, they do."""
        self._suspects.append((holder, consumer, message))

    def _check_suspects(self) -> None:
        suspects, self._suspects = self._suspects, []
        for holder, consumer, message in suspects:
            client = self.clients[holder.client]
            connection = client.connection
            if connection is None or connection.lost or connection.silent or not connection.reads:
                continue
            if not holder.closed and message.number in holder.hand and message.number in consumer.hand:
                raise Violation(
                    "one message in two hands",
                    f"{message!r} of {consumer.subscription!r}: consumers {holder.number} and {consumer.number}",
                )

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, operations: list[Operation]) -> None:
        """Carry out a history. Raises :class:`Violation`."""
        self.guarded(self.start)
        for operation in operations:
            self.trace(f"> {operation}")
            self.guarded(lambda operation=operation: self._carry_out(operation))  # type: ignore[misc]
            expectations.note_expired(self)

    def _carry_out(self, operation: Operation) -> None:
        rng = random.Random(operation.seed)
        client = self.clients[operation.client]
        try:
            ACTIONS[operation.kind](self, client, operation.topic, rng)
        except lmdb.Error as error:
            # A read failed that an operator's request needs at once: the REST API answers with the error.
            if not self.machine.disk.reads_failed:
                raise Violation("an exception that nobody contained", f"{error!r}") from error
            self.trace(f"failed: {error}")
        if operation.then_ms >= 0:
            self.advance(operation.then_ms)
        else:
            for _ in range(-operation.then_ms):
                self.machine.loop.step()
                self.check_store()

    def guarded(self, what: Callable[[], None]) -> None:
        """Do something; if the machine crashes meanwhile, start it again."""
        try:
            what()
        except Crashed:
            self.recover()
        except BusyLoop as error:
            raise Violation("busy loop", str(error)) from error
        if self.machine.disk.crashed:
            self.recover()
        self._check_escaped()

    def advance(self, ms: int) -> None:
        """Let time pass."""
        ticks = self.machine.ticks
        self.machine.loop.advance(ms)
        if self.machine.disk.crashed:
            raise Crashed
        if ms >= 1000 and self.machine.ticks == ticks:
            raise Violation("the tick has stopped", f"no tick in {ms} ms")
        self._check_escaped()
        self._lost_connections()
        self._check_suspects()
        self.check_store()
        if self.varied and self.machine.program is not None:
            self._idle.check(self)

    def check_store(self) -> None:
        """A store that has failed ends its process: a supervisor starts another one."""
        if self.machine.program is None or self.machine.disk.crashed:
            return
        failure = self.machine.program.store.writer.failure
        if failure is not None:
            self.trace(f"the store has failed: {failure}")
            if not self.machine.disk.failed:
                raise Violation("the store has failed without a cause", failure)
            self.machine.disk.heal()
            self.recover()

    def _lost_connections(self) -> None:
        for client in self.clients:
            if client.connection is not None and client.connection.lost:
                client.ended()

    def _check_escaped(self) -> None:
        if self.found:
            raise self.found[0]
        escaped = self.machine.loop.escaped
        if escaped:
            raise Violation("an exception that nobody contained", f"{escaped[0]!r}") from escaped[0]

    # -- start and end -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker; what was promised must be there."""
        for attempt in range(_STARTS):
            try:
                self.machine.start()
                break
            except Exception as error:
                self.trace(f"start failed: {type(error).__name__}")
                disk = self.machine.disk
                if not disk.failed and not disk.reads_failed and not disk.capacity < 1 << 40:
                    raise Violation("the broker does not start", f"{error}") from error
                if attempt == _STARTS - 1:
                    raise Violation("the broker does not start", f"{error}") from error
                self.machine.disk.heal()
                self.machine.crash(power_lost=False)
        expectations.check_promised(self)
        expectations.note_started(self)

    def recover(self) -> None:
        """Crash, now or where it happened, and start again."""
        self.crashes += 1
        self.trace("crash")
        self._suspects.clear()
        for client in self.clients:
            client.ended()
        self._check_escaped()
        self.machine.crash(power_lost=self.power_cut)
        for _ in range(3):
            if self.rng.random() < 0.2:
                self.machine.disk.crash_at = self.machine.disk.steps + self.rng.randrange(20)
            try:
                self.start()
            except Crashed:
                self.machine.crash(power_lost=self.power_cut)
                continue
            except BusyLoop as error:
                raise Violation("busy loop", str(error)) from error
            break
        else:
            self.start()
        self.machine.disk.crash_at = None

    def stop(self) -> None:
        """Stop in good order."""
        try:
            self.machine.stop()
        except TimeoutError as error:
            raise Violation("the broker does not stop", "its end waits for something that does not come") from error
        except Exception as error:
            self.trace(f"stop failed: {type(error).__name__}")
            if not self.machine.disk.failed and not self.machine.disk.capacity < 1 << 40:
                raise Violation("the broker does not stop", f"{error}") from error
            self.machine.disk.heal()
            self.machine.crash(power_lost=False)
        for client in self.clients:
            client.ended()
        self._suspects.clear()

    # -- what is known -------------------------------------------------------------------------------------------

    def topic(self, number: int) -> TopicModel:
        """Return the topic that a number stands for now."""
        name = f"persistent://public/default/t{number}"
        if number in self.names:
            name += f"-{self.names[number]}"
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicModel(name)
        return topic

    def give_up(self, number: int, topic: TopicModel, *, gone: bool) -> None:
        """The topic was deleted, for sure (``gone``) or perhaps: then its name is not used again."""
        topic.unknown = True
        for client in self.clients:
            client.producers.pop(topic.name, None)
        if gone:
            del self.topics[topic.name]
        else:
            self.names[number] = self.names.get(number, 0) + 1

    @property
    def store(self) -> LedgerStore:
        """The store of the broker that runs."""
        assert self.machine.program is not None
        return self.machine.program.store

    def stored(self, topic: TopicModel) -> Topic | None:
        found = self.machine.broker.directory.topics.get(topic.name)
        return found if isinstance(found, Topic) else None

    def confirm(self, what: Callable[[], None], confirmed: Callable[[], None]) -> bool:
        """Ask the broker for a change as its REST API does; return whether it was not refused."""
        try:
            what()
        except (BrokerError, InvalidName, ValueError) as error:
            self.trace(f"refused: {type(error).__name__}")
            return False

        def done(error: Exception | None) -> None:
            if error is None:
                confirmed()

        self.machine.broker.store.writer.after_commit(done)
        return True
