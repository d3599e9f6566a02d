"""The meaning of each reason, and what to do: the tables of docs/operator.md, install.md and backup.md."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from .kinds import BACKUP, BROKER_CLUSTER, BROKER_CONNECTION, SCHEDULED_BACKUP, USER

_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


class Guide(NamedTuple):
    """A row of a table: reasons, what they mean, and what to do (empty: nothing)."""

    reasons: tuple[str, ...]
    means: str
    advice: str


OF_POLICIES: Final = (
    Guide(("Reconciled",), "the broker matches the resource", ""),
    Guide(
        ("ParentMissing",),
        (
            "the parent it refers to (for a Tenant: the BrokerCluster or BrokerConnection) does not exist; the message"
            " names it"
        ),
        "apply the parent, or correct the reference",
    ),
    Guide(("ParentNotReady",), "the parent does not exist in the broker yet", "see the parent's conditions"),
    Guide(
        ("ParentDeleting",),
        "the parent is being deleted, so nothing is created in it",
        "delete this resource too, or wait and apply the parent again",
    ),
    Guide(
        ("NotAllowed",),
        (
            "the BrokerCluster or BrokerConnection is in another Kubernetes namespace and does not consent; the message"
            " names what is missing. Nothing is done in the broker"
        ),
        "add it to [`spec.consents`](#other-kubernetes-namespaces) of the BrokerCluster or BrokerConnection",
    ),
    Guide(
        ("ClusterNotReady",),
        (
            "the BrokerCluster has not published a broker address yet, or the BrokerConnection has not reached its "
            "brokers; of `Archived`: the operator has not read yet which authorities runs are to trust"
        ),
        "see the conditions of the BrokerCluster or BrokerConnection",
    ),
    Guide(
        ("ClusterAmbiguous",),
        (
            "there are several BrokerClusters, and none is named `default`; a resource that was reconciled once "
            "keeps the one it has"
        ),
        "name one in `clusterRef`",
    ),
    Guide(
        ("BrokersChanged",),
        (
            "the BrokerConnection leads to other brokers than those that have the object; the message names both."
            " Nothing is done there, and a deletion waits"
        ),
        "see [Other brokers behind the URL](broker-connections.md#other-brokers-behind-the-url)",
    ),
    Guide(
        ("BrokerUnreachable",),
        "the broker does not answer; the message has the error",
        (
            "on a BrokerCluster: see its pods; on a BrokerConnection: see its conditions. The operator continues by"
            " itself"
        ),
    ),
    Guide(
        ("Invalid",),
        "the spec is not valid, although the API server accepted it (older definitions)",
        "correct it; update the definitions",
    ),
    Guide(
        ("Refused",),
        "the broker refuses the change; the message has its reason (such as `maxTopics` of the namespace)",
        ("change the field that the message names; the operator retries with growing pauses of up to 5 minutes"),
    ),
    Guide(
        ("NotSupported",),
        (
            "the brokers of a [BrokerConnection](broker-connections.md) do not have a field, or not this value; the"
            " message names it"
        ),
        "change or remove the field",
    ),
    Guide(
        ("NotApplied",),
        "the broker accepted the change and still differs; the message names the fields",
        "check that broker and operator have the same version; see the broker's log",
    ),
    Guide(
        ("AdoptionPending",),
        (
            "the object existed before the resource and has settings that the resource does not name; the message"
            " lists them"
        ),
        "[add them to the spec, or set `adoptionPolicy: Replace`](#adoption)",
    ),
    Guide(
        ("ExistedBefore",),
        "of `Adopted`: the object existed before the resource; the message lists what was changed",
        "",
    ),
    Guide(
        ("Conflict",),
        (
            "another resource has the same tenant, namespace, topic or subscription, or the Topic names the"
            " subscription in its spec; the message names it"
        ),
        "delete one of them, or remove the name from the Topic; this one takes over then",
    ),
    Guide(
        ("SubscriptionOwned",),
        "a Subscription has what the Topic names in `subscriptions` or `subscriptionPolicies`; all else is applied",
        "remove it from the Topic, or delete the Subscription, which leaves it to the Topic",
    ),
    Guide(
        ("RoleOwned",),
        "a User has a role that `permissions` of the Namespace or Topic names; all else is applied",
        "state these permissions in the User, and remove them there",
    ),
    Guide(
        ("SchemaMissing",),
        "the ConfigMap that `schema.definitionFrom` names does not exist, or has no such entry; the message names it",
        "create it; the operator reads it again every minute",
    ),
    Guide(
        ("Expired",),
        "nobody used the subscription for as long as its `expires` says, so the broker deleted it",
        "nothing: a consumer that subscribes creates it again; a change of the spec does, too",
    ),
    Guide(
        ("RenameRefused",),
        "the resource would now describe another object, because its parent was recreated with another name",
        "create a new resource; nothing is moved or deleted",
    ),
    Guide(
        ("ShrinkRefused",),
        "the topic has more partitions than `partitions` says; all else is applied",
        "set the number it has; for fewer partitions, create another topic",
    ),
    Guide(
        ("PartitioningRefused",),
        "the topic is not partitioned and cannot become so; all else is applied",
        "`partitions: 0`, or another name",
    ),
    Guide(
        ("Paused",),
        "the annotation `heliograph.dev/paused` is set; the message lists the differences",
        "remove the annotation",
    ),
    Guide(("Unmanaged",), "the annotation `heliograph.dev/managed` is `false`", "remove the annotation"),
    Guide(
        ("ChildrenExist",),
        ("the resource is being deleted, and the message lists resources whose objects would be deleted with it"),
        "delete those, or set `deletionPolicy: Retain`",
    ),
    Guide(
        (
            "ArchivePending",
            "ArchiveSucceeded",
            "ArchiveSuspended",
        ),
        "of `Archived`: no run has ended yet, the last run succeeded, runs are suspended",
        "",
    ),
    Guide(
        ("ArchiveNotAllowed",),
        (
            "of `Archived`: the BrokerCluster, or the operator, does not allow the archive; the message names "
            "each field, its value and what is allowed. There is no CronJob"
        ),
        "[allow it](#consent-to-archives), or change the field",
    ),
    Guide(
        ("ArchiveFailed",),
        "of `Archived`: the last run failed; the message and an event have its error",
        "follow the message; the next run continues where the last one stopped",
    ),
    Guide(
        (
            "QuotaWithinLimits",
            "NoQuota",
        ),
        "of `QuotaExceeded`: the backlog is below its limits, or has none",
        "",
    ),
    Guide(
        (
            "SizeQuotaExceeded",
            "AgeQuotaExceeded",
        ),
        "of `QuotaExceeded`: which limit is reached",
        "consume, or raise the limit",
    ),
)
"""Reasons on Tenants, Namespaces, Topics and Subscriptions."""
OF_CLUSTERS: Final = (
    Guide(
        ("PodNotReady",),
        (
            "a pod is not ready; the message has Kubernetes' own reason (`ImagePullBackOff`, `CrashLoopBackOff`, "
            "`Unschedulable`, …)"
        ),
        "fix the cause; correcting the resource is enough",
    ),
    Guide(("PodMissing",), "the pod does not exist yet", "if it lasts, see `kubectl describe statefulset`"),
    Guide(("Stopped",), "`replicas` is 0", ""),
    Guide(
        (
            "RollingOut",
            "RolledOut",
        ),
        "pods are being replaced, or have been",
        "",
    ),
    Guide(
        ("RolloutWaiting",),
        "an upgrade waits for a [window](#rollouts), or for the BrokerCluster that the message names",
        "make that BrokerCluster ready if it does not become so by itself",
    ),
    Guide(
        ("PreflightRunning",),
        (
            "a new image is [asked](#preflight) whether it reads the volumes; `Ready` has this reason only for a "
            "change of the resource"
        ),
        "",
    ),
    Guide(
        ("PreflightFailed",),
        ("it does not, does not start or does not answer; the message has the cause. The broker runs its old image"),
        "set an image that reads the format, or that can be pulled",
    ),
    Guide(
        ("ShrinkRefused",), "`storage.size` is smaller than a volume; all else is applied", "set the size of the volume"
    ),
    Guide(
        ("ListenerPending",),
        "a listener has no address yet; the message names its Service",
        (
            "see why with `kubectl describe service`; for a load balancer, the Kubernetes cluster needs a load "
            "balancer controller"
        ),
    ),
    Guide(
        ("VolumesGrowing",),
        (
            "volumes do not have their size yet; the message has the capacity and the step "
            "(`FileSystemResizePending`: the pod has to start again)"
        ),
        "none; delete the pod if the step asks for it",
    ),
    Guide(
        ("VolumeGrowthFailed",),
        "a volume could not grow; the message has the storage driver's error",
        "fix the storage driver's error, or free capacity",
    ),
    Guide(
        ("StorageGrowthUnsupported",),
        "the StorageClass does not allow volumes to grow; all else is applied",
        "set the old size, or `allowVolumeExpansion: true` in the StorageClass if its driver can do it",
    ),
    Guide(
        ("RestoreRunning", "Restored"),
        "a [backup](backup.md#a-new-brokercluster-from-a-backup) is restored before the broker starts, or has been",
        "",
    ),
    Guide(
        ("RestoreFailed",),
        "the restore failed and is tried again; the message has the cause. The broker does not start",
        "correct `spec.bootstrap.restoreFrom`, the Secret or the store; data that the volume has is never replaced",
    ),
    Guide(
        ("RestoreIgnored",),
        "of `Restored`: `restoreFrom` was set after the broker had started",
        "remove it; to restore, create another BrokerCluster",
    ),
    Guide(
        ("CertificateValid",),
        "of `TLSReady`: the brokers' certificate can be used; the message has its end",
        "",
    ),
    Guide(
        ("CertificateMissing", "CertificateUnusable"),
        (
            "the Secret of `spec.tls.secretName` does not exist, or has no certificate and key that fit;"
            " running brokers keep what they have"
        ),
        "create or correct it; with cert-manager, see `kubectl describe certificate`",
    ),
    Guide(
        ("CertificateNamesMissing",),
        "the certificate is not for a name that clients verify; the message has the names",
        "have a certificate made for them ([names](security-kubernetes.md#names-of-the-certificate))",
    ),
    Guide(
        ("CertificateExpiring", "CertificateExpired"),
        "of `TLSReady`: the certificate was not replaced in time",
        "see why with `kubectl describe certificate`, or the other conditions, if the operator makes it",
    ),
    Guide(
        ("Forbidden",),
        "the API server forbids a change; the message names it",
        "check permissions, quotas of the Kubernetes namespace, and admission policies",
    ),
    Guide(
        ("Invalid",), "the resource, or a part of a pod in it, is not valid; the message names the field", "correct it"
    ),
    Guide(
        ("Conflict",),
        "an object with a required name exists and belongs to something else",
        "delete it, or choose another name",
    ),
    Guide(("ApplyFailed",), "the API server failed; the message has its error", "none; the operator retries"),
)
"""Reasons on BrokerClusters."""
OF_BACKUPS: Final = (
    Guide(
        ("BackupWaiting",),
        "another Backup of the BrokerCluster has not ended; a broker makes one at a time",
        "",
    ),
    Guide(
        ("BackupRunning",),
        "the Job runs, or its pod cannot start; the message has Kubernetes' own reason",
        "see the Job's log; fix the cause",
    ),
    Guide(("BackupSucceeded",), "the backup is stored; the message says where", ""),
    Guide(
        ("BackupFailed",),
        "the Job failed, or the verification of what is stored; the message has what the Job said;"
        " on a ScheduledBackup: the last Backup failed",
        "correct the cause and create another Backup; a schedule continues by itself",
    ),
    Guide(
        ("BackupDeletionFailed",),
        "what is stored could not be deleted; it is tried again every minute",
        "correct the cause, or leave it there: annotation `heliograph.dev/managed=false`",
    ),
    Guide(("BackupScheduled",), "the message has the next time", ""),
    Guide(
        ("Paused",),
        "the annotation `heliograph.dev/paused` is set: nothing new is begun",
        "remove the annotation",
    ),
    Guide(("BackupSuspended",), "`suspend` is set: no Backup is created", ""),
    Guide(("ParentMissing",), "the BrokerCluster does not exist, or is not valid", "apply it, or correct `clusterRef`"),
    Guide(
        ("ClusterNotReady",),
        "no broker of the BrokerCluster is ready; the backup begins when one is",
        "see the conditions of the BrokerCluster",
    ),
)
"""Reasons on Backups and ScheduledBackups."""

OF_CONNECTIONS: Final = (
    Guide(("Reconciled",), "the brokers answer; the status has what they are", ""),
    Guide(
        ("BrokerUnreachable",),
        "nothing answers at `adminUrl`; the message has the error",
        (
            "check the URL, the network (the operator's NetworkPolicy, `connections.egress`) and the certificate; the"
            " operator tries again every 30 seconds"
        ),
    ),
    Guide(
        ("BrokersChanged",),
        "other brokers answer than those that have the objects of its resources; the message names both",
        (
            "set `adminUrl` back; or say with the annotation in the message that they are"
            " [the same](#other-brokers-behind-the-url)"
        ),
    ),
    Guide(
        ("Unauthorized",),
        "the brokers do not know the token, or do not allow what it asks",
        "correct the Secret; the operator reads it every minute",
    ),
    Guide(
        ("CredentialsMissing",),
        "a Secret, a ConfigMap or an entry does not exist, may not be read, or has no token or certificate",
        "create it, or name it in the chart's `connections.secrets`",
    ),
    Guide(
        ("Refused",),
        "something answers with an error, or not as an admin API does; the message has the answer",
        (
            "an answer 5xx or 429: see the brokers, or the proxy before them; otherwise correct `adminUrl`. The"
            " operator asks again every minute"
        ),
    ),
    Guide(
        ("ChildrenExist",),
        "it is being deleted, and resources are on it; the message names them",
        (
            'delete these, or annotate each of these with `heliograph.dev/managed: "false"`, which leaves its data'
            " in the brokers"
        ),
    ),
    Guide(("Unmanaged",), "the annotation `heliograph.dev/managed` is `false`", "remove the annotation"),
    Guide(("Invalid",), "the spec is not valid, although the API server accepted it", "correct it"),
)
"""Reasons on BrokerConnections."""

OF_USERS: Final = (
    Guide(("Reconciled",), "the role has its grants, and its token if it has one", ""),
    Guide(
        ("AuthenticationDisabled",),
        "the BrokerCluster lets every client do everything, so grants have no effect",
        "set `authentication.enabled` on it",
    ),
    Guide(
        ("Conflict",),
        (
            "an older User has the role or the identity; or, of the credentials, a Secret of that name is of something"
            " else"
        ),
        "delete one of them, or choose another identity or `secretName`",
    ),
    Guide(
        ("NotAllowed",),
        (
            "the role, a tenant of the permissions or the validity of the token is not allowed; the message names it"
            " and what is valid"
        ),
        "change it, or allow it on the BrokerCluster",
    ),
    Guide(
        ("ParentMissing",),
        "the BrokerCluster, or a namespace of the permissions, does not exist; the message names it",
        "apply it; the operator continues by itself",
    ),
    Guide(
        ("Refused",),
        "the broker refuses a grant or an identity; the message has its reason, such as a topic that does not exist",
        "create the topic, or use `namespace` and `topics`; the operator tries again",
    ),
    Guide(
        ("NoCredentials",),
        "of `CredentialsIssued` and `Expiring`: the spec asks for no token",
        "",
    ),
    Guide(
        ("CredentialsPending",),
        "there is no token yet; the message says what is missing",
        "see the conditions of the BrokerCluster",
    ),
    Guide(("CredentialsIssued",), "of `CredentialsIssued`: the Secret has a token; the message has its end", ""),
    Guide(("CredentialsValid",), "of `Expiring`: the token is replaced in time", ""),
    Guide(
        ("CredentialsExpiring", "CredentialsExpired"),
        "of `Expiring`: the token could not be replaced in time; the message has the cause",
        "remove the cause; the operator tries again every minute",
    ),
    Guide(
        ("Deleting",),
        "the User is being deleted, and its grants are still in the broker; the message has the error",
        "make the broker reachable; or leave the grants there: annotation `heliograph.dev/managed=false`",
    ),
)
"""Reasons on Users."""

_TABLES: Final = {
    USER.name: (OF_USERS, OF_CLUSTERS, OF_POLICIES),
    BROKER_CONNECTION.name: (OF_CONNECTIONS,),
    BROKER_CLUSTER.name: (OF_CLUSTERS, OF_POLICIES),
    BACKUP.name: (OF_BACKUPS, OF_CLUSTERS, OF_POLICIES),
    SCHEDULED_BACKUP.name: (OF_BACKUPS, OF_CLUSTERS, OF_POLICIES),
}


def guide(kind: str, reason: str) -> Guide | None:
    """Return the row of a reason on a resource of a kind, as plain text; None for a reason that has none."""
    for row in (each for table in _TABLES.get(kind, (OF_POLICIES,)) for each in table):
        if reason in row.reasons:
            return row._replace(means=_LINK.sub(r"\1", row.means), advice=_LINK.sub(r"\1", row.advice))
    return None
