"""Images built from the Dockerfile: with Docker, or with buildah on a base made of Debian's packages."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("broker", "operator", "client", "spark")
BASE_IMAGE = "localhost/python-base:dev"
#: Exit code: Debian's packages cannot be fetched.
NOT_FETCHED = 4
#: Settings that let pip work behind a proxy on the host work in the build, too. Not --env, which would stay in the
#: image.
_PASSED_ON = ("PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy")
#: Path of the bill of materials in every image.
SBOM = "/opt/heliograph/sbom.cdx.json"
_HOST_CERTIFICATES = "/etc/ssl/certs"
#: Path of these while an image is built, for pip only: Java makes a keystore of the image's own in their place.
_CERTIFICATES = "/host-certificates"
DESCRIPTION = """\
Build images from the Dockerfile: with Docker, or else without it and without an image registry.

The image is localhost/heliograph-TARGET:dev. Without Docker it is built by buildah on a base made of
Debian packages, which needs root and the packages buildah and debootstrap. The base is kept in
${XDG_CACHE_HOME:-~/.cache}/heliograph."""


class Options(NamedTuple):
    """The images to build; ``base`` means only what all images begin with."""

    targets: Sequence[str] = ("broker", "operator")
    archive: Path | None = None
    name: str | None = None
    sbom: Path | None = None
    base: bool = False
    cache: bool = True


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line. Raises :class:`SystemExit` with 2 if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="scripts/build-image",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--no-cache", action="store_true", help="do every step again")
    parser.add_argument(
        "--archive", metavar="FILE", type=Path, help="write the last image to a file, for scripts/cluster load"
    )
    parser.add_argument("--name", help="name of the image in that file")
    parser.add_argument(
        "--sbom", metavar="FILE", type=Path, help="write the last image's bill of materials to a file (CycloneDX)"
    )
    parser.add_argument(
        "--base",
        action="store_true",
        help="make what the images begin with, and nothing else; exit code 4: it cannot be fetched",
    )
    parser.add_argument("targets", metavar="TARGET", nargs="*", help=f"{', '.join(TARGETS)} (default: broker operator)")
    given = parser.parse_args(arguments)
    unknown = [target for target in given.targets if target not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; valid: {', '.join(TARGETS)}")
    archive, sbom = (None if each is None else each.resolve() for each in (given.archive, given.sbom))
    return Options(given.targets or Options().targets, archive, given.name, sbom, given.base, not given.no_cache)


def image_name(target: str) -> str:
    """Return the name of the image of a target."""
    return f"localhost/heliograph-{target}:dev"


def build_arguments(variables: Mapping[str, str]) -> list[str]:
    """Return the options that pass variables on to the build."""
    passed = [f"{name}={variables[name]}" for name in _PASSED_ON if variables.get(name)]
    return [word for each in passed for word in ("--build-arg", each)]


def with_docker(options: Options, variables: Mapping[str, str]) -> list[list[str]]:
    """Return the commands that build with Docker."""
    commands = []
    for target in () if options.base else options.targets:
        image = image_name(target)
        cache = [] if options.cache else ["--no-cache"]
        commands.append(["docker", "build", *cache, *build_arguments(variables), "--target", target, "-t", image, "."])
        if options.name is not None:
            commands.append(["docker", "tag", image, options.name])
        if options.archive is not None:
            commands.append(["docker", "save", "-o", str(options.archive), options.name or image])
    return commands


def buildah_command(
    options: Options, target: str, variables: Mapping[str, str], pip_settings: Path | None
) -> list[str]:
    """Return the command that builds one target with buildah."""
    extra = [each.replace(f"={_HOST_CERTIFICATES}", f"={_CERTIFICATES}", 1) for each in build_arguments(variables)]
    if pip_settings is not None:
        extra += ["-v", f"{pip_settings}:/etc/pip.conf:ro"]
    return [
        # The same files have the same digest whenever they are built: files' times are not kept.
        *("buildah", "bud", "--network", "host", "--layers", "--timestamp", "0"),
        *([] if options.cache else ["--no-cache"]),
        *("--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "--target", target),
        *("-v", f"{_HOST_CERTIFICATES}:{_CERTIFICATES}:ro"),
        *(*extra, "-t", image_name(target), "."),
    ]


def has_docker() -> bool:
    """Whether a Docker answers."""
    return shutil.which("docker") is not None and _succeeds("docker", "info")


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def make_base(archive: Path) -> int:
    """Make the base image, from an archive that is made first if it is not there. Returns the exit code."""
    if _succeeds("buildah", "inspect", "--type", "image", BASE_IMAGE):
        return 0
    if not archive.exists():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            packages = "--include=python3,python3-venv,ca-certificates"
            made = subprocess.run(["debootstrap", "--variant=minbase", packages, "bookworm", name], check=False)
            if made.returncode != 0:
                print("scripts/build-image: Debian's packages cannot be fetched", file=sys.stderr)
                return NOT_FETCHED
            fetched = Path(name)
            for left in (*fetched.glob("var/cache/apt/archives/*.deb"), *fetched.glob("var/lib/apt/lists/*")):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            new = archive.with_name(f"{archive.name}.new")
            subprocess.run(["tar", "-C", name, "-cf", new, "."], check=True)
            new.replace(archive)
    container = subprocess.run(["buildah", "from", "scratch"], check=True, stdout=subprocess.PIPE, text=True).stdout
    subprocess.run(["buildah", "add", "-q", container.strip(), str(archive), "/"], check=True)
    subprocess.run(["buildah", "commit", "-q", "--rm", container.strip(), BASE_IMAGE], check=True)
    return 0


def pip_configuration(shown: str) -> Path | None:
    """Return the first file that exists of those that ``pip config debug`` shows."""
    match = re.search(r"^ *(/[^,\n]*), exists: True$", shown, re.MULTILINE)
    return None if match is None else Path(match[1])


@contextmanager
def _pip_settings() -> Iterator[Path | None]:
    """Yield the host's settings of pip, as they are to be in the build; ``None`` if it has none."""
    command = [sys.executable, "-m", "pip", "config", "debug"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    path = pip_configuration(shown)
    if path is None:
        yield None
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(path.read_text("utf-8").replace(_HOST_CERTIFICATES, _CERTIFICATES))
        file.flush()
        yield Path(file.name)


def with_buildah(options: Options) -> int:
    """Build without Docker. Returns the exit code."""
    for tool in ("buildah", "debootstrap"):
        if shutil.which(tool) is None:
            print(f"scripts/build-image: install the Debian package {tool}", file=sys.stderr)
            return 1
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heliograph"
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["BUILDAH_ISOLATION"] = "chroot"
    # One after the other: the base is made once, and buildah's storage is one for all.
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code = make_base(cache / "python-base.tar")
        if code != 0 or options.base:
            return code
        with _pip_settings() as pip_settings:
            for target in options.targets:
                subprocess.run(buildah_command(options, target, os.environ, pip_settings), check=True)
                image = image_name(target)
                if options.archive is not None:
                    options.archive.unlink(missing_ok=True)
                    stored = f"docker-archive:{options.archive}:{options.name or image}"
                    subprocess.run(["buildah", "push", "-q", image, stored], check=True)
                print(f"built {image}", flush=True)
            if options.sbom is not None:
                _copy_sbom(image_name(options.targets[-1]), options.sbom)
    return 0


def _copy_sbom(image: str, file: Path) -> None:
    def buildah(*arguments: str) -> str:
        return subprocess.run(["buildah", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    container = buildah("from", "--pull-never", image)
    try:
        shutil.copyfile(buildah("mount", container) + SBOM, file)
    finally:
        buildah("rm", container)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the command line and return its exit code."""
    os.chdir(root)
    options = parse(arguments)
    if not has_docker():
        return with_buildah(options)
    for command in with_docker(options, os.environ):
        subprocess.run(command, check=True)
    if options.sbom is not None and not options.base:
        show = ["docker", "run", "--rm", "--entrypoint", "cat", image_name(options.targets[-1]), SBOM]
        options.sbom.write_bytes(subprocess.run(show, check=True, stdout=subprocess.PIPE).stdout)
    return 0
