"""Runs the parts of a run of the tests: sets up, starts pytest, builds a Kubernetes beside it, passes signals on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType

from scripts.kubernetes.use import in_use
from scripts.tiers import ALONE, LONG, Budget, Outcome, Part, Request, WrongUsage, parse, plan

ROOT = Path(__file__).resolve().parents[1]
USAGE = """\
Runs the tests, installing what they need first.
Usage: scripts/test [TIER…] [-- PYTEST-ARGUMENTS]
Tiers: unit property simulation integration faults (default: these), operator and e2e on a real Kubernetes: e2e
includes operator. The first time these build Kubernetes from its modules, beside the other tiers. And spark: the
source and jobs, on a Spark of its own environment, installed when it is asked for. And fuzz: a short run of the
fuzzer, from its own environment as well. Tests that could not run are listed at the end. Several processes share the
tests of the default tiers, unless there are arguments for pytest.
HELIOGRAPH_TESTS_WITHIN_S=SECONDS leaves out, and names, the last four tiers if too little of that time is left. Where
there is a Kubernetes to test on, the tests that take long come last.
HELIOGRAPH_BUILD_WITHIN_S=SECONDS is how long the build of Kubernetes may take (7200).
"""
#: Names the file in which tests/support/skipped_tests.py lists the tests that were skipped.
SKIPPED = "HELIOGRAPH_TESTS_SKIPPED"
#: Says to tests that a Kubernetes is possible here, so that those that find none fail and are not skipped.
CHECKED = "HELIOGRAPH_CLUSTER_CHECKED"
#: Identifies the run: its parts use the same images.
RUN = "HELIOGRAPH_TESTS_RUN"
BUILD_LOG = Path(".cache/kubernetes-build.log")
BUILD = "nice -n 19 scripts/cluster build && nice -n 19 scripts/build-image --base"
#: Is there when that has succeeded.
BUILT = Path(".cache/kubernetes-build.done")
#: Afterwards, the images that tests of these tiers need. The tests make them again, of layers that are there then, and
#: say what is wrong with one.
IMAGES = {"operator": ("broker",), "e2e": ("operator", "broker", "client", "spark")}
MAKE_IMAGES = "for target in {}; do nice -n 19 scripts/build-image $target || break; done"
#: The tiers that have an environment of their own, which scripts/setup makes when they are asked for.
ENVIRONMENTS = ("spark", "fuzz")
#: Has Java write the classes of Spark into a file, from which those of the tests start in half the time.
ARCHIVE_CLASSES = (".venv-spark/bin/python", "-m", "tests.spark.class_archive", ".venv-spark/spark-classes.jsa")
#: The exit code of scripts/setup for an environment that this machine or its Python cannot have.
NO_ENVIRONMENT = 3
#: The exit codes of the build for what a machine cannot have or cannot fetch.
NOT_TO_BE_HAD = (3, 4)


def workers(part: Part) -> int:
    """Return how many processes share a part's tests: many of these wait for a broker most of the time."""
    if "fuzz" in part.tiers:
        # Each of these tests uses one of the processors all the time.
        return os.cpu_count() or 1
    if "spark" in part.tiers:
        # Each has a Java of its own, whose tests use two cores and wait between them.
        return 2
    return max(2, min(2 * (os.cpu_count() or 1), 8))


def environment_of(part: Part) -> str:
    """Return the directory of the environment in which a part runs."""
    return next((f".venv-{tier}" for tier in ENVIRONMENTS if tier in part.tiers), ".venv")


def pytest_command(part: Part, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a part, with the caller's arguments last."""
    command = [f"{environment_of(part)}/bin/python", "-m", "pytest", *(f"tests/{tier}" for tier in part.tiers)]
    if part.marker:
        command += ["-m", part.marker]
    if part.shared:
        command += ["-n", str(workers(part))]
        # Elsewhere a file stays in one process: its fixtures are made once.
        command += ["--dist", "load"] if "fuzz" in part.tiers else ["--dist", "loadfile", "--no-loadscope-reorder"]
    return [*command, *arguments]


class Children:
    """Starts the commands of a run one after the other, and ends the present one when the run has to end.

    A terminal sends Ctrl-C to all processes in the foreground, so that a command gets it by itself. Elsewhere a command
    has a process group of its own, and gets the first SIGINT or SIGTERM as SIGINT, whatever the run inherited: pytest
    then ends what its tests have started.
    """

    def __init__(self) -> None:
        self.signalled: signal.Signals | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._own_group = not sys.stdin.isatty()
        signal.signal(signal.SIGTERM, self._end)
        if self._own_group or signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._end)

    def run(self, *command: str) -> int:
        """Run a command and return its exit code, 128 and the signal's number if one ended it."""
        if self.signalled:
            return 128 + self.signalled
        sys.stdout.flush()
        self._process = subprocess.Popen(command, preexec_fn=self._detach if self._own_group else None)
        if self.signalled:
            # It came while the process started.
            self._interrupt(self._process)
        code = self._process.wait()
        self._process = None
        return code if code >= 0 else 128 - code

    def _detach(self) -> None:
        os.setpgrp()
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _end(self, number: int, frame: FrameType | None) -> None:
        first, self.signalled = self.signalled is None, signal.Signals(number)
        if first and self._process is not None and (self._own_group or number != signal.SIGINT):
            self._interrupt(self._process)

    def _interrupt(self, process: subprocess.Popen[bytes]) -> None:
        """Send SIGINT to all processes of the command, as a terminal does: each of pytest's workers ends its tests."""
        if self._own_group:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)


class KubernetesBuild:
    """Builds what a Kubernetes needs with the time that tests leave, and then the images that tests run on it."""

    def __init__(self, within_s: int, tiers: Sequence[str]) -> None:
        self._within_s = within_s
        self._time = Budget(None)
        images = dict.fromkeys(image for tier in tiers for image in IMAGES.get(tier, ()))
        script = f"{BUILD} && touch {BUILT} && {MAKE_IMAGES.format(' '.join(images))}"
        BUILD_LOG.parent.mkdir(exist_ok=True)
        BUILT.unlink(missing_ok=True)
        with BUILD_LOG.open("wb") as log:
            # A session of its own: all of it is found again when it must end.
            self._process = subprocess.Popen(
                ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, interrupted: Callable[[], bool]) -> tuple[int, str]:
        """Wait until a Kubernetes can be brought up, at most until the run has to end; images may still be made.

        Returns the exit code that it gives the run, and why there is no Kubernetes, if there is none.
        """
        while self._process.poll() is None and not BUILT.exists():
            if interrupted() or self._time.elapsed_s() >= self._within_s:
                self.end()
                return 0, f"what it needs was not built in {self._time.elapsed_s()} s"
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        if BUILT.exists():
            return 0, ""
        code = self._process.returncode
        lines = BUILD_LOG.read_text(errors="replace").splitlines()
        output = [line for line in lines if line.startswith("scripts/")]
        if code in NOT_TO_BE_HAD and output:
            return 0, output[-1]
        print("\n".join(lines), file=sys.stderr)
        return code, f"what it needs could not be built, see {BUILD_LOG}"

    def end(self) -> None:
        """End it with everything it has started, if it is still under way: layers that are made stay."""
        if self._process.poll() is None:
            subprocess.run(["pkill", "-s", str(self._process.pid)], check=False)
            self._process.wait()


class TestRun:
    """One run of the tests, from its request to the exit code."""

    __test__ = False

    def __init__(self, request: Request, environment: Mapping[str, str]) -> None:
        within = environment.get("HELIOGRAPH_TESTS_WITHIN_S")
        self._request = request
        self._budget = Budget(int(within) if within else None)
        self._build_within_s = int(environment.get("HELIOGRAPH_BUILD_WITHIN_S") or 7200)
        self._against = environment.get("HELIOGRAPH_SPARK_AGAINST")
        self._outcome = Outcome(request)
        self._children = Children()
        self._build: KubernetesBuild | None = None
        #: Why there is no Kubernetes to test on; empty while there may be one.
        self._no_kubernetes = ""

    def __call__(self) -> int:
        """Run everything and name what was not run; returns the exit code."""
        code = self._children.run("scripts/setup", "dev")
        if code:
            return code
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", prefix="heliograph-skipped-") as skipped:
            os.environ[SKIPPED] = skipped.name
            try:
                self._run_parts()
            finally:
                if self._build is not None:
                    self._build.end()
            # One that is skipped in two parts of a run is named once.
            notes = [*self._outcome.notes, *sorted(set(skipped.read().splitlines()))]
        print("".join(f"{note}\n" for note in notes), end="", flush=True)
        signalled = self._children.signalled
        return self._outcome.code if signalled is None else 128 + signalled

    def _run_parts(self) -> None:
        on_kubernetes = "operator" in self._request.tiers
        if on_kubernetes:
            check = subprocess.run(["scripts/cluster", "check"], capture_output=True, text=True, check=False)
            if check.returncode:
                self._no_kubernetes = (check.stdout + check.stderr).strip()
            else:
                os.environ[CHECKED] = "1"
                self._build = KubernetesBuild(self._build_within_s, self._request.tiers)
        if "integration" in self._request.tiers:
            # The tests that need them say so if they cannot be had.
            self._children.run("scripts/java-tools")
            self._children.run("scripts/rust-client")
        parts = plan(self._request, building=self._build is not None)
        if on_kubernetes and self._build is None:
            missing = Part(tuple(tier for tier in ("operator", "e2e") if tier in self._request.tiers))
            self._outcome.leave_out(missing, self._no_kubernetes)
        awaited = self._build is None
        # One cluster and its images serve all parts on it.
        os.environ[RUN] = uuid.uuid4().hex
        with nullcontext() if self._build is None else in_use():
            for part in parts:
                if not awaited and (part.after_build or part.on_kubernetes) and not self._children.signalled:
                    awaited = True
                    self._await_build()
                self._run_part(part)

    def _await_build(self) -> None:
        assert self._build is not None
        code, self._no_kubernetes = self._build.wait(lambda: self._children.signalled is not None)
        if code:
            self._outcome.fail()

    def _run_part(self, part: Part) -> None:
        if self._children.signalled:
            self._outcome.leave_out(part, f"ended by {self._children.signalled.name}")
            return
        why = self._budget.lack(part)
        if part.on_kubernetes:
            # Without time for the tests there, none is left for archives either.
            why = self._no_kubernetes = self._no_kubernetes or why
        if "spark" in part.tiers and shutil.which("java") is None:
            why = "no Java on this machine"
        if why:
            self._outcome.leave_out(part, why)
            return
        for kind in ENVIRONMENTS:
            if kind in part.tiers and (code := self._children.run("scripts/setup", kind)):
                if code == NO_ENVIRONMENT:
                    self._outcome.leave_out(part, "what it needs has no package for this machine and its Python")
                else:
                    self._outcome.add(code)
                return
        if self._build is not None and (part.marker == ALONE or part.on_kubernetes):
            # Nothing runs beside what measures itself, and tests that need an image do not wait for one made slowly.
            self._build.end()
        if "spark" in part.tiers and self._children.run(*ARCHIVE_CLASSES):
            self._outcome.notes.append(
                "the tests of Spark ran without an archive of its classes (tests/spark/class_archive.py), "
                "which takes longer"
            )
        self._outcome.add(self._children.run(*pytest_command(part, self._request.arguments)))
        if "spark" in part.tiers and part.marker != LONG:
            self._name_what_spark_needs()

    def _name_what_spark_needs(self) -> None:
        if not Path(".cache/java-tools/.installed-standalone").exists():
            self._outcome.notes.append(
                "not run: the tests of Spark with credentials and TLS "
                "(scripts/java-tools standalone fetches a Pulsar for them)"
            )
        if not self._against:
            self._outcome.notes.append("not run: the tests of Spark against Apache Pulsar (CONTRIBUTING.md says how)")


def main(arguments: Sequence[str]) -> int:
    """Run ``scripts/test`` with these arguments; returns its exit code: 2 for wrong usage."""
    tiers = arguments[: list(arguments).index("--")] if "--" in arguments else arguments
    if "-h" in tiers or "--help" in tiers:
        print(USAGE, end="")
        return 0
    try:
        request = parse(arguments)
    except WrongUsage as error:
        print(f"scripts/test: {error}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    # The tests start thousands of Pythons, and each would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return TestRun(request, os.environ)()
