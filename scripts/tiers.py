"""Plans a run of the tests: the tiers, the parts they run in, the time of a part, and the parts that are left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Every tier, in the order in which those that were not run are named.
TIERS = ("unit", "property", "simulation", "integration", "faults", "operator", "e2e", "spark", "fuzz")
DEFAULT = TIERS[:5]
#: Times (s) that the parts on a Kubernetes need at most. The slowest of several runs on two cores, some of them beside
#: other work, took 1449, 990 and 439. Images are made ahead since, and the archives restart their broker twice, to
#: close the ports without TLS: 90 s are added for that, not measured.
OPERATOR_S = 1600
E2E_S = 1000
ARCHIVES_S = 540
#: Times (s) that the tests on Spark need at most: all of them, those that are not marked long, and those that are.
SPARK_S = 2600
SHORT_SPARK_S = 1400
LONG_SPARK_S = 1500
#: Time (s) that the other tests marked long need at most.
LONG_S = 420
#: Time (s) that the tier of the fuzzer needs at most, its environment included.
FUZZ_S = 400


#: The tests that measure the process they start.
ALONE = "alone"
#: The tests that take long: where everything runs they come last.
LONG = "long"
SHORT = "not long"
#: What divides the tests on a Kubernetes: those beside which others may run, those that have the whole cluster, and the
#: archives.
BESIDE_OTHERS = "not whole_cluster and not spark_image"
WHOLE_CLUSTER = "whole_cluster and not spark_image"
ARCHIVES = "spark_image"


class WrongUsage(Exception):
    """The arguments name no tier that there is."""


class Request(NamedTuple):
    """The request for a run: the tiers, in the order of ``TIERS``, and the arguments that pytest gets."""

    tiers: tuple[str, ...]
    arguments: tuple[str, ...] = ()


class Part(NamedTuple):
    """One start of pytest."""

    tiers: tuple[str, ...]
    #: The expression for ``-m``, if only some tests of these tiers are meant.
    marker: str = ""
    #: Whether several processes share the tests.
    shared: bool = False
    #: Whether it waits until what a Kubernetes needs is built, though it can run without.
    after_build: bool = False
    on_kubernetes: bool = False
    #: Time (s) that it needs, if it is left out when less time is left.
    needs_s: int = 0


def parse(arguments: Sequence[str]) -> Request:
    """Read ``[TIER…] [-- PYTEST-ARGUMENTS]``; no tier means the default ones, and ``e2e`` includes ``operator``.

    Raises :class:`WrongUsage` for a tier that does not exist.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    named = set(arguments[:end] or DEFAULT)
    for name in arguments[:end]:
        if name not in TIERS:
            raise WrongUsage(f"no tier {name!r}; valid: {' '.join(TIERS)}")
    if "e2e" in named:
        named.add("operator")
    return Request(tuple(tier for tier in TIERS if tier in named), tuple(arguments[end + 1 :]))


def plan(request: Request, *, building: bool) -> list[Part]:
    """Divide a request into the parts that run one after the other.

    Processes share the tests unless there are arguments for pytest: with those, people expect one process, its order
    and its output. The tests marked ``alone`` measure the process they start, so nothing runs beside them. Where what
    a Kubernetes needs is ``building``, they wait for its end, and so does ``unit``, whose tests of the chart use the
    helm that is built; the other tiers, Spark's and the fuzzer's too, run meanwhile. The tests that take long are the
    last ones then, so that every tier gets its turn. Processes share ``operator``,
    whose operators of single Kubernetes namespaces run side by side, and the tests of ``e2e`` that have a namespace of
    their own, too. The others of ``e2e``, marked ``whole_cluster``, install releases that serve every namespace: they
    run one by one.
    """
    tiers, shared = request.tiers, not request.arguments

    def part(*of: str, marker: str = "", **options: bool | int) -> list[Part]:
        wanted = tuple(tier for tier in of if tier in tiers)
        return [Part(wanted, marker, **options)] if wanted else []  # type: ignore[arg-type]

    fuzz = part("fuzz", shared=shared, needs_s=FUZZ_S)
    if not building:
        own = part("spark", shared=shared, needs_s=SPARK_S) + fuzz
        if not shared:
            return part(*DEFAULT) + own
        # The tests that wait longest come first: a worker that gets one of them as the last keeps the others waiting.
        return (
            part("faults", "integration", "simulation", "property", "unit", marker="not alone", shared=True)
            + part("integration", "faults", marker=ALONE)
            + own
        )
    return (
        part("faults", "integration", "simulation", "property", marker=f"not alone and {SHORT}", shared=shared)
        # Before those that may take what time there is left.
        + part("unit", shared=shared, after_build=True)
        + part("spark", marker=SHORT, shared=shared, needs_s=SHORT_SPARK_S)
        + fuzz
        + part("integration", "faults", marker=ALONE, after_build=True)
        + part("e2e", "operator", marker=BESIDE_OTHERS, on_kubernetes=True, shared=shared, needs_s=OPERATOR_S)
        + part("e2e", marker=WHOLE_CLUSTER, on_kubernetes=True, needs_s=E2E_S)
        + part("e2e", marker=ARCHIVES, on_kubernetes=True, needs_s=ARCHIVES_S)
        + part("faults", "integration", marker=LONG, shared=shared, needs_s=LONG_S)
        + part("spark", marker=LONG, shared=shared, needs_s=LONG_SPARK_S)
    )


class Budget:
    """The time that a run has, in seconds from now; ``None`` is no limit."""

    def __init__(self, within_s: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._within_s = within_s
        self._clock = clock
        self._begin = clock()

    def elapsed_s(self) -> int:
        """Return the whole seconds since the begin."""
        return int(self._clock() - self._begin)

    def lack(self, part: Part) -> str:
        """Return why there is not enough time for a part, or nothing if there is."""
        if not part.needs_s or self._within_s is None:
            return ""
        left = self._within_s - self.elapsed_s()
        if left >= part.needs_s:
            return ""
        return f"{left} s are left of {self._within_s}, and it may need {part.needs_s}"


class Outcome:
    """The exit code of a run and what it left out, from the exit codes of its parts."""

    NOTHING_FITS = 5

    def __init__(self, request: Request) -> None:
        self.notes = [
            _not_run(tier, f"not asked for: scripts/test {tier}") for tier in TIERS if tier not in request.tiers
        ]
        self._failure = 0
        self._some = False
        self._none = False

    def leave_out(self, part: Part, why: str) -> None:
        """Name a part that is not run."""
        if part.marker == ARCHIVES:
            self.notes.append(f"not run: archives on a Kubernetes ({why})")
        elif part.marker == WHOLE_CLUSTER:
            self.notes.append(f"not run: the tests of e2e that have the whole Kubernetes ({why})")
        elif part.marker in (ALONE, LONG):
            self.notes.append(f"not run: the tests of {' and '.join(part.tiers)} that are marked {part.marker} ({why})")
        else:
            self.notes += [_not_run(tier, why) for tier in part.tiers]

    def add(self, code: int) -> None:
        """Count a part that ended with this exit code of pytest."""
        if code == self.NOTHING_FITS:
            self._none = True
            return
        self._some = True
        if code:
            self._failure = code

    def fail(self) -> None:
        """Something beside the tests is broken."""
        self._failure = 1

    @property
    def code(self) -> int:
        """0 if all passed, the code of the last part that failed, or pytest's 5 if no test fits its arguments."""
        if self._none and not self._some and not self._failure:
            return self.NOTHING_FITS
        return self._failure


def _not_run(tier: str, why: str) -> str:
    return f"tier not run: {tier} ({why})"
