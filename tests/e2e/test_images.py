"""What the images promise: a small layer over their base, nothing of root's, and the same files each time."""

from __future__ import annotations

import gzip
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import PROJECT, Cluster

#: The broker image's own files, over the base image.
BROKER_OVER_BASE_BYTES = 150 * 10**6


@dataclass(frozen=True)
class Built:
    """An image's configuration, and the bytes of its layers as they are on a node's disk."""

    configuration: dict[str, Any]
    layer_bytes: list[int]


def build(archive: Path, *options: str) -> Built:
    """A broker image, built now and read from an OCI archive."""
    command = [str(PROJECT / "scripts" / "build-image"), *options, "--archive", str(archive), "broker"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    unpacked = archive.with_suffix("")
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", unpacked], check=True)
    archive.unlink()

    def blob(described: dict[str, Any]) -> Path:
        return unpacked / "blobs" / str(described["digest"]).replace(":", "/")

    index = json.loads((unpacked / "index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]).read_text())
    sizes = [len(gzip.decompress(blob(layer).read_bytes())) for layer in manifest["layers"]]
    return Built(json.loads(blob(manifest["config"]).read_text()), sizes)


@pytest.fixture(scope="module")
def builds(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    """The image as other tests have it, and one with every step done again."""
    if cluster.is_kind:
        pytest.skip("Docker's builder keeps the times of files; images are compared where buildah makes them")
    directory = tmp_path_factory.mktemp("builds")
    return [build(directory / "first.tar"), build(directory / "second.tar", "--no-cache")]


def test_the_same_files_make_the_same_broker_image(builds: list[Built]) -> None:
    first, second = (each.configuration for each in builds)
    assert first["rootfs"]["diff_ids"] == second["rootfs"]["diff_ids"]
    assert first["config"] == second["config"]


def test_the_broker_image_is_small_over_its_base(builds: list[Built]) -> None:
    base = subprocess.run(
        ["buildah", "inspect", "--type", "image", "localhost/python-base:dev"],
        capture_output=True,
        text=True,
        check=True,
    )
    base_layers = json.loads(base.stdout)["OCIv1"]["rootfs"]["diff_ids"]
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
