"""Sends entries to one partition in order, over whatever happens to the connection."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import EntryError, read_entry

from heliograph_spark.plan.errors import PulsarSourceError

from .brokers import FIRST_PAUSE_S, LONGEST_PAUSE_S, Brokers, tried
from .failures import NoAnswer, NotStored, Passing, Refused, refusal
from .frames import Frames
from .link import Link
from .outbox import Outbox, Receipt
from .receipt_deadline import ReceiptDeadline
from .window import Window

#: Ids of producers are unique in this process, so frames are right for any connection that they are sent over.
_producer_ids = itertools.count(1)
#: Time (s) that each wait for answers takes at most.
_WAITS_S = 0.1

#: Called for each frame with a receipt: the number of its messages, and whether the broker dropped it as a duplicate.
Received = Callable[[int, bool], None]


def ignore_receipt(messages: int, dropped: bool) -> None:
    """Take no note of a receipt."""


class NameBusy(PulsarSourceError):
    """Another producer of this name is connected."""


class Producer:
    """A producer of one partition, for one thread at a time.

    Frames that are sent have no receipt at first and count in ``window``, which waits for room. Wherever a broker or a
    connection goes, the producer looks the topic up again, registers with the same name and sends what has no receipt
    again, in order. A broker that gives no receipt for ``receipt_within_s`` seconds ends it. Each method raises
    :class:`PulsarSourceError`, naming the topic, for that and for an error of the broker that does not pass; such a
    producer is of no more use.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        window: Window,
        *,
        name: str = "",
        schema: wire.Schema | None = None,
        receipt_within_s: float = 30.0,
        received: Received = ignore_receipt,
    ) -> None:
        self.topic = topic
        self.id = next(_producer_ids)
        #: The name, which the broker chooses if there was none.
        self.name = name
        self.schema_version = b""
        #: The last sequence id under the name when the producer was opened; -1 if there was none.
        self.last_sequence_id = -1
        self.max_message_size = 0
        #: The messages that have no receipt.
        self.pending_messages = 0
        self._brokers = brokers
        self._window = window
        self._schema = schema
        self._named = bool(name)
        self._deadline = ReceiptDeadline(receipt_within_s)
        self._received = received
        self._pending: deque[Frames] = deque()
        #: The connection on which the producer is registered, and that to which its answers come, also late ones.
        self._link: Link | None = None
        self._attached: Link | None = None
        self._outbox = Outbox()
        #: The broker that was named by the one that closed the producer.
        self._assigned = ""
        self._epoch = 0
        #: What has gone wrong since the last receipt.
        self._trouble: PulsarSourceError | None = None
        self._pause_s = FIRST_PAUSE_S
        self._again_at = 0.0
        self._last_receipt: Receipt = (-1, -1, -1)
        #: Sequence ids of frames that were sent once, and of which the broker has shown that it did not store them.
        self._not_stored: set[int] = set()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    # Opening and closing

    def open(self) -> None:
        """Register with the broker. Raises :class:`NameBusy` if another producer has the name."""
        try:
            tried(self._register, time.monotonic() + self._brokers.answered_within_s)
        except BaseException:
            self._detach()
            raise

    def close(self) -> None:
        """Let others have the name; everything must have its receipt. The broker has closed it when this returns."""
        link, self._link = self._link, None
        # A connection that is gone leaves nothing open; a broker that does not answer notices it later.
        with contextlib.suppress(Passing):
            if link is not None and not self._outbox.closed:
                self._close_at(link)
        self._detach()

    def leave(self) -> None:
        """Give up what has no receipt, and let others have the name, without waiting for the broker."""
        link, self._link = self._link, None
        if link is not None:
            link.leave_producer(self.id)
        self._detach()
        for frames in self._pending:
            self._window.remove(self, frames.size, len(frames.ends) - frames.acknowledged)
        self._pending.clear()

    def _attach(self, link: Link) -> None:
        """Have the answers of this connection come to a new outbox."""
        self._take_receipts(self._outbox.take(), 0)
        self._detach()
        self._outbox, self._attached = Outbox(), link
        link.attach_producer(self.id, self._outbox)

    def _detach(self) -> None:
        link, self._attached = self._attached, None
        if link is not None:
            link.detach_producer(self.id)

    def _close_at(self, link: Link) -> None:
        body = wire.CommandCloseProducer(producer_id=self.id)
        link.request("close_producer", body, f"closing the producer of {self.topic}", self._answered_within_s)

    @property
    def _answered_within_s(self) -> float:
        """The time (s) in which a broker has to answer a request: no longer than what is pending may wait."""
        return min(self._brokers.answered_within_s, self._deadline.left_s if self._pending else math.inf)

    def _register(self) -> None:
        """Register once, and send what is pending. Raises what may pass as :class:`Passing`."""
        what = f"writing to {self.topic}"
        link = self._brokers.owner(self.topic, self._assigned)
        body = wire.CommandProducer(
            topic=self.topic, producer_id=self.id, epoch=self._epoch, user_provided_producer_name=self._named
        )
        if self.name:
            body.producer_name = self.name
        if self._schema is not None:
            body.schema.CopyFrom(self._schema)
        self._attach(link)
        try:
            answer = link.request("producer", body, what, self._answered_within_s)
        except Refused as error:
            if error.code == wire.ProducerBusy:
                raise NameBusy(str(error)) from error
            raise
        except NoAnswer as error:
            link.leave_producer(self.id)
            raise NoAnswer(
                f"{error}; a broker holds producers that come back so while its disk is full, and a topic when its"
                " backlog quota is reached"
            ) from error
        except BaseException:
            link.leave_producer(self.id)
            raise
        self._link, self._assigned = link, ""
        self.max_message_size = link.max_message_size
        self.schema_version = answer.schema_version
        if not self._epoch:
            self.name, self.last_sequence_id = answer.producer_name, answer.last_sequence_id
        self._epoch += 1
        # Those that were late.
        self._take_receipts(self._outbox.take(), 0)
        if self._pending:
            self._window.add(self, 0, self._pending[0].rewind())
        for frames in self._pending:
            self._write(frames)

    # Sending

    def send(self, frames: Frames) -> None:
        """Send frames, and wait for room in the window if there is none after them."""
        self._deadline.attend()
        frames.since = time.monotonic()
        if not self._pending:
            self._deadline.begin()
        self._pending.append(frames)
        self.pending_messages += sum(frames.messages)
        self._window.add(self, frames.size, len(frames.ends))
        self._write(frames)
        if self._outbox.answers or self._outbox.closed:
            self._poll()
        self._deadline.leave()
        self._window.make_room()

    def flush(self) -> None:
        """Wait until everything has its receipt."""
        while self._pending:
            self.wait()

    @property
    def waits_since(self) -> float:
        """Since when the oldest frame waits for its receipt (monotonic, s); there must be one."""
        return self._pending[0].since

    def wait(self) -> None:
        """Wait a moment for answers, and do what they ask for."""
        self._deadline.attend()
        link, outbox = self._link, self._outbox
        if link is not None and not outbox.answers and not outbox.closed:
            until = min(time.monotonic() + _WAITS_S, self._deadline.at)
            try:
                link.wait(lambda: outbox.answers or outbox.closed, until)
            except Passing as error:
                self._trouble = error
                outbox.closed = True
        elif link is None:
            time.sleep(max(0.0, min(self._again_at - time.monotonic(), _WAITS_S)))
        self._poll()
        self._deadline.leave()

    def poll(self) -> None:
        """Do what the answers that have come ask for, and connect again where the connection is gone."""
        self._deadline.attend()
        self._poll()
        self._deadline.leave()

    def _poll(self) -> None:
        if self._outbox.answers:
            answers = self._outbox.take()
            if self._link is not None:
                self._take(answers)
            else:
                self._take_receipts(answers, 0)
        if self._link is not None and self._outbox.closed:
            self._disconnected()
        if self._link is None and self._pending and time.monotonic() >= self._again_at:
            self._connect_again()
        self._check_time()

    def _write(self, frames: Frames) -> None:
        if self._link is None:
            return
        frames.tries += 1
        try:
            self._link.send(frames.unacknowledged(), self._deadline.left_s)
        except Passing as error:
            self._trouble = error
            self._outbox.closed = True

    def _check_time(self) -> None:
        if self._pending and self._deadline.passed:
            why = f"; {self._trouble}" if self._trouble is not None else ""
            raise PulsarSourceError(
                f"writing to {self.topic}: the broker has stored no message for {1000 * self._deadline.within_s:.0f} ms"
                f" (pulsar.producer.sendTimeoutMs){why}"
            )

    # Answers

    def _take(self, answers: list[Receipt | wire.CommandSendError]) -> None:
        at = 0
        while at < len(answers):
            at = self._take_receipts(answers, at)
            wrong = self._out_of_turn(answers[at:]) if at < len(answers) else None
            if wrong is not None:
                self._trouble = wrong
                self._begin_again(answers[at:])
                return
            at += 1

    def _take_receipts(self, answers: Sequence[Receipt | wire.CommandSendError], at: int) -> int:
        """Count the receipts that are those of the next frames; return the place of the first answer that is none."""
        while at < len(answers) and self._pending:
            frames = self._pending[0]
            count = self._matching(frames, answers, at)
            if not count:
                break
            at += count
            last = answers[at - 1]
            assert isinstance(last, tuple)
            self._last_receipt = last
            self._count(frames, count, dropped=last[1] < 0)
        return at

    def _matching(self, frames: Frames, answers: Sequence[Receipt | wire.CommandSendError], at: int) -> int:
        """Return how many answers are receipts of the next frames, of which all or none are stored."""
        first = answers[at]
        dropped = isinstance(first, tuple) and first[1] < 0
        last = self._last_receipt
        count = 0
        for sequence, answer in zip(frames.sequences[frames.acknowledged :], answers[at:], strict=False):
            if not isinstance(answer, tuple) or answer[0] != sequence or (answer[1] < 0) != dropped:
                break
            # The same receipt once more would pass for that of another chunk.
            if answer == last and not dropped:
                break
            last = answer
            count += 1
        return count

    def _count(self, frames: Frames, count: int, *, dropped: bool) -> None:
        """Count so many receipts of the first frames."""
        before = frames.acknowledged
        frames.acknowledged = before + count
        messages = sum(frames.messages[before : before + count])
        self.pending_messages -= messages
        self._deadline.begin()
        self._trouble, self._pause_s = None, FIRST_PAUSE_S
        whole = frames.acknowledged == len(frames.ends)
        if whole:
            self._pending.popleft()
        self._window.remove(self, frames.size if whole else 0, count)
        if dropped:
            self._check_dropped(frames, frames.sequences[before : before + count])
        self._received(messages, dropped)

    def _check_dropped(self, frames: Frames, sequences: Sequence[int]) -> None:
        """Raise :class:`PulsarSourceError` if the broker cannot have had one of the frames that it dropped.

        That is a :class:`NotStored` if it has later ones.
        """
        if frames.tries == 1 and sequences[-1] > self.last_sequence_id:
            raise PulsarSourceError(
                f"writing to {self.topic}: the broker has dropped a message as sent before, but had none of its"
                f" sequence id under {self.name}: another producer sends under this name"
            )
        if lost := self._not_stored.intersection(sequences):
            text = (
                f"writing to {self.topic}: the broker has not stored the message of sequence id {min(lost)} under"
                f" {self.name}, but later ones, and drops it now"
            )
            if not self._named:
                # A task that is repeated has another name.
                raise PulsarSourceError(text)
            raise NotStored(f"{text}; with another name (pulsar.producer.producerName) all are sent")

    @property
    def missing(self) -> str | None:
        """The reason why a task may not end now: a message is not stored, but perhaps later ones are. None without one.

        A task that is repeated under the same name would take the message for stored, as the broker drops it.
        """
        pending = (frames.sequences[frames.acknowledged :] for frames in self._pending)
        lost = self._not_stored.intersection(itertools.chain(*pending)) if self._named else None
        if not lost:
            return None
        return (
            f"writing to {self.topic}: the broker has not stored the message of sequence id {min(lost)} under"
            f" {self.name}, but perhaps later ones, and would drop it if it was sent again; with another name"
            " (pulsar.producer.producerName) all are sent"
        )

    def _out_of_turn(self, answers: Sequence[Receipt | wire.CommandSendError]) -> PulsarSourceError | None:
        """Return what is wrong with the first answer, not the receipt of the next frame; None for an earlier frame's.

        Raises :class:`PulsarSourceError` if sending again does not help.
        """
        answer = answers[0]
        if not isinstance(answer, tuple):
            return self._refusal(answer, answers)
        if not self._pending:
            return None
        expected = self._pending[0].sequences[self._pending[0].acknowledged]
        if answer[0] <= expected:
            return None
        return PulsarSourceError(
            f"the broker gave a receipt for the sequence id {answer[0]} when that of {expected} was to come"
        )

    def _refusal(
        self, error: wire.CommandSendError, answers: Sequence[Receipt | wire.CommandSendError]
    ) -> PulsarSourceError | None:
        """Return what is wrong if sending again may help. Raises :class:`PulsarSourceError` if it does not.

        ``answers`` are the error and what has come after it.
        """
        assert self._link is not None
        first = self._pending[0] if self._pending else None
        if first is None or error.sequence_id < first.sequences[first.acknowledged]:
            return None
        wrong = refusal(f"writing to {self.topic}: {self._link.address}", error.error, error.message)
        if error.error == wire.ChecksumError:
            self._check_own(error.sequence_id)
            self._note_not_stored(error.sequence_id)
        if not isinstance(wrong, Passing):
            if self._named and self.pending_messages > 1:
                # Frames behind it may be stored, which the answers up to that of the close show.
                self._begin_again(answers)
            raise wrong
        return wrong

    def _note_not_stored(self, sequence: int) -> None:
        """Note that a frame was not stored, unless it was sent before, here or by another task: it may be stored."""
        sent_before = sequence <= self.last_sequence_id
        if not sent_before and any(frames.tries == 1 and sequence in frames.sequences for frames in self._pending):
            self._not_stored.add(sequence)

    def _check_own(self, sequence: int) -> None:
        """Raise :class:`PulsarSourceError` if what is sent was damaged here; otherwise it was on its way."""
        for frames in self._pending:
            for frame in frames.of(sequence):
                command_size = int.from_bytes(frame[4:8], "big")
                try:
                    read_entry(frame[8 + command_size :])
                except EntryError as error:
                    raise PulsarSourceError(
                        f"writing to {self.topic}: the entry of sequence id {sequence} was damaged in memory: {error}"
                    ) from error

    # Its connection

    def _disconnected(self) -> None:
        """Note that the broker has closed the producer, or the connection is gone."""
        assert self._link is not None
        self._assigned = self._outbox.assigned
        self._link = None
        self._again_after_pause()

    def _begin_again(self, answers: Sequence[Receipt | wire.CommandSendError]) -> None:
        """Close the producer, to register it again and to send again what has no receipt.

        ``answers`` came after the receipts that were taken.
        """
        link, self._link = self._link, None
        assert link is not None
        try:
            self._close_at(link)
        except Passing as error:
            self._trouble = error
            if any(frames.in_chunks for frames in self._pending):
                # Receipts of chunks that still came over it would pass for those of the chunks that are sent again.
                link.close()
        # Receipts of the frames sent before may still have come. Errors of frames behind the first one add nothing.
        late = self._outbox.take()
        at = self._take_receipts(late, 0)
        self._note_passed_over([*answers, *late[at:]])
        self._again_after_pause()

    def _note_passed_over(self, answers: Sequence[Receipt | wire.CommandSendError]) -> None:
        """Note that the next frame was not stored, if one of these answers is the receipt of a later one."""
        if self._pending:
            expected = self._pending[0].sequences[self._pending[0].acknowledged]
            if any(isinstance(each, tuple) and each[0] > expected and each[1] >= 0 for each in answers):
                self._note_not_stored(expected)

    def _again_after_pause(self) -> None:
        self._again_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _connect_again(self) -> None:
        try:
            self._register()
        except (Passing, NameBusy) as error:
            self._assigned = ""
            self._trouble = error
            self._again_after_pause()


def leave_all(producers: Iterable[Producer], error: BaseException | None) -> None:
    """Leave the producers of a task that ends, with ``error`` if it does not end well.

    Raises :class:`NotStored` from an error with which the task would be repeated, if it would then lose a message.
    """
    left = list(producers)
    missing = next((why for each in left if (why := each.missing) is not None), None)
    for producer in left:
        producer.leave()
    if missing is not None and isinstance(error, Exception) and not isinstance(error, NotStored):
        raise NotStored(f"{missing} ({error})") from error
