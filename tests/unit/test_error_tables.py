"""Each edge has a row for every error of the core, and none besides."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

import heliograph_broker
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.http.base.error_statuses import ERROR_STATUSES
from heliograph_broker.messaging.base.errors import BrokerError, InvalidRequestMetadata, ProducerBusy, TenantNotFound
from heliograph_broker.server.error_codes import ERROR_CODES, error_code


def _import_all() -> None:
    for module in pkgutil.walk_packages(heliograph_broker.__path__, "heliograph_broker."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def _below(error: type[BrokerError]) -> Iterator[type[BrokerError]]:
    for subclass in error.__subclasses__():
        yield subclass
        yield from _below(subclass)


def _errors_of_the_broker() -> set[type[BrokerError]]:
    _import_all()
    return {error for error in _below(BrokerError) if error.__module__.startswith("heliograph_broker.")}


def test_only_the_core_defines_errors_of_the_core() -> None:
    outside = [
        error for error in _errors_of_the_broker() if not error.__module__.startswith("heliograph_broker.messaging.")
    ]
    assert not outside


@pytest.mark.parametrize("table", [ERROR_CODES, ERROR_STATUSES], ids=["binary protocol", "HTTP"])
def test_a_table_has_a_row_for_every_error_and_none_besides(table: Mapping[type[BrokerError], int]) -> None:
    errors = _errors_of_the_broker()
    assert len(errors) > 20
    assert errors - set(table) == set()
    assert set(table) - errors == set()


def test_every_status_says_that_a_request_failed() -> None:
    assert all(400 <= status < 600 for status in ERROR_STATUSES.values())


def test_clients_are_told_of_an_error_as_from_pulsar() -> None:
    assert (error_code(ProducerBusy("")), ERROR_STATUSES[ProducerBusy]) == (wire.ProducerBusy, 409)
    assert (error_code(TenantNotFound("")), ERROR_STATUSES[TenantNotFound]) == (wire.TopicNotFound, 404)
    assert (error_code(InvalidRequestMetadata("")), ERROR_STATUSES[InvalidRequestMetadata]) == (wire.MetadataError, 412)
