"""The certificates of BrokerClusters with TLS: made, renewed and published, or read from a person's Secret."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NoReturn

import structlog
from cryptography.hazmat.primitives.serialization import Encoding
from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.object_apply import ObjectRefused, apply_all, remove_all
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.secret_write import find_secret, orphan_secret, read_secret, write_secret
from heliograph_operator.decide.authorities import (
    SKEW,
    Authority,
    certificates_in,
    new_authority,
    plan_authorities,
    private_data,
    read_private,
)
from heliograph_operator.decide.certificate_status import CertificateState, missing_names
from heliograph_operator.decide.cluster_objects import (
    CONFIG_MAP,
    admin_service_name,
    admin_urls,
    authorities_config_map,
)
from heliograph_operator.decide.cluster_status import ClusterReason
from heliograph_operator.decide.cluster_tls import (
    authority_secret_name,
    bundle_name,
    server_names,
    server_secret_name,
    verified_names,
)
from heliograph_operator.decide.server_certificate import (
    AUTHORITIES,
    CertificateUnusable,
    ServerCertificate,
    in_use,
    plan_server,
    read_server,
    server_data,
)
from heliograph_operator.decide.stateful_set import Site, metadata
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.kube.client import KubeError
from heliograph_operator.objects import clock
from heliograph_operator.objects.kinds import TOPIC, Body, Key

log = structlog.get_logger(__name__)

#: Time (s) between two checks of the Secrets, which are not watched: nobody may list all Secrets for that.
CHECK_S: Final = 60.0
#: The type of a Secret with a certificate.
_TLS: Final = "kubernetes.io/tls"


class ClusterCertificates:
    """The certificates of all BrokerClusters. It remembers only what this operator trusts."""

    def __init__(self, site: Site, trust: BrokerTrust, now: Callable[[], datetime] = clock.now) -> None:
        self._site = site
        self._trust = trust
        self.now = now

    async def reconcile(
        self, context: Context, resource: Resource, cluster: BrokerCluster, hosts: Sequence[str]
    ) -> CertificateState | None:
        """Store the certificates as they have to be; return what the brokers have, None without TLS.

        ``hosts`` are those of listeners and load balancers. Raises :class:`ObjectRefused`, or
        :class:`.client.KubeError` if something could not be written; what is not stored is not published, and what is
        not published does not issue.
        """
        tls = cluster.spec.tls
        if not tls.enabled:
            self.forget(resource.key)
            return None
        if tls.secret_name is not None:
            return await self._given(context, resource, cluster, tls.secret_name, hosts)
        names = server_names(resource.key.name, resource.key.namespace, self._site.cluster_domain, hosts)
        return await self._made(context, resource, names)

    async def renew(self, context: Context, resource: Resource, cluster: BrokerCluster) -> CertificateState | None:
        """Renew what would end while the resource is paused; return what the brokers have, None if that is not known.

        The certificate keeps its names, nothing is made where there was none, and nothing is written before a renewal
        is due. Raises as :meth:`reconcile` does.
        """
        tls = cluster.spec.tls
        if not tls.enabled:
            return None
        if tls.secret_name is not None:
            await self._publish_again(context, resource, tls.secret_name)
            return None
        before = _server(await find_secret(context, resource, server_secret_name(resource.key.name)))
        if before is None:
            return None
        return await self._made(context, resource, sorted(before.names), renew_only=True)

    def before_check(self, cluster: BrokerCluster, outcome: Outcome) -> Outcome:
        """Return the outcome of a reconcile, with an earlier one if the Secrets have to be looked at before."""
        if not cluster.spec.tls.enabled or outcome.requeue_s is None:
            return outcome
        return replace(outcome, requeue_s=min(outcome.requeue_s, CHECK_S))

    def forget(self, key: Key) -> None:
        """Take in that a BrokerCluster is gone, or does without TLS."""
        self._trust.forget(key)

    async def read(self, context: Context, resource: Resource, cluster: BrokerCluster) -> None:
        """Trust what is published, and change nothing: the resource is paused, not managed, or being deleted."""
        if not cluster.spec.tls.enabled:
            return
        try:
            found = await context.kube.find(CONFIG_MAP, resource.key.namespace, bundle_name(resource.key.name))
        except KubeError as error:
            log.warning("could not read the authorities", resource=str(resource.key), error=str(error))
            return
        bundle, reported = _published(found), resource.status.get("tls")
        if bundle is None and reported is not None and not reported.get("authorities"):
            # A person's certificate, without authorities beside it.
            bundle = ""
        if bundle is not None:
            self._use(context, resource, bundle)

    # -- the operator's own certificates -------------------------------------------------------------------------------

    async def _made(
        self, context: Context, resource: Resource, names: Sequence[str], *, renew_only: bool = False
    ) -> CertificateState:
        body, name, namespace, now = resource.body, resource.key.name, resource.key.namespace, self.now()
        of_authorities = await find_secret(context, resource, authority_secret_name(name))
        of_brokers = await find_secret(context, resource, server_secret_name(name))
        published = _published(await context.kube.find(CONFIG_MAP, namespace, bundle_name(name)))
        before, recorded = _server(of_brokers), decoded(of_brokers).get(AUTHORITIES, "")
        known = read_private(decoded(of_authorities))
        plan = plan_authorities(
            known,
            certificates_in(recorded),
            None if published is None else certificates_in(published),
            in_use(before, now),
            now,
            lambda at: new_authority(f"{namespace}/{name}", at),
            confirmed=_agree(now, context.kube.server_time),
        )
        server = plan_server(before, plan, names, now)
        # Without a certificate in use, one of the authorities issues.
        assert server is not None
        state = CertificateState(
            server_secret_name(name), server, bundle_name(name), missing_names(server, names), server.renewed
        )
        is_same = before is not None and server.leaf == before.leaf and _ids(plan.authorities) == _ids(known)
        if renew_only and is_same and {*certificates_in(published or "")} >= {*certificates_in(plan.bundle)}:
            return state
        about = metadata(body, authority_secret_name(name))
        await write_secret(context, resource, about, private_data(plan.authorities), of_authorities)
        await apply_all(context, resource, [authorities_config_map(body, plan.bundle)])
        about = metadata(body, server_secret_name(name))
        await write_secret(context, resource, about, server_data(server, plan.bundle), of_brokers, _TLS)
        self._use(context, resource, plan.bundle)
        if _ids(each for each in plan.authorities if each.private) - _ids(known):
            message = "an authority was made; clients find it in the ConfigMap with the authorities"
            await context.events.emit(body, "AuthorityMade", message, repeat=True)
        if before is None or server.leaf != before.leaf:
            message = f"Secret {server_secret_name(name)} has a new certificate, valid until {server.expires:%Y-%m-%d}"
            await context.events.emit(body, "CertificateIssued", message, repeat=True)
        return state

    # -- those of a person's Secret ------------------------------------------------------------------------------------

    async def _given(
        self, context: Context, resource: Resource, cluster: BrokerCluster, secret: str, hosts: Sequence[str]
    ) -> CertificateState:
        name, namespace = resource.key.name, resource.key.namespace
        found = await read_secret(context, namespace, secret)
        if found is None:
            _refuse(
                ClusterReason.CERTIFICATE_MISSING,
                f"there is no Secret {secret} in Kubernetes namespace {namespace}; valid: one with tls.crt and tls.key,"
                " as cert-manager makes it",
            )
        entries = decoded(found)
        try:
            server = read_server(entries)
        except CertificateUnusable as error:
            _refuse(ClusterReason.CERTIFICATE_UNUSABLE, f"Secret {secret}: {error}")
        bundle = _authorities_in(entries)
        if entries.get(AUTHORITIES, "").strip() and not bundle:
            _refuse(
                ClusterReason.CERTIFICATE_UNUSABLE,
                f"Secret {secret}: its entry {AUTHORITIES} has no certificate; valid: certificates in PEM, or leave it"
                " out if clients trust the authority anyway",
            )
        lacking = missing_names(server, verified_names(name, namespace, self._site.cluster_domain, hosts))
        admin = f"{admin_service_name(name)}.{namespace}.svc.{self._site.cluster_domain}"
        if cluster.spec.tls.only and not server.is_for(admin):
            _refuse(
                ClusterReason.CERTIFICATE_NAMES_MISSING,
                f"Secret {secret}: its certificate is not for {admin}, by which the operator reaches the brokers if"
                " only is set; valid: a certificate with this name",
            )
        if bundle:
            await apply_all(context, resource, [authorities_config_map(resource.body, bundle)])
        else:
            await remove_all(context, resource, [(CONFIG_MAP, bundle_name(name))])
        self._use(context, resource, bundle)
        return CertificateState(secret, server, bundle_name(name) if bundle else "", lacking)

    async def _publish_again(self, context: Context, resource: Resource, secret: str) -> None:
        """Publish the authorities in a person's Secret if it has others by now, as brokers use their certificate."""
        entries = decoded(await read_secret(context, resource.key.namespace, secret))
        published = await context.kube.find(CONFIG_MAP, resource.key.namespace, bundle_name(resource.key.name))
        try:
            read_server(entries)
        except CertificateUnusable:
            return
        bundle = _authorities_in(entries)
        if not bundle or published is None or bundle == _published(published):
            return
        await apply_all(context, resource, [authorities_config_map(resource.body, bundle)])
        self._use(context, resource, bundle)

    def _use(self, context: Context, resource: Resource, bundle: str) -> None:
        if not self._trust.use(resource.key, admin_urls(resource.body, self._site), bundle):
            return
        # The runs of archives have copies.
        for key in context.cache.keys(TOPIC.name, resource.key.namespace):
            if ((context.cache.get(key) or {}).get("spec") or {}).get("archive") is not None:
                context.queue.add(key)


def _refuse(reason: ClusterReason, message: str) -> NoReturn:
    raise ObjectRefused(reason, f"spec.tls.secretName: {message}")


def _authorities_in(entries: Mapping[str, str]) -> str:
    """Return the certificates of authorities in a person's Secret, in PEM.

    Everybody may read what is published, and the entry may have a key beside them.
    """
    found = certificates_in(entries.get(AUTHORITIES, ""))
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in found)


def _agree(now: datetime, other: datetime | None) -> bool:
    """Whether another clock has about the same time."""
    return other is not None and abs(now - other) < SKEW


def _ids(authorities: Iterable[Authority]) -> set[str]:
    return {each.id for each in authorities}


def _published(config_map: Body | None) -> str | None:
    return None if config_map is None else str((config_map.get("data") or {}).get(AUTHORITIES, ""))


def _server(secret: Body | None) -> ServerCertificate | None:
    try:
        return read_server(decoded(secret))
    except CertificateUnusable:
        return None


async def orphan_certificates(context: Context, resource: Resource) -> None:
    """Leave the Secrets where the brokers stay that use them."""
    stated = resource.spec.get("tls") or {}
    if stated.get("enabled") is True and not stated.get("secretName"):
        for name in (authority_secret_name(resource.key.name), server_secret_name(resource.key.name)):
            await orphan_secret(context, resource, name)
