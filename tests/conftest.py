"""Fixtures of every tier; a cluster is brought up for the first test that asks for one."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.support.cluster_fixtures import (
    cluster,
    images,
    kube_namespace,
    pytest_collection_modifyitems,
    pytest_runtest_makereport,
)
from tests.support.secret_watch import no_secret_is_logged
from tests.support.skipped_tests import pytest_collectreport, pytest_runtest_logreport, pytest_sessionfinish

__all__ = [
    "cluster",
    "images",
    "kube_namespace",
    "no_secret_is_logged",
    "pytest_collection_modifyitems",
    "pytest_collectreport",
    "pytest_runtest_logreport",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
]

# The duration of an example means nothing on a busy machine, and no test asserts time. The examples are always the
# same ones, so that a failure is one of the change that is tested; ``--hypothesis-profile=fresh`` draws others.
settings.register_profile("fresh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("fresh"), derandomize=True)
settings.load_profile("repeatable")
