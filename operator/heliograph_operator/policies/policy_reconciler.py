"""Reconciles what stands for an object of a broker: finds the broker, applies what differs there, and reports it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.policies.grants import IsOthers
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.model import Namespace, OfBroker, Subscription, Topic
from heliograph_api.values.durations import format_duration
from heliograph_api.values.names import SubscriptionName
from heliograph_api.values.quoting import quoted

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions, Listing
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import hold, note_adopted, note_cluster, release
from heliograph_operator.act.resource import NOT_RECONCILED, Resource
from heliograph_operator.act.status_report import named, report_drift, report_policies
from heliograph_operator.archive.archive_reconciler import ArchiveReconciler, ArchiveReport
from heliograph_operator.decide.adoption import adoption_message, is_somebody_elses, unnamed
from heliograph_operator.decide.broker_differences import differences, exists, observed, own_policies, surplus
from heliograph_operator.decide.broker_manifests import policy_manifest
from heliograph_operator.decide.resource_stats import quota_verdict
from heliograph_operator.objects.backoff import REFUSED
from heliograph_operator.objects.conditions import (
    ADOPTED,
    POLICIES_APPLIED,
    QUOTA_EXCEEDED,
    READY,
    Reason,
    Verdict,
    condition,
    in_this_state_s,
    ready,
)
from heliograph_operator.objects.consent import foreign_dead_letters, foreign_permissions, refusal
from heliograph_operator.objects.kinds import (
    BROKER_CONNECTION,
    cluster_key,
    cluster_note,
    is_adopted,
    is_held,
    owned,
    shown,
)
from heliograph_operator.objects.ownership import Claim, conflict
from heliograph_operator.objects.subscriptions import other_subscriptions, rival_topic
from heliograph_operator.objects.targets import (
    Target,
    Waiting,
    broker_address,
    claim_of,
    is_established,
    no_address,
    target_of,
)
from heliograph_operator.objects.user_roles import UserRoles

from .policy_deletion import PolicyDeletion
from .retained_data import protect_parents
from .schema_definition import REREAD_S, Wanted, reads_config_map, with_definition

log = structlog.get_logger(__name__)

#: Time (s) after which a broker is asked again for a parent that has no resource.
PARENT_S: Final = 30.0
#: Reasons for which the broker does not have the policies of the resource.
_NOT_APPLIED: Final = (
    Reason.REFUSED,
    Reason.NOT_APPLIED,
    Reason.NOT_SUPPORTED,
    Reason.NOT_ALLOWED,
    Reason.INVALID,
    Reason.CONFLICT,
    Reason.ADOPTION_PENDING,
    Reason.EXPIRED,
)
#: Reasons for which nothing is known of the broker.
_NO_ANSWER: Final = (Reason.BROKER_UNREACHABLE, Reason.CLUSTER_NOT_READY, Reason.BROKERS_CHANGED)


class PolicyReconciler:
    """The reconciler of all kinds that stand for objects of brokers."""

    def __init__(self, brokers: BrokerSessions, archives: ArchiveReconciler, roles: UserRoles) -> None:
        self._brokers = brokers
        self._roles = roles
        self._archives = archives
        self._deletion = PolicyDeletion(brokers)

    async def reconcile(self, context: Context, resource: Resource) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        key, memory = resource.key, resource.memory
        memory.observed, memory.unreachable = None, False
        memory.began_at = memory.began_at or asyncio.get_running_loop().time()
        memory.archive_refused = await self._archives.check(context, resource) if key.kind == "Topic" else None
        if resource.deleted:
            return await self._deletion.proceed(context, resource)
        if not resource.managed:
            return await self._unmanaged(context, resource)
        claim = claim_of(context.cache, resource.body)
        if claim is not None and (why := refusal(context.cache, key, claim)):
            return await self._not_allowed(context, resource, claim, why)
        if resource.model is None:
            return await self._not_ready(context, resource, Reason.INVALID, memory.problem)
        target = target_of(context.cache, resource.body)
        if isinstance(target, Waiting):
            return await self._not_ready(context, resource, target.reason, target.message)
        if resource.paused and not is_held(resource.body):
            await note_cluster(context, resource, target.cluster)
        # Objects created for it stay its own to the end, whatever its spec says now.
        cluster, name = owned(resource.body)
        if name and not is_established(resource.body):
            message = (
                f"annotation heliograph.dev/broker-object: {quoted(name)} is not the full name of a {key.kind}; valid:"
                f" {target.name}, or remove the annotation"
            )
            return await self._not_ready(context, resource, Reason.RENAME_REFUSED, message)
        if name and (cluster_key(resource.body, cluster), name) != (target.cluster, target.name):
            wanted = f"{target.name} in {cluster_note(target.cluster, resource.body)}"
            recorded = shown(cluster_key(resource.body, cluster), key.namespace)
            message = (
                f"it stands for {name} in {recorded} and cannot become {wanted}; valid: the old name, or"
                " delete the resource and create a new one"
            )
            return await self._not_ready(context, resource, Reason.RENAME_REFUSED, message)
        if why := (
            foreign_dead_letters(context.cache, key, target.cluster, resource.model)
            or foreign_permissions(context.cache, key, target.claim, resource.model)
        ):
            return await self._not_ready(context, resource, Reason.NOT_ALLOWED, why)
        owner = context.cache.ownership.owner(target.claim)
        if owner is not None and owner != key:
            # A resource that does not own the object must not seem to, when it is deleted or the operator restarts.
            await release(context, resource)
            message = conflict(owner, target.name, key.namespace)
            return await self._not_ready(context, resource, Reason.CONFLICT, message)
        if (names_it := rival_topic(context.cache, resource.body, target.claim)) is not None:
            message = (
                f"{shown(names_it, key.namespace)} names the subscription in its spec, so it belongs to that; valid:"
                " remove it there, or delete this resource"
            )
            return await self._not_ready(context, resource, Reason.CONFLICT, message)
        return await self._with_broker(context, resource, target)

    async def _with_broker(self, context: Context, resource: Resource, target: Target) -> Outcome:
        memory = resource.memory
        # Before the look-up: the session of a connection may end at every await.
        wanted = await with_definition(context, resource)
        cluster = context.cache.get(target.cluster)
        url = broker_address(cluster) if cluster is not None else ""
        memory.http_url, memory.name = url if self._brokers.has(url) else "", target.name
        if not memory.http_url:
            missing = no_address(target.cluster, cluster or {}, resource.key.namespace)
            return await self._not_ready(context, resource, missing.reason, missing.message)
        if isinstance(wanted, Waiting):
            outcome = await self._not_ready(context, resource, wanted.reason, wanted.message)
            return Outcome(outcome.result, REREAD_S)
        broker = self._brokers.at(url)
        try:
            if unsupported := _unsupported(target, wanted.model) + broker.unsupported(wanted.model):
                return await self._not_ready(context, resource, Reason.NOT_SUPPORTED, "; ".join(unsupported))
            listing = await broker.recent_listing_of(target.kind, target.name)
            return await self._compare(context, resource, target, broker, listing, wanted)
        except AdminUnreachable as error:
            memory.unreachable = True
            return await self._not_ready(context, resource, Reason.BROKER_UNREACHABLE, str(error))
        except AdminRefused as error:
            memory.refused += 1
            outcome = await self._not_ready(context, resource, Reason.REFUSED, error.reason)
            return Outcome(outcome.result, REFUSED.delay(memory.refused))

    async def _compare(
        self,
        context: Context,
        resource: Resource,
        target: Target,
        broker: BrokerSession,
        listing: Listing,
        wanted: Wanted,
    ) -> Outcome:
        model, spec = broker.fitted(wanted.model), wanted.spec
        if (missing := _missing_parent(target, listing.state)) is not None:
            outcome = await self._not_ready(context, resource, *missing)
            return Outcome(outcome.result, PARENT_S)
        if not owned(resource.body)[1] and not resource.paused:
            return await self._take(context, resource, target, broker)
        others, is_users = _others(context, resource, target), partial(self._roles.has, target.cluster)
        found = differences(model, target.name, listing.state, others, is_users)
        if resource.paused:
            message = f"paused by annotation, nothing is changed: {named(found) or 'there is no difference'}"
            verdict = ready(Reason.PAUSED, message, "Unknown")
            return await self._reconciled(context, resource, target, listing, [verdict])
        if is_somebody_elses(resource.body, found) and exists(target.kind, target.name, listing.state):
            await note_adopted(context, resource)
        if isinstance(model, Subscription) and _has_expired(resource, model, target, listing.state):
            outcome = await self._not_ready(context, resource, Reason.EXPIRED, _expired_message(model, target))
            # One that a consumer creates again is the resource's.
            resource.memory.observed = observed(target.kind, target.name, listing.state)
            return outcome
        too_many = surplus(model, target.name, listing.state)
        adopting = is_adopted(resource.body) and condition(resource.status, ADOPTED).get("status") != "True"
        changes = adoption_message(model, target.name, found)
        if adopting:
            if message := unnamed(model, target.name, found):
                return await self._not_ready(context, resource, Reason.ADOPTION_PENDING, message)
            await context.events.emit(resource.body, ADOPTED, changes)
        if found:
            if context.cache.ownership.owner(target.claim) != resource.key:
                # It was taken from this one meanwhile, by an annotation for example.
                return Outcome("waiting", 0.0)
            partitions = too_many[0] if too_many is not None else None
            others = _others(context, resource, target)
            # All of them: a User may be granted something meanwhile.
            users = self._roles.on(target.cluster) if _states_permissions(model) else ()
            await broker.apply(policy_manifest(resource.key, spec, target, partitions, others, users))
            await report_drift(context, resource, found)
            # Resources below a parent that was just created no longer have to wait.
            for child in context.cache.children(resource.key):
                context.queue.add(child)
            listing = await broker.listing_of(target.kind, target.name, 0.0)
            others_now = _others(context, resource, target) | others
            if left := differences(model, target.name, listing.state, others_now, is_users):
                return await self._not_ready(context, resource, Reason.NOT_APPLIED, named(left), target.name)
        resource.memory.refused = 0
        applied = Verdict(POLICIES_APPLIED, "True", Reason.RECONCILED, "the broker has the policies of the resource")
        now = _partition_verdict(*too_many) if too_many is not None else ready(Reason.RECONCILED, "", "True")
        if isinstance(model, Topic) and (taken := model.spec.named_subscriptions & others):
            now = ready(Reason.SUBSCRIPTION_OWNED, _owned_message(context, target, taken))
            if any(each.name in taken for each in model.spec.subscription_policies):
                applied = Verdict(POLICIES_APPLIED, "False", now.reason, now.message)
        elif users_roles := _stated_roles(model, is_users):
            now = ready(Reason.ROLE_OWNED, _role_message(resource, users_roles))
            applied = Verdict(POLICIES_APPLIED, "False", now.reason, now.message)
        adopted = [Verdict(ADOPTED, "True", Reason.EXISTED_BEFORE, changes)] if adopting else []
        return await self._reconciled(context, resource, target, listing, [now, applied, *adopted])

    async def _take(self, context: Context, resource: Resource, target: Target, broker: BrokerSession) -> Outcome:
        """Hold the resource, and record whether its object existed before the operator saw the resource."""
        memory = resource.memory
        listing = await broker.recent_listing_of(target.kind, target.name, memory.began_at)
        adopted = exists(target.kind, target.name, listing.state)
        names_it = rival_topic(context.cache, resource.body, target.claim)
        if context.cache.ownership.owner(target.claim) != resource.key or names_it is not None:
            # Another one took it meanwhile.
            return Outcome("waiting", 0.0)
        with context.cache.ownership.reserved(resource.key):
            held = await hold(context, resource, target, adopted=adopted)
        # The body that is held includes changes that somebody made meanwhile.
        return await self.reconcile(context, resource) if held else Outcome("gone")

    async def _reconciled(
        self, context: Context, resource: Resource, target: Target, listing: Listing, verdicts: Sequence[Verdict]
    ) -> Outcome:
        """Report, and remember the broker's state: a later listing that differs requeues the resource."""
        state = listing.state
        topic = state.topics.get(target.name) if target.kind == "Topic" else None
        all_verdicts = [*verdicts, *([quota_verdict(topic)] if topic is not None else [])]
        stats = listing.stats(target.kind, target.name)
        archive = ArchiveReport()
        if isinstance(resource.model, Topic):
            archive = await self._archives.reconcile(context, resource, resource.model.spec.archive, target)
            all_verdicts += [archive.verdict] if archive.verdict is not None else []
        await report_policies(context, resource, all_verdicts, target.name, stats, archive.fields)
        resource.memory.observed = observed(target.kind, target.name, state)
        result = "ready" if verdicts[0].status == "True" else "waiting"
        again_s = REREAD_S if reads_config_map(resource.spec) else context.settings.resync_s
        return Outcome(result, min(archive.requeue_s or again_s, again_s))

    async def _not_ready(
        self, context: Context, resource: Resource, reason: Reason, message: str, name: str = ""
    ) -> Outcome:
        """Report the reason. The awaited event requeues it: a parent, a rival's deletion, a broker that answers.

        ``name`` is that of the object if it was created for the resource all the same.
        """
        verdicts = [ready(reason, message)]
        if reason is Reason.ADOPTION_PENDING:
            verdicts.append(Verdict(ADOPTED, "False", reason, message))
        waits_to_be_applied = is_held(resource.body) and "name" not in resource.status
        if reason in _NOT_APPLIED or waits_to_be_applied:
            verdicts.append(Verdict(POLICIES_APPLIED, "False", reason, message))
        if resource.memory.archive_refused is not None:
            verdicts.append(resource.memory.archive_refused)
        elif resource.key.kind == "Topic":
            await self._archives.renew(context, resource)
        # The quota of a broker that does not answer is unknown.
        if reason in _NO_ANSWER and condition(resource.status, QUOTA_EXCEEDED):
            verdicts.append(Verdict(QUOTA_EXCEEDED, "Unknown", reason, message))
        await report_policies(context, resource, verdicts, name)
        return Outcome("waiting", context.settings.resync_s)

    async def _not_allowed(self, context: Context, resource: Resource, claim: Claim, why: str) -> Outcome:
        """Release a resource that its BrokerCluster does not allow, or not any more; the broker stays as it is."""
        message, resource.memory.http_url = why, ""
        if is_held(resource.body):
            message = f"{why}; {claim.name} stays in the broker as it is"
            await protect_parents(context, resource)
        await release(context, resource)
        unknown = Verdict(POLICIES_APPLIED, "Unknown", Reason.NOT_ALLOWED, message)
        await report_policies(context, resource, [ready(Reason.NOT_ALLOWED, message), unknown])
        return Outcome("waiting", context.settings.resync_s)

    async def _unmanaged(self, context: Context, resource: Resource) -> Outcome:
        resource.memory.http_url = ""
        if is_held(resource.body):
            await protect_parents(context, resource)
        await release(context, resource)
        if (claim := claim_of(context.cache, resource.body)) is not None:
            await note_cluster(context, resource, claim.cluster)
        unknown = Verdict(POLICIES_APPLIED, "Unknown", Reason.UNMANAGED, NOT_RECONCILED)
        archive = resource.memory.archive_refused
        stated = [ready(Reason.UNMANAGED, NOT_RECONCILED, "Unknown"), unknown]
        verdicts = [*stated, *([archive] if archive is not None else [])]
        await report_policies(context, resource, verdicts)
        return Outcome("unmanaged")


def _unsupported(target: Target, model: OfBroker) -> list[str]:
    """Return the fields that need a BrokerCluster."""
    if target.cluster.kind != BROKER_CONNECTION.name or not isinstance(model, Topic) or model.spec.archive is None:
        return []
    return ["spec.archive: an archive needs a BrokerCluster, which consents to it; valid: leave it out"]


def _missing_parent(target: Target, state: BrokerState) -> tuple[Reason, str] | None:
    if target.kind == "Namespace" and target.parent not in state.tenants:
        return Reason.PARENT_NOT_READY, f"the broker has no tenant {target.parent} yet"
    if target.kind == "Subscription" and target.parent not in state.topics:
        return Reason.PARENT_NOT_READY, f"the broker has no topic {target.parent} yet"
    if target.kind == "Topic" and target.parent not in state.namespaces:
        return Reason.PARENT_NOT_READY, f"the broker has no namespace {target.parent} yet"
    return None


def _others(context: Context, resource: Resource, target: Target) -> frozenset[str]:
    """Return the subscriptions of a Topic that are not its own; none of other kinds."""
    if target.kind != "Topic":
        return frozenset()
    return other_subscriptions(context.cache, resource.body, target.claim)


def _states_permissions(model: OfBroker) -> bool:
    return isinstance(model, Namespace | Topic) and model.spec.permissions is not None


def _stated_roles(model: OfBroker, is_users: IsOthers) -> list[str]:
    """Return the roles in the permissions of a Namespace or Topic that Users have."""
    if not isinstance(model, Namespace | Topic):
        return []
    return sorted({each.role for each in model.spec.permissions or () if is_users(each.role)})


def _role_message(resource: Resource, roles: Sequence[str]) -> str:
    return (
        f"spec.permissions: a User has the role {', '.join(roles)}, so the {resource.key.kind} leaves its grants alone;"
        " valid: remove it there and state it in permissions of the User"
    )


def _owned_message(context: Context, target: Target, taken: Collection[str]) -> str:
    """Name the Subscriptions that have what a Topic names, too."""
    owners = []
    for key in context.cache.ownership.below(target.claim):
        stake = context.cache.ownership.stake(key)
        if stake is not None and SubscriptionName.parse(stake.claim.name).local in taken:
            owners.append(str(key))
    return (
        f"{', '.join(sorted(taken))} in the spec belongs to {', '.join(owners)}, and the Topic leaves it alone; valid:"
        " remove it from spec.subscriptions and spec.subscriptionPolicies, or delete the Subscription"
    )


def _has_expired(resource: Resource, model: Subscription, target: Target, state: BrokerState) -> bool:
    """Whether the broker deleted a subscription that was there as the spec is now, because nobody used it.

    It then keeps the subscription's policies; a topic that was created again, by whomever, does not have them.
    Partitions expire one by one: what one of them lost has expired if no consumer is connected to the others.
    """
    period_ms = model.spec.policies().subscription_expiration_ms or 0
    name = SubscriptionName.parse(target.name)
    if period_ms <= 0 or own_policies(name, state).subscription_expiration_ms != period_ms:
        return False
    topic = state.topics[target.parent]
    there = topic.subscription(name.local)
    if there is not None and there.durable and (there.consumers or name.local in topic.subscriptions):
        return False
    before = condition(resource.status, POLICIES_APPLIED)
    if before.get("observedGeneration") != resource.generation:
        return False
    was_there = before.get("status") == "True" and in_this_state_s(before) * 1000 >= period_ms
    return was_there or before.get("reason") == Reason.EXPIRED


def _expired_message(model: Subscription, target: Target) -> str:
    expiry = format_duration(model.spec.policies().subscription_expiration_ms or 0)
    return (
        f"the broker does not have {target.name} any more, which expires when nobody uses it for {expiry}; a consumer"
        " that subscribes creates it again, and so does a change of the spec"
    )


def _partition_verdict(there: int, wanted: int) -> Verdict:
    if there == 0:
        message = f"the topic is not partitioned and cannot become partitioned; valid: partitions 0, not {wanted}"
        return Verdict(READY, "False", Reason.PARTITIONING_REFUSED, message)
    message = f"the topic has {there} partitions and cannot have fewer; valid: {there} or more, not {wanted}"
    return Verdict(READY, "False", Reason.SHRINK_REFUSED, message)
