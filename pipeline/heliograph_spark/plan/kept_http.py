"""Keeps connections of plain HTTP open between two requests of this process, in what ``urllib`` does otherwise."""

from __future__ import annotations

import http.client
import io
import os
import urllib.request
from collections import defaultdict
from urllib.error import URLError
from urllib.response import addinfourl


class KeptHandler(urllib.request.HTTPHandler):
    """Sends requests over connections that others have left open, by host; the answers are read whole."""

    def __init__(self) -> None:
        super().__init__()
        self._idle: defaultdict[str, list[http.client.HTTPConnection]] = defaultdict(list)
        # In a child the parent's connections are not its own.
        os.register_at_fork(after_in_child=self._idle.clear)

    def http_open(self, request: urllib.request.Request) -> addinfourl:  # type: ignore[override]
        """Return the answer, of whatever status. Raises :class:`URLError`."""
        host, idle = str(request.host), self._idle[str(request.host)]
        headers = {**request.headers, **request.unredirected_hdrs}
        while True:
            try:
                kept, connection = True, idle.pop()
            except IndexError:
                kept, connection = False, http.client.HTTPConnection(host, timeout=request.timeout)
            try:
                connection.request(request.get_method(), request.selector, headers=headers)
                answer = connection.getresponse()
                content = answer.read()
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                if kept and isinstance(error, ConnectionError):
                    # The server ended it meanwhile, as it may; these requests only ask.
                    continue
                raise URLError(error) from error
            if answer.will_close:
                connection.close()
            else:
                idle.append(connection)
            made = addinfourl(io.BytesIO(content), answer.headers, request.full_url, answer.status)
            made.msg = answer.reason  # type: ignore[attr-defined]
            return made
