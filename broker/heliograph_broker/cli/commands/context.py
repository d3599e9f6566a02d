"""``heliograph context …``: names for brokers, with the files of the credentials for each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from heliograph_api.tables import new_table

from heliograph_broker.cli.base.access import CONTEXT_VARIABLE
from heliograph_broker.cli.base.contexts import (
    AccessError,
    Context,
    Contexts,
    check_name,
    check_printable,
    complete_context,
    contexts_path,
    read_contexts,
    write_contexts,
)
from heliograph_broker.cli.base.global_options import given_flags
from heliograph_broker.cli.base.shared_options import (
    CliError,
    Output,
    OutputOption,
    console,
    print_json,
    usage_error,
)

context_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Name brokers, with their addresses and the files of the credentials for them.

    A command uses the context that --context or HELIOGRAPH_CONTEXT names, or else the current one. Its own options and
    the environment win over the context. The current context is not used if an option or the environment gives the
    broker's address: its token is not sent elsewhere.

    The file is $XDG_CONFIG_HOME/heliograph/config.yaml, by default ~/.config/heliograph/config.yaml, or the one that
    HELIOGRAPH_CONFIG names. It holds paths and no secrets. It is refused if others may write it.

    \b
    Examples:
      heliograph context set prod --http-url https://broker.example:8443 --token-file ~/.heliograph/prod.token
      heliograph context use prod
      heliograph context list
    """,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=complete_context)]
_SCHEMES = {"http_url": ("http", "https"), "service_url": ("pulsar", "pulsar+ssl", "http", "https")}


def _value(option: str, metavar: str, text: str) -> typer.models.OptionInfo:
    option_info: typer.models.OptionInfo = typer.Option(option, metavar=metavar, help=text, show_default=False)
    return option_info


@context_app.command("set")
def set_context(
    name: Name,
    http_url: Annotated[str | None, _value("--http-url", "URL", "The broker's HTTP port (admin REST API).")] = None,
    service_url: Annotated[str | None, _value("--service-url", "URL", "The broker's binary port (clients).")] = None,
    token_file: Annotated[str | None, _value("--token-file", "FILE", "File with a token to show to it.")] = None,
    tls_ca: Annotated[str | None, _value("--tls-ca", "FILE", "Authorities in PEM to trust for it.")] = None,
    client_cert: Annotated[str | None, _value("--client-cert", "FILE", "Certificate in PEM to show to it.")] = None,
    client_key: Annotated[str | None, _value("--client-key", "FILE", "Private key of the certificate.")] = None,
) -> None:
    """Make a context, or change the given values of one; an empty value removes it.

    \b
    Examples:
      heliograph context set local --http-url http://127.0.0.1:8080 --service-url pulsar://127.0.0.1:6650
      heliograph context set prod --token-file ~/.heliograph/prod.token --tls-ca ca.crt
      heliograph context set prod --tls-ca ''
    """
    check_name(name)
    addresses = {"http_url": http_url, "service_url": service_url}
    for field, address in addresses.items():
        if address:
            _check_address(field, address)
    files = {"token_file": token_file, "tls_ca": tls_ca, "client_cert": client_cert, "client_key": client_key}
    # As they are seen from here: other commands run elsewhere.
    paths = {field: file and os.path.abspath(os.path.expanduser(file)) for field, file in files.items()}
    given = {field: value for field, value in (addresses | paths).items() if value is not None}
    if not given:
        usage_error("nothing to set: give --http-url, --service-url, --token-file, --tls-ca or --client-cert")
    for field, value in given.items():
        check_printable("--" + field.replace("_", "-"), value)
    path = _path()
    contexts = read_contexts(path)
    context = contexts.named.get(name, Context())._replace(**given)
    if bool(context.client_cert) != bool(context.client_key):
        usage_error("--client-cert and --client-key belong together: set both")
    verb = "changed" if name in contexts.named else "created"
    write_contexts(path, contexts._replace(named={**contexts.named, name: context}))
    print(f"context/{name} {verb}")


@context_app.command("use")
def use_context(name: Name) -> None:
    """Make a context the current one, which commands use that are given no other.

    \b
    Examples:
      heliograph context use prod
    """
    path = _path()
    contexts = read_contexts(path)
    contexts.get(name, path)
    write_contexts(path, contexts._replace(current=name))
    print(f"context/{name} is the current one")


@context_app.command("list")
def list_contexts(output: OutputOption = Output.TEXT) -> None:
    """List the contexts; a star marks the current one.

    \b
    Examples:
      heliograph context list
      heliograph context list -o json
    """
    contexts = read_contexts(_path())
    rows = sorted(contexts.named.items())
    if output is Output.JSON:
        print_json([{"name": name, "current": name == contexts.current, **each.document()} for name, each in rows])
        return
    if not rows:
        print("no contexts; 'heliograph context set' makes one")
        return
    from rich.markup import escape

    table = new_table("CURRENT", "NAME", "HTTP URL", "SERVICE URL", "CREDENTIALS")
    for name, each in rows:
        shown = each.token_file or each.client_cert
        cells = ("*" if name == contexts.current else "", name, each.http_url, each.service_url, shown)
        table.add_row(*(escape(cell) or "-" if column else cell for column, cell in enumerate(cells)))
    console().print(table)


@context_app.command("show")
def show_context(
    typer_context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Name of the context; default: the one that commands use.",
            autocompletion=complete_context,
        ),
    ] = "",
) -> None:
    """Print the values of a context, as JSON; secrets are in the files that it names, and are not shown.

    \b
    Examples:
      heliograph context show
      heliograph context show prod
    """
    path = _path()
    contexts = read_contexts(path)
    name = name or given_flags(typer_context).context or os.environ.get(CONTEXT_VARIABLE, "") or contexts.current
    if not name:
        raise CliError("no context is current; choose one with 'heliograph context use NAME'")
    print_json({"name": name, **contexts.get(name, path).document()})


@context_app.command("delete")
def delete_context(name: Name) -> None:
    """Delete a context; the files that it names are kept.

    \b
    Examples:
      heliograph context delete prod
    """
    path = _path()
    contexts = read_contexts(path)
    contexts.get(name, path)
    named = {each: context for each, context in contexts.named.items() if each != name}
    write_contexts(path, Contexts(named, contexts.current if contexts.current in named else ""))
    print(f"context/{name} deleted")


def _path() -> Path:
    path = contexts_path(os.environ)
    if path is None:
        raise AccessError("there is no place for contexts: neither HELIOGRAPH_CONFIG nor HOME is set")
    return path


def _check_address(field: str, address: str) -> None:
    schemes = _SCHEMES[field]
    try:
        parts = urlsplit(address)
        valid = parts.scheme in schemes and bool(parts.hostname)
    except ValueError:
        valid = False
    if not valid:
        option = "--" + field.replace("_", "-")
        usage_error(f"{option} {address!r} should start with {' or '.join(f'{each}://' for each in schemes[:2])}")
    if parts.username is not None or parts.password is not None:
        usage_error(f"--{field.replace('_', '-')} should have no user and password; name a file with --token-file")
