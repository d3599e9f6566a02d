"""Clients, operators and trouble around one machine: carries out a history and keeps the record that is checked."""

from __future__ import annotations

import errno
import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

from google.protobuf.message import DecodeError
from heliograph_broker.messaging.errors import BrokerError
from heliograph_broker.messaging.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.topic import Topic
from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.resources.names import InvalidName, TopicName
from heliograph_broker.resources.policies import BacklogQuota, Policies, Retention
from heliograph_broker.storage.data_dir import DataDirError
from heliograph_broker.storage.store import LedgerStore

from . import publishing
from .client import SimulatedClient
from .disk import WRITES, Crashed, SmallFile
from .environment import EnvironmentFile
from .history import CLIENTS, Operation
from .loop import BusyLoop
from .machine import DATA, Machine
from .model import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    ConsumerModel,
    Ledger,
    Message,
    Position,
    SubscriptionModel,
    TopicModel,
    Violation,
)
from .situations import SITUATIONS

_NOWHERE = (1 << 64) - 1
DEAD_LETTERS = "persistent://public/default/dead-letters"
SUBSCRIPTIONS = ("s0", "s1", "s2")
#: Loads that a start may meet while something is wrong with the disk.
_STARTS = 8
#: The broker believes within so long that the wall clock was set.
_BELIEVED_AFTER_MS = 70_000


class World:
    """See the module. Raises :class:`Violation` from whatever finds one."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"world {seed}")
        capacity = self.rng.choice([1 << 40, 1 << 40, 4 << 20])
        self.machine = Machine(random.Random(self.rng.getrandbits(64)), capacity)
        self.clients = [SimulatedClient(self, number) for number in range(CLIENTS + 1)]
        self.messages = Ledger()
        self.topics: dict[str, TopicModel] = {}
        letters = self.topics[DEAD_LETTERS] = TopicModel(DEAD_LETTERS)
        letters.dead_letters = True
        self._names: dict[int, int] = {}
        self._suspects: list[tuple[ConsumerModel, ConsumerModel, Message]] = []
        self._digest = hashlib.sha256()
        self.lines: list[str] = []
        self.keep_lines = False
        self.tenants: set[str] = set()
        self.namespaces: set[str] = set()
        #: Met while the broker was writing.
        self.found: list[Violation] = []
        self.crashes = 0
        #: Whether a dead letter may have been doubled.
        self.damages: list[str] = []
        self.stepped = False
        self._power_cut = False
        #: What the wall clock was ahead by of late, and until when (virtual ms) the broker may still go by that.
        self._offsets: list[tuple[int, int]] = []
        self._ledgers_damaged: set[int] = set()

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
                consumer.letters.append(publishing.properties_of(frame))
            except DecodeError:
                # What cannot be opened goes as it came.
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
        self._guarded(self.start)
        for operation in operations:
            self.trace(f"> {operation}")
            self._guarded(lambda operation=operation: self._carry_out(operation))  # type: ignore[misc]
            self.note_expired()

    def _carry_out(self, operation: Operation) -> None:
        rng = random.Random(operation.seed)
        client = self.clients[operation.client]
        situation = SITUATIONS.get(operation.kind)
        if situation is not None:
            situation(self, client, operation.topic, rng)
        else:
            getattr(self, "do_" + operation.kind)(client, operation.topic, rng)
        if operation.then_ms >= 0:
            self.advance(operation.then_ms)
        else:
            for _ in range(-operation.then_ms):
                self.machine.loop.step()
                self.check_store()

    def _guarded(self, what: Callable[[], None]) -> None:
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

    def check_store(self) -> None:
        """A store that has failed ends its process: a supervisor starts another one."""
        if self.machine.program is None or self.machine.disk.crashed:
            return
        failure = getattr(self.machine.program.store, "failure", None)
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
                if not self.machine.disk.failed and not self.machine.disk.capacity < 1 << 40:
                    raise Violation("the broker does not start", f"{error}") from error
                if attempt == _STARTS - 1:
                    raise Violation("the broker does not start", f"{error}") from error
                self.machine.disk.heal()
                self.machine.crash(power_lost=False)
        self.check_promised()

    def recover(self) -> None:
        """Crash, now or where it happened, and start again."""
        self.crashes += 1
        self.trace("crash")
        self._suspects.clear()
        for client in self.clients:
            client.ended()
        self._check_escaped()
        self.machine.crash(power_lost=self._power_cut)
        for _ in range(3):
            if self.rng.random() < 0.2:
                self.machine.disk.crash_at = self.machine.disk.steps + self.rng.randrange(20)
            try:
                self.start()
            except Crashed:
                self.machine.crash(power_lost=self._power_cut)
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

    def check_promised(self) -> None:
        """Everything confirmed is there: tenants, namespaces, topics, subscriptions, policies."""
        broker = self.machine.broker
        for tenant in self.tenants:
            if tenant not in broker.tenants:
                raise Violation("confirmed and gone", f"tenant {tenant}")
        for namespace in self.namespaces:
            if namespace not in broker.namespaces:
                raise Violation("confirmed and gone", f"namespace {namespace}")
        for topic in self.topics.values():
            if not topic.confirmed or topic.unknown:
                continue
            found = broker.topics.get(topic.name)
            if not isinstance(found, Topic):
                raise Violation("confirmed and gone", f"topic {topic.name}")
            for subscription in topic.owed():
                if subscription.name not in found.subscriptions:
                    raise Violation("confirmed and gone", f"subscription {subscription!r}")
            if found.policies not in topic.policies:
                raise Violation("confirmed and gone", f"policies of {topic.name}: {found.policies}")

    # -- what is known -------------------------------------------------------------------------------------------

    def topic(self, number: int) -> TopicModel:
        """Return the topic that a number stands for now."""
        name = f"persistent://public/default/t{number}"
        if number in self._names:
            name += f"-{self._names[number]}"
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
            self._names[number] = self._names.get(number, 0) + 1

    @property
    def store(self) -> LedgerStore:
        """The store of the broker that runs."""
        assert self.machine.program is not None
        return self.machine.program.store

    def stored(self, topic: TopicModel) -> Topic | None:
        found = self.machine.broker.topics.get(topic.name)
        return found if isinstance(found, Topic) else None

    def note_expired(self) -> None:
        """Note which messages may have expired by now."""
        now = self.machine.clock.now_ms()
        for topic in self.topics.values():
            for message in topic.messages:
                if topic.evicts:
                    message.may_have_expired = True
                ttl = message.ttl_ms if topic.ttl_ms < 0 else topic.ttl_ms
                if 0 <= message.ttl_ms < ttl:
                    ttl = message.ttl_ms
                # By the wall clock, or by the time that really passed.
                age = max(now - message.earliest_ms, self.machine.clock.passed_ms - message.passed_ms)
                if ttl >= 0 and message.times_sent and age >= ttl - 1:
                    message.may_have_expired = True

    def earliest_ms(self) -> int:
        """Return the earliest wall-clock time that the broker may take it to be now.

        A clock that is set is believed a minute later, or at the next start: then what was stamped by the old one
        ages by the difference.
        """
        clock = self.machine.clock
        self._offsets = [(until, offset) for until, offset in self._offsets if until >= clock.passed_ms]
        return clock.passed_ms + min([clock.offset_ms, *(offset for _, offset in self._offsets)])

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

        self.machine.broker.store.after_commit(done)
        return True

    # -- clients -------------------------------------------------------------------------------------------------

    def do_produce(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        if client.connect():
            self.publish(client, self.topic(number), rng, rng.choice([1, 2, 3, 6, 15]))

    def publish(self, client: SimulatedClient, topic: TopicModel, rng: random.Random, count: int) -> None:
        """Send so many entries of all sorts."""
        producer = client.open_producer(topic)
        for _ in range(count):
            message = publishing.make_message(
                len(self.messages.messages) + 1,
                topic,
                producer.name,
                producer.next_sequence,
                self.machine.clock.now_ms(),
                rng,
            )
            producer.next_sequence += message.count
            self.messages.add(message)
            client.produce(producer, message)

    def do_subscribe(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        if not client.connect():
            return
        kind = rng.choices([EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED], [3, 4, 2, 3])[0]
        self.subscribe(client, self.topic(number), rng.choice(SUBSCRIPTIONS), kind, rng.choice([0, 5, 20, 1000]))

    def do_read(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        """A reader, sometimes with the name of a durable subscription."""
        if not client.connect():
            return
        name = rng.choice([f"reader-{client.number}", *SUBSCRIPTIONS])
        topic = self.topic(number)
        where = rng.choice(["earliest", "latest"])
        self.subscribe(client, topic, name, EXCLUSIVE, rng.choice([5, 1000]), durable=False, where=where)

    def subscribe(
        self,
        client: SimulatedClient,
        topic: TopicModel,
        name: str,
        kind: int,
        permits: int,
        *,
        durable: bool = True,
        where: str = "latest",
    ) -> ConsumerModel:
        """Send SUBSCRIBE, and FLOW once it is answered."""
        if durable:
            subscription = topic.subscriptions.get(name)
            if subscription is None:
                subscription = topic.subscriptions[name] = SubscriptionModel(topic, name, durable=True)
        else:
            subscription = SubscriptionModel(topic, name, durable=False)
        consumer = ConsumerModel(client.next_id(), client.number, subscription, kind)
        client.consumers[consumer.number] = consumer
        subscription.consumers.append(consumer)
        command = wire.BaseCommand(type=wire.BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic = topic.name
        request.subscription = name
        request.subType = kind  # type: ignore[assignment]
        request.consumer_id = consumer.number
        request.consumer_name = f"c{client.number}-{consumer.number}"
        request.request_id = client.next_id()
        request.durable = durable
        if where == "earliest":
            request.initialPosition = wire.CommandSubscribe.Earliest
            if not durable:
                request.start_message_id.ledgerId = _NOWHERE
                request.start_message_id.entryId = _NOWHERE

        def answered(answer: wire.BaseCommand | None) -> None:
            if answer is None or answer.type != wire.BaseCommand.SUCCESS:
                client.consumers.pop(consumer.number, None)
                consumer.end()
                return
            topic.confirmed = True
            consumer.open = True
            if not subscription.confirmed:
                subscription.confirmed = True
                subscription.since = len(self.messages.messages)
            if permits:
                self.flow(client, consumer, permits)

        client.request(command, answered)
        return consumer

    def flow(self, client: SimulatedClient, consumer: ConsumerModel, permits: int) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.FLOW)
        command.flow.consumer_id = consumer.number
        command.flow.messagePermits = permits
        client.send(command)

    def _consumer(self, client: SimulatedClient, rng: random.Random) -> ConsumerModel | None:
        consumers = [consumer for consumer in client.consumers.values() if consumer.open and not consumer.closed]
        if not client.connected or not consumers:
            return None
        return rng.choice(consumers)

    def do_flow(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        consumer = self._consumer(client, rng)
        if consumer is not None:
            self.flow(client, consumer, rng.choice([1, 3, 50]))

    def do_acknowledge(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        consumer = self._consumer(client, rng)
        if consumer is None:
            return
        held = [each for each in consumer.inbox if each[0].number in consumer.hand]
        if not held:
            return
        receipt = rng.random() < 0.3
        cumulative = consumer.kind in (EXCLUSIVE, FAILOVER) and rng.random() < 0.4
        if cumulative:
            self.acknowledge_up_to(client, consumer, rng.choice(held), receipt)
            return
        some = held if rng.random() < 0.4 else rng.sample(held, rng.randint(1, min(5, len(held))))
        self.acknowledge(
            client,
            consumer,
            [(*each, each[2] if rng.random() < 0.8 else each[2] & rng.getrandbits(20)) for each in some],
            receipt,
        )

    def acknowledge(
        self,
        client: SimulatedClient,
        consumer: ConsumerModel,
        some: list[tuple[Message, Position, int, int]],
        receipt: bool,
    ) -> None:
        """Acknowledge of each message some bits."""
        subscription = consumer.subscription
        command = wire.BaseCommand(type=wire.BaseCommand.ACK)
        request = command.ack
        request.consumer_id = consumer.number
        request.ack_type = wire.CommandAck.Individual
        given: list[tuple[int, int]] = []
        for message, position, _, bits in some:
            if not bits:
                continue
            one = request.message_id.add()
            one.ledgerId, one.entryId = position
            done = subscription.maybe_acked.get(message.number, 0) | bits
            subscription.maybe_acked[message.number] = done
            if message.count > 1 and done != message.whole:
                left = message.whole & ~done
                one.ack_set.extend(publishing.words_of(left))
                given.append((message.number, bits))
            else:
                given.append((message.number, message.whole))
            left = consumer.hand.get(message.number, 0) & ~bits
            if left:
                consumer.hand[message.number] = left
            else:
                consumer.hand.pop(message.number, None)
        if not given:
            return
        generation = subscription.generation

        def answered(answer: wire.BaseCommand | None) -> None:
            if answer is None or answer.ackResponse.HasField("error") or generation != subscription.generation:
                return
            for number, bits in given:
                subscription.surely_acked[number] = subscription.surely_acked.get(number, 0) | bits

        self._send_ack(client, command, receipt, answered)

    def acknowledge_up_to(
        self, client: SimulatedClient, consumer: ConsumerModel, up_to: tuple[Message, Position, int], receipt: bool
    ) -> None:
        subscription = consumer.subscription
        command = wire.BaseCommand(type=wire.BaseCommand.ACK)
        request = command.ack
        request.consumer_id = consumer.number
        request.ack_type = wire.CommandAck.Cumulative
        position = up_to[1]
        one = request.message_id.add()
        one.ledgerId, one.entryId = position
        subscription.maybe_up_to = max(subscription.maybe_up_to, position)
        for message, at, _ in consumer.inbox:
            if at <= position:
                consumer.hand.pop(message.number, None)
        generation = subscription.generation

        def answered(answer: wire.BaseCommand | None) -> None:
            if answer is None or answer.ackResponse.HasField("error") or generation != subscription.generation:
                return
            subscription.surely_up_to = max(subscription.surely_up_to, position)

        self._send_ack(client, command, receipt, answered)

    def _send_ack(
        self,
        client: SimulatedClient,
        command: wire.BaseCommand,
        receipt: bool,
        answered: Callable[[wire.BaseCommand | None], None],
    ) -> None:
        if receipt:
            command.ack.request_id = client.next_id()
            client.request(command, answered)
        else:
            client.send(command)

    def do_negative_acknowledge(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        consumer = self._consumer(client, rng)
        if consumer is None:
            return
        command = wire.BaseCommand(type=wire.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = command.redeliverUnacknowledgedMessages
        request.consumer_id = consumer.number
        if consumer.kind in (EXCLUSIVE, FAILOVER):
            consumer.epoch += 1
            request.consumer_epoch = consumer.epoch
            consumer.reset()
        else:
            held = [each for each in consumer.inbox if each[0].number in consumer.hand]
            if not held:
                return
            for message, position, _ in rng.sample(held, rng.randint(1, len(held))):
                one = request.message_ids.add()
                one.ledgerId, one.entryId = position
                consumer.given_back.add(message.number)
        client.send(command)

    def do_close_consumer(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        consumer = self._consumer(client, rng)
        if consumer is None:
            return
        command = wire.BaseCommand(type=wire.BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.number
        command.close_consumer.request_id = client.next_id()
        client.send(command)
        del client.consumers[consumer.number]
        consumer.end()

    def do_seek(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        consumer = self._consumer(client, rng)
        if consumer is None:
            return
        command = wire.BaseCommand(type=wire.BaseCommand.SEEK)
        command.seek.consumer_id = consumer.number
        command.seek.request_id = client.next_id()
        place = rng.randrange(3)
        if place == 0:
            command.seek.message_publish_time = self.machine.clock.now_ms() - rng.choice([0, 100, 5000])
        else:
            known = [message for message in consumer.subscription.topic.messages if message.positions]
            position = (_NOWHERE, _NOWHERE)
            if known and place == 1:
                position = cast(Position, rng.choice(known).position)
            command.seek.message_id.ledgerId, command.seek.message_id.entryId = position
        subscription = consumer.subscription
        subscription.moved_by_hand()
        client.request(command, lambda answer: subscription.moved_by_hand())

    def do_cut(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        if client.connected and client.connection is not None:
            client.connection.cut()
            client.ended()

    def do_settle(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self.advance(rng.choice([10, 300, 2500]))

    # -- operators -----------------------------------------------------------------------------------------------

    def do_set_policies(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        topic = self.topic(number)
        if self.stored(topic) is None:
            return
        policies = self._policies(topic, rng)
        self.set_policies(topic, policies)

    def _policies(self, topic: TopicModel, rng: random.Random) -> Policies:
        policies = Policies()
        if rng.random() < 0.5:
            policies.retention = rng.choice(
                [Retention(0, 0), Retention(-1, -1), Retention(2000, -1), Retention(-1, 4000)]
            )
        if rng.random() < 0.3:
            policies.message_ttl_ms = rng.choice([300, 2000, 20_000])
        if rng.random() < 0.3:
            policies.deduplication = rng.random() < 0.6
        if rng.random() < 0.2:
            policies.delayed_delivery = rng.random() < 0.3
        if rng.random() < 0.2:
            limit = rng.choice([2000, 8000])
            policies.backlog_quota_size = BacklogQuota(
                limit, rng.choice(["producer_exception", "producer_request_hold", "consumer_backlog_eviction"])
            )
            if policies.retention is not None and 0 < policies.retention.size_bytes < limit:
                policies.retention = None
        if rng.random() < 0.3:
            policies.dead_letter_topic = DEAD_LETTERS
        if rng.random() < 0.3:
            policies.ttl_in_batches = True
        return policies

    def set_policies(self, topic: TopicModel, policies: Policies) -> None:
        """Set policies, noting what they let go."""
        self.note_expired()
        topic.policies.append(policies)
        evicts = _evicts(policies)
        topic.evicts = topic.evicts or evicts
        ttl = policies.message_ttl_ms
        if ttl is not None and (topic.ttl_ms < 0 or ttl < topic.ttl_ms):
            topic.ttl_ms = ttl
        topic.deduplicated = topic.deduplicated and policies.deduplication is True

        def confirmed() -> None:
            if policies not in topic.policies:
                return
            del topic.policies[: topic.policies.index(policies)]
            self.note_expired()
            topic.ttl_ms = -1 if ttl is None else ttl
            topic.evicts = evicts
            if policies.deduplication and not topic.messages:
                topic.deduplicated = True

        name = TopicName.parse(topic.name)
        if not self.confirm(lambda: self.machine.broker.set_topic_policies(name, policies), confirmed):
            topic.policies.remove(policies)

    def _some_subscription(self, number: int, rng: random.Random) -> SubscriptionModel | None:
        topic = self.topic(number)
        stored = self.stored(topic)
        if stored is None:
            return None
        known = [each for each in topic.owed() if each.name in stored.subscriptions]
        return rng.choice(known) if known else None

    def do_skip(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self._by_hand(number, rng, lambda subscription, done: subscription.skip(rng.randint(1, 20), done))

    def do_clear(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self._by_hand(number, rng, lambda subscription, done: subscription.clear_backlog(done))

    def do_expire(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self._by_hand(
            number, rng, lambda subscription, done: subscription.expire_older_than(rng.choice([0, 500]), done)
        )

    def _by_hand(self, number: int, rng: random.Random, what: Callable[..., None]) -> None:
        model = self._some_subscription(number, rng)
        if model is None:
            return
        stored = self.stored(model.topic)
        assert stored is not None
        model.excuse_all()
        what(stored.subscriptions[model.name], lambda error: self.trace(f"by hand: {error}"))

    def do_unsubscribe(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        model = self._some_subscription(number, rng)
        if model is None:
            return
        stored = self.stored(model.topic)
        assert stored is not None
        model.unknown = True
        outcome: list[object] = []
        try:
            stored.delete_subscription(model.name, force=True, done=outcome.append)
        except BrokerError as error:
            outcome.append(error)
        topic = model.topic
        self._await(outcome)
        if outcome == [None]:
            for consumer in list(model.consumers):
                consumer.end()
            if topic.subscriptions.get(model.name) is model:
                del topic.subscriptions[model.name]

    def _await(self, outcome: list[object]) -> None:
        for _ in range(30):
            if outcome:
                return
            self.advance(50)

    def do_delete_topic(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        topic = self.topic(number)
        if self.stored(topic) is None or not topic.confirmed:
            return
        for one in self.clients:
            # What is on its way to the old topic does not reach the next one of its name.
            self.do_cut(one, number, rng)
        self.give_up(number, topic, gone=False)
        del self._names[number]
        outcome: list[object] = []
        name = TopicName.parse(topic.name)
        self.topics.pop(topic.name)
        unused = f"{topic.name} deleted {len(self.messages.messages)}"
        self.topics[unused] = topic
        gone = False
        try:
            self.machine.broker.delete_topic(name, force=True)
            self.machine.broker.store.after_commit(outcome.append)
            # Nobody uses the name until it is known what became of it.
            self._await(outcome)
            gone = outcome == [None]
        finally:
            if not gone:
                self._names[number] = self._names.get(number, 0) + 1 + len(self.messages.messages)
            else:
                del self.topics[unused]

    def do_unload(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        topic = self.topic(number)
        if self.stored(topic) is not None:
            self.machine.broker.unload_topic(TopicName.parse(topic.name))

    def do_compact(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        stored = self.stored(self.topic(number))
        if stored is not None and stored.compaction.status()[0] != "RUNNING":
            stored.compaction.start()

    def do_create_namespace(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        tenant = f"tenant{rng.randrange(100)}"
        namespace = f"{tenant}/n{rng.randrange(3)}"
        broker = self.machine.broker
        if tenant not in broker.tenants:
            self.confirm(
                lambda: broker.create_tenant(tenant, TenantRecord(allowed_clusters=["standalone"])),
                lambda: self.tenants.add(tenant),
            )
        if namespace not in broker.namespaces:
            self.confirm(
                lambda: broker.create_namespace(namespace, NamespaceRecord()), lambda: self.namespaces.add(namespace)
            )

    # -- trouble -------------------------------------------------------------------------------------------------

    def do_crash(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self._power_cut = False
        self.machine.disk.crash_at = self.machine.disk.steps + rng.choice([1, 1, 2, 4, 8, 15])
        if rng.random() < 0.4:
            raise Crashed

    def do_power_cut(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self._power_cut = True
        self.machine.disk.crash_at = self.machine.disk.steps + rng.choice([1, 1, 2, 4, 8, 15])
        if rng.random() < 0.4:
            raise Crashed

    def do_restart(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self.stop()
        self.start()

    def do_disk_full(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        within = rng.choice(["", "metadata", "segments"])
        self.machine.disk.fail(frozenset({"commit"}), errno.ENOSPC, rng.choice([1, 2, 5]), within)

    def do_write_errors(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        within = rng.choice(["", "metadata", "segments"])
        steps = rng.choice([frozenset({"commit"}), frozenset({"sync_directory"}), frozenset({"open"}), WRITES])
        self.machine.disk.fail(steps, errno.EIO, rng.choice([1, 1, 3]), within)

    def do_read_errors(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self.machine.disk.fail(frozenset({"view"}), errno.EIO, rng.choice([1, 2, 5]), "segments")

    def do_stall(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self.machine.scheduler.stall(rng.choice([5, 60, 300]))

    def do_wall_clock(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        hour = 3_600_000
        normal = 1_700_000_000_000
        away = self.machine.clock.offset_ms != normal
        self.set_wall_clock(normal if away else normal + rng.choice([-hour, hour, 365 * 24 * hour]))

    def set_wall_clock(self, offset_ms: int) -> None:
        """Set the wall clock: so far (ms) it is ahead of virtual time from now on."""
        self.note_expired()
        clock = self.machine.clock
        self.stepped = True
        self._offsets.append((clock.passed_ms + _BELIEVED_AFTER_MS, clock.offset_ms))
        clock.offset_ms = offset_ms
        self.note_expired()

    def do_stop_reading(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        if client.connected and client.connection is not None:
            client.connection.reads = False

    def do_read_on(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        if client.connected:
            client.read_on()

    def do_go_silent(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        """The client's machine is gone: after the keep-alive the broker must have noticed."""
        connection = client.connection
        if connection is None or connection.lost:
            return
        connection.silent = True
        self.advance(4 * 30_000)
        if not connection.lost:
            raise Violation("a silent peer stays", f"client {client.number} said nothing for 120 s")

    def do_stranger(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        publishing.stranger(self, rng)

    def do_hostile_send(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        if not client.connect():
            return
        topic = self.topic(number)
        producer = client.open_producer(topic)
        message = publishing.hostile_message(
            len(self.messages.messages) + 1,
            topic,
            producer.name,
            producer.next_sequence,
            self.machine.clock.now_ms(),
            rng,
        )
        producer.next_sequence += message.count
        self.messages.add(message)
        client.produce(producer, message)

    def do_hostile_acknowledge(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        consumer = self._consumer(client, rng)
        if consumer is None:
            return
        command = wire.BaseCommand(type=wire.BaseCommand.ACK)
        request = command.ack
        request.consumer_id = consumer.number
        request.ack_type = rng.choice([wire.CommandAck.Individual, wire.CommandAck.Cumulative])
        one = request.message_id.add()
        one.ledgerId, one.entryId = rng.choice([(0, 0), (1, _NOWHERE), (1 << 62, 3), (1, 1 << 40)])
        if rng.random() < 0.5:
            one.ack_set.extend([-1] * rng.choice([1, 3, 2000]))
        if rng.random() < 0.5:
            request.request_id = client.next_id()
        if request.ack_type == wire.CommandAck.Cumulative:
            # It may be after everything there is.
            consumer.subscription.excuse_all()
        client.send(command)

    def do_poison(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        publishing.smuggle(self, self.topic(number), rng)

    def do_oversized_names(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        name = "x" * rng.choice([300, 600, 2000])
        broker = self.machine.broker
        if rng.random() < 0.6:
            self.confirm(
                lambda: broker.create_tenant(name, TenantRecord(allowed_clusters=["standalone"])),
                lambda: self.tenants.add(name),
            )
        elif client.connect():
            topic = TopicModel(f"persistent://public/default/{name}")
            self.subscribe(client, topic, rng.choice(["s", name]), SHARED, 1)

    # -- damage --------------------------------------------------------------------------------------------------

    def do_flip_bit(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        self.flip_bit("/segments/")

    def flip_bit(self, within: str, prefix: bytes = b"") -> None:
        """Flip a bit of a stored value; see :meth:`.SimulatedDisk.flip_bit`."""
        flipped = self.machine.disk.flip_bit(within, prefix)
        if flipped is not None:
            self.damages.append(flipped)
            self.damage(int(flipped.split()[1][:16], 16))

    def damage(self, ledger_id: int) -> None:
        """Claim nothing of the messages of a ledger: some of them cannot be read any more."""
        self._ledgers_damaged.add(ledger_id)
        self.note_damaged()

    def note_damaged(self) -> None:
        for message in self.messages.messages:
            if not message.damaged and any(position[0] in self._ledgers_damaged for position in message.positions):
                message.damaged = True

    def do_lose_segment(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        """While the broker is stopped, somebody removes a segment."""
        self.stop()
        segments = [
            (path, file)
            for path, file in self.machine.disk.walk()
            if path.parent.name == "segments" and isinstance(file, EnvironmentFile) and file.current.values
        ]
        if segments:
            self.lose_segment(rng.choice(segments)[0])
        self.start()

    def lose_segment(self, path: Path) -> None:
        """Take a segment away, and claim nothing of what it held."""
        file = self.machine.disk._file(path)
        assert isinstance(file, EnvironmentFile)
        self.damages.append(path.name)
        for key in file.current.values:
            if len(key) == 16:
                self.damage(int.from_bytes(key[:8], "big"))
        self.machine.disk.lose(path)

    def do_lose_metadata(self, client: SimulatedClient, number: int, rng: random.Random) -> None:
        """While the broker is stopped, the metadata is missing: it must not start, nor take anything away."""
        self.stop()
        disk = self.machine.disk
        directory = disk._directory(DATA)
        lost = rng.choice(["metadata.lmdb", "FORMAT"])
        node = directory.names.get(lost)
        segments = {path: file for path, file in disk.walk() if path.parent.name == "segments"}
        if node is None or not any(
            isinstance(file, EnvironmentFile) and file.current.values for file in segments.values()
        ):
            self.start()
            return
        disk.lose(DATA / lost)
        try:
            self.machine.start()
        except DataDirError:
            self.machine.crash(power_lost=False)
        else:
            self.machine.loop.advance(5000)
            raise Violation("started without its metadata", f"{lost} was missing")
        left = {path for path, _ in self.machine.disk.walk()}
        missing = [
            path.name
            for path, file in segments.items()
            if path not in left and not isinstance(file, SmallFile) and path.suffix == ".lmdb"
        ]
        if missing:
            raise Violation("deleted because nobody claims it", f"{missing}")
        directory = self.machine.disk._directory(DATA)
        directory.names[lost] = node
        directory.sync()
        self.start()


def _evicts(policies: Policies) -> bool:
    quota = policies.backlog_quota_size
    return quota is not None and quota.policy == "consumer_backlog_eviction"
