"""Pulsar's documents of settings that this broker keeps without using them, and the checks that Pulsar makes."""

from __future__ import annotations

from typing import Final

import msgspec
from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.messaging.base.errors import PreconditionFailed

from .policy_documents import MB, Limit, LongLimit

PERSISTENCE_EXAMPLE: Final = (
    '{"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2, '
    '"managedLedgerMaxMarkDeleteRate": 0.0}'
)
AFFINITY_EXAMPLE: Final = '{"bookkeeperAffinityGroupPrimary": "fast", "bookkeeperAffinityGroupSecondary": "slow"}'
OFFLOAD_EXAMPLE: Final = '{"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "archive"}'
OFFLOAD_DRIVERS: Final = ("S3", "aws-s3", "google-cloud-storage", "filesystem", "azureblob", "aliyun-oss")
_MOST_BOOKIES: Final = 5


class PersistenceDocument(msgspec.Struct, rename="camel"):
    """Pulsar's PersistencePolicies: copies of each message, and how often positions are stored, a second."""

    bookkeeper_ensemble: Limit = 2
    bookkeeper_write_quorum: Limit = 2
    bookkeeper_ack_quorum: Limit = 2
    managed_ledger_max_mark_delete_rate: float = -1.0
    managed_ledger_storage_class_name: str | msgspec.UnsetType | None = msgspec.UNSET


class BookieAffinityDocument(msgspec.Struct, rename="camel", omit_defaults=True):
    """Pulsar's BookieAffinityGroupData."""

    bookkeeper_affinity_group_primary: str | None = None
    bookkeeper_affinity_group_secondary: str | None = None


class OffloadDocument(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Pulsar's OffloadPolicies; fields that were not given are not shown."""

    offloaders_directory: str | None = None
    managed_ledger_offload_driver: str | None = None
    managed_ledger_offload_max_threads: Limit | None = None
    managed_ledger_offload_read_threads: Limit | None = None
    managed_ledger_offload_prefetch_rounds: Limit | None = None
    managed_ledger_offload_threshold_in_seconds: LongLimit | None = None
    managed_ledger_offload_threshold_in_bytes: LongLimit | None = None
    managed_ledger_offload_deletion_lag_in_millis: LongLimit | None = None
    managed_ledger_offloaded_read_priority: str | None = None
    managed_ledger_extra_configurations: dict[str, str] | None = None
    s3_managed_ledger_offload_region: str | None = None
    s3_managed_ledger_offload_bucket: str | None = None
    s3_managed_ledger_offload_service_endpoint: str | None = None
    s3_managed_ledger_offload_max_block_size_in_bytes: Limit | None = None
    s3_managed_ledger_offload_read_buffer_size_in_bytes: Limit | None = None
    s3_managed_ledger_offload_credential_id: str | None = None
    s3_managed_ledger_offload_credential_secret: str | None = None
    s3_managed_ledger_offload_role: str | None = None
    s3_managed_ledger_offload_role_session_name: str | None = None
    gcs_managed_ledger_offload_region: str | None = None
    gcs_managed_ledger_offload_bucket: str | None = None
    gcs_managed_ledger_offload_max_block_size_in_bytes: Limit | None = None
    gcs_managed_ledger_offload_read_buffer_size_in_bytes: Limit | None = None
    gcs_managed_ledger_offload_service_account_key_file: str | None = None
    file_system_profile_path: str | None = None
    file_system_uri: str | None = msgspec.field(default=None, name="fileSystemURI")
    managed_ledger_offload_bucket: str | None = None
    managed_ledger_offload_region: str | None = None
    managed_ledger_offload_service_endpoint: str | None = None
    managed_ledger_offload_max_block_size_in_bytes: Limit | None = None
    managed_ledger_offload_read_buffer_size_in_bytes: Limit | None = None


#: What Pulsar shows of the fields that were not given.
OFFLOAD_DEFAULTS: Final = OffloadDocument(
    offloaders_directory="./offloaders",
    managed_ledger_offload_max_threads=2,
    managed_ledger_offload_read_threads=2,
    managed_ledger_offload_prefetch_rounds=1,
    managed_ledger_extra_configurations={},
    s3_managed_ledger_offload_max_block_size_in_bytes=64 * MB,
    s3_managed_ledger_offload_read_buffer_size_in_bytes=MB,
    s3_managed_ledger_offload_role_session_name="pulsar-s3-offload",
    gcs_managed_ledger_offload_max_block_size_in_bytes=128 * MB,
    gcs_managed_ledger_offload_read_buffer_size_in_bytes=MB,
)


def check_persistence(document: PersistenceDocument, config: BrokerConfig) -> None:
    """Check the numbers of copies. Raises :class:`ApiError` 400 in Pulsar's words."""
    ensemble, written = document.bookkeeper_ensemble, document.bookkeeper_write_quorum
    acknowledged = document.bookkeeper_ack_quorum
    if not 0 < ensemble <= _MOST_BOOKIES:
        raise ApiError(400, f"Bookkeeper-Ensemble must be <= {_MOST_BOOKIES} and > 0.")
    if not 0 < acknowledged <= written <= ensemble:
        raise ApiError(
            400, f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({written}) >= AckQuorum ({acknowledged})"
        )


def check_offload(document: OffloadDocument, config: BrokerConfig) -> None:
    """Check the driver. Raises :class:`PreconditionFailed` in Pulsar's words."""
    if document.managed_ledger_offload_driver not in OFFLOAD_DRIVERS:
        raise PreconditionFailed(f"The driver is not supported, support value: {','.join(OFFLOAD_DRIVERS)}")


def completed_offload(document: OffloadDocument) -> OffloadDocument:
    """Return a document with Pulsar's defaults for the fields that were not given."""
    given = {name: value for name in document.__struct_fields__ if (value := getattr(document, name)) is not None}
    return msgspec.structs.replace(OFFLOAD_DEFAULTS, **given)
