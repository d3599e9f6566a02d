"""A broker that gets no manifests starts without what only manifests need."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker_process import BrokerProcess

PREFIX = "heliograph_api.resources."


def test_a_start_without_manifests_imports_no_models_of_resources(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", environment={"PYTHONPROFILEIMPORTTIME": "1"}) as broker:
        lines = broker.log_path.read_text().splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "heliograph_broker.standalone" in imported
    # The states are of answers and of the store, and are no models.
    assert not {name for name in imported if name.startswith(PREFIX) and not name.endswith("_state")}
