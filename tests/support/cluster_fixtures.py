"""The fixtures of every test that needs a real Kubernetes: the cluster, images in it, and a namespace per test."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from scripts.kubernetes import use
from scripts.tier_run import CHECKED, RUN

from .cluster import PROJECT, SCRIPT, Cluster
from .pod_logs import secrets_in_logs

#: The first time Kubernetes is built: twelve minutes on two cores.
UP_WITHIN_S = 1800.0
IMAGE_WITHIN_S = 900.0
#: Timeout of one test, beside bringing the cluster up. Images are built in it.
TEST_WITHIN_S = 1200.0

BUILD_IMAGE = PROJECT / "scripts" / "build-image"
#: The chart's, and so the tag of the images it runs when nobody says otherwise.
APP_VERSION: str = yaml.safe_load((PROJECT / "charts" / "heliograph" / "Chart.yaml").read_text("utf-8"))["appVersion"]

_failed = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster: the one that is up, or else a new one, ended after the last session that uses it.

    With ``HELIOGRAPH_KEEP_CLUSTER`` set it stays. The test is skipped where there can be none, unless the run of the
    tests has found before that there can be one.
    """
    possible = subprocess.run([SCRIPT, "check"], capture_output=True, text=True, check=False)
    if possible.returncode != 0:
        why = f"no Kubernetes on this machine: {possible.stdout.strip()}"
        if CHECKED in os.environ:
            pytest.fail(f"{why}; scripts/cluster check found nothing missing when the run began")
        pytest.skip(why)
    with use.in_use():
        if subprocess.run([SCRIPT, "status"], capture_output=True, check=False).returncode != 0:
            done = subprocess.run([SCRIPT, "up"], capture_output=True, text=True, timeout=UP_WITHIN_S, check=False)
            assert done.returncode == 0, f"scripts/cluster up:\n{done.stderr}{done.stdout}"
            use.made_by_tests(use.state_directory()).touch()
        yield Cluster()


@contextmanager
def only_operator(cluster: Cluster, *, everywhere: bool) -> Iterator[None]:
    """Hold on until no operator of another session would serve what this one's does, and keep it so.

    One that serves all Kubernetes namespaces (``everywhere``) runs alone; those of single namespaces run side by side.
    """
    with (cluster.state.parent / f"{cluster.state.name}.operators").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if everywhere else fcntl.LOCK_SH)
        yield


class Images:
    """``images[TARGET]`` is the name of the image of that target of the Dockerfile, in the cluster.

    It is the name that the chart gives it, so that the chart is installed as its users do.
    """

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        # The parts of one run, and the processes that share the tests of a part, share what they built.
        run = os.environ.get(RUN) or os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
        self._loaded = cluster.state / "images" / run

    def __getitem__(self, target: str) -> str:
        return self.tagged(target, APP_VERSION)

    def tagged(self, target: str, tag: str) -> str:
        """The name of the same image with another tag, in the cluster too: what an upgrade is upgraded to."""
        name = f"heliograph/{target}:{tag}"
        self._loaded.mkdir(parents=True, exist_ok=True)
        loaded = self._loaded / f"{target}-{tag}"
        with (self._loaded / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not loaded.exists():
                self._load(target, name)
                loaded.touch()
        return name

    def _load(self, target: str, name: str) -> None:
        archive = self._directory / f"{target}.tar"
        command = [str(BUILD_IMAGE), "--archive", str(archive), "--name", name, target]
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMAGE_WITHIN_S, check=False)
        assert done.returncode == 0, f"scripts/build-image {target}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        self._cluster.load_image(archive)
        archive.unlink()


@pytest.fixture(scope="session")
def images(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Images of this working tree, built and loaded into the cluster when first asked for."""
    return Images(cluster, tmp_path_factory.mktemp("images"))


@pytest.fixture
def kube_namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A Kubernetes namespace of the test's own, whose pods have logged no secret. Its end is not waited for."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    name = f"{stem}-{uuid.uuid4().hex[:6]}"
    with only_operator(cluster, everywhere=False):
        cluster.kubectl("create", "namespace", name)
        yield name
        add_diagnosis(request.node, cluster, name)
        try:
            found = secrets_in_logs(cluster, name)
            assert not found, f"logs with secrets in them: {found}"
        finally:
            cluster.kubectl("delete", "namespace", name, "--wait=false")


def add_diagnosis(item: pytest.Item, cluster: Cluster, namespace: str) -> None:
    """Put the events, pods and logs of a Kubernetes namespace into the report of a test that has failed."""
    if item.stash.get(_failed, False):
        item.add_report_section("teardown", f"Kubernetes namespace {namespace}", cluster.diagnosis(namespace))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remembers for fixtures that the test has failed."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need the cluster may take the time it needs, the first of them to bring it up."""
    needing = [item for item in items if "cluster" in getattr(item, "fixturenames", ())]
    for item in needing:
        extra = UP_WITHIN_S if item is needing[0] else 0.0
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_WITHIN_S + extra))
