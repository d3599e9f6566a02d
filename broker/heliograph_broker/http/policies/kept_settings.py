"""Settings of Pulsar that are no policies of this broker: kept as they are set, and shown.

Most have no effect, as a warning states; a few ask for something that holds here (``KeptSetting.holds``). They are
values of JSON in a level's policies (``Policies.kept``), under the names that Pulsar's document of a namespace has for
them. :mod:`.kept_routes` makes their paths. A setting that would promise what the broker cannot do, such as a copy in
another cluster, is refused instead (:mod:`.unsupported_policies`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.policies import Policies
from heliograph_api.policies.policy_values import COMPATIBILITIES_OF_AUTO_UPDATES, SCHEMA_AUTO_UPDATE

from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.security.authorization.grants import SUBSCRIPTION_AUTH_MODE, SUBSCRIPTION_AUTH_MODES

from .kept_documents import (
    AFFINITY_EXAMPLE,
    OFFLOAD_EXAMPLE,
    PERSISTENCE_EXAMPLE,
    BookieAffinityDocument,
    OffloadDocument,
    PersistenceDocument,
    check_offload,
    check_persistence,
    completed_offload,
)
from .policy_description import POST, PUT
from .policy_documents import Count, DispatchRateDocument, LongLimit, check_choice, choice

_STORAGE: Final = "the broker stores messages itself, without bookies"
_OFFLOAD: Final = "there is no offloading to other storage yet"
_REPLICATION: Final = "there is only one cluster, so nothing is replicated"
_PLACEMENT: Final = "one broker serves all namespaces"
_SNAPSHOTS: Final = "deduplication takes its snapshots when they are due"
_METRICS: Final = "topics' properties are not shown in metrics"
_ALONE: Final = "this cluster, as there is no other"
_PAUSE: Final = "acknowledgments are always stored whole, so delivery need not wait for it"
_AUTHORIZATION: Final = "authorization is not enabled"
_AUTO_UPDATE: Final = "it decides where schemaCompatibilityStrategy is UNDEFINED"

AUTO_UPDATE_STRATEGIES: Final = tuple(COMPATIBILITIES_OF_AUTO_UPDATES)
OFFLOAD_POLICIES: Final = "offload_policies"
RESOURCE_GROUP: Final = "resource_group_name"
ALLOWED_CLUSTERS: Final = "allowed_clusters"
ANTI_AFFINITY: Final = "antiAffinity"
REPLICATION_CLUSTERS: Final = "replication_clusters"


class KeptSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One of them: its paths behind a namespace's and a topic's, and the JSON that it takes and shows."""

    #: Its name in ``Policies.kept``.
    name: str
    document: Any
    example: str
    #: Why it has no effect, or how what it asks for holds.
    reason: str
    #: Whether what it asks for holds here, so that there is nothing to warn of.
    holds: bool = False
    #: Whether it has an effect where authorization is on.
    needs_authorization: bool = False
    namespace: str = ""
    topic: str = ""
    verbs: tuple[str, str] = (POST, POST)
    #: The answer where nothing is set; None: 204.
    shown: Any = None
    #: What ``applied=true`` answers where no level sets it; None: 204.
    applied: Any = None
    #: The value that a request without a body sets.
    switched: Any = None
    removable: bool = True
    #: Whether the namespace's own document has it, and there as a map by the cluster's name.
    in_document: bool = True
    #: Whether that document leaves it out where nothing is set.
    hidden: bool = False
    per_cluster: bool = False
    #: Refuses a value without a meaning.
    check: Callable[[Any, BrokerConfig], None] = lambda value, config: None
    #: Adds what Pulsar shows of a value besides what was given.
    completed: Callable[[Any], Any] = lambda value: value
    #: Statuses of refusals that few other paths have.
    refusals: tuple[int, ...] = ()
    #: The field of the offload policies that has it as well.
    offload_field: str = ""
    #: Pulsar's refusal of null, which otherwise removes the setting: status and reason.
    refuses_null: tuple[int, str] | None = None

    def has_effect(self, authorized: bool) -> bool:
        """Return whether there is nothing to warn of, by whether authorization is on."""
        return self.holds or (self.needs_authorization and authorized)

    @property
    def warning(self) -> str:
        """Return the warning of a setting without effect."""
        return f"{self.namespace or self.topic} is kept and shown, but has no effect here: {self.reason}"


def _check_mode(value: str, config: BrokerConfig) -> None:
    check_choice("subscriptionAuthMode", value, SUBSCRIPTION_AUTH_MODES)


def _check_strategy(value: str, config: BrokerConfig) -> None:
    check_choice("strategy", value, AUTO_UPDATE_STRATEGIES)


def _check_interval(value: int, config: BrokerConfig) -> None:
    if value < 0:
        raise PreconditionFailed("interval must be greater than or equal to 0")


def check_clusters(clusters: list[str], config: BrokerConfig) -> None:
    """Check clusters. Raises :class:`PreconditionFailed`, or as Pulsar :class:`ApiError` 403 for an unknown one."""
    if not clusters:
        raise PreconditionFailed("ClusterIds should not be null or empty")
    for cluster in clusters:
        if cluster != config.cluster_name:
            raise ApiError(403, f"Invalid cluster id: {cluster}")


def _check_topic_clusters(clusters: list[str], config: BrokerConfig) -> None:
    if clusters and config.cluster_name not in clusters:
        raise PreconditionFailed(
            "Can not remove local cluster from the local topic-level replication clusters policy:"
            f" the clusters should include {config.cluster_name}"
        )
    check_clusters(clusters, config)


_RATE_EXAMPLE: Final = '{"dispatchThrottlingRateInMsg": 1000, "dispatchThrottlingRateInByte": -1}'

KEPT: Final = (
    KeptSetting(
        name="persistence",
        document=PersistenceDocument,
        example=PERSISTENCE_EXAMPLE,
        reason=_STORAGE,
        namespace="persistence",
        topic="persistence",
        applied=PersistenceDocument(1, 1, 1, 1.0),
        check=check_persistence,
        refuses_null=(400, "persistence policies should not be null"),
    ),
    KeptSetting(
        name="bookie_affinity",
        document=BookieAffinityDocument,
        example=AFFINITY_EXAMPLE,
        reason=_STORAGE,
        namespace="persistence/bookieAffinity",
        in_document=False,
    ),
    KeptSetting(
        name=OFFLOAD_POLICIES,
        document=OffloadDocument,
        example=OFFLOAD_EXAMPLE,
        reason=_OFFLOAD,
        namespace="offloadPolicies",
        topic="offloadPolicies",
        check=check_offload,
        completed=completed_offload,
        refuses_null=(412, "The offloadPolicies must be specified for namespace offload."),
    ),
    KeptSetting(
        name="offload_threshold",
        document=LongLimit,
        example="1073741824",
        reason=_OFFLOAD,
        namespace="offloadThreshold",
        verbs=(PUT, PUT),
        shown=-1,
        offload_field="managedLedgerOffloadThresholdInBytes",
    ),
    KeptSetting(
        name="offload_threshold_in_seconds",
        document=LongLimit,
        example="3600",
        reason=_OFFLOAD,
        namespace="offloadThresholdInSeconds",
        verbs=(PUT, PUT),
        shown=-1,
        offload_field="managedLedgerOffloadThresholdInSeconds",
    ),
    KeptSetting(
        name="offload_deletion_lag_ms",
        document=LongLimit,
        example="3600000",
        reason=_OFFLOAD,
        namespace="offloadDeletionLagMs",
        verbs=(PUT, PUT),
        offload_field="managedLedgerOffloadDeletionLagInMillis",
    ),
    KeptSetting(
        name="replicatorDispatchRate",
        document=DispatchRateDocument,
        example=_RATE_EXAMPLE,
        reason=_REPLICATION,
        namespace="replicatorDispatchRate",
        topic="replicatorDispatchRate",
        applied=DispatchRateDocument(0, 0),
        per_cluster=True,
    ),
    KeptSetting(
        name=ANTI_AFFINITY,
        document=str,
        example='"group"',
        reason=_PLACEMENT,
        namespace="antiAffinity",
        in_document=False,
    ),
    KeptSetting(
        name="deduplicationSnapshotIntervalSeconds",
        document=Count,
        example="120",
        reason=_SNAPSHOTS,
        namespace="deduplicationSnapshotInterval",
        topic="deduplicationSnapshotInterval",
        check=_check_interval,
    ),
    KeptSetting(
        name="dispatcherPauseOnAckStatePersistentEnabled",
        document=bool,
        example="true",
        reason=_PAUSE,
        holds=True,
        namespace="dispatcherPauseOnAckStatePersistent",
        topic="dispatcherPauseOnAckStatePersistent",
        shown=False,
        applied=False,
        switched=True,
        hidden=True,
    ),
    KeptSetting(
        name=SUBSCRIPTION_AUTH_MODE,
        document=Annotated[str, choice(*SUBSCRIPTION_AUTH_MODES)],
        example='"Prefix"',
        reason=_AUTHORIZATION,
        needs_authorization=True,
        namespace="subscriptionAuthMode",
        shown="None",
        check=_check_mode,
    ),
    KeptSetting(
        name="allowed_topic_property_keys_for_metrics",
        document=list[str],
        example='["owner"]',
        reason=_METRICS,
        namespace="allowedTopicPropertyKeysForMetrics",
    ),
    KeptSetting(
        name=SCHEMA_AUTO_UPDATE,
        document=Annotated[str, choice(*AUTO_UPDATE_STRATEGIES)],
        example='"Full"',
        reason=_AUTO_UPDATE,
        holds=True,
        namespace="schemaAutoUpdateCompatibilityStrategy",
        verbs=(PUT, PUT),
        check=_check_strategy,
    ),
    KeptSetting(
        name=ALLOWED_CLUSTERS,
        document=list[str],
        example='["standalone"]',
        reason=_ALONE,
        holds=True,
        namespace="allowedClusters",
        shown=[],
        check=check_clusters,
        refusals=(403,),
        refuses_null=(412, "ClusterIds should not be null or empty"),
    ),
    KeptSetting(
        name=REPLICATION_CLUSTERS,
        document=list[str],
        example='["standalone"]',
        reason=_ALONE,
        holds=True,
        topic="replication",
        check=_check_topic_clusters,
        refusals=(403,),
        in_document=False,
        refuses_null=(412, "ClusterIds should not be null or empty"),
    ),
)
"""The settings with one value for each level and the same paths as a policy."""


def kept_value(policies: Policies | None, name: str) -> Any:
    """Return what a level keeps under a name, None if nothing."""
    return (policies.kept or {}).get(name) if policies is not None else None


def keep(policies: Policies, name: str, value: Any) -> None:
    """Put a value into a level's kept settings, as JSON has it; None removes it. The level has a new map then."""
    others = {known: kept for known, kept in (policies.kept or {}).items() if known != name}
    policies.kept = (others if value is None else others | {name: msgspec.to_builtins(value)}) or None


def checked(setting: KeptSetting, value: Any, config: BrokerConfig) -> Any:
    """Return the value to keep, None for none. Raises what the setting's check does, and Pulsar's refusal of null."""
    if value is None:
        if setting.refuses_null is not None:
            raise ApiError(*setting.refuses_null)
        return None
    setting.check(value, config)
    return setting.completed(value)
