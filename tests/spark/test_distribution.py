"""The wheel of `heliograph-spark`: what it contains, what it needs, and that it reads a topic with these alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pulsar
import pytest

from scripts.lock_files import pins
from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .conftest import PIPELINE

ROOT = PIPELINE.parent
LOCK = ROOT / "locks" / "source.lock"
PROGRAM = Path(__file__).with_name("unregistered_program.py")
#: The rest of the shared package would bring packages that only a broker or the operator needs.
SHARED = {"__init__.py", "py.typed", "protocol", "values"}


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Return the output of a command that is to succeed, without the packages of this process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def wheel_of(pipeline: Path, directory: Path, **variables: str) -> Path:
    """Build the wheel of a pipeline's directory."""
    command = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", directory, pipeline)
    run(*command, cwd=directory, **variables)
    (made,) = directory.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(PIPELINE, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def compiling(tmp_path: Path) -> Path:
    """A copy of the pipeline with a script that asks for a compiler, as the one of a compiled module does."""
    for part in ("api", "pipeline"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored, symlinks=False)
    (tmp_path / "pipeline" / "build_native.py").write_text(
        "import os, subprocess\n"
        "def build(directory):\n"
        "    subprocess.run([os.environ['CC']], check=True)\n"
        "    made = directory / 'heliograph_spark' / 'made.so'\n"
        "    made.parent.mkdir()\n"
        "    made.write_bytes(b'compiled')\n"
        "    return [made]\n"
    )
    return tmp_path / "pipeline"


def test_the_wheel_has_the_pipeline_whole_and_of_the_shared_package_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
        content = {name: archive.read(name) for name in names if name.endswith(".py")}
    assert {name.split("/")[0] for name in names} == {"heliograph_api", "heliograph_spark", "pyspark_pulsar"}
    assert {name.split("/")[1] for name in names if name.startswith("heliograph_api/")} == SHARED
    for package, directory in (("heliograph_api", ROOT / "api"), *((name, PIPELINE) for name in ("heliograph_spark",))):
        packed = {name for name in content if name.startswith(package + "/")}
        assert [name for name in packed if (directory / name).read_bytes() != content[name]] == []
    sources = {str(path.relative_to(PIPELINE)) for path in (PIPELINE / "heliograph_spark").rglob("*.py")}
    assert sources - content.keys() == set()
    version = re.search(r'__version__ = "(.+)"', (ROOT / "api/heliograph_api/__init__.py").read_text())
    assert version is not None
    assert f"\nVersion: {version[1]}\n" in metadata


def test_spark_is_no_requirement_and_the_requirements_are_those_of_the_whole_distribution() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = tomllib.loads((PIPELINE / "pyproject.toml").read_text())["project"]
    required = [*own["dependencies"], *(each for extra in own["optional-dependencies"].values() for each in extra)]
    assert not [each for each in required if each.startswith("pyspark")]
    # One range for each package, wherever it is asked for.
    assert set(required) <= {*whole["dependencies"], *whole["optional-dependencies"]["spark"]}


@pytest.mark.long
def test_where_there_is_no_compiler_the_wheel_is_pure_python(compiling: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    pure = wheel_of(compiling, made, CC="false")
    assert pure.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(pure) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


@pytest.mark.long
def test_a_compiled_module_is_in_the_wheel_of_its_platform(compiling: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    platform = wheel_of(compiling, made, CC="true")
    assert not platform.name.endswith("-any.whl")
    with zipfile.ZipFile(platform) as archive:
        assert "heliograph_spark/made.so" in archive.namelist()


@pytest.mark.long
def test_a_python_with_spark_and_the_wheel_alone_reads_a_topic(
    wheel: Path, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--require-hashes", "-r", LOCK, cwd=tmp_path)
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    listed = json.loads(run(python, "-m", "pip", "list", "--format=json", cwd=tmp_path))
    installed = {each["name"] for each in listed} - {"pip", "setuptools"}
    assert installed == {"heliograph-spark", *pins(LOCK.read_text())}
    assert len(installed) <= 8
    # Spark is there as on a cluster: on the path, and not installed.
    provided = tmp_path / "spark"
    provided.mkdir()
    for name in ("pyspark", "py4j"):
        found = find_spec(name)
        assert found is not None
        assert found.origin is not None
        (provided / name).symlink_to(Path(found.origin).parent)
    publish(client, topic, [b"one"])
    variables = {"PYTHONPATH": str(provided), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    printed = run(python, PROGRAM, broker.service_url, topic, tmp_path / "checkpoint", cwd=tmp_path, **variables)
    assert json.loads(printed.splitlines()[-1])["frame"] == ["one"]
    archive = subprocess.run([python, "-m", "heliograph_spark", "archive"], capture_output=True, text=True, timeout=100)
    assert archive.returncode == 1
    assert archive.stderr.splitlines()[-1].endswith("is missing: pip install 'heliograph-spark[jobs]'")
