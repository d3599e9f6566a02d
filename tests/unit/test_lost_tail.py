"""The file with a topic's last entries is lost: the ids of what was in it are never given again."""

from __future__ import annotations

from pathlib import Path

from tests.support.core import Client, Core


def test_ids_of_lost_entries_are_not_given_again(tmp_path: Path) -> None:
    core = Core(tmp_path / "d")
    client = Client()
    producer = core.producer(core.topic(), client)
    core.publish_all(producer, count=3)
    given = {(ledger, entry) for _, ledger, entry in client.receipts}
    core.store.close()
    for segment in (tmp_path / "d" / "segments").iterdir():
        segment.unlink()
    core.restart()
    producer = core.producer(core.topic(), client)
    core.publish_all(producer, count=3)
    assert len(client.receipts) == 6
    assert not given & {(ledger, entry) for _, ledger, entry in client.receipts[3:]}
    core.close()
