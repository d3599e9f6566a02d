"""The listeners of a BrokerCluster: their Services, what brokers advertise, who is let in, and the status."""

from __future__ import annotations

from typing import Any

from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.decide import listeners as decide
from heliograph_operator.decide.cluster_objects import manifests
from heliograph_operator.decide.listeners import Listener
from heliograph_operator.decide.stateful_set import Manifest, Site

SITE = Site("registry.test/broker:1", "cluster.test", "operators")
METADATA = {"name": "main", "namespace": "shop", "uid": "uid-1", "generation": 1}
#: A pod that its node gave an address, as the API server shows it.
POD = {"metadata": {"name": "main-0"}, "status": {"hostIP": "192.0.2.7"}}
INTERNAL = "internal:pulsar://$(POD_NAME).main-brokers.shop.svc.cluster.test:6650"


def cluster_of(*specs: dict[str, Any], **more: Any) -> tuple[BrokerCluster, dict[str, Any]]:
    body = {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": METADATA,
        "spec": {"listeners": list(specs), **more},
    }
    return BrokerCluster.model_validate(body), body


def found_service(name: str, *addresses: dict[str, str], node_port: int | None = None) -> dict[str, Any]:
    """A listener's Service as the API server has it."""
    port = {"name": "pulsar", "port": 6650} | ({} if node_port is None else {"nodePort": node_port})
    return {
        "metadata": {"name": f"main-{name}", "labels": {"heliograph.dev/listener": name}},
        "spec": {"ports": [port]},
        "status": {"loadBalancer": {"ingress": list(addresses)} if addresses else {}},
    }


def read(*specs: dict[str, Any], found: Any = (), stateful_set: Any = None) -> list[Listener]:
    cluster, body = cluster_of(*specs)
    return decide.listeners(cluster, body, SITE, found, stateful_set)


def pod_of(*specs: dict[str, Any], found: Any = ()) -> tuple[Manifest, Manifest]:
    """The StatefulSet and its broker's container."""
    cluster, body = cluster_of(*specs)
    known = decide.listeners(cluster, body, SITE, found, None)
    everything = manifests(cluster, body, SITE, advertised=decide.advertised(cluster, known, body, SITE))
    [stateful_set] = [each for each in everything if each["kind"] == "StatefulSet"]
    return stateful_set, stateful_set["spec"]["template"]["spec"]["containers"][0]


def variables(container: Manifest) -> dict[str, Any]:
    return {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}


def test_without_listeners_pods_are_as_they_were() -> None:
    cluster, body = cluster_of()
    assert decide.services(cluster, body) == []
    assert not any("LISTENER" in each or "BIND" in each for each in variables(pod_of()[1]))
    # One whose address is not known yet changes nothing either: pods are not restarted for it.
    assert pod_of({"name": "world", "type": "LoadBalancer"}) == pod_of()


def test_each_listener_is_a_service_of_the_binary_protocol_and_nothing_else() -> None:
    balanced = {
        "name": "world",
        "type": "LoadBalancer",
        "port": 443,
        "nodePort": 31000,
        "annotations": {"a": "b"},
        "loadBalancerClass": "example.com/x",
        "loadBalancerSourceRanges": ["192.0.2.0/24"],
        "externalTrafficPolicy": "Local",
    }
    made = decide.services(*cluster_of({"name": "office", "type": "NodePort"}, balanced))
    assert [each["metadata"]["name"] for each in made] == ["main-office", "main-world"]
    for each in made:
        assert [port["targetPort"] for port in each["spec"]["ports"]] == [
            each["metadata"]["name"].removeprefix("main-")
        ]
        assert each["spec"]["ipFamilyPolicy"] == "PreferDualStack"
        assert each["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
        assert decide.listener_labels("main").items() <= each["metadata"]["labels"].items()
    assert made[1]["metadata"]["annotations"] == {"a": "b"}
    assert made[1]["spec"]["ports"] == [
        {"name": "pulsar", "port": 443, "targetPort": "world", "protocol": "TCP", "nodePort": 31000}
    ]
    assert made[1]["spec"]["loadBalancerClass"] == "example.com/x"
    assert made[1]["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    assert made[1]["spec"]["externalTrafficPolicy"] == "Local"
    assert made[0]["spec"].keys().isdisjoint({"loadBalancerClass", "externalTrafficPolicy"})


def test_brokers_advertise_each_listener_at_a_port_of_its_own() -> None:
    specs = (
        {"name": "partners", "type": "ClusterIP", "advertisedHost": "{pod}.p.example.com", "advertisedPort": 443},
        {"name": "office", "type": "NodePort"},
        {"name": "world", "type": "LoadBalancer", "advertisedHost": "broker-{ordinal}.example.com"},
        {"name": "inside", "type": "ClusterIP", "port": 7000},
    )
    found = [found_service("office", node_port=31650)]
    _, container = pod_of(*specs, found=found)
    given = variables(container)
    assert given["HELIOGRAPH_ADVERTISED_LISTENERS"].split(",") == [
        INTERNAL,
        "partners:pulsar://$(POD_NAME).p.example.com:443",
        "office:pulsar://$(POD_HOST_IP):31650",
        "world:pulsar://broker-$(POD_ORDINAL).example.com:6650",
        "inside:pulsar://main-inside.shop.svc.cluster.test:7000",
    ]
    assert given["POD_HOST_IP"] == "status.hostIP"
    assert given["POD_ORDINAL"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    # A reference to a variable is resolved only if that one comes before it.
    names = list(given)
    for name in ("POD_NAME", "POD_HOST_IP", "POD_ORDINAL"):
        assert names.index(name) < names.index("HELIOGRAPH_ADVERTISED_LISTENERS")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert len(set(ports.values())) == len(ports)
    bound = given["HELIOGRAPH_BIND_ADDRESSES"].split(",")
    assert bound == [f"{spec['name']}:pulsar://*:{ports[spec['name']]}" for spec in specs]


def test_the_broker_understands_what_its_pod_is_given() -> None:
    specs = {"name": "office", "type": "NodePort"}, {"name": "six", "type": "NodePort", "advertisedHost": "fd00::1"}
    found = [found_service("office", node_port=31650), found_service("six", node_port=31651)]
    given = variables(pod_of(*specs, found=found)[1])
    # A node's address of IPv6 comes without brackets.
    resolved = {name: value.replace("$(POD_HOST_IP)", "fd00::7") for name, value in given.items()}
    config = BrokerConfig.from_environment({key: text for key, text in resolved.items() if key != "POD_HOST_IP"})
    assert config.internal_listener_name == "internal"
    assert "office:pulsar://fd00::7:31650" in config.advertised_listeners
    assert "six:pulsar://[fd00::1]:31651" in config.advertised_listeners
    pod = {"metadata": {"name": "main-0"}, "status": {"hostIP": "fd00::7"}}
    assert [each["urls"] for each in decide.status(read(*specs, found=found), [pod])] == [
        ["pulsar://[fd00::7]:31650"],
        ["pulsar://[fd00::1]:31651"],
    ]


def test_a_load_balancer_is_waited_for_by_name() -> None:
    spec = {"name": "world", "type": "LoadBalancer"}
    cluster, body = cluster_of(spec)
    [waiting] = made = read(spec, found=[found_service("world", node_port=30001)])
    assert waiting.url == ""
    assert decide.advertised(cluster, made, body, SITE) is None
    assert decide.pending(made) == (
        "ListenerPending",
        "listener world: the load balancer of Service main-world has no address yet",
    )
    assert decide.status(made, [POD]) == [
        {"name": "world", "type": "LoadBalancer", "urls": [], "addresses": [], "nodePort": 30001}
    ]
    there = [found_service("world", {"ip": "203.0.113.9"}, {"hostname": "lb.example.com"})]
    made = read(spec, found=there)
    assert decide.pending(made) is None
    assert decide.status(made, [POD]) == [
        {
            "name": "world",
            "type": "LoadBalancer",
            "urls": ["pulsar://203.0.113.9:6650"],
            "addresses": ["203.0.113.9", "lb.example.com"],
        }
    ]


def test_a_load_balancer_that_lost_its_address_restarts_no_broker() -> None:
    spec = {"name": "world", "type": "LoadBalancer"}
    before, _ = pod_of(spec, found=[found_service("world", {"ip": "fd00::9"})])
    cluster, body = cluster_of(spec)
    lost = decide.listeners(cluster, body, SITE, [found_service("world")], before)
    everything = manifests(cluster, body, SITE, advertised=decide.advertised(cluster, lost, body, SITE))
    assert before in everything
    pending = decide.pending(lost)
    assert pending is not None
    assert "brokers still advertise pulsar://[fd00::9]:6650" in pending[1]
    # Nor does one whose addresses come in another order.
    both = found_service("world", {"ip": "203.0.113.9"}, {"ip": "fd00::9"})
    assert decide.listeners(cluster, body, SITE, [both], before)[0].url == "pulsar://[fd00::9]:6650"
    # Another address is advertised, as soon as there is one.
    moved = decide.listeners(cluster, body, SITE, [found_service("world", {"ip": "203.0.113.9"})], before)
    assert moved[0].url == "pulsar://203.0.113.9:6650"


def test_listeners_of_a_template_are_exchanged_and_nothing_else() -> None:
    one = {"name": "one", "type": "ClusterIP", "advertisedHost": "{pod}.example.com"}
    two = {"name": "two", "type": "ClusterIP", "advertisedHost": "b{ordinal}.example.com"}
    templates = [pod_of(*specs)[0]["spec"]["template"] for specs in ((), (one,), (two,), (one, two))]
    for before in templates:
        for wanted in templates:
            assert decide.with_listeners_of(before, wanted) == wanted


def test_a_listener_keeps_its_port_and_a_new_one_gets_none_that_brokers_listen_on() -> None:
    def cluster(*names: str) -> BrokerCluster:
        return cluster_of(*({"name": name, "type": "ClusterIP"} for name in names))[0]

    before, _ = pod_of({"name": "office", "type": "ClusterIP"}, {"name": "old", "type": "ClusterIP"})
    assert decide.bind_ports(cluster("office", "old"), before) == {"office": 6660, "old": 6661}
    # The pods have the old one until they are replaced.
    assert decide.bind_ports(cluster("any", "office"), before) == {"any": 6662, "office": 6660}


def test_a_node_port_that_is_not_known_yet_is_waited_for() -> None:
    made = read({"name": "office", "type": "NodePort"}, found=[])
    assert decide.pending(made) == (
        "ListenerPending",
        "listener office: Service main-office has no nodePort yet",
    )
    # What lookups answer is given, whatever the port of the nodes is.
    spec = {"name": "office", "type": "NodePort", "advertisedHost": "o.example.com", "advertisedPort": 6650}
    assert decide.pending(read(spec, found=[])) is None


def test_listeners_of_one_address_are_a_conflict_and_no_broker_that_cannot_start() -> None:
    one, two = ({"name": name, "type": "ClusterIP", "advertisedHost": "a.example.com"} for name in ("one", "two"))
    made = read(one, two)
    assert decide.problem(made) == ("Conflict", "listener two has the address of listener one, a.example.com:6650")
    assert variables(pod_of(one, two)[1])["HELIOGRAPH_BIND_ADDRESSES"] == "one:pulsar://*:6660"
    assert decide.problem(read(one)) is None


def test_a_pod_without_a_node_advertises_nothing_yet() -> None:
    made = read({"name": "office", "type": "NodePort"}, found=[found_service("office", node_port=31650)])
    assert [each["urls"] for each in decide.status(made, [{"metadata": {"name": "main-0"}}, POD])] == [
        ["pulsar://192.0.2.7:31650"]
    ]


def let_in(*specs: dict[str, Any], **policy: Any) -> dict[int, Any]:
    cluster, body = cluster_of(*specs, networkPolicy=policy)
    [found] = [each for each in manifests(cluster, body, SITE) if each["kind"] == "NetworkPolicy"]
    return {port["port"]: rule.get("from") for rule in found["spec"]["ingress"] for port in rule["ports"]}


def test_those_outside_are_let_in_by_their_listener_only() -> None:
    shop = {"podSelector": {"matchLabels": {"app": "shop"}}}
    office = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    found = let_in(
        {"name": "world", "type": "LoadBalancer"},
        {"name": "office", "type": "NodePort", "clients": [office]},
        {"name": "partners", "type": "ClusterIP"},
        {"name": "closed", "type": "NodePort", "clients": []},
        clients=[shop],
    )
    ports = decide.bind_ports(
        cluster_of(*({"name": n, "type": "NodePort"} for n in ("world", "office", "partners", "closed")))[0]
    )
    assert found[ports["world"]] is None
    assert found[ports["office"]] == [office]
    assert found[ports["partners"]] == found[6650]
    assert shop in found[6650]
    assert ports["closed"] not in found
    assert let_in().keys() == {6650, 8080, 8081}
