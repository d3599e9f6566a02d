"""scripts/build-image: what it runs, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.build_image import (
    SBOM,
    Options,
    build_arguments,
    buildah_command,
    main,
    make_base,
    parse,
    pip_configuration,
    with_docker,
)
from tests.support.programs import Programs


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to build in, which the command changes to, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def with_buildah(programs: Programs, *, base: bool = True) -> None:
    programs.add("debootstrap", "mkdir -p $4/var/cache/apt/archives; touch $4/etc $4/var/cache/apt/archives/x.deb")
    programs.add("buildah", f'case "$1" in inspect) exit {int(not base)};; from) echo made-1;; esac')


def test_broker_and_operator_are_built_when_no_target_is_named() -> None:
    assert parse([]) == Options(("broker", "operator"))
    assert list(parse(["client", "spark"]).targets) == ["client", "spark"]


def test_the_options_of_an_archive(tmp_path: Path) -> None:
    given = parse(["--no-cache", "--archive", f"{tmp_path}/x/../a.tar", "--name", "n:1", "client"])
    assert given == Options(["client"], tmp_path / "a.tar", "n:1", cache=False)


@pytest.mark.parametrize("wrong", [["--fast"], ["--archive"], ["proxy"]])
def test_a_wrong_command_line_ends_with_2(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(wrong)
    assert ended.value.code == 2


def test_what_lets_pip_work_is_passed_on_and_nothing_that_is_empty() -> None:
    variables = {"PIP_CERT": "/etc/ssl/certs/x", "https_proxy": "", "HOME": "/root"}
    assert build_arguments(variables) == ["--build-arg", "PIP_CERT=/etc/ssl/certs/x"]


def test_docker_builds_names_and_saves_each_image() -> None:
    options = Options(["client"], Path("/a.tar"), "heliograph/client:1", cache=False)
    assert with_docker(options, {}) == [
        ["docker", "build", "--no-cache", "--target", "client", "-t", "localhost/heliograph-client:dev", "."],
        ["docker", "tag", "localhost/heliograph-client:dev", "heliograph/client:1"],
        ["docker", "save", "-o", "/a.tar", "heliograph/client:1"],
    ]


def test_docker_has_a_base_already() -> None:
    assert with_docker(Options(base=True), {}) == []


def test_buildah_sees_the_hosts_certificates_where_they_are_not_the_images_own() -> None:
    command = buildah_command(Options(), "spark", {"PIP_CERT": "/etc/ssl/certs/ca.crt"}, Path("/tmp/pip"))
    assert "PIP_CERT=/host-certificates/ca.crt" in command
    assert "/etc/ssl/certs:/host-certificates:ro" in command
    assert "/tmp/pip:/etc/pip.conf:ro" in command
    assert command[-3:] == ["-t", "localhost/heliograph-spark:dev", "."]


def test_the_first_configuration_of_pip_that_exists_is_used() -> None:
    shown = "global:\n  /etc/xdg/pip/pip.conf, exists: False\n  /etc/pip.conf, exists: True\n    global.timeout: 9\n"
    assert pip_configuration(shown) == Path("/etc/pip.conf")
    assert pip_configuration("site:\n  /usr/pip.conf, exists: False\n") is None


def test_without_docker_a_missing_tool_is_named(
    project: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("buildah")
    assert main([], project) == 1
    assert capsys.readouterr().err == "scripts/build-image: install the Debian package debootstrap\n"


def test_images_are_built_and_stored_one_after_the_other(project: Path, programs: Programs) -> None:
    with_buildah(programs)
    archive = project / "a.tar"
    archive.touch()
    assert main(["--archive", "a.tar", "--name", "n:1", "broker", "client"], project) == 0
    done = [call.split()[1] for call in programs.calls()]
    assert done == ["inspect", "bud", "push", "bud", "push"]
    assert programs.calls()[-1] == f"buildah push -q localhost/heliograph-client:dev docker-archive:{archive}:n:1"
    assert not archive.exists()


def test_the_bill_of_the_last_image_is_copied_out_of_it(project: Path, programs: Programs) -> None:
    with_buildah(programs)
    files = project / "mounted"
    (files / SBOM[1:]).parent.mkdir(parents=True)
    (files / SBOM[1:]).write_text("{}")
    programs.add("buildah", f'case "$1" in from) echo made-1;; mount) echo {files};; esac')
    assert main(["--sbom", "bill.json", "client"], project) == 0
    assert (project / "bill.json").read_text() == "{}"
    assert programs.calls()[-3:] == [
        "buildah from --pull-never localhost/heliograph-client:dev",
        "buildah mount made-1",
        "buildah rm made-1",
    ]


def test_docker_shows_the_bill(project: Path, programs: Programs) -> None:
    programs.add("docker", 'if [ "$1" = run ]; then echo "$5 $6"; fi')
    assert main(["--sbom", "bill.json", "client"], project) == 0
    assert (project / "bill.json").read_text() == f"localhost/heliograph-client:dev {SBOM}\n"


def test_the_base_alone_builds_nothing_else(project: Path, programs: Programs) -> None:
    with_buildah(programs)
    assert main(["--base"], project) == 0
    assert [call.split()[1] for call in programs.calls()] == ["inspect"]


def test_the_base_is_made_once_without_what_was_downloaded(project: Path, programs: Programs) -> None:
    with_buildah(programs, base=False)
    programs.add("tar", 'echo $(ls "$2/var/cache/apt/archives") >"$4"')
    archive = project / "base.tar"
    assert make_base(archive) == 0
    assert archive.read_text() == "\n"
    assert programs.calls()[-1] == "buildah commit -q --rm made-1 localhost/python-base:dev"
    assert make_base(archive) == 0
    assert sum(call.startswith("debootstrap") for call in programs.calls()) == 1


def test_packages_that_cannot_be_fetched_end_it_with_4(
    project: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    with_buildah(programs, base=False)
    programs.add("debootstrap", "exit 1")
    assert main(["--base"], project) == 4
    assert capsys.readouterr().err == "scripts/build-image: Debian's packages cannot be fetched\n"
    assert not (project / "cache" / "heliograph" / "python-base.tar").exists()
