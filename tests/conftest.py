"""Fixtures of every tier; a cluster is brought up for the first test that asks for one."""

from __future__ import annotations

from hypothesis import settings

from tests.support.cluster_fixtures import (
    cluster,
    images,
    kube_namespace,
    pytest_collection_modifyitems,
    pytest_runtest_makereport,
)
from tests.support.skipped_tests import pytest_collectreport, pytest_runtest_logreport, pytest_sessionfinish

__all__ = [
    "cluster",
    "images",
    "kube_namespace",
    "pytest_collection_modifyitems",
    "pytest_collectreport",
    "pytest_runtest_logreport",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
]

# The duration of an example means nothing on a busy machine, and no test asserts time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
