"""``archive --follow``: topics into an archive as long as the job runs, by one driver.

A visit of a topic is a run of ``archive`` (:mod:`.archiving.topic_run`), with the same checkpoint and subscription, so
a job that is killed at any moment goes on as any other run does. :mod:`.archiving.following` says when each topic has
its turn. A topic that fails is named and does not stop the others; one that is deleted is named once, and visited again
if it is created again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyspark.sql import SparkSession

from heliograph_spark.plan.errors import JobError, PulsarSourceError
from heliograph_spark.plan.topics import find_topics, is_there
from heliograph_spark.run.connect import has_ended
from heliograph_spark.run.session import progress, reason, reason_of

from .archive import ArchiveResult, asked_of, checkpoint_of, target_of
from .archiving.following import Ending, Follower
from .archiving.options import ArchiveOptions, Following
from .archiving.topic_run import TopicRun
from .archiving.topic_states import TopicStates


def follow(
    spark: SparkSession,
    options: ArchiveOptions,
    following: Following,
    ending: Ending,
    states: TopicStates,
    now: Callable[[], float] = time.time,
) -> ArchiveResult:
    """Archive what is new in each topic, again and again, until it is asked to end. ``now`` is in s since 1970.

    A pattern may fit no topic yet; topics that are named must be there at the beginning. Raises :class:`OptionError`
    and, for what concerns all topics at the beginning, :class:`PulsarSourceError`, as ``archive`` does;
    :class:`JobError` if Spark ends.
    """
    return _FollowedArchive(spark, options, following, ending, states, now).run()


class _FollowedArchive:
    def __init__(
        self,
        spark: SparkSession,
        options: ArchiveOptions,
        following: Following,
        ending: Ending,
        states: TopicStates,
        now: Callable[[], float],
    ) -> None:
        self._spark = spark
        self._options = options
        self._following = following
        self._ending = ending
        self._states = states
        self._now = now
        self._asked = asked_of(options)
        self._found: Collection[str] = find_topics(self._asked)
        self._target = target_of(spark, options)
        self._lock = threading.Lock()
        self._total = ArchiveResult()

    def run(self) -> ArchiveResult:
        began = time.monotonic()
        progress(f"following {len(self._found)} topics")
        parallel, interval_s = self._following.parallel, self._following.interval_ms / 1000
        follower = Follower(
            self._find, self._visit, self._check_spark, parallel=parallel, interval_s=interval_s, ending=self._ending
        )
        with ThreadPoolExecutor(parallel, "visit") as pool:
            follower.run(pool)
        states = self._states.all()
        if failing := [topic for topic, state in states.items() if state.failing]:
            progress(f"{len(failing)} topics failed in their last visit: {', '.join(failing[:5])}")
        return replace(
            self._total,
            topics=len(states),
            lag=sum(state.lag or 0 for state in states.values()),
            seconds=round(time.monotonic() - began, 3),
        )

    def _find(self) -> Collection[str] | None:
        if self._options.pattern is None:
            # A topic that is deleted and created again is visited again.
            return self._found
        try:
            found = find_topics(self._asked)
        except PulsarSourceError as error:
            progress(f"the topics that fit {self._options.pattern!r} are not known: {reason(error)}")
            return None
        # All that were ever visited: a visit that was under way may have failed after its topic was missed.
        for topic in self._states.all().keys() - set(found):
            self._deleted(topic)
        return found

    def _deleted(self, topic: str) -> None:
        if self._states.deleted(topic):
            progress(f"{topic}: the topic was deleted; what is archived of it stays")

    def _visit(self, topic: str) -> bool:
        at_s = self._now()
        run: TopicRun | None = None
        try:
            # A subscription to a topic that is not there would create it.
            if not is_there(self._asked.connection, topic):
                self._deleted(topic)
                return True
            checkpoint = checkpoint_of(self._spark, self._options, self._target, topic)
            run = TopicRun(
                self._spark,
                self._options,
                topic,
                self._target.topic(topic),
                checkpoint,
                self._now,
                self._ending.requested,
            )
            run.go()
            run.measure()
        except Exception as error:  # Whatever one topic fails with, the others go on.
            self._check_spark()
            progress(reason_of(topic, error))
            self._states.failed(topic, self._lag_of(topic, run))
            return False
        finally:
            if run is not None:
                self._add(run)
        if run.ended:
            self._states.ended(topic, run.lag)
        else:
            self._states.succeeded(topic, at_s, run.lag)
        return True

    def _lag_of(self, topic: str, run: TopicRun | None) -> int | None:
        """Return the lag after a visit that failed; None if it cannot be measured."""
        if run is None:
            return None
        try:
            run.measure()
        except Exception as error:  # As above: the other topics go on.
            progress(f"{reason_of(topic, error)} (the lag is not known)")
            return None
        return run.lag

    def _add(self, run: TopicRun) -> None:
        with self._lock:
            self._total = self._total.with_run(run)

    def _check_spark(self) -> None:
        """Raise :class:`JobError` if Spark has ended: no topic would succeed any more."""
        if has_ended(self._spark):
            raise JobError("Spark has ended")
