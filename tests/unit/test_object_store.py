"""A request that fails is an error of the store, but for a missing object, which callers expect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from heliograph_broker.offsite import catalog, object_store
from heliograph_broker.offsite.object_store import Access, ObjectStore, StoreError

from .test_offsite import place


class NotFound(BaseHTTPRequestHandler):
    """Answers as a web server that is no object store."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        content = b"<html>404 not found</html>"
        self.send_response(404)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def no_store() -> Iterator[ObjectStore]:
    with ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        access = Access(f"http://127.0.0.1:{server.server_port}")
        yield ObjectStore("s3://backups/orders", access, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "request_of",
    [
        lambda store: store.put("monday/part-000001", b"x"),
        lambda store: store.create("monday/manifest.json", b"x"),
        lambda store: store.sizes(),
        lambda store: catalog.names(store),
        lambda store: catalog.delete(store, "monday"),
    ],
)
def test_an_address_without_a_store_is_an_error_of_one_line(
    no_store: ObjectStore, request_of: Callable[[ObjectStore], object]
) -> None:
    with pytest.raises(StoreError) as refused:
        request_of(no_store)
    assert "404" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("write", [ObjectStore.put, ObjectStore.create])
def test_an_object_that_is_deleted_while_it_is_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[ObjectStore, str, bytes], object]
) -> None:
    sync = object_store._sync

    def late(path: Path) -> None:
        catalog.delete(place(tmp_path), "monday")
        sync(path)

    monkeypatch.setattr(object_store, "_sync", late)
    with pytest.raises(StoreError):
        write(place(tmp_path), "monday/part-000001", b"x")


def test_a_missing_object_is_a_missing_key(tmp_path: Path) -> None:
    store = place(tmp_path)
    with pytest.raises(KeyError):
        store.get("monday/manifest.json")
    store.delete("monday/manifest.json")
    assert store.sizes("monday") == {}
