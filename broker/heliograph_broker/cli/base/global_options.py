"""The options of credentials, which every command has that talks to a broker.

They are declared here once and for all: the help of ``heliograph`` lists them, before any command they are taken from
there, and each command takes them too without listing them again.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final

import typer

from .access import (
    CLIENT_CERT_VARIABLE,
    CLIENT_KEY_VARIABLE,
    CONTEXT_VARIABLE,
    TLS_CA_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Flags,
    find_context,
    find_credentials,
    using,
)
from .contexts import complete_context
from .shared_options import HttpUrl, ServiceUrl

#: Names and help of each option, by its name in :class:`Flags`.
_OPTIONS: Final = {
    "context": (
        "--context",
        "NAME",
        f"Context with the broker's addresses and credentials; default: {CONTEXT_VARIABLE}, or else the current one "
        "unless an address is given ('heliograph context --help').",
    ),
    "token_file": (
        "--token-file",
        "FILE",
        f"File with a token to show to the broker; default: {TOKEN_FILE_VARIABLE}, or {TOKEN_VARIABLE} with the "
        "token itself.",
    ),
    "tls_ca": (
        "--tls-ca",
        "FILE",
        "Authorities in PEM to trust for https:// and pulsar+ssl://; "
        f"default: {TLS_CA_VARIABLE}, or those of the system.",
    ),
    "client_cert": (
        "--client-cert",
        "FILE",
        f"Certificate in PEM to show to the broker; default: {CLIENT_CERT_VARIABLE}.",
    ),
    "client_key": ("--client-key", "FILE", f"Private key of the certificate; default: {CLIENT_KEY_VARIABLE}."),
}
_EPILOG: Final = f"Also: {', '.join(name for name, _, _ in _OPTIONS.values())}, which 'heliograph --help' explains."
#: The options of a command that talks to a broker, by the value of a context that is their default.
_ADDRESSES: Final = {HttpUrl: "http_url", ServiceUrl: "service_url"}


def _option(field: str, *, hidden: bool) -> Any:
    name, metavar, text = _OPTIONS[field]
    complete = complete_context if field == "context" else None
    option = typer.Option(name, metavar=metavar, help=text, hidden=hidden, show_default=False, autocompletion=complete)
    return Annotated[str, option]


@cache
def _parameters(*, hidden: bool) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(f"global_{field}", kind, default="", annotation=_option(field, hidden=hidden))
        for field in Flags._fields
    ]


def _taken(given: dict[str, Any]) -> Flags:
    return Flags(*(given.pop(f"global_{field}") for field in Flags._fields))


def add_to_root(callback: Callable[[], None]) -> Callable[..., None]:
    """Return the callback of the whole command line with the options, which are kept for the command that follows."""

    def root(typer_context: typer.Context, **given: Any) -> None:
        typer_context.obj = _taken(given)
        callback()

    return _described(root, callback, [_context_parameter("typer_context"), *_parameters(hidden=False)])


def add_to_commands(app: typer.Typer) -> None:
    """Add the options to each command of ``app``, and of the groups in it, that talks to a broker."""
    for command in app.registered_commands:
        if command.callback is not None and _talks(command.callback):
            command.callback = _with_access(command.callback)
            command.epilog = _EPILOG
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_to_commands(group.typer_instance)
    own = app.registered_callback
    if own is not None and own.callback is not None and _talks(own.callback):
        own.callback = _with_access(own.callback)


def given_flags(typer_context: typer.Context) -> Flags:
    """Return the options that were given before the command."""
    before = typer_context.find_root().obj
    return before if isinstance(before, Flags) else Flags()


def _parameters_of(callback: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(callback, eval_str=True).parameters.values())


def _talks(callback: Callable[..., Any]) -> bool:
    return any(each.annotation in _ADDRESSES for each in _parameters_of(callback))


def _with_access(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with the options, whose credentials are in use while it runs."""
    own = _parameters_of(command)
    # Typer gives its context to one parameter.
    context_name = next((each.name for each in own if each.annotation is typer.Context), "")
    addresses = {each.name: _ADDRESSES[each.annotation] for each in own if each.annotation in _ADDRESSES}

    def run(**given: Any) -> None:
        typer_context: typer.Context = given[context_name] if context_name else given.pop("typer_context")
        flags = _taken(given).over(given_flags(typer_context))
        chosen = {name for name in addresses if _is_chosen(typer_context, name)}
        context = find_context(flags, os.environ, url_given=bool(chosen))
        for name, value in addresses.items():
            if name not in chosen and (address := getattr(context, value)):
                given[name] = address
        with using(find_credentials(flags, os.environ, context)):
            command(**given)

    added = [*([] if context_name else [_context_parameter("typer_context")]), *_parameters(hidden=True)]
    return _described(run, command, [*own, *added])


def _is_chosen(typer_context: typer.Context, name: str) -> bool:
    """Whether an option or the environment gives a parameter."""
    source = typer_context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def _context_parameter(name: str) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def _described(
    function: Callable[..., None], like: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """Give ``function`` the name and help of ``like`` and the signature from which typer reads parameters."""
    function.__name__, function.__doc__ = like.__name__, like.__doc__
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    function.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in keywords}
    return function
