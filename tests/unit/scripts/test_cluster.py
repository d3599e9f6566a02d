"""scripts/cluster: what a machine lacks, what it prints for a shell, and how each command ends."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.kubernetes import cluster as module
from scripts.kubernetes import machine, second_node
from scripts.kubernetes.cluster import Cluster, main
from scripts.kubernetes.machine import ClusterError
from scripts.kubernetes.node_process import start_time
from tests.support.programs import Programs


@pytest.fixture
def cluster(tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that is not up, of a root user, on a machine with Debian's packages and Kubernetes already built."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "control_groups", lambda name="heliograph": [tmp_path / name])
    monkeypatch.setattr(module, "NETWORK_NAMESPACE", tmp_path / "netns")
    monkeypatch.setattr(second_node, "NETWORK_NAMESPACE", tmp_path / "netns-2")
    for program in ("unshare", "apt-get", "ip"):
        programs.add(program)
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / ".built").touch()
    return Cluster(tmp_path / "state", tmp_path / "built", "1.34.4")


def bring_up(cluster: Cluster, pid: int) -> None:
    cluster.state.mkdir()
    (cluster.state / "ready").touch()
    (cluster.state / "pid").write_text(f"{pid} {start_time(pid)}\n")


def with_kind(programs: Programs, clusters: str = "heliograph") -> None:
    programs.add("docker")
    programs.add("kind", f'case "$1" in get) echo {clusters};; esac')


def test_nothing_is_missing_on_a_machine_that_has_all(cluster: Cluster) -> None:
    assert cluster.impossible() is None


def test_checks_that_run_at_once_do_not_disturb_each_other(cluster: Cluster) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(machine.can_make_control_groups) for _ in range(400)]
    assert all(answer.result() for answer in answers)
    assert not list(cluster.state.parent.glob("heliograph-check*"))


def test_everything_that_is_missing_is_named(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(machine, "has_go", lambda: False)
    (cluster.programs / ".built").unlink()
    os.environ["PATH"] = "/nowhere"
    assert cluster.impossible() == "no root, Debian's packages, Go, and no Docker with kind"


def test_root_that_was_given_little_is_told_from_root(
    cluster: Cluster, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.add("unshare", "exit 1")
    assert cluster.impossible() == "no leave to make namespaces, and no Docker with kind"
    programs.add("unshare")
    monkeypatch.setattr(machine, "control_groups", lambda: [Path("/proc/heliograph")])
    assert cluster.impossible() == "no leave to make control groups, and no Docker with kind"


def test_docker_and_kind_are_enough(cluster: Cluster, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with_kind(programs)
    assert cluster.impossible() is None
    programs.add("docker", "exit 1")
    assert cluster.impossible() == "no root, and no Docker with kind"


def test_it_is_up_while_its_process_lives_and_pods_can_run(cluster: Cluster) -> None:
    assert not cluster.is_up()
    bring_up(cluster, os.getpid())
    assert cluster.is_up()
    (cluster.state / "ready").unlink()
    assert not cluster.is_up()


def test_another_process_with_the_same_id_is_not_the_cluster(cluster: Cluster) -> None:
    bring_up(cluster, os.getpid())
    (cluster.state / "pid").write_text(f"{os.getpid()} 1\n")
    assert not cluster.is_up()


def test_a_process_that_has_ended_has_no_start_time() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert start_time(process.pid) is not None
        process.kill()
        # Still there, as nobody has asked for its exit code.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert start_time(process.pid) is None
    assert start_time(process.pid) is None


def test_a_shell_gets_its_settings_only_from_a_cluster_that_is_up(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="it is not up: scripts/cluster up"):
        cluster.environment()
    bring_up(cluster, os.getpid())
    script = cluster.environment() + 'echo "$KUBECONFIG|$PATH|$NO_PROXY|$no_proxy"'
    variables = {"PATH": "/bin", "no_proxy": "localhost"}
    output = subprocess.run(["/bin/sh", "-c", script], env=variables, capture_output=True, text=True, check=True).stdout
    network = "198.18.64.0/20"
    assert output == f"{cluster.state}/kubeconfig|{cluster.programs}:/bin|{network}|localhost,{network}\n"


def test_images_are_loaded_into_the_node_or_into_kind(cluster: Cluster, programs: Programs) -> None:
    with pytest.raises(ClusterError, match="it is not up"):
        cluster.load([Path("a.tar")])
    bring_up(cluster, os.getpid())
    programs.add("ctr")
    cluster.load([Path("a.tar"), Path("b.tar")])
    socket = f"{cluster.state}/run/containerd.sock"
    assert programs.calls() == [f"ctr -a {socket} -n k8s.io images import {name}.tar" for name in "ab"]
    with_kind(programs)
    (cluster.state / "kind").touch()
    cluster.load([Path("a.tar")])
    assert programs.calls()[-1] == "kind load image-archive a.tar --name heliograph"


def test_up_changes_nothing_when_it_is_up(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    bring_up(cluster, os.getpid())
    cluster.up()
    assert capsys.readouterr().out == "it is up already; scripts/cluster down ends it\n"


@pytest.mark.parametrize(
    ("route", "refused"),
    [("198.18.64.0/20 dev eth1", True), ("default via 10.0.0.1", False)],
)
def test_a_network_that_the_host_uses_is_not_taken(
    cluster: Cluster, programs: Programs, monkeypatch: pytest.MonkeyPatch, route: str, refused: bool
) -> None:
    programs.add("ip", f'case "$*" in *route*) echo "{route}";; esac')
    monkeypatch.setattr(cluster, "_start_node", lambda: None)
    if not refused:
        return cluster.up()
    with pytest.raises(ClusterError, match=r"this host's network uses 198\.18\.64\.0/20"):
        cluster.up()
    assert not cluster.state.exists()


@pytest.mark.parametrize("node", ["heliograph", "heliograph-2"])
def test_there_is_one_cluster_on_a_machine(
    cluster: Cluster, tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    (tmp_path / "netns").touch()
    programs.add("ip", f'case "$*" in "netns pids {node}") echo 17;; esac')
    monkeypatch.setattr(cluster, "_start_node", lambda: None)
    with pytest.raises(ClusterError, match="another one runs on this machine, from another directory"):
        cluster.up()
    assert not any("delete" in call for call in programs.calls())


def test_what_a_killed_cluster_of_another_directory_left_is_removed(
    cluster: Cluster, tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("netns", "netns-2"):
        (tmp_path / name).touch()
    for name in ("heliograph", "heliograph-2"):
        (tmp_path / name / "pod").mkdir(parents=True)
    started = []
    monkeypatch.setattr(cluster, "_start_node", lambda: started.append(programs.calls()))
    cluster.up()
    assert {"ip netns delete heliograph", "ip netns delete heliograph-2"} <= set(started[0])
    assert not any((tmp_path / name).exists() for name in ("heliograph", "heliograph-2"))


@pytest.mark.parametrize("error", [ClusterError("etcd ended"), KeyboardInterrupt(), SystemExit(143)])
def test_a_start_that_fails_or_is_interrupted_leaves_only_its_logs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def start() -> None:
        (cluster.state / "log" / "node.log").write_text("no space left")
        raise error

    monkeypatch.setattr(cluster, "_start_node", start)
    with pytest.raises(ClusterError, match="it did not start; its logs are in"):
        cluster.up()
    assert not cluster.state.exists()
    assert (cluster.state.parent / "state.failed" / "node.log").read_text() == "no space left"


def test_down_ends_the_first_process_and_removes_what_was_made(
    cluster: Cluster, tmp_path: Path, programs: Programs
) -> None:
    (tmp_path / "heliograph" / "pod").mkdir(parents=True)
    for name in ("empty", "used"):
        (tmp_path / name).mkdir()
    (tmp_path / "used" / "file").touch()
    # As unshare does, the shell waits for the process that holds the others.
    with subprocess.Popen(["/bin/sh", "-c", "/bin/sleep 600; exit 0"], stdin=subprocess.DEVNULL) as holder:
        bring_up(cluster, holder.pid)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        while not children.read_text():
            pass
        (cluster.state / "made").write_text(f"{tmp_path}/empty\n{tmp_path}/used\n{tmp_path}/gone\n")
        cluster.down()
        assert holder.wait() == 0
    assert not any((tmp_path / name).exists() for name in ("heliograph", "empty", "state"))
    assert (tmp_path / "used" / "file").exists()


def test_a_second_node_needs_a_cluster_with_nodes_of_its_own(cluster: Cluster, programs: Programs) -> None:
    for command in (cluster.bring_up_second_node, cluster.end_second_node):
        with pytest.raises(ClusterError, match="it is not up: scripts/cluster up"):
            command()
    bring_up(cluster, os.getpid())
    with_kind(programs)
    (cluster.state / "kind").touch()
    for command in (cluster.bring_up_second_node, cluster.end_second_node):
        with pytest.raises(ClusterError, match="it is a kind cluster"):
            command()


def test_down_leaves_another_directorys_cluster(cluster: Cluster, tmp_path: Path) -> None:
    cluster.state.mkdir()
    (tmp_path / "heliograph").mkdir()
    cluster.down()
    assert (tmp_path / "heliograph").exists()
    assert not cluster.state.exists()


def test_down_needs_root(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(cluster, os.getpid())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="run it as root"):
        cluster.down()


def test_packages_that_cannot_be_installed_end_it_with_4(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add(
        "dpkg-query", 'case "$4" in runc) echo "unknown ok not-installed";; *) echo "install ok installed";; esac'
    )
    programs.add("apt-get", 'case "$1" in install) echo "E: no such package"; exit 100;; esac')
    with pytest.raises(ClusterError, match="could not install runc: E: no such package") as failed:
        machine.install_packages()
    assert failed.value.code == 4
    assert capsys.readouterr().err == "installing runc\n"


def test_packages_that_are_there_are_not_installed(programs: Programs) -> None:
    programs.add("dpkg-query", "echo install ok installed")
    machine.install_packages()
    assert not any(call.startswith("apt-get") for call in programs.calls())


def test_the_commands_exit_codes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELIOGRAPH_CLUSTER_DIR", str(cluster.state))
    monkeypatch.chdir(cluster.programs)

    def output(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    assert output("status") == (1, "not up\n", "")
    assert output("env") == (1, "", "scripts/cluster: it is not up: scripts/cluster up\n")
    assert output("down") == (0, "it is not up\n", "")
    bring_up(cluster, os.getpid())
    assert output("status") == (0, f"up, state in {cluster.state}\n", "")
    monkeypatch.setattr(Cluster, "impossible", lambda self: "no Go, and no Docker with kind")
    assert output("check") == (1, "no Go, and no Docker with kind\n", "")
    monkeypatch.setattr(Cluster, "impossible", lambda self: None)
    assert output("check") == (0, "", "")


def test_an_older_kubernetes_can_be_chosen(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = module.kubernetes_versions()
    assert len({version.rpartition(".")[0] for version in versions}) >= 2
    for version, modules in zip(versions, ("go.mod", *(f"{older}.mod" for older in versions[1:])), strict=True):
        text = (module.HERE / "kube" / modules).read_text()
        assert f"k8s.io/kubernetes v{version}\n" in text
        assert version in module.DESCRIPTION
    monkeypatch.setenv("HELIOGRAPH_CLUSTER_DIR", str(cluster.state))
    monkeypatch.setenv("HELIOGRAPH_KUBERNETES_VERSION", "1.2")
    assert main(["status"]) == 1
    assert capsys.readouterr().err == (
        f"scripts/cluster: HELIOGRAPH_KUBERNETES_VERSION is '1.2'; valid are {' and '.join(versions)}\n"
    )
    monkeypatch.setenv("HELIOGRAPH_KUBERNETES_VERSION", versions[1])
    assert main(["status"]) == 1
    assert capsys.readouterr().out == "not up\n"


@pytest.mark.parametrize("wrong", [[], ["restart"], ["up", "a.tar"]])
def test_a_wrong_command_line_ends_with_2(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
