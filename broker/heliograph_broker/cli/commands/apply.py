"""``heliograph apply``: create and configure in a running broker what manifests describe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from heliograph_broker.cli.base.shared_options import DEFAULT_HTTP_URL, CliError, HttpUrl, call_broker


def apply(
    filename: Annotated[
        list[Path],
        typer.Option(
            "-f",
            "--filename",
            metavar="FILE_OR_DIR",
            help="A manifest, or a folder of them (*.yaml, *.yml, *.json); may be repeated.",
        ),
    ],
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Create and configure what manifests describe: Tenants, Namespaces, Topics and Subscriptions.

    The manifests are the same as for kubectl. All of them are validated first; if one is invalid, nothing
    is applied. Applying them again changes nothing.

    \b
    Examples:
      heliograph apply -f examples/flights/
      heliograph apply -f tenant.yaml -f topics.yaml --http-url http://broker:8080
    """
    from heliograph_api.manifests.manifest_error import ManifestError
    from heliograph_api.manifests.manifest_reader import load, read_documents

    try:
        load(filename)
        manifests = read_documents(filename)
    except ManifestError as error:
        raise CliError(str(error)) from error
    for line in call_broker(http_url, lambda client: client.apply(manifests)):
        print(f"{line['kind'].lower()}/{line['name']} {line['action']}")
        if note := line.get("note"):
            print(f"{line['kind'].lower()}/{line['name']}: {note}", file=sys.stderr)
