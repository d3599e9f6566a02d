"""Code that all commands of ``heliograph-spark`` share: broker options, a Spark session, one result, one error."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import typer
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

import heliograph_spark
from heliograph_spark.plan.errors import JobError, OptionError, PulsarSourceError
from heliograph_spark.plan.extras import missing_package

from .connect import FAILURES, check_answers, is_connect, remote_of, set_own, shown, words_of_java
from .quoted_errors import quoted_error

#: Bytes that Kubernetes reads of a container's termination message.
RESULT_BYTES = 4096
#: What a job ends with: a reason in one line, and not a stack.
_FAILED: tuple[type[Exception], ...] = (*FAILURES, OSError)


class Result(Protocol):
    """The result of a job: a dataclass with ``job`` and, if it failed in part, the reason in ``error``."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def error(self) -> str | None: ...


#: What a command does with Spark.
Work = Callable[[SparkSession], Result]


@dataclass(frozen=True, slots=True)
class Broker:
    """A job's connection to the broker; ``options`` are the data source's, such as ``pulsar.client.authParams``."""

    service_url: str
    admin_url: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise :class:`OptionError` for options of topics, which would have no effect or name another target."""
        for name in self.options:
            if name.lower() in ("topic", "topics", "topicspattern"):
                raise OptionError(f"--option {name}: a job has options of its own for topics, such as --topic and --to")

    def source_options(self, **more: str | None) -> dict[str, str]:
        """Return the data source's options; an underscore in a name of ``more`` is a dot, and None leaves it out."""
        urls = {"service.url": self.service_url} | ({"admin.url": self.admin_url} if self.admin_url else {})
        given = {name.replace("_", "."): value for name, value in more.items() if value is not None}
        return {**urls, **self.options, **given}


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The Spark session of a command. Without ``master`` Spark's own settings say where it runs, else ``local[*]``."""

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str | None:
        """The master that is asked for, here or by the environment; None if Spark's own settings say it."""
        return self.master or os.environ.get("SPARK_MASTER")

    @property
    def remote(self) -> str | None:
        """The address of the server of Spark Connect; None without one. Raises :class:`JobError` for a master, too."""
        return remote_of(self.place, self.conf)


#: Settings that every session has. INT96, the default for times, has no statistics in a file, and other readers have
#: deprecated it.
_SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}

#: Settings of Hadoop, which Spark's server has for itself: a session's own would change nothing there.
_OF_HADOOP = "spark.hadoop."


def build_session(job: str, options: SessionOptions) -> SparkSession:
    """Return a session in UTC that knows ``format("pulsar")``.

    Raises :class:`JobError` if Spark does not start, or if the server of Spark Connect does not answer.
    """
    remote = options.remote
    spark = _started(job, options) if remote is None else _connected(remote, options.conf)
    heliograph_spark.register(spark)
    return spark


def _started(job: str, options: SessionOptions) -> SparkSession:
    """Return a session beside Spark's own driver; its workers run the Python that this runs."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = options.place
    if master is not None and master.startswith("local"):
        # No other machine is part of this Spark, so its UI is for this one.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(f"heliograph-spark {job}")
    settings = _SETTINGS | {"spark.ui.showConsoleProgress": "false"}
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for name, value in (settings | dict(options.conf)).items():
        builder = builder.config(name, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise JobError(
            "Spark did not start, and has written the reason; it needs Java 17 or later (JAVA_HOME or PATH), a master"
            " (--master) such as local[2], spark://HOST:PORT or k8s://URL, and memory (spark.driver.memory) such as 1g"
        ) from error
    except FAILURES as error:
        # A session of masters that do not answer is given up while it starts.
        if "stopped SparkContext" not in (words_of_java(error) or ""):
            raise
        raise JobError(
            f"Spark has ended while it started, and has written the reason; is its master there: {master}?"
        ) from error
    if is_connect(spark):
        spark.stop()
        raise JobError(
            "spark.api.mode connect, or a Spark that has it as its own, starts a server of Spark Connect in this"
            " process; valid: spark.api.mode=classic, or sc://HOST:PORT of a server as --master"
        )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _connected(remote: str, conf: Mapping[str, str]) -> SparkSession:
    """Return a session of Spark Connect with these settings."""
    check_answers(remote)
    spark: SparkSession = SparkSession.builder.remote(remote).getOrCreate()
    set_own(spark, {name: value for name, value in conf.items() if name.startswith(_OF_HADOOP)})
    for name, value in (_SETTINGS | dict(conf)).items():
        if name in ("spark.remote", "spark.api.mode") or name.startswith(_OF_HADOOP):
            continue
        try:
            spark.conf.set(name, value)
        except PySparkException as error:
            spark.stop()
            raise JobError(
                f"--conf {name}: a session of Spark Connect does not take it: {reason(error)}; valid: settings that may"
                " change while Spark runs; the others are the server's own"
            ) from error
    return spark


def pairs(option: str, given: Iterable[str] | None) -> dict[str, str]:
    """Read ``KEY=VALUE`` of a repeatable option. Raises :class:`typer.BadParameter`, naming the option."""
    found = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if not equals or not key:
            # The text may be a secret.
            raise typer.BadParameter("a value is not KEY=VALUE", param_hint=f"'{option}'")
        found[key] = value
    return found


def progress(text: str) -> None:
    """Print a job's progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def reason(error: BaseException) -> str:
    """Return the reason in one line: this package's message in any process, else the first line of Spark's."""
    text = words_of_java(error) or str(error)
    if not isinstance(error, PulsarSourceError):
        ours = quoted_error(text)
        text = ours.text if ours is not None and ours.text else text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def reason_of(what: str, error: BaseException) -> str:
    """Return the reason in one line that names ``what`` it is about."""
    found = reason(error)
    return found if what in found else f"{what}: {found}"


def first_of(failed: Sequence[str], of: str) -> str | None:
    """Return the first failure and how many more there are ``of`` what was worked on; None if nothing failed."""
    if not failed:
        return None
    return failed[0] if len(failed) == 1 else f"{failed[0]} (and {len(failed) - 1} more of {of})"


def run_job(job: str, session: SessionOptions, result_file: Path | None, prepare: Callable[[], Work]) -> None:
    """Do the work and print its result as the last line of stdout, and into ``result_file`` if there is one.

    ``prepare`` is called before Spark starts: it checks the options and returns the work. Ends the process with 1 if
    the job failed, with 2 for options that cannot be understood, with 130 for Ctrl-C; the reason is one line on stderr
    and ``error`` in the result.
    """
    if result_file is not None and not result_file.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {str(result_file.parent)!r}", param_hint="'--result'")
    began = time.monotonic()
    spark: SparkSession | None = None
    code = 1
    try:
        work = prepare()
        remote = session.remote
        progress(f"heliograph-spark {job}: {'starting Spark' if remote is None else f'connecting to {shown(remote)}'}")
        spark = build_session(job, session)
        # Spark's own asks Java to cancel the jobs in the middle of another question, which fails with a stack.
        signal.signal(signal.SIGINT, _interrupt)
        done = work(spark)
        result: dict[str, Any] = asdict(done)
        code = 0 if done.error is None else 1
    except OptionError as error:
        result, code = {"job": job, "error": reason(error)}, 2
    except _FAILED as error:
        result = {"job": job, "error": reason(error)}
        if _follows_ctrl_c(error):
            result, code = _interrupted(job, spark)
    except ModuleNotFoundError as error:
        if (advice := missing_package(error)) is None:
            raise
        result = {"job": job, "error": advice}
    except KeyboardInterrupt:
        result, code = _interrupted(job, spark)
    result.setdefault("seconds", round(time.monotonic() - began, 3))
    try:
        write_result(result, result_file)
    finally:
        if spark is not None:
            spark.stop()
    if code:
        print(f"heliograph-spark {job}: {result['error']}", file=sys.stderr)
        raise typer.Exit(code)


def _interrupt(_number: int, _frame: object) -> None:
    """Raise :class:`KeyboardInterrupt`. py4j would log, with a stack, that its question has no answer."""
    logging.disable()
    raise KeyboardInterrupt


def _interrupted(job: str, spark: SparkSession | None) -> tuple[dict[str, Any], int]:
    """Return the result and the exit code of a job that Ctrl-C has ended."""
    # A terminal sends Ctrl-C to Java, too: it may have ended already.
    with suppress(*_FAILED):
        _expect_the_end(spark)
    return {"job": job, "error": "interrupted by Ctrl-C"}, 130


def _follows_ctrl_c(error: BaseException) -> bool:
    """Whether an error came while a job cleaned up after Ctrl-C: Java ends at the same time."""
    before = error.__context__
    return before is not None and (isinstance(before, KeyboardInterrupt) or _follows_ctrl_c(before))


def _expect_the_end(spark: SparkSession | None) -> None:
    """Keep Spark from reporting what its tasks fail with when it is stopped; end its Java if it is just starting."""
    if spark is not None:
        if is_connect(spark):
            # The end of the session ends its tasks. If it is the server that does not answer, nobody waits for it.
            spark.client.set_retry_policies([])
        else:
            spark.sparkContext.setLogLevel("OFF")
        return
    # Without a session nothing stops the process, which outlives this one. It is the only child then.
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if status.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                os.kill(int(status.parent.name), signal.SIGKILL)


def write_result(result: dict[str, Any], result_file: Path | None) -> None:
    """Print the result as one line of JSON and write it to the file, cut to what Kubernetes reads of one."""
    if result.get("error") is not None:
        result["error"] = result["error"][:1500]
    line = json.dumps(result, ensure_ascii=True)
    print(line, flush=True)
    if result_file is not None:
        if len(line) > RESULT_BYTES:
            line = json.dumps({name: value for name, value in result.items() if not isinstance(value, list | dict)})
        result_file.write_text(line)
