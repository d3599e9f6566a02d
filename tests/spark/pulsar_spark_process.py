"""pulsar-spark, the Scala connector, in a Spark of its own, where ``scripts/pulsar-spark`` has installed both."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pulsar

from tests.support import java_tools
from tests.support.asked_process import AskedProcess
from tests.support.polling import eventually

from .test_spark_versions import environment

PROGRAM = Path(__file__).with_name("pulsar_spark_program.py")
#: The versions of Spark, each in a directory of its name.
INSTALLED = os.environ.get("HELIOGRAPH_PULSAR_SPARK")
#: The last two that it runs on: pulsar-spark 3.1.1.4 reads on both and writes on the first.
WRITES, READS = VERSIONS = ("3.4.4", "3.5.9")
#: The longest time (s) of one query, the first of which starts Spark: seconds, and minutes on a busy machine.
WITHIN_S = 600


class Connector(AskedProcess):
    """A Spark in which ``format("pulsar")`` is pulsar-spark."""

    def __init__(self, version: str, log: Path) -> None:
        jars = ",".join(map(str, sorted((java_tools.FETCHED / "pulsar-spark").glob("*.jar"))))
        installed = environment(Path(str(INSTALLED), version))
        super().__init__([sys.executable, str(PROGRAM), jars], log, WITHIN_S, installed)

    def run(self, do: str, **arguments: object) -> Any:
        """Return the result of a method of :class:`.pulsar_spark_program.Queries`.

        Raises :class:`AssertionError` with the text of what that raised.
        """
        answer = json.loads(self.ask(json.dumps({"do": do, **arguments})))
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def wait_for(self, path: Path) -> None:
        """Wait until the stream that was started has written a file.

        Raises :class:`AssertionError` with the reason if the stream ended, and with the stacks of Spark's threads.
        """

        def seen() -> bool | str | None:
            return path.exists() or self.run("end")

        try:
            found = eventually(seen, within_s=WITHIN_S, what=str(path))
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._stacks()}") from None
        assert found is True, f"the stream has ended without {path}: {found}"

    def _stacks(self) -> str:
        """Return what Spark has logged, with the stacks of all threads, which the JVM adds when it is asked to."""
        os.kill(self.run("pid"), signal.SIGQUIT)
        # The heap comes last.
        eventually(lambda: "\nHeap\n" in self.logged(), what="stacks of Spark's threads")
        return self.logged()

    def kill9(self) -> None:
        """Kill Spark with all that it is doing."""
        os.kill(self.run("pid"), signal.SIGKILL)


def full(topic: str) -> str:
    """Return the full name of a topic in public/default, which the connector's JSON has."""
    return f"persistent://public/default/{topic}"


def offsets(of: dict[str, pulsar.MessageId]) -> str:
    """Return places in topics as the connector's JSON has them: ids as bytes of Java."""
    signed = {
        full(topic): [each - 256 if each > 127 else each for each in id_.serialize()] for topic, id_ in of.items()
    }
    return json.dumps(signed)
