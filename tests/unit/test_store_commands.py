"""``heliograph store`` on directories that are whole, damaged, incomplete or mixed up; looking changes none."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import tarfile
from pathlib import Path

import lmdb
import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.copies.inspection import unused
from heliograph_broker.storage.disk.data_dir import DataDirError
from heliograph_broker.storage.store import InlineScheduler, LedgerStore

from tests.support.command_line import CommandLine
from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE

FIXTURES = Path(__file__).parent.parent / "fixtures"
#: For each topic; every group of so many is one commit.
ENTRIES, GROUP = 1200, 20
TOPICS = ("orders", "parcels")
PAGE = 4096


@pytest.fixture
def heliograph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def open_core(directory: Path) -> Core:
    return Core(directory, segment_bytes=1 << 20, ledger_max_entries=500)


def payload(topic: str, number: int) -> bytes:
    return f"{topic} {number} ".encode().ljust(1000, b"x")


def fill(core: Core) -> None:
    for name in TOPICS:
        topic = core.topic(f"persistent://public/default/{name}")
        subscription = topic.create_subscription("s")
        producer = core.producer(topic, Client())
        for number in range(ENTRIES):
            core.publish(producer, payload(name, number), sequence_id=number)
            if number % GROUP == GROUP - 1:
                core.commit()
        assert subscription.topic is topic
    core.commit()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store") / "data"
    core = open_core(directory)
    fill(core)
    core.store.close()
    return directory


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "data")
    return tmp_path / "data"


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "segments").glob("*.lmdb"))


def fingerprint(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def damage_frame(path: Path, number: int, topic: str = "orders") -> None:
    content = bytearray(path.read_bytes())
    at = content.index(payload(topic, number)[:20])
    content[at] ^= 1
    path.write_bytes(content)


def damage_pages(path: Path, numbers: list[int]) -> None:
    with path.open("r+b") as file:
        for number in numbers:
            file.seek(number * PAGE)
            file.write(b"\0" * PAGE)


def read_all(core: Core, name: str) -> list[int]:
    """Return the numbers of the messages that a subscription from the beginning on gets, which acknowledges nothing."""
    topic = core.topic(name)
    client = Client()
    subscription = topic.subscriptions.get("reader") or topic.create_subscription("reader", "earliest")
    consumer = core.consumer(subscription, EXCLUSIVE, client)
    numbers: list[int] = []
    while True:
        subscription.flow(consumer, 100)
        core.commit()
        taken = client.take()
        if not taken:
            return numbers
        numbers += [int(entry.frame.split(b" ")[-2]) for _, entry, _, _ in taken]


def test_a_healthy_directory(data: Path, heliograph: CommandLine) -> None:
    before = fingerprint(data)
    checked = heliograph("store", "check", data)
    assert (checked.code, checked.err) == (0, "")
    assert "nothing is wrong" in checked.out
    assert "2 topics, 2 subscriptions" in checked.out
    scrubbed = heliograph("store", "scrub", data, "--rate", "1G")
    assert scrubbed.code == 0
    assert "nothing is damaged" in scrubbed.out
    assert fingerprint(data) == before


def test_what_an_older_version_wrote(tmp_path: Path, heliograph: CommandLine) -> None:
    data = tmp_path / "data"
    with tarfile.open(FIXTURES / "format-2-healthy.tar.gz") as tar:
        tar.extractall(data, filter="data")
    before = fingerprint(data)
    assert heliograph("store", "check", data).code == 0
    assert heliograph("store", "scrub", data).code == 0
    assert heliograph("store", "salvage", data, "--to", tmp_path / "new").code == 0
    assert fingerprint(data) == before
    core = open_core(tmp_path / "new")
    assert core.topic("persistent://acme/shop/orders").log.end_offset == 25
    core.close()


def test_broken_invariants_are_named(tmp_path: Path, heliograph: CommandLine) -> None:
    data = tmp_path / "data"
    with tarfile.open(FIXTURES / "format-2-broken.tar.gz") as tar:
        tar.extractall(data, filter="data")
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert "trim_point_not_ahead_of_cursors" in checked.out
    assert "subscription s of persistent://acme/shop/orders" in checked.out


def test_a_damaged_chunk_is_named_and_all_else_salvaged(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    damage_frame(segments(data)[0], 45)
    before = fingerprint(data)
    assert heliograph("store", "check", data).code == 0
    scrubbed = heliograph("store", "scrub", data)
    assert scrubbed.code == 1
    assert "entries 40 to 59 of ledger 1 (persistent://public/default/orders): their checksum" in scrubbed.out
    salvaged = heliograph("store", "salvage", data, "--to", tmp_path / "new")
    assert salvaged.code == 1
    assert "entries 40 to 59 of ledger 1 (persistent://public/default/orders) cannot be read" in salvaged.out
    assert fingerprint(data) == before
    core = open_core(tmp_path / "new")
    assert read_all(core, "orders") == [*range(40), *range(60, ENTRIES)]
    assert read_all(core, "parcels") == [*range(ENTRIES)]
    assert core.store.ledgers.quarantined == {}
    core.close()


def test_damaged_pages_cost_no_more_than_they_hold(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    path = segments(data)[0]
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
        assert environment.stat()["psize"] == PAGE
        pages = environment.info()["last_pgno"] + 1
    damage_pages(path, [*range(pages // 2, pages // 2 + 6)])
    scrubbed = heliograph("store", "scrub", data)
    assert scrubbed.code == 1
    assert path.name in scrubbed.out
    assert heliograph("store", "salvage", data, "--to", tmp_path / "new").code == 1
    core = open_core(tmp_path / "new")
    found = read_all(core, "orders") + read_all(core, "parcels")
    # A chunk has 20 entries in some five pages, so that six pages are of three of them or less.
    assert len(found) >= 2 * ENTRIES - 3 * GROUP
    core.close()


def test_a_segment_whose_root_is_damaged_is_searched_page_by_page(
    data: Path, tmp_path: Path, heliograph: CommandLine
) -> None:
    path = segments(data)[1]
    damage_pages(path, [0, 1])
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert f"segments/{path.name} is damaged" in checked.out
    assert heliograph("store", "scrub", data).code == 1
    assert heliograph("store", "salvage", data, "--to", tmp_path / "new").code == 0
    core = open_core(tmp_path / "new")
    for name in TOPICS:
        assert read_all(core, name) == [*range(ENTRIES)]
    core.close()


def test_a_segment_that_a_broker_set_aside_is_searched_too(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    path = segments(data)[1]
    damage_pages(path, [0, 1])
    open_core(data).close()
    assert path.with_name(path.name + ".damaged").exists()
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert f"segments/{path.name}.damaged was set aside" in checked.out
    assert heliograph("store", "salvage", data, "--to", tmp_path / "new").code == 0
    core = open_core(tmp_path / "new")
    for name in TOPICS:
        assert read_all(core, name) == [*range(ENTRIES)]
    core.close()


def test_a_missing_segment_is_named_by_ledger_and_topic(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    path = segments(data)[0]
    path.unlink()
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert f"segments/{path.name} is missing" in checked.out
    assert "entries 0 to 499 of ledger 1 are in no segment" in checked.out
    assert "persistent://public/default/orders" in checked.out
    salvaged = heliograph("store", "salvage", data, "--to", tmp_path / "new")
    assert salvaged.code == 1
    assert "entries 0 to 499 of ledger 1 (persistent://public/default/orders) cannot be read" in salvaged.out


def test_a_salvaged_broker_gives_no_lost_place_to_another_message(
    data: Path, tmp_path: Path, heliograph: CommandLine
) -> None:
    """The chunk with the last messages of a topic is damaged: their ids stay theirs, and are reported as lost."""
    for path in segments(data):
        if payload("parcels", ENTRIES - 5)[:20] in path.read_bytes():
            damage_frame(path, ENTRIES - 5, "parcels")
    output = heliograph("store", "salvage", data, "--to", tmp_path / "new")
    assert "entries 180 to 199 of ledger" in output.out
    core = open_core(tmp_path / "new")
    assert core.topic("parcels").log.end_offset == ENTRIES
    assert core.store.segments.missing.entries() == GROUP
    assert read_all(core, "parcels") == [*range(ENTRIES - GROUP)]
    core.close()
    checked = heliograph("store", "check", tmp_path / "new")
    assert checked.code == 1
    assert "entries 180 to 199 of ledger" in checked.out


def test_lost_metadata_makes_each_ledger_a_topic(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    (data / "metadata.lmdb").unlink()
    with pytest.raises(DataDirError, match=r"lost its metadata\.lmdb.*heliograph store salvage"):
        open_core(data)
    before = fingerprint(data)
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert "metadata.lmdb is missing" in checked.out
    assert "heliograph store salvage" in checked.out
    salvaged = heliograph("store", "salvage", data, "--to", tmp_path / "new")
    assert salvaged.code == 1
    assert "persistent://public/salvaged/ledger-1: 500 entries" in salvaged.out
    assert fingerprint(data) == before
    core = open_core(tmp_path / "new")
    names = sorted(str(topic) for topic in core.broker.directory.topics)
    assert all(name.startswith("persistent://public/salvaged/ledger-") for name in names)
    numbers = [number for name in names for number in read_all(core, name)]
    assert sorted(numbers) == sorted([*range(ENTRIES)] * 2)
    # It keeps what it was given, and gives no ledger's id out again.
    for _ in range(100):
        core.advance(60_000)
    core.restart()
    assert [number for name in names for number in read_all(core, name)] == numbers
    core.topic("persistent://public/default/new")
    assert core.store.ledger_ids.next() not in {int(name.rpartition("-")[2]) for name in names}
    core.close()
    assert heliograph("store", "check", tmp_path / "new").code == 0


def test_metadata_that_can_be_read_in_part_loses_no_message(
    data: Path, tmp_path: Path, heliograph: CommandLine
) -> None:
    path = data / "metadata.lmdb"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // PAGE // 2 * PAGE)
    assert heliograph("store", "check", data).code == 1
    assert heliograph("store", "salvage", data, "--to", tmp_path / "new").code == 1
    core = open_core(tmp_path / "new")
    numbers = [number for name in list(core.broker.directory.topics) for number in read_all(core, str(name))]
    assert sorted(numbers) == sorted([*range(ENTRIES)] * 2)
    core.close()


def test_a_record_that_cannot_be_decoded_is_named_and_not_taken_over(
    data: Path, tmp_path: Path, heliograph: CommandLine
) -> None:
    key = b"topic/persistent://public/default/orders"
    with (
        lmdb.open(str(data / "metadata.lmdb"), subdir=False, lock=False) as environment,
        environment.begin(write=True) as txn,
    ):
        value = bytes(txn.get(key, b""))
        txn.put(key, value[:3] + bytes([value[3] ^ 1]) + value[4:])
    before = fingerprint(data)
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert f"the record {key.decode()} cannot be read" in checked.out
    scrubbed = heliograph("store", "scrub", data)
    assert scrubbed.code == 1
    assert f"metadata.lmdb: the record {key.decode()} cannot be read" in scrubbed.out
    salvaged = heliograph("store", "salvage", data, "--to", tmp_path / "new")
    assert salvaged.code == 1
    assert f"the record {key.decode()} is kept aside" in salvaged.out
    assert "3 ledgers that no topic refers to stay in quarantine" in salvaged.out
    assert fingerprint(data) == before
    core = open_core(tmp_path / "new")
    assert "persistent://public/default/orders" not in core.broker.directory.topics
    assert core.broker.metrics.unreadable_records == 2
    core.close()
    # Records kept aside are shown, and the subscription with its topic.
    shown = heliograph("store", "check", tmp_path / "new").out
    assert f"kept aside  {key.decode()}" in shown
    assert "kept aside  cursor/persistent://public/default/orders s" in shown


def test_a_missing_format_file(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    (data / "FORMAT").unlink()
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert "FORMAT is missing" in checked.out
    assert heliograph("store", "salvage", data, "--to", tmp_path / "new").code == 0
    core = open_core(tmp_path / "new")
    assert read_all(core, "orders") == [*range(ENTRIES)]
    core.close()


def test_a_format_of_another_version(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    (data / "FORMAT").write_text("heliograph 99\n")
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert "FORMAT says 'heliograph 99'" in checked.out
    salvaged = heliograph("store", "salvage", data, "--to", tmp_path / "new")
    assert salvaged.code == 2
    assert "use the version of Heliograph that wrote it" in salvaged.err
    assert not (tmp_path / "new").exists()


def test_a_segment_of_another_store(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    LedgerStore.open(
        tmp_path / "other", VirtualClock(), scheduler=InlineScheduler(), new_store_id="f" * 32, disk_reserve_bytes=0
    ).close()
    other = open_core(tmp_path / "other")
    fill(other)
    other.store.close()
    name = "00000090-00000090-0001.lmdb"
    shutil.copy(segments(tmp_path / "other")[0], data / "segments" / name)
    checked = heliograph("store", "check", data)
    assert checked.code == 1
    assert f"segments/{name} belongs to the store {'f' * 32}" in checked.out
    salvaged = heliograph("store", "salvage", data, "--to", tmp_path / "new")
    assert salvaged.code == 1
    assert "ledger 1 is also in a segment of another store; its entries there were left out" in salvaged.out
    core = open_core(tmp_path / "new")
    for topic in TOPICS:
        assert read_all(core, topic) == [*range(ENTRIES)]
    core.close()


def test_a_running_broker_is_named(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    core = open_core(data)
    for command in (
        ("check", data),
        ("scrub", data),
        ("salvage", data, "--to", tmp_path / "new"),
        ("adopt", data, "1"),
        ("drop", data, "1"),
    ):
        output = heliograph("store", *command)
        assert output.code == 2
        assert f"in use by another process (pid {os.getpid()}); stop that broker first" in output.err
    core.close()


def test_no_broker_starts_while_it_is_looked_into(data: Path) -> None:
    with unused(data), pytest.raises(DataDirError, match="in use"):
        open_core(data)
    open_core(data).close()


def test_what_is_no_data_directory(tmp_path: Path, heliograph: CommandLine) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        output = heliograph("store", "check", path)
        assert output.code == 2
        assert "name the one that a broker has as its --data-dir" in output.err
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_not_empty_or_inside(data: Path, tmp_path: Path, heliograph: CommandLine) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    output = heliograph("store", "salvage", data, "--to", tmp_path / "full")
    assert output.code == 1
    assert "is not empty; name a directory that is empty or not there" in output.err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]
    output = heliograph("store", "salvage", data, "--to", data / "new")
    assert output.code == 2
    assert "which is never changed" in output.err


class Sink:
    def entries_durable(self, entries: list[Entry]) -> None: ...

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        raise error


@pytest.fixture
def with_unknown(data: Path) -> Path:
    """A directory with a ledger that no topic names: parcels' messages 3 to 9 under another id."""
    core = open_core(data)
    frames = {}

    def keep(found: list[Entry] | Exception) -> None:
        assert isinstance(found, list)
        frames.update({entry.entry_id: entry for entry in found})

    parcels = core.topic("persistent://public/default/parcels")
    core.store.reader.read(parcels.log.ledgers[0].ledger_id, 3, 9, 1 << 20, keep)
    for entry in frames.values():
        entry.ledger_id = 4711
        core.store.writer.append(Sink(), entry)
    core.commit()
    core.close()
    return data


def test_a_ledger_in_quarantine_is_adopted(with_unknown: Path, heliograph: CommandLine) -> None:
    checked = heliograph("store", "check", with_unknown)
    assert checked.code == 1
    assert "no topic names ledger 4711 (7 entries)" in checked.out
    adopted = heliograph("store", "adopt", with_unknown, "4711")
    assert (adopted.code, adopted.out) == (0, "persistent://public/salvaged/ledger-4711\n")
    assert heliograph("store", "check", with_unknown).code == 0
    core = open_core(with_unknown)
    assert core.store.ledgers.quarantined == {}
    assert read_all(core, "persistent://public/salvaged/ledger-4711") == [*range(3, 10)]
    core.close()


def test_a_ledger_in_quarantine_is_dropped(with_unknown: Path, heliograph: CommandLine) -> None:
    assert heliograph("store", "drop", with_unknown, "4711").code == 0
    assert heliograph("store", "check", with_unknown).code == 0
    core = open_core(with_unknown)
    assert core.store.ledgers.quarantined == {}
    assert read_all(core, "parcels") == [*range(ENTRIES)]
    core.close()


def test_only_what_is_in_quarantine_is_adopted_or_dropped(with_unknown: Path, heliograph: CommandLine) -> None:
    before = fingerprint(with_unknown)
    for command in ("adopt", "drop"):
        output = heliograph("store", command, with_unknown, "4711", "1")
        assert (output.code, output.out) == (1, "")
        assert "ledger 1 belongs to persistent://public/default/orders" in output.err
        output = heliograph("store", command, with_unknown, "4712")
        assert output.code == 1
        assert "ledger 4712 is not in quarantine; ledgers in quarantine: 4711" in output.err
    assert fingerprint(with_unknown) == before


def test_unknown_ledgers_are_salvaged_into_quarantine_or_topics(
    with_unknown: Path, tmp_path: Path, heliograph: CommandLine
) -> None:
    output = heliograph("store", "salvage", with_unknown, "--to", tmp_path / "kept")
    assert output.code == 0
    assert "stay in quarantine (4711)" in output.out
    core = open_core(tmp_path / "kept")
    assert list(core.store.ledgers.quarantined) == [4711]
    core.close()
    assert heliograph("store", "salvage", with_unknown, "--to", tmp_path / "adopted", "--adopt").code == 0
    core = open_core(tmp_path / "adopted")
    assert core.store.ledgers.quarantined == {}
    assert read_all(core, "persistent://public/salvaged/ledger-4711") == [*range(3, 10)]
    core.close()


@pytest.mark.parametrize("seed", range(5))
def test_any_damage_to_a_segment_loses_only_what_it_hits(
    data: Path, tmp_path: Path, heliograph: CommandLine, seed: int
) -> None:
    rng = random.Random(seed)
    path = rng.choice(segments(data))
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(content) - 600)
        content[at : at + 512] = rng.randbytes(512)
    path.write_bytes(content)
    heliograph("store", "salvage", data, "--to", tmp_path / "new")
    core = open_core(tmp_path / "new")
    numbers = [read_all(core, name) for name in TOPICS]
    core.close()
    for found in numbers:
        assert found == sorted(set(found))
    # Five places hit ten chunks at most: one each, or two if a place is where they meet.
    assert sum(map(len, numbers)) >= 2 * ENTRIES - 10 * GROUP


def test_help_shows_examples(heliograph: CommandLine) -> None:
    for command in ("check", "scrub", "salvage", "adopt", "drop"):
        output = heliograph("store", command, "--help")
        assert output.code == 0
        assert f"heliograph store {command} heliograph-data" in output.out


def test_the_lock_is_given_back(data: Path, heliograph: CommandLine) -> None:
    assert heliograph("store", "check", data).code == 0
    with (data / "LOCK").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
