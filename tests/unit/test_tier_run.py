"""scripts/test as a process, in a project whose set-up, build and pytest only note how they were called."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.interrupts import take_interrupts
from tests.support.polling import eventually
from tests.support.skipped_tests import FILE

ROOT = Path(__file__).parents[2]
WITHIN_S = 60.0
#: Notes its arguments; a file ``NAME.does`` says what it does then, ``NAME.LAST ARGUMENT.does`` for one call of it.
STUB = f"""#!{sys.executable}
import os, signal, sys, time
from pathlib import Path
root = Path({{root!r}})
name = "/".join(Path(sys.argv[0]).parts[-2:] if "bin" in sys.argv[0] else Path(sys.argv[0]).parts[-1:])
with (root / "calls").open("a") as calls:
    calls.write(" ".join([name, *sys.argv[1:]]) + chr(10))
for kept in (root / (name.replace("/", "-") + "." + sys.argv[-1].replace("/", "-") + ".does"),
             root / (name.replace("/", "-") + ".does")):
    if kept.exists():
        exec(kept.read_text())
        break
"""
STUBS = ("scripts/setup", "scripts/cluster", "scripts/build-image", "scripts/java-tools", "scripts/rust-client")
#: The code of a stub that waits for SIGINT, and notes it.
WAIT = """
def interrupted(number, frame):
    (root / "interrupted").write_text(name)
    sys.exit(2)
signal.signal(signal.SIGINT, interrupted)
(root / "started").touch()
time.sleep(600)
"""


class Project:
    """A project directory with the real scripts/test in it, and stubs for all that it calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "scripts").mkdir()
        for name in ("test", "tier_run.py", "tiers.py", "kubernetes/use.py"):
            copy = root / "scripts" / name
            copy.parent.mkdir(exist_ok=True)
            shutil.copy2(ROOT / "scripts" / name, copy)
        for name in (*STUBS, *(f"{venv}/bin/python" for venv in (".venv", ".venv-spark", ".venv-fuzz")), "bin/java"):
            stub = root / name
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text(STUB.format(root=str(root)))
            stub.chmod(0o755)
        # On a busy machine what has lowest priority would have no turn within a test's time.
        nice = root / "bin" / "nice"
        nice.write_text('#!/bin/sh\n[ "$1 $2" = "-n 19" ] && shift 2 && exec "$@"\n')
        nice.chmod(0o755)
        taken = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")}
        self.environment = taken | {"PYTHONPATH": ""}
        self.environment["PATH"] = f"{root / 'bin'}:{os.environ['PATH']}"

    def does(self, name: str, program: str) -> None:
        """Have a stub run a program when it is called."""
        (self.root / f"{name}.does").write_text(program)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.root / "scripts" / "test"), *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()

    def tests(self) -> list[str]:
        """The arguments of each start of pytest."""
        return [line.split("-m pytest ")[1] for line in self.calls if "-m pytest " in line]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def start(project: Project) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts scripts/test and returns at once; it is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, preexec_fn: Callable[[], None] = take_interrupts) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            project.command(*arguments),
            env=project.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=preexec_fn,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_help_shows_the_usage_and_runs_nothing(project: Project) -> None:
    done = project.run("--help")
    assert done.returncode == 0
    assert "Usage: scripts/test [TIER…] [-- PYTEST-ARGUMENTS]" in done.stdout
    assert not (project.root / "calls").exists()


def test_a_wrong_tier_ends_it_before_anything_is_installed(project: Project) -> None:
    done = project.run("unit", "-k")
    assert done.returncode == 2
    assert done.stderr.startswith("scripts/test: no tier '-k'; valid: unit ")
    assert not (project.root / "calls").exists()


def test_the_default_tiers(project: Project) -> None:
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert project.calls[:3] == ["setup dev", "java-tools", "rust-client"]
    together, alone = project.tests()
    assert together.startswith(
        "tests/faults tests/integration tests/simulation tests/property tests/unit -m not alone -n "
    )
    assert alone == "tests/integration tests/faults -m alone"
    assert done.stdout.splitlines() == [
        f"tier not run: {tier} (not asked for: scripts/test {tier})" for tier in ("operator", "e2e", "spark", "fuzz")
    ]


def test_arguments_for_pytest_come_last(project: Project) -> None:
    assert project.run("unit", "property", "--", "-k", "a or b", "--rounds=3").returncode == 0
    assert project.tests() == ["tests/unit tests/property -k a or b --rounds=3"]


def test_modules_are_compiled_once_also_where_pythons_are_to_write_nothing(project: Project) -> None:
    project.does("bin-python", "(root / 'writes').write_text(str(not sys.dont_write_bytecode))")
    assert project.run("unit", PYTHONDONTWRITEBYTECODE="1").returncode == 0
    assert (project.root / "writes").read_text() == "True"


def test_a_set_up_that_fails_is_all_that_is_run(project: Project) -> None:
    project.does("setup", "sys.exit(7)")
    assert project.run("unit").returncode == 7
    assert project.calls == ["setup dev"]


@pytest.mark.parametrize("code", [0, 1, 5])
def test_it_ends_with_the_code_of_pytest(project: Project, code: int) -> None:
    project.does("bin-python", f"sys.exit({code})")
    assert project.run("unit").returncode == code


def test_a_part_that_fails_does_not_keep_the_next_from_running(project: Project) -> None:
    project.does("bin-python.loadfile", "sys.exit(1)")
    project.does("bin-python.--no-loadscope-reorder", "sys.exit(1)")
    assert project.run("integration").returncode == 1
    assert len(project.tests()) == 2


def test_skipped_tests_of_several_parts_are_named_once(project: Project) -> None:
    project.does("bin-python", f"open(os.environ['{FILE}'], 'a').write('not run: 2 of b (y)\\nnot run: 1 of a (x)\\n')")
    done = project.run("integration")
    assert done.stdout.splitlines()[-2:] == ["not run: 1 of a (x)", "not run: 2 of b (y)"]
    assert done.stdout.count("not run: 1 of a (x)") == 1


def test_spark_is_set_up_run_and_its_missing_servers_named(project: Project) -> None:
    done = project.run("spark")
    assert done.returncode == 0, done.stderr
    archive = "bin/python -m tests.spark.class_archive .venv-spark/spark-classes.jsa"
    assert project.calls[:3] == ["setup dev", "setup spark", archive]
    assert project.tests() == ["tests/spark -n 2 --dist loadfile --no-loadscope-reorder"]
    assert "not run: the tests of Spark with credentials and TLS (scripts/java-tools standalone" in done.stdout
    assert "not run: the tests of Spark against Apache Pulsar" in done.stdout


def test_spark_is_run_and_said_to_be_slow_where_java_writes_no_classes(project: Project) -> None:
    project.does("bin-python..venv-spark-spark-classes.jsa", "sys.exit(1)")
    done = project.run("spark")
    assert done.returncode == 0, done.stderr
    assert len(project.tests()) == 1
    assert "the tests of Spark ran without an archive of its classes (tests/spark/class_archive.py)" in done.stdout


def test_the_fuzzer_is_set_up_and_runs_from_its_own_environment(project: Project) -> None:
    project.does("bin-python", "(root / 'ran').write_text(Path(sys.argv[0]).parts[-3])")
    done = project.run("fuzz")
    assert done.returncode == 0, done.stderr
    assert project.calls[:2] == ["setup dev", "setup fuzz"]
    assert project.tests() == [f"tests/fuzz -n {os.cpu_count()} --dist load"]
    assert (project.root / "ran").read_text() == ".venv-fuzz"


def test_a_machine_that_cannot_have_the_fuzzer_names_its_tier(project: Project) -> None:
    project.does("setup.fuzz", "sys.exit(3)")
    done = project.run("unit", "fuzz")
    assert done.returncode == 0
    assert len(project.tests()) == 1
    assert "tier not run: fuzz (what it needs has no package for this machine and its Python)\n" in done.stdout


def test_an_environment_that_is_not_installed_fails_the_run(project: Project) -> None:
    project.does("setup.fuzz", "sys.exit(1)")
    assert project.run("unit", "fuzz").returncode == 1
    assert len(project.tests()) == 1


def test_too_little_time_is_named_with_what_is_left(project: Project) -> None:
    done = project.run("unit", "spark", HELIOGRAPH_TESTS_WITHIN_S="60")
    assert done.returncode == 0
    assert project.tests()[0].startswith("tests/unit ")
    assert len(project.tests()) == 1
    assert " s are left of 60, and it may need 2600)" in done.stdout


def test_a_machine_that_can_have_no_kubernetes_runs_the_rest(project: Project) -> None:
    project.does("cluster", "print('no root, no Go, and no Docker with kind'); sys.exit(1)")
    done = project.run("unit", "e2e")
    assert done.returncode == 0
    assert len(project.tests()) == 1
    reason = "(no root, no Go, and no Docker with kind)"
    assert f"tier not run: operator {reason}\ntier not run: e2e {reason}\n" in done.stdout


def test_kubernetes_is_built_before_what_runs_on_it(project: Project) -> None:
    project.does("bin-python", "assert os.environ['HELIOGRAPH_CLUSTER_CHECKED'] == '1'")
    assert project.run("property", "e2e").returncode == 0
    assert {"cluster check", "cluster build", "build-image --base"} <= set(project.calls)
    assert [line.split(" -n ")[0] for line in project.tests()] == [
        "tests/property -m not alone and not long",
        "tests/e2e tests/operator -m not whole_cluster and not spark_image",
        "tests/e2e -m whole_cluster and not spark_image",
        "tests/e2e -m spark_image",
    ]
    built = project.calls.index("build-image --base")
    assert all("tests/property" in line or "pytest" not in line for line in project.calls[:built])


@pytest.mark.parametrize(
    ("tier", "targets"), [("operator", ["broker"]), ("e2e", ["broker", "operator", "client", "spark"])]
)
def test_images_that_tests_need_are_made_ahead_while_others_run(
    project: Project, tier: str, targets: list[str]
) -> None:
    made = f"'build-image {targets[-1]}' in (root / 'calls').read_text().splitlines()"
    project.does("bin-python", f"while 'tests/property' in sys.argv and not {made}: time.sleep(0.1)")
    assert project.run("property", tier).returncode == 0
    images = [line.removeprefix("build-image ") for line in project.calls if line.startswith("build-image ")]
    assert images == ["--base", *targets]


@pytest.mark.parametrize("tier", ["integration", "property"])
def test_no_image_is_made_while_tests_measure_themselves_or_ask_for_images(project: Project, tier: str) -> None:
    project.does("build-image.broker", "(root / 'pid').write_text(str(os.getpid())); time.sleep(600)")
    project.does(
        "bin-python",
        "pid, beside = root / 'pid', 'not alone and not long' in sys.argv\n"
        "while beside and not pid.exists(): time.sleep(0.1)\n"
        "line = Path('/proc', pid.read_text(), 'cmdline')\n"
        "while not beside and line.exists() and line.read_text(): time.sleep(0.1)\n",
    )
    assert project.run(tier, "operator").returncode == 0


def test_an_image_that_cannot_be_made_is_what_the_tests_tell(project: Project) -> None:
    project.does("build-image.broker", "sys.exit(1)")
    assert project.run("property", "operator").returncode == 0
    assert [line.split(" -m ")[0] for line in project.tests()] == ["tests/property", "tests/operator"]


def test_the_parts_on_a_kubernetes_share_one_that_is_ended_after_the_last(project: Project) -> None:
    up = "(root / 'run').open('a').write(os.environ['HELIOGRAPH_TESTS_RUN'] + chr(10))\n"
    up += "(root / '.cache' / 'cluster').mkdir(parents=True, exist_ok=True)\n"
    project.does("bin-python", up)
    assert project.run("e2e").returncode == 0
    assert "cluster down" not in project.calls
    project.does("bin-python", up + "(root / '.cache' / 'cluster' / 'by-tests').touch()")
    assert project.run("e2e").returncode == 0
    assert project.calls[-1] == "cluster down"
    assert project.calls.count("cluster down") == 1
    runs = (project.root / "run").read_text().splitlines()
    assert len(runs) == 6
    assert [len(set(runs[:3])), len(set(runs[3:])), len(set(runs))] == [1, 1, 2]


@pytest.mark.parametrize(
    ("code", "printed", "run", "reason"),
    [
        (3, "scripts/cluster: no Go", 0, "scripts/cluster: no Go"),
        (1, "broken", 1, "what it needs could not be built, see .cache/kubernetes-build.log"),
    ],
)
def test_a_build_that_ends_without_a_kubernetes(
    project: Project, code: int, printed: str, run: int, reason: str
) -> None:
    project.does("cluster.build", f"print({printed!r}); sys.exit({code})")
    done = project.run("unit", "operator")
    assert done.returncode == run
    assert [line.split(" -n ")[0] for line in project.tests()] == ["tests/unit"]
    assert f"tier not run: operator ({reason})" in done.stdout
    assert (printed in done.stderr) == (run != 0)


def test_a_build_that_takes_too_long_is_ended(project: Project) -> None:
    project.does("cluster.build", "(root / 'pid').write_text(str(os.getpid())); time.sleep(600)")
    # The build must have started by then.
    done = project.run("operator", HELIOGRAPH_BUILD_WITHIN_S="10")
    assert done.returncode == 0
    assert "tier not run: operator (what it needs was not built in " in done.stdout
    eventually_gone(project)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_pytest_and_ends_the_run(
    project: Project, start: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    project.does("bin-python", WAIT)
    project.does("cluster.build", "(root / 'pid').write_text(str(os.getpid())); time.sleep(600)")
    process = start("integration", "operator")
    eventually(
        lambda: (project.root / "started").exists() and (project.root / "pid").exists(),
        within_s=WITHIN_S,
        what="pytest and the build started",
    )
    process.send_signal(number)
    output, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 128 + number
    assert (project.root / "interrupted").exists()
    assert len(project.tests()) == 1
    assert f"tier not run: operator (ended by {number.name})" in output
    eventually_gone(project)


def test_a_signal_reaches_what_a_command_has_started(
    project: Project, start: Callable[..., subprocess.Popen[str]]
) -> None:
    # As pip below scripts/setup, and as the workers that share the tests.
    waits = "import pathlib, signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_DFL)"
    waits += "; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    project.does(
        "setup",
        "import subprocess; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"subprocess.run([sys.executable, '-c', {waits!r}, str(root / 'started')])\n",
    )
    process = start("unit")
    eventually(lambda: (project.root / "started").exists(), within_s=WITHIN_S, what="the set-up started")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WITHIN_S)
    assert process.returncode == 128 + signal.SIGINT
    assert project.tests() == []


def test_a_run_whose_parent_ignores_interrupts_is_ended_by_one(
    project: Project, start: Callable[..., subprocess.Popen[str]]
) -> None:
    project.does("bin-python", WAIT)
    process = start("unit", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN) and None)
    eventually(lambda: (project.root / "started").exists(), within_s=WITHIN_S, what="pytest started")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WITHIN_S)
    assert process.returncode == 128 + signal.SIGINT
    assert (project.root / "interrupted").exists()


def eventually_gone(project: Project) -> None:
    """Wait for the end of the build: it was sent a signal, and gets its turn when the machine has one."""
    pid = int((project.root / "pid").read_text())
    eventually(lambda: gone(pid), within_s=WITHIN_S, what="the build ended")


def gone(pid: int) -> bool:
    """Whether a process has ended, or is only waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"
