"""Plans the steps of an apply, in order and with the names in the broker, and lists the resources that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from heliograph_api.policies.policies import Policies, contradictions, resolve
from heliograph_api.resources.model import (
    AnyResource,
    BrokerCluster,
    BrokerConnection,
    Namespace,
    Subscription,
    Tenant,
    Topic,
)
from heliograph_api.resources.references import ResourceReference
from heliograph_api.values.names import COMPACTION, InvalidName, SubscriptionName, TopicName

from .manifest_error import ManifestError


@dataclass(frozen=True, slots=True)
class Existing:
    """The tenants, namespaces (``tenant/namespace``) and topics (full names) that a broker has already."""

    tenants: Collection[str] = ()
    namespaces: Collection[str] = ()
    topics: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A resource and its full name in the broker: ``shop``, ``shop/payments``, ``persistent://shop/payments/orders``.

    That of a subscription is the text of a :class:`.SubscriptionName`.
    """

    resource: AnyResource
    name: str


def plan(resources: Iterable[AnyResource], existing: Existing | None = None) -> list[Step]:
    """Return the steps, parents first: clusters, tenants, namespaces, topics, subscriptions; else in the order given.

    A reference is the ``metadata.name`` of a resource among ``resources`` in its Kubernetes namespace; else the name of
    an existing tenant, or of an existing namespace, whole (``shop/payments``) or its own (``payments``) if only one is
    called so, or of an existing topic, whole (``shop/payments/orders``). Raises :class:`ManifestError` naming all that
    is missing, ambiguous, contradictory or there twice.
    """
    planner = _Planner(existing or Existing())
    given = list(resources)
    for kind in (BrokerCluster, BrokerConnection, Tenant, Namespace, Topic, Subscription):
        for resource in given:
            if isinstance(resource, kind):
                planner.add(resource)
    if planner.problems:
        raise ManifestError(planner.problems)
    return planner.steps


@dataclass(slots=True)
class _Planner:
    existing: Existing
    steps: list[Step] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # By Kubernetes namespace and metadata.name. None: it is there, and its problem has been reported.
    _tenants: dict[tuple[str, str], str] = field(default_factory=dict)
    _namespaces: dict[tuple[str, str], str | None] = field(default_factory=dict)
    _topics: dict[tuple[str, str], str | None] = field(default_factory=dict)
    _policies: dict[str, Policies] = field(default_factory=dict)
    # By kind and full name.
    _taken: dict[tuple[str, str], AnyResource] = field(default_factory=dict)

    def add(self, resource: AnyResource) -> None:
        """Find the resource's full name and note a step, or what stands against it."""
        if isinstance(resource, Tenant):
            self._tenants[_key(resource, resource.metadata.name)] = resource.tenant
            self._step(resource, resource.tenant)
        elif isinstance(resource, Namespace):
            self._add_namespace(resource)
        elif isinstance(resource, Topic):
            self._add_topic(resource)
        elif isinstance(resource, Subscription):
            self._add_subscription(resource)
        else:
            self._step(resource, resource.metadata.name)

    def _add_namespace(self, resource: Namespace) -> None:
        key = _key(resource, resource.metadata.name)
        tenant = self._tenant_of(resource)
        if tenant is None:
            self._namespaces[key] = None
            return
        name = f"{tenant}/{resource.local_name}"
        self._namespaces[key] = name
        self._policies.setdefault(name, resource.spec.policies())
        self._step(resource, name)

    def _add_topic(self, resource: Topic) -> None:
        key = _key(resource, resource.metadata.name)
        self._topics[key] = None
        namespace = self._namespace_of(resource)
        if namespace is None:
            return
        try:
            name = str(resource.topic_name(namespace))
        except InvalidName as error:
            self._problem(resource, "spec.name", str(error))
            return
        self._topics[key] = name
        policies = resource.spec.policies()
        targets = {"spec.deadLetterTopic": policies.dead_letter_topic}
        for index, spec in enumerate(resource.spec.subscription_policies):
            targets[f"spec.subscriptionPolicies[{index}].deadLetterTopic"] = spec.policies().dead_letter_topic
        self._check_dead_letters(resource, name, targets)
        if resource.spec.schema_ is not None and resource.spec.schema_.definition_from is not None:
            problem = "only the operator reads ConfigMaps; valid: the definition itself, in spec.schema.definition"
            self._problem(resource, "spec.schema.definitionFrom", problem)
        self._check_subscriptions(resource)
        self.problems += self._contradictions(resource, namespace)
        self._step(resource, name)

    def _check_dead_letters(self, resource: Topic | Subscription, name: str, targets: Mapping[str, str | None]) -> None:
        """Find dead letter topics, by fields, that are the topic ``name`` itself or a system topic."""
        for path, target in targets.items():
            if target == name:
                self._problem(resource, path, f"'{name}' is this topic; valid: another topic")
            elif target and TopicName.parse(target).is_system:
                self._problem(resource, path, f"'{target}' is a system topic; valid: another topic")

    def _add_subscription(self, resource: Subscription) -> None:
        name = self._topic_of(resource)
        if name is None:
            return
        topic, local = TopicName.parse(name), resource.local_name
        if not topic.is_persistent:
            self._problem(resource, "spec.topicRef.name", f"'{name}' stores no messages; valid: a persistent topic")
            return
        self._check_dead_letters(resource, name, {"spec.deadLetterTopic": resource.spec.policies().dead_letter_topic})
        described = self._taken.get(("Topic", name))
        if isinstance(described, Topic) and local in described.spec.named_subscriptions:
            problem = f"'{local}' is a subscription in the spec of {described.source}, too; valid: in one of the two"
            self._problem(resource, "spec.name", problem)
            return
        self._step(resource, str(SubscriptionName(topic, local)))

    def _topic_of(self, resource: Subscription) -> str | None:
        reference = resource.spec.topic_ref.name
        key = _referred(resource, resource.spec.topic_ref)
        if key in self._topics:
            return self._topics[key]
        try:
            topic = TopicName.parse(reference)
        except InvalidName as error:
            self._problem(resource, "spec.topicRef.name", str(error))
            return None
        if topic.partition < 0 and str(topic) in self.existing.topics:
            return str(topic)
        known = {name for _, name in self._topics}
        problem = f"there is no Topic '{reference}', in the manifests or in the broker; {_valid(known)}"
        self._problem(resource, "spec.topicRef.name", problem)
        return None

    def _check_subscriptions(self, resource: Topic) -> None:
        """Find the broker's own subscription, and those that would expire and be created again, without a backlog."""
        spec = resource.spec
        if COMPACTION in spec.subscriptions:
            self._problem(resource, "spec.subscriptions", f"'{COMPACTION}' is the broker's own; valid: another name")
        for index, own in enumerate(spec.subscription_policies):
            path = f"spec.subscriptionPolicies[{index}]"
            if own.name == COMPACTION:
                self._problem(resource, f"{path}.name", f"'{COMPACTION}' is the broker's own; valid: another name")
            elif own.name in spec.all_subscriptions and (own.policies().subscription_expiration_ms or -1) > 0:
                listed = "subscriptions" if own.name in spec.subscriptions else "archive"
                self._problem(
                    resource,
                    f"{path}.expires",
                    f"'{own.name}' would lose its backlog and be created again, as spec.{listed} declares it;"
                    " valid: leave one of them out, or -1",
                )

    def _tenant_of(self, resource: Namespace) -> str | None:
        reference = resource.spec.tenant_ref.name
        tenant = self._tenants.get(_referred(resource, resource.spec.tenant_ref))
        if tenant is not None:
            return tenant
        if reference in self.existing.tenants:
            return reference
        self._problem(
            resource,
            "spec.tenantRef.name",
            f"there is no Tenant '{reference}', in the manifests or in the broker;"
            f" {_valid({name for _, name in self._tenants} | set(self.existing.tenants))}",
        )
        return None

    def _namespace_of(self, resource: Topic) -> str | None:
        reference = resource.spec.namespace_ref.name
        key = _referred(resource, resource.spec.namespace_ref)
        if key in self._namespaces:
            return self._namespaces[key]
        found = sorted(name for name in self.existing.namespaces if reference in (name, name.partition("/")[2]))
        if len(found) == 1:
            return found[0]
        if found:
            problem = f"there are several namespaces '{reference}' in the broker; {_valid(found)}"
        else:
            known = {name for _, name in self._namespaces} | set(self.existing.namespaces)
            problem = f"there is no Namespace '{reference}', in the manifests or in the broker; {_valid(known)}"
        self._problem(resource, "spec.namespaceRef.name", problem)
        return None

    def _contradictions(self, resource: Topic, namespace: str) -> Iterator[str]:
        """Yield contradictions of the topic's policies, right by themselves, with those it inherits."""
        inherited = self._policies.get(namespace)
        if inherited is None:
            return
        for path, problem in contradictions(resolve(resource.spec.policies(), inherited, Policies())):
            yield f"{resource.source}: spec.{path} (with the policies of namespace {namespace}): {problem}"

    def _step(self, resource: AnyResource, name: str) -> None:
        earlier = self._taken.setdefault((resource.kind, name), resource)
        if earlier is not resource:
            self._problem(
                resource,
                "spec.name",
                f"{name} is already described in {earlier.source}; valid: one {resource.kind} resource for it",
            )
            return
        self.steps.append(Step(resource, name))

    def _problem(self, resource: AnyResource, path: str, problem: str) -> None:
        self.problems.append(f"{resource.source}: {path}: {problem}")


def _key(resource: AnyResource, name: str) -> tuple[str, str]:
    return resource.metadata.namespace, name


def _referred(resource: AnyResource, reference: ResourceReference) -> tuple[str, str]:
    return reference.namespace or resource.metadata.namespace, reference.name


def _valid(names: Collection[str]) -> str:
    shown = sorted(names)[:8]
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"valid: {', '.join(shown)}{rest}" if shown else "valid: none exists yet, so apply one with it"
