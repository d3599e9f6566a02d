"""``heliograph standalone`` as a child process."""

from __future__ import annotations

import selectors
import subprocess
import sys
from pathlib import Path

_READY_WITHIN_S = 30.0
_STOPPED_WITHIN_S = 30.0


class BrokerFailed(Exception):
    """The broker did not become ready; the message has the reason, or what it logged last."""


class ChildBroker:
    """A broker on any free ports. It is ready when this object is made; end it with :meth:`stop`."""

    def __init__(self, data_dir: Path) -> None:
        """Raises :class:`BrokerFailed`."""
        self.log_path = data_dir.with_name(f"{data_dir.name}.log")
        command = [sys.executable, "-m", "heliograph_broker", "standalone", "--data-dir", str(data_dir)]
        command += ["--broker-port", "0", "--http-port", "0"]
        try:
            data_dir.parent.mkdir(parents=True, exist_ok=True)
            log = self.log_path.open("ab")
        except OSError as error:
            raise BrokerFailed(
                f"the broker's log {self.log_path} cannot be written: {error.strerror}; valid: a data directory whose"
                " parent you may write"
            ) from error
        with log:
            # A session of its own: Ctrl-C here must not end the broker before its clients have closed.
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self.service_url, self.http_url = self._wait_until_ready()

    def _wait_until_ready(self) -> tuple[str, str]:
        output = self._process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            line = output.readline() if selector.select(_READY_WITHIN_S) else ""
        if not line.startswith("ready "):
            self._process.kill()
            self._process.wait()
            last = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-10:])
            raise BrokerFailed(f"the broker was not ready within {_READY_WITHIN_S:g} s; it logged last:\n{last}")
        _, service_url, http_url = line.split()[:3]
        return service_url, http_url

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        """End the broker in good order and return its exit code."""
        self._process.terminate()
        try:
            code = self._process.wait(_STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code
