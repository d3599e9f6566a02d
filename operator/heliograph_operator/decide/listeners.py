"""The listeners of a BrokerCluster: their Services, the addresses that brokers advertise, and their status."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heliograph_api.resources.listener_spec import INTERNAL, ListenerSpec
from heliograph_api.resources.model import BrokerCluster
from heliograph_api.values.listeners import ENCRYPTED, PLAIN, bracketed

from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import GROUP, Body

from .cluster_status import ClusterReason, Problem
from .cluster_tls import hosts_of, wanted_ports
from .stateful_set import (
    BROKER,
    BROKER_PORT,
    BROKER_TLS_PORT,
    Advertised,
    Manifest,
    Site,
    broker_host,
    labels,
    metadata,
    selector,
)

ROLE: Final = f"{GROUP}/service"
ROLE_LISTENER: Final = "listener"
_NAME: Final = f"{GROUP}/listener"
#: The first port of brokers for a listener; see :func:`bind_ports`. A broker knows by its port where a client came in.
_FIRST_PORT: Final = 6660
_ADVERTISED: Final = "HELIOGRAPH_ADVERTISED_LISTENERS"
_INTERNAL_NAME: Final = "HELIOGRAPH_INTERNAL_LISTENER_NAME"
_BIND: Final = "HELIOGRAPH_BIND_ADDRESSES"
#: What stands for a pod's own values: in the spec, as variables of its container, and as the fields they come from.
_POD: Final = (("{pod}", "$(POD_NAME)"), ("{ordinal}", "$(POD_ORDINAL)"))
_FIELDS: Final = (
    ("POD_ORDINAL", "metadata.labels['apps.kubernetes.io/pod-index']"),
    ("POD_HOST_IP", "status.hostIP"),
)
#: The variables of a broker's container that :func:`advertised` gives.
_VARIABLES: Final = frozenset({_ADVERTISED, _INTERNAL_NAME, _BIND, *(name for name, _ in _FIELDS)})


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener with what is known of its Service. ``url`` has variables of the pod; it is empty while not known."""

    spec: ListenerSpec
    bind_port: int
    url: str = ""
    #: The load balancer's addresses.
    addresses: tuple[str, ...] = ()
    node_port: int | None = None
    #: Why it is not, or not yet, as the spec says.
    waits: str = ""
    conflict: str = ""


def listener_labels(cluster: str) -> dict[str, str]:
    """Return the labels of the Services of all listeners of a BrokerCluster."""
    return {**labels(cluster), ROLE: ROLE_LISTENER}


def service_name(cluster: str, listener: str) -> str:
    """Return the name of a listener's Service."""
    return f"{cluster}-{listener}"


def bind_ports(cluster: BrokerCluster, stateful_set: Body | None = None) -> dict[str, int]:
    """Return the port of the brokers for each listener.

    Listeners of ``stateful_set`` keep theirs, and no other one gets it: a NetworkPolicy names ports, and changes before
    pods do.
    """
    bound = _bound_before(stateful_set)
    free = (port for port in itertools.count(_FIRST_PORT) if port not in bound.values())
    names = sorted(each.name for each in cluster.spec.listeners)
    return {name: bound[name] if name in bound else next(free) for name in names}


def services(cluster: BrokerCluster, body: Body) -> list[Manifest]:
    """Return the Service of each listener."""
    return [_service(each, body) for each in cluster.spec.listeners]


def _service(listener: ListenerSpec, body: Body) -> Manifest:
    name = body["metadata"]["name"]
    port: dict[str, Any] = {
        "name": "pulsar",
        "port": listener.port,
        "targetPort": listener.name,
        "protocol": "TCP",
    }
    if listener.node_port is not None:
        port["nodePort"] = listener.node_port
    more: dict[str, Any] = {"labels": {ROLE: ROLE_LISTENER, _NAME: listener.name}}
    if listener.annotations:
        more["annotations"] = dict(listener.annotations)
    optional = {
        "loadBalancerClass": listener.load_balancer_class,
        "loadBalancerSourceRanges": listener.load_balancer_source_ranges,
        "externalTrafficPolicy": listener.external_traffic_policy,
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(body, service_name(name, listener.name), **more),
        "spec": {
            "type": listener.type,
            "ipFamilyPolicy": "PreferDualStack",
            "selector": selector(name),
            "ports": [port],
        }
        | {field: value for field, value in optional.items() if value},
    }


def listeners(
    cluster: BrokerCluster, body: Body, site: Site, found: Sequence[Body], stateful_set: Body | None
) -> list[Listener]:
    """Return the listeners with their addresses, as far as the Services ``found`` have them.

    The address that the pods of ``stateful_set`` advertise stays while the load balancer has it, in whatever order, and
    while it has none: brokers are not restarted for an address that may come back.
    """
    there = {(each["metadata"].get("labels") or {}).get(_NAME): each for each in found}
    before = _advertised_before(stateful_set)
    ports = bind_ports(cluster, stateful_set)
    made: list[Listener] = []
    scheme = _scheme(cluster)
    for spec in cluster.spec.listeners:
        last = scheme + _shown(before[spec.name]) if spec.name in before else ""
        listener = _listener(spec, ports[spec.name], scheme, body, site, there.get(spec.name), last)
        for other in made:
            if listener.url and listener.url == other.url:
                conflict = f"listener {spec.name} has the address of listener {other.spec.name}, {_shown(other.url)}"
                listener = Listener(spec, listener.bind_port, "", listener.addresses, listener.node_port, "", conflict)
                break
        made.append(listener)
    return made


def _scheme(cluster: BrokerCluster) -> str:
    """Return the scheme of all listeners: with TLS, what leaves the pods' network is encrypted."""
    return ENCRYPTED if cluster.spec.tls.enabled else PLAIN


def _listener(
    spec: ListenerSpec, bind_port: int, scheme: str, body: Body, site: Site, service: Body | None, before: str
) -> Listener:
    node_port = _node_port(service) if spec.type != "ClusterIP" else None
    addresses = balancer_addresses(service) if spec.type == "LoadBalancer" else ()
    host, port, waits = spec.advertised_host or "", spec.advertised_port or spec.port, ""
    for word, variable in _POD:
        host = host.replace(word, variable)
    own = service_name(body["metadata"]["name"], spec.name)
    match spec.type:
        case "ClusterIP":
            host = host or f"{own}.{body['metadata']['namespace']}.svc.{site.cluster_domain}"
        case "NodePort":
            host = host or "$(POD_HOST_IP)"
            port = spec.advertised_port or node_port or 0
            waits = "" if port else f"Service {own} has no nodePort yet"
        case "LoadBalancer":
            host = host or next((each for each in addresses if bracketed(each) == _host(before)), "")
            host = host or (addresses[0] if addresses else "")
            waits = "" if host else f"the load balancer of Service {own} has no address yet"
    if waits:
        shown = f"; brokers still advertise {before}" if before else ""
        return Listener(spec, bind_port, before, addresses, node_port, f"listener {spec.name}: {waits}{shown}")
    return Listener(spec, bind_port, f"{scheme}{bracketed(host)}:{port}", addresses, node_port)


def _node_port(service: Body | None) -> int | None:
    for port in ((service or {}).get("spec") or {}).get("ports") or ():
        if port.get("nodePort"):
            return int(port["nodePort"])
    return None


def balancer_addresses(service: Body | None) -> tuple[str, ...]:
    """Return the addresses and names of a Service's load balancer."""
    balancer = ((service or {}).get("status") or {}).get("loadBalancer") or {}
    found = (each.get("hostname") or each.get("ip") for each in balancer.get("ingress") or ())
    return tuple(str(each) for each in found if each)


def _advertised_before(stateful_set: Body | None) -> dict[str, str]:
    return dict(entry.split(":", 1) for entry in _listed(stateful_set, _ADVERTISED))


def _bound_before(stateful_set: Body | None) -> dict[str, int]:
    entries = (entry.split(":") for entry in _listed(stateful_set, _BIND))
    return {parts[0]: int(parts[-1]) for parts in entries if parts[-1].isdecimal()}


def _listed(stateful_set: Body | None, variable: str) -> list[str]:
    """Return the entries of a variable of :func:`advertised` in a StatefulSet's pod template."""
    template = (((stateful_set or {}).get("spec") or {}).get("template") or {}).get("spec") or {}
    for container in template.get("containers") or ():
        for each in container.get("env") or ():
            if each.get("name") == variable:
                return [entry for entry in str(each.get("value") or "").split(",") if ":" in entry]
    return []


def with_listeners_of(template: Manifest, wanted: Manifest) -> Manifest:
    """Return the pod template ``template``, whose brokers have the listeners of the pod template ``wanted``."""
    made = copy.deepcopy(template)
    own, theirs = _broker(made), _broker(wanted)
    names = _bound(own) | _bound(theirs)
    for field, ours in (("env", _VARIABLES), ("ports", names)):
        own[field] = _exchanged(own.get(field) or [], theirs.get(field) or [], ours)
    return made


def _broker(template: Manifest) -> Manifest:
    broker: Manifest = next(each for each in template["spec"]["containers"] if each["name"] == BROKER)
    return broker


def _bound(container: Manifest) -> frozenset[str]:
    """Return the names of the listeners that a broker has ports for."""
    values = [str(each.get("value")) for each in container.get("env") or () if each["name"] == _BIND]
    return frozenset(entry.partition(":")[0] for value in values for entry in value.split(","))


def _exchanged(before: list[Manifest], wanted: list[Manifest], names: frozenset[str]) -> list[Manifest]:
    """Return ``before`` with the entries ``names`` of ``wanted`` instead of its own, at the same place."""
    own = [at for at, each in enumerate(before) if each.get("name") in names]
    theirs = [at for at, each in enumerate(wanted) if each.get("name") in names]
    at = next(iter([*own, *theirs]), 0)
    kept = [each for each in before if each.get("name") not in names]
    return [*kept[:at], *(wanted[each] for each in theirs), *kept[at:]]


def advertised(cluster: BrokerCluster, found: Sequence[Listener], body: Body, site: Site) -> Advertised | None:
    """Return what pods are given for the listeners whose addresses are known; None without any."""
    known = [each for each in found if each.url]
    if not known:
        return None
    host, ports = broker_host(body, site), wanted_ports(cluster.spec.tls)
    own = [f"{INTERNAL}:{PLAIN}{host}:{BROKER_PORT}"] if ports.plain else []
    own += [f"{INTERNAL}:{ENCRYPTED}{host}:{BROKER_TLS_PORT}"] if ports.encrypted else []
    urls = ",".join([*own, *(f"{each.spec.name}:{each.url}" for each in known)])
    fields = [(name, path) for name, path in _FIELDS if f"$({name})" in urls]
    return Advertised(
        variables=(
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields),
            {"name": _ADVERTISED, "value": urls},
            {"name": _INTERNAL_NAME, "value": INTERNAL},
            {
                "name": _BIND,
                "value": ",".join(f"{each.spec.name}:{_scheme(cluster)}*:{each.bind_port}" for each in known),
            },
        ),
        ports=tuple((each.spec.name, each.bind_port) for each in known),
    )


def problem(found: Sequence[Listener]) -> Problem | None:
    """Return why a listener cannot be as the spec says until that changes, or None."""
    conflicts = [each.conflict for each in found if each.conflict]
    return (Reason.CONFLICT, "; ".join(conflicts)) if conflicts else None


def pending(found: Sequence[Listener]) -> Problem | None:
    """Return which addresses are still missing, or None."""
    waiting = [each.waits for each in found if each.waits]
    return (ClusterReason.LISTENER_PENDING, "; ".join(waiting)) if waiting else None


def status(found: Sequence[Listener], pods: Sequence[Body]) -> list[dict[str, Any]]:
    """Return the part of the status: what each broker advertises, and the addresses of the Services."""
    return [
        {
            "name": each.spec.name,
            "type": each.spec.type,
            "urls": sorted({_resolved(each.url, pod) for pod in pods if each.url} - {""}),
            "addresses": list(each.addresses),
        }
        | ({} if each.node_port is None else {"nodePort": each.node_port})
        for each in found
    ]


def hosts(found: Sequence[Listener], pods: Sequence[Body]) -> list[str]:
    """Return the hosts by which clients of the listeners reach brokers."""
    return hosts_of(sorted({_resolved(each.url, pod) for each in found for pod in pods if each.url} - {""}))


def _resolved(url: str, pod: Body) -> str:
    """Return the URL with the pod's own values; empty while the pod lacks one."""
    of_pod: Mapping[str, Any] = {
        "$(POD_NAME)": pod["metadata"]["name"],
        "$(POD_ORDINAL)": str(pod["metadata"]["name"]).rpartition("-")[2],
        "$(POD_HOST_IP)": bracketed(str((pod.get("status") or {}).get("hostIP") or "")),
    }
    for variable, value in of_pod.items():
        if variable in url and not value:
            return ""
        url = url.replace(variable, value)
    return url


def _host(url: str) -> str:
    return _shown(url).rpartition(":")[0]


def _shown(url: str) -> str:
    return url.partition("://")[2]
