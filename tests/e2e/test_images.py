"""The images are a small layer over their base, contain nothing of root's, and are the same files each time."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from images.sbom import normal
from scripts.lock_files import pins
from scripts.wheel_sboms import hashes
from tests.support.cluster import PROJECT, Cluster
from tests.support.cluster_fixtures import Images

#: The broker image's own files, over the base image.
BROKER_OVER_BASE_BYTES = 150 * 10**6
#: Spark (0.5 GB) with its Java (0.3 GB), the Python it works with (0.6 GB), and room for the next versions of each.
SPARK_OVER_BASE_BYTES = 1550 * 10**6


@dataclass(frozen=True)
class Built:
    """An image's configuration, and the bytes of its layers as they are on a node's disk."""

    configuration: dict[str, Any]
    layer_bytes: list[int]


def copy_of_project(directory: Path) -> Path:
    """Return a copy of the images' sources as they are now: nobody edits a copy between two builds."""
    for name in ("api", "broker", "operator", "pipeline", "images", "locks", "scripts"):
        shutil.copytree(PROJECT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (PROJECT / ".dockerignore", *PROJECT.glob("[!.]*")):
        if file.is_file():
            shutil.copy(file, directory)
    return directory


def build(project: Path, archive: Path, *options: str) -> Built:
    """A broker image, built now and read from the archive that a node would load; its bill is beside it."""
    options = (*options, "--sbom", str(archive.with_suffix(".cdx.json")))
    command = [str(project / "scripts" / "build-image"), *options, "--archive", str(archive), "broker"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    with tarfile.open(archive) as opened:

        def read(name: str) -> Any:
            file = opened.extractfile(name)
            assert file is not None
            return json.load(file)

        (manifest,) = read("manifest.json")
        built = Built(read(manifest["Config"]), [opened.getmember(layer).size for layer in manifest["Layers"]])
    archive.unlink()
    return built


def inspected(name: str) -> dict[str, Any]:
    """Return buildah's description of the image ``localhost/NAME:dev``."""
    command = ["buildah", "inspect", "--type", "image", f"localhost/{name}:dev"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def files_of(name: str) -> Iterator[Path]:
    """Yield the directory of the files of the image ``localhost/NAME:dev``."""

    def buildah(*arguments: str) -> str:
        return subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=True).stdout.strip()

    container = buildah("from", "--pull-never", f"localhost/{name}:dev")
    try:
        yield Path(buildah("mount", container))
    finally:
        buildah("rm", container)


@pytest.fixture(scope="module")
def builds(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """The image as other tests have it, and one with every step done again."""
    if cluster.is_kind:
        pytest.skip("Docker's builder keeps the times of files; images are compared where buildah makes them")
    directory = tmp_path_factory.mktemp("builds")
    project = copy_of_project(directory)
    return [build(project, directory / "first.tar"), build(project, directory / "second.tar", "--no-cache")]


def test_the_same_files_make_the_same_broker_image(builds: list[Built]) -> None:
    first, second = (each.configuration for each in builds)
    assert first["rootfs"]["diff_ids"] == second["rootfs"]["diff_ids"]
    assert first["config"] == second["config"]


def test_the_broker_image_is_small_over_its_base(builds: list[Built]) -> None:
    base_layers = inspected("python-base")["OCIv1"]["rootfs"]["diff_ids"]
    assert builds[0].configuration["rootfs"]["diff_ids"][: len(base_layers)] == base_layers
    over_base = sum(builds[0].layer_bytes[len(base_layers) :])
    assert 10**6 < over_base < BROKER_OVER_BASE_BYTES


def test_the_broker_image_says_what_it_is_and_never_runs_as_root(
    builds: list[Built],
) -> None:
    settings = builds[0].configuration["config"]
    assert settings["User"] == "10001:10001"
    assert settings["Labels"]["org.opencontainers.image.title"] == "Heliograph broker"
    assert settings["Entrypoint"] == ["heliograph"]
    assert set(settings["ExposedPorts"]) == {"6650/tcp", "8080/tcp"}
    assert not [name for name in settings["Env"] if "PIP" in name]


def test_the_bill_of_materials_has_every_file_of_the_image_by_the_hashes_of_the_lock(
    builds: list[Built],
) -> None:
    with files_of("heliograph-broker") as root:
        text = (root / "opt/heliograph/sbom.cdx.json").read_text()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        components = json.loads(text)["components"]
        python = {each["name"]: each for each in components if each.get("purl", "").startswith("pkg:pypi/")}
        (packages,) = root.glob("opt/heliograph/lib/python3*/site-packages")
        recorded = set()
        for each in distributions(path=[str(packages)]):
            assert python.pop(normal(each.metadata["Name"]))["version"] == each.version
            recorded |= {(packages / file).resolve() for file in each.files or ()}
        assert python == {}
        found = {path.resolve() for path in packages.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert found - recorded == set()
        asked = ["dpkg-query", f"--admindir={root / 'var/lib/dpkg'}", "-W", "-f", "${Package} ${Version}\\n"]
        listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    debian = [f"{each['name']} {each['version']}" for each in components if each.get("purl", "").startswith("pkg:deb/")]
    assert sorted(debian) == sorted(listed) != []
    lock = (PROJECT / "locks" / "broker.lock").read_text()
    locked, pinned = hashes(lock), pins(lock)
    python = {each["name"]: each for each in components if each["name"] in pinned and "pypi" in each["purl"]}
    assert {name: each["version"] for name, each in python.items()} == pinned
    for name, each in python.items():
        (digest,) = each["hashes"]
        assert digest["content"] in locked[name]


@pytest.mark.spark_image
def test_the_spark_image_has_one_user_and_one_entry_for_driver_and_executors(cluster: Cluster, images: Images) -> None:
    if cluster.is_kind:
        pytest.skip("the image is looked at where buildah makes it")
    assert images["spark"]
    found = inspected("heliograph-spark")
    settings = found["OCIv1"]["config"]
    assert settings["User"] == "10001:10001"
    assert settings["Labels"]["org.opencontainers.image.title"] == "Heliograph on Spark"
    assert settings["Entrypoint"] == ["/opt/heliograph/spark-entrypoint"]
    assert not [name for name in settings["Env"] if "PIP" in name]
    base = len(inspected("python-base")["OCIv1"]["rootfs"]["diff_ids"])
    over_base = sum(layer["size"] for layer in json.loads(found["Manifest"])["layers"][base:])
    assert 10**8 < over_base < SPARK_OVER_BASE_BYTES
    with files_of("heliograph-spark") as root:
        package = "opt/heliograph/lib/python*/site-packages/heliograph_spark"
        for module in ("decode/_avro", "decode/_batch", "decode/_protobuf", "encode/_entries"):
            assert len(list(root.glob(f"{package}/{module}.*.so"))) == 1
        assert not list(root.glob("opt/heliograph/lib/python*/site-packages/Cython"))
        assert not (root / "usr/bin/gcc").exists()
