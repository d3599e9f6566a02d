"""``heliograph backup push|pull|verify|list|delete`` against a real S3 server, and on a volume."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from heliograph_broker.offsite import catalog
from heliograph_broker.offsite.object_store import Access, ObjectStore, StoreError

from tests.support import s3_server
from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, connect, payloads, receive_many
from tests.support.polling import eventually
from tests.support.s3_server import Bucket, s3_bucket

URL = "s3://backups/orders"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    try:
        s3_server.fetch()
    except s3_server.NotToBeHad as error:
        pytest.skip(str(error))
    with s3_bucket(tmp_path_factory.mktemp("s3"), "backups") as made:
        yield made


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "heliograph_broker", "backup", *map(str, arguments)]


def run(
    bucket: Bucket, *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=os.environ | bucket.environment | (environment or {}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (1, ""), done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def objects(bucket: Bucket, below: str) -> set[str]:
    directory = bucket.files / below
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def parts(found: set[str]) -> list[str]:
    """The names of objects, parts without the digits of their upload."""
    return sorted(name[: len("part-000001")] if name.startswith("part-") else name for name in found)


def fill(broker: BrokerProcess, topic: str, size: int, count: int) -> None:
    with closing(connect(broker.service_url)) as client:
        client.subscribe(topic, "keeps").close()
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(count):
            producer.send(b"%06d" % number + bytes(size))


@contextmanager
def publishing(broker: BrokerProcess) -> Iterator[Callable[[], int]]:
    """Publish numbers to a topic in a thread; yields how many have a receipt."""
    ending = threading.Event()
    receipted = 0
    client = connect(broker.service_url)
    client.subscribe("busy", "reader").close()
    producer = client.create_producer("busy", batching_enabled=False)

    def publish() -> None:
        nonlocal receipted
        while not ending.is_set():
            producer.send(b"%d" % receipted)
            receipted += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield lambda: receipted
    finally:
        ending.set()
        thread.join()
        client.close()


def test_everything_receipted_before_a_push_begins_is_in_what_is_pulled(
    bucket: Bucket, broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    fill(broker, "large", 1_000_000, 40)
    with publishing(broker) as receipted:
        eventually(lambda: receipted() > 200, within_s=60, what="traffic")
        before = receipted()
        result = tmp_path / "result.json"
        done = run(bucket, "push", URL, "monday", "--http-url", broker.http_url, "--result", result)
        assert "as of" in good(done)
        assert receipted() > before, "publishing goes on meanwhile"
    written = json.loads(result.read_text())
    assert written["name"] == "monday"
    assert written["topics"] == 2
    assert written["parts"] >= 3
    assert parts(objects(bucket, "orders/monday")) == [
        "begun.json",
        "manifest.json",
        *(f"part-{number:06}" for number in range(1, written["parts"] + 1)),
    ]
    after = receipted()
    assert "verified" in good(run(bucket, "verify", URL, "monday", "--scratch", tmp_path / "scratch"))
    assert "verified.json" in objects(bucket, "orders/monday")
    assert list((tmp_path / "scratch").glob("*")) == []
    good(run(bucket, "pull", URL, "monday", "--data-dir", tmp_path / "restored"))
    restored = broker_factory("restored")
    restored.start()
    count = backlog(restored, "busy", "reader")
    assert before <= count <= after
    with closing(connect(restored.service_url)) as client:
        read = payloads(receive_many(client.subscribe("busy", "reader"), count))
    assert read == [b"%d" % number for number in range(count)]
    assert backlog(restored, "large", "keeps") == 40
    # The name is taken, unless an earlier attempt is asked for.
    message = bad(run(bucket, "push", URL, "monday", "--http-url", broker.http_url))
    assert "has a backup monday already" in message
    kept = objects(bucket, "orders/monday")
    good(run(bucket, "push", URL, "monday", "--http-url", broker.http_url, "--again"))
    assert objects(bucket, "orders/monday") == kept


def killed_in_the_middle(bucket: Bucket, url: str, broker: BrokerProcess) -> bool:
    """Begin an upload and kill it; return whether that was before its end, else delete what it made."""
    push = command("push", url, "first", "--http-url", broker.http_url, "--source", "orders")
    with subprocess.Popen(push, env=os.environ | bucket.environment, stderr=subprocess.DEVNULL) as pushing:
        eventually(
            lambda: pushing.poll() is not None or "part-000002" in parts(objects(bucket, "killed/first")),
            within_s=120,
            what="parts in the store",
            every_s=0.01,
        )
        pushing.send_signal(signal.SIGKILL)
    if pushing.returncode == -signal.SIGKILL and "manifest.json" not in objects(bucket, "killed/first"):
        return True
    good(run(bucket, "delete", url, "first"))
    return False


def test_an_upload_that_is_killed_is_no_backup_and_the_next_one_deletes_it(
    bucket: Bucket, broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    fill(broker, "large", 4_000_000, 40)
    url = "s3://backups/killed"
    eventually(lambda: killed_in_the_middle(bucket, url, broker), within_s=200, what="an upload that was killed")
    assert good(run(bucket, "list", url)) == "first  interrupted, not a backup\n"
    assert "is incomplete" in bad(run(bucket, "pull", url, "first", "--data-dir", tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()

    def pushed(name: str, source: str) -> subprocess.CompletedProcess[str]:
        return run(bucket, "push", url, name, "--http-url", broker.http_url, "--source", source)

    # The broker notices within a moment that nobody reads any longer; until then it makes no other backup.
    eventually(lambda: pushed("other", "elsewhere").returncode == 0, within_s=120, what="a backup of another source")
    assert objects(bucket, "killed/first"), "only its own source deletes it"
    good(pushed("second", "orders"))
    assert objects(bucket, "killed/first") == set()
    names = [line.split()[0] for line in good(run(bucket, "list", url)).splitlines()]
    assert names == ["other", "second"]
    good(run(bucket, "delete", url, "other", "never-there"))
    assert objects(bucket, "killed/other") == set()
    assert "has no backup 'other'" in bad(run(bucket, "pull", url, "other", "--data-dir", tmp_path / "restored"))


def test_damaged_and_missing_parts_are_found(
    bucket: Bucket, broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    fill(broker, "small", 100, 10)
    url = "s3://backups/damaged"
    good(run(bucket, "push", url, "one", "--http-url", broker.http_url))
    (part,) = (bucket.files / "damaged" / "one").glob("part-000001-*")
    whole = part.read_bytes()
    part.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    for name in ("restored", "volume"):
        (tmp_path / "volume").mkdir(exist_ok=True)
        once = ["--once"] if name == "volume" else []
        message = bad(run(bucket, "pull", url, "one", "--data-dir", tmp_path / name, *once))
        assert f"{part.name} is damaged" in message
    assert "is damaged" in bad(run(bucket, "verify", url, "one", "--scratch", tmp_path / "scratch"))
    part.unlink()
    assert f"{part.name} is missing" in bad(run(bucket, "pull", url, "one", "--data-dir", tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()
    # An interrupted restore begins again when the backup is whole.
    part.write_bytes(whole)
    good(run(bucket, "pull", url, "one", "--data-dir", tmp_path / "volume", "--once"))
    assert (tmp_path / "volume" / "FORMAT").exists()


def test_a_volume_is_restored_once_and_never_over_data(
    bucket: Bucket, broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    fill(broker, "orders", 100, 10)
    url = "s3://backups/volume"
    good(run(bucket, "push", url, "one", "--http-url", broker.http_url))
    volume = tmp_path / "restored"
    (volume / "lost+found").mkdir(parents=True)
    result = tmp_path / "result.json"
    pull = ("pull", url, "one", "--data-dir", volume, "--once", "--result", result)
    # As after a kill in the middle: what is there is of the restore itself.
    good(run(bucket, *pull))
    first = json.loads(result.read_text())
    (volume / "RESTORED.json").rename(volume / "RESTORING.json")
    (volume / "FORMAT").unlink()
    (volume / ".restored.restoring-7").mkdir()
    good(run(bucket, *pull))
    assert json.loads(result.read_text()) == first
    assert not (volume / ".restored.restoring-7").exists()
    restored = broker_factory("restored")
    restored.start()
    fill(restored, "newer", 100, 3)
    restored.terminate()
    # A restart changes nothing, and needs no store.
    away = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert "restored before" in good(run(bucket, *pull, environment=away))
    assert json.loads(result.read_text()) == first
    restored.start()
    assert backlog(restored, "newer", "keeps") == 3
    assert backlog(restored, "orders", "keeps") == 10
    restored.terminate()
    # Data that is not of a restore is never touched.
    broker.terminate()
    before = sorted(path.name for path in broker.data_dir.iterdir())
    message = bad(run(bucket, "pull", url, "one", "--data-dir", broker.data_dir, "--once", "--result", result))
    assert "is not empty" in message
    assert "is not empty" in json.loads(result.read_text())["error"]
    assert sorted(path.name for path in broker.data_dir.iterdir()) == before


def test_backups_on_a_volume(broker_factory: Callable[..., BrokerProcess], bucket: Bucket, tmp_path: Path) -> None:
    broker = broker_factory("data")
    broker.start()
    fill(broker, "orders", 100, 10)
    url = f"file://{tmp_path / 'backups'}"
    good(run(bucket, "push", url, "one", "--http-url", broker.http_url, "--verify", tmp_path / "scratch"))
    assert parts({path.name for path in (tmp_path / "backups" / "one").iterdir()}) == [
        "begun.json",
        "manifest.json",
        "part-000001",
        "verified.json",
    ]
    good(run(bucket, "pull", url, "one", "--data-dir", tmp_path / "restored"))
    assert (tmp_path / "restored" / "FORMAT").exists()
    good(run(bucket, "delete", url, "one"))
    assert good(run(bucket, "list", url)) == ""


def test_the_newest_backup_is_restored_by_the_name_latest(
    broker_factory: Callable[..., BrokerProcess], bucket: Bucket, tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    url = f"file://{tmp_path / 'backups'}"
    refused = bad(run(bucket, "pull", url, "latest", "--data-dir", tmp_path / "none"))
    assert "has no backup" in refused
    for name, count in (("b", 3), ("a", 4)):
        fill(broker, name, 100, count)
        good(run(bucket, "push", url, name, "--http-url", broker.http_url))
    assert "choose another name" in bad(run(bucket, "push", url, "latest", "--http-url", broker.http_url))
    broker.terminate()
    # One that was interrupted, and one that is damaged, are no backups.
    for name, content in (("z", "{}"), ("y", "not JSON")):
        (tmp_path / "backups" / name).mkdir()
        (tmp_path / "backups" / name / ("begun.json" if name == "z" else "manifest.json")).write_text(content)
    volume, result = tmp_path / "volume", tmp_path / "result.json"
    pull = ("pull", url, "latest", "--data-dir", volume, "--once", "--result", result)
    good(run(bucket, *pull))
    assert json.loads(result.read_text())["name"] == "a"
    # A restore that was interrupted is of the same backup when it begins again, although there is a newer one.
    (volume / "RESTORED.json").rename(volume / "RESTORING.json")
    manifest = json.loads((tmp_path / "backups" / "a" / "manifest.json").read_text())
    (tmp_path / "backups" / "newer").mkdir()
    newer = {**manifest, "name": "newer", "pointInTimeMs": manifest["pointInTimeMs"] + 60_000}
    (tmp_path / "backups" / "newer" / "manifest.json").write_text(json.dumps(newer))
    good(run(bucket, *pull))
    assert json.loads(result.read_text())["name"] == "a"


def test_an_object_of_a_bucket_is_created_once(bucket: Bucket) -> None:
    store = ObjectStore("s3://backups/created", Access(bucket.endpoint), bucket.environment)
    assert store.create("monday/manifest.json", b"first")
    assert not store.create("monday/manifest.json", b"second")
    assert store.get("monday/manifest.json") == b"first"
    store.delete("monday/manifest.json")
    assert store.sizes() == {}


def test_a_store_that_cannot_be_used_is_one_line(bucket: Bucket, broker: BrokerProcess) -> None:
    done = run(bucket, "push", URL, "n", "--http-url", broker.http_url, environment={"AWS_SECRET_ACCESS_KEY": "wrong"})
    assert "refuses these keys: SignatureDoesNotMatch" in bad(done)
    for changed, url, message in (
        ({"AWS_ACCESS_KEY_ID": "nobody"}, URL, "refuses these keys"),
        ({"AWS_ACCESS_KEY_ID": ""}, URL, "there are no keys"),
        ({}, "s3://nowhere/orders", "no such bucket"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, URL, "127.0.0.1:1"),
        ({}, "ftp://backups/orders", "is not a place for backups"),
        ({}, "s3:///orders", "is not a place for backups"),
    ):
        environment = bucket.environment | changed
        with pytest.raises(StoreError, match=message) as refused:
            catalog.find(ObjectStore(url, Access(environment["AWS_ENDPOINT_URL"]), environment), "never")
        assert len(str(refused.value).splitlines()) == 1


def test_a_store_that_answers_nothing_and_a_full_one_end_the_upload(
    bucket: Bucket, broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    fill(broker, "orders", 100, 10)
    # A server that takes requests and closes the connection.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ending = threading.Event()

        def refuse() -> None:
            while not ending.is_set():
                try:
                    silent.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        bad(
            run(bucket, "push", URL, "never", "--http-url", broker.http_url, environment={"AWS_ENDPOINT_URL": endpoint})
        )
        ending.set()
    # /dev/full and its like are not directories: a volume without space is one that cannot be written to.
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups" / "one").write_text("in the way")
    url = f"file://{tmp_path / 'backups'}"
    bad(run(bucket, "push", url, "one", "--http-url", broker.http_url))
    # The broker goes on, and makes the next backup.
    good(run(bucket, "push", url, "two", "--http-url", broker.http_url))
