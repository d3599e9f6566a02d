"""One Kubernetes node: the first process of namespaces of its own (network, mounts, process ids).

Usage, by ``scripts/cluster``: ``node.py STATE PROGRAMS NODE-ADDRESS POD-RANGE SERVICE-RANGE [FIRST-NODE-ADDRESS]``.
With the address of a first node it runs pods only, and its state has the kubeconfig and the authority's certificate.
When it ends, everything it started ends, and every mount with it. It writes ``STATE/ready`` when pods can run, and
ends with a message in its output if any part of it ends.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

HERE = Path(__file__).resolve().parent
#: Directories of the state, and where the node sees them.
MOUNTS = {
    "run": "/run/containerd",
    "cni/state": "/var/lib/cni",
    "log/pods": "/var/log/pods",
    "log/containers": "/var/log/containers",
    "opt": "/opt/containerd",
}
_TAIL_LINES = 20


class Plan(NamedTuple):
    """The parameters of a node: its directories, its address, and the ranges of pods and Services."""

    state: Path
    programs: Path
    address: str
    pods: str
    services: str
    #: The address of the node with the API server and the DNS server; empty where it is this one.
    first: str = ""

    @property
    def name(self) -> str:
        """The name of the Node, and of its control group."""
        return "heliograph-2" if self.first else "heliograph"

    @property
    def dns(self) -> str:
        """The address of the DNS server."""
        return self.first or self.address

    @property
    def kubeconfig(self) -> Path:
        """The administrator's configuration of kubectl, which the parts of the node use, too."""
        return self.state / "kubeconfig"

    def files(self) -> dict[str, str]:
        """Return the settings of its parts, by path in the state."""
        return {
            "resolv.conf": f"nameserver {self.dns}\n",
            "containerd.toml": _CONTAINERD.format(state=self.state),
            "cni/conf/10-pods.conflist": _CNI.replace("PODS", self.pods),
            "kubelet.yaml": self.kubelet_settings(),
            "Corefile": _COREFILE.replace("ADDRESS", self.address).replace("KUBECONFIG", str(self.kubeconfig)),
            "pki/api.cnf": self.api_certificate(),
            "pki/kubelet-client.cnf": "extendedKeyUsage=clientAuth\n",
        }

    def kubelet_settings(self) -> str:
        """Return the configuration of the kubelet."""
        values = {"ADDRESS": self.address, "STATE": str(self.state), "NAME": self.name, "RESOLVER": self.dns}
        text = _KUBELET
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        return text

    def api_certificate(self) -> str:
        """Return the extensions of the API server's certificate: every name and address that reaches it."""
        service = f"{self.services.rpartition('.')[0]}.1"
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        reached = [f"DNS:{name}" for name in (*names, "localhost")]
        reached += [f"IP:{address}" for address in (self.address, "127.0.0.1", service)]
        return f"subjectAltName={','.join(reached)}\nextendedKeyUsage=serverAuth\n"

    def client_settings(self, authority: bytes, token: str) -> str:
        """Return the text of :attr:`kubeconfig`, for an authority's certificate and the administrator's token."""
        certificate = base64.b64encode(authority).decode()
        return _CLIENT.format(address=self.address, certificate=certificate, token=token)

    def part(self, name: str) -> list[str]:
        """Return the command of a part of the node."""
        return [name, *_OPTIONS[name].format(plan=self).split()]


_CLIENT = """\
apiVersion: v1
kind: Config
clusters:
- name: heliograph
  cluster:
    server: https://{address}:6443
    certificate-authority-data: {certificate}
users:
- name: admin
  user:
    token: {token}
contexts:
- name: heliograph
  context: {{cluster: heliograph, user: admin}}
current-context: heliograph
"""
# Without the right to lower it, runc's process would end before it says why: restrict_oom_score_adj.
_CONTAINERD = """\
version = 2
root = "{state}/containerd"
state = "/run/containerd/state"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{state}/cni/conf"
"""
_CNI = """\
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "PODS"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
"""
# The node's disk is the host's: it says nothing about this cluster that it is 90 % full.
_KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ADDRESS
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: "STATE/pki/ca.crt"}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /NAME
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
clusterDNS: ["RESOLVER"]
clusterDomain: cluster.local
resolvConf: STATE/resolv.conf
evictionHard: {imagefs.available: 1%, nodefs.available: 1%, memory.available: 100Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
localStorageCapacityIsolation: false
syncFrequency: 10s
"""
_COREFILE = """\
.:53 {
  bind ADDRESS
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig KUBECONFIG
    ttl 2
  }
}
"""
_OPTIONS = {
    "etcd": "--data-dir {plan.state}/etcd --unsafe-no-fsync --log-level warn --listen-client-urls http://127.0.0.1:2379"
    " --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380",
    "kube-apiserver": "--etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --advertise-address={plan.address}"
    " --secure-port=6443 --tls-cert-file=pki/api.crt --tls-private-key-file=pki/api.key --cert-dir={plan.state}/pki"
    " --kubelet-client-certificate=pki/kubelet-client.crt --kubelet-client-key=pki/kubelet-client.key"
    " --kubelet-preferred-address-types=InternalIP --token-auth-file=pki/tokens.csv --authorization-mode=Node,RBAC"
    " --service-account-issuer=https://kubernetes.default.svc.cluster.local"
    " --service-account-key-file=pki/accounts.key --service-account-signing-key-file=pki/accounts.key"
    " --service-cluster-ip-range={plan.services} --allow-privileged=true",
    "containerd": "-c containerd.toml",
    "kube-controller-manager": "--kubeconfig={plan.kubeconfig} --leader-elect=false --use-service-account-credentials"
    " --service-account-private-key-file=pki/accounts.key --root-ca-file=pki/ca.crt",
    "kube-scheduler": "--kubeconfig={plan.kubeconfig} --leader-elect=false",
    "coredns": "-conf Corefile",
    "kubelet": "--config=kubelet.yaml --kubeconfig={plan.kubeconfig} --root-dir={plan.state}/kubelet"
    " --hostname-override={plan.name} --node-ip={plan.address}",
    "kube-proxy": "--kubeconfig={plan.kubeconfig} --proxy-mode=iptables --hostname-override={plan.name}"
    " --cluster-cidr={plan.pods} --conntrack-max-per-core=0",
}


def tail(path: Path) -> str:
    """Return the last lines of a file."""
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:])


class Parts:
    """The processes of the node, each with a log of its own; as the first process, this one reaps all others, too."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a part."""
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self._running[process.pid] = name, process

    def succeed_within(self, seconds: float, *command: str) -> None:
        """Repeat a command until it succeeds. Exits when it does not in time, or once a part has ended."""
        end = time.monotonic() + seconds
        output = self._log("await")
        while True:
            with output.open("wb") as log:
                if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode == 0:
                    return
            ended = self._reap(os.WNOHANG)
            if ended is not None:
                sys.exit(f"{ended[0]} ended:\n{tail(self._log(ended[0]))}")
            if time.monotonic() >= end:
                sys.exit(f"not within {seconds:g} s: {' '.join(command)}\n{tail(output)}")
            time.sleep(0.3)

    def wait_for_an_end(self) -> tuple[str, int]:
        """Wait until a part ends. Returns its name and exit code, negative for a signal."""
        while True:
            ended = self._reap(0)
            if ended is not None:
                return ended

    def end(self, name: str, code: int) -> NoReturn:
        """Exit because a part has ended."""
        sys.exit(f"{name} ended with {code}:\n{tail(self._log(name))}")

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _reap(self, options: int) -> tuple[str, int] | None:
        """Collect processes that have ended, parts or orphans, up to the first part."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid in self._running:
                name, process = self._running.pop(pid)
                process.returncode = os.waitstatus_to_exitcode(status)
                return name, process.returncode


def mount(state: Path) -> None:
    """Give the node's own directories their places: volumes of pods show in its mounts, and none of it on the host."""
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    for source, target in MOUNTS.items():
        (state / source).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", state / source, target], check=True)
    subprocess.run(["mount", "--bind", state / "resolv.conf", "/etc/resolv.conf"], check=True)


def make_certificates(log: Path) -> None:
    """Make the authority, and with it the certificates of the API server and of its client, in ``pki``."""
    commands = [
        "req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=heliograph-cluster -keyout pki/ca.key -out pki/ca.crt"
        " -addext keyUsage=critical,keyCertSign,cRLSign"
    ]
    for name in ("api", "kubelet-client"):
        commands += [
            f"req -newkey rsa:2048 -nodes -subj /O=system:masters/CN={name} -keyout pki/{name}.key -out pki/{name}.csr",
            f"x509 -req -days 3650 -in pki/{name}.csr -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial"
            f" -extfile pki/{name}.cnf -out pki/{name}.crt",
        ]
    with log.open("wb") as output:
        for command in (*commands, "genrsa -out pki/accounts.key 2048"):
            subprocess.run(["openssl", *command.split()], stdout=output, stderr=subprocess.STDOUT, check=True)


def write_client_settings(plan: Plan) -> None:
    """Make the administrator's token and write the configuration of kubectl that has it."""
    token = secrets.token_hex(16)
    Path("pki/tokens.csv").write_text(f"{token},admin,admin,system:masters\n", "utf-8")
    new = Path("kubeconfig.new")
    new.touch(mode=0o600)
    new.write_text(plan.client_settings(Path("pki/ca.crt").read_bytes(), token), "utf-8")
    new.rename(plan.kubeconfig)


def prepare(plan: Plan) -> None:
    """Write the settings of the parts, and give the node its directories and its network its settings."""
    os.chdir(plan.state)
    os.environ["PATH"] = f"{plan.programs}:{os.environ['PATH']}:/usr/sbin:/sbin"
    os.environ["KUBECONFIG"] = str(plan.kubeconfig)
    for name, text in plan.files().items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, "utf-8")
    mount(plan.state)
    for setting in ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0"):
        subprocess.run(["sysctl", "-qw", setting], check=True)


def start_control_plane(plan: Plan, parts: Parts) -> None:
    """Make the certificates and start what only the first node runs."""
    make_certificates(Path("log/pki.log"))
    write_client_settings(plan)
    for name in ("etcd", "kube-apiserver"):
        parts.start(name, plan.part(name))
    parts.succeed_within(120, "kubectl", "get", "--raw", "/readyz")
    for name in ("kube-controller-manager", "kube-scheduler", "coredns"):
        parts.start(name, plan.part(name))
    with Path("log/storage-class.log").open("wb") as log:
        subprocess.run(["kubectl", "create", "-f", HERE / "storage-class.yaml"], stdout=log, check=True)
    parts.start("volumes", [sys.executable, str(HERE / "volumes.py"), plan.address, "pki", f"{plan.state}/volumes"])


def run(plan: Plan) -> NoReturn:
    """Run the node until a part of it ends."""
    prepare(plan)
    parts = Parts(plan.state / "log")
    parts.start("containerd", plan.part("containerd"))
    if not plan.first:
        start_control_plane(plan, parts)
    parts.succeed_within(60, "ctr", "version")
    with Path("log/pause.log").open("wb") as log:
        command = ["ctr", "-n", "k8s.io", "images", "import", "pause.tar"]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    for name in ("kubelet", "kube-proxy"):
        parts.start(name, plan.part(name))
    # The Node of one that comes back is Ready from before until its loss is noticed.
    parts.succeed_within(60, "kubectl", "wait", "--for=condition=Ready", f"node/{plan.name}", "--timeout=5s")
    parts.succeed_within(30, "kubectl", "get", "serviceaccount", "default")
    ready = Path("ready")
    ready.touch()
    name, code = parts.wait_for_an_end()
    ready.unlink()
    parts.end(name, code)


if __name__ == "__main__":
    state, programs, *rest = sys.argv[1:]
    run(Plan(Path(state), Path(programs), *rest))
