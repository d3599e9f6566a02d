"""The get-, set- and remove- commands of policies, made from the rows of :mod:`.cli_policies`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    HttpUrl,
    SubscriptionOption,
    Target,
    print_json,
    request,
)

from .policy_flags import Flag, Policy


class Level(NamedTuple):
    """A level at which policies are set: the name of the argument, and how it is parsed."""

    #: As in ``heliograph namespaces``.
    group: str
    argument: str
    argument_help: str
    example: str
    target: Callable[..., Target]
    #: Whether reads may ask for what holds in the end.
    applied: bool
    #: Whether the argument is a topic of which a subscription is meant, named by an option.
    subscription: bool = False


def add_policy_commands(app: typer.Typer, level: Level, policies: Iterable[Policy]) -> None:
    """Register get-NAME, set-NAME and remove-NAME of every policy with ``app``.

    The list of commands shows only set-NAME, whose help names the others; otherwise it would be three times as long.
    """
    for policy in policies:
        getter, setter, remover = _names(policy)
        _register(app, getter, _get(level, policy), hidden=True)
        _register(app, setter, _set(level, policy))
        if remover:
            _register(app, remover, _remove(level, policy), hidden=True)


def _names(policy: Policy) -> tuple[str, str, str]:
    remover = f"remove-{policy.name}" if policy.removable else ""
    return f"get-{policy.get_name or policy.name}", f"set-{policy.name}", remover


def _the(about: str) -> str:
    return about if about.startswith(("the ", "when ", "whether ")) else f"the {about}"


class _Command(NamedTuple):
    """A command: its function, its own options, and its help."""

    run: Callable[..., None]
    options: list[inspect.Parameter]
    level: Level
    about: str
    example: str


def _register(app: typer.Typer, name: str, command: _Command, *, hidden: bool = False) -> None:
    """Return a function with the signature from which typer reads a command's parameters."""
    level = command.level
    argument = inspect.Parameter(
        "where",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, typer.Argument(metavar=level.argument, help=level.argument_help)],
    )
    url = inspect.Parameter("http_url", inspect.Parameter.KEYWORD_ONLY, default=DEFAULT_HTTP_URL, annotation=HttpUrl)
    named = [_parameter("subscription", SubscriptionOption, inspect.Parameter.empty)] if level.subscription else []
    parameters = [argument, *named, *command.options, url]

    def function(**given: Any) -> None:
        where = [given.pop("where"), *(given.pop(option.name) for option in named)]
        command.run(level.target(*where), given.pop("http_url"), given)

    example = f"heliograph {level.group} {name} {level.example} {command.example}".rstrip()
    function.__name__ = name.replace("-", "_")
    function.__doc__ = f"{command.about}\n\n\b\nExamples:\n  {example}\n"
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name, hidden=hidden)(function)


def _get(level: Level, policy: Policy) -> _Command:
    def run(target: Target, http_url: str, given: Mapping[str, Any]) -> None:
        params = {"applied": "true"} if given.get("applied") else None
        path = f"{target.path}/{policy.get_path or policy.path}"
        print_json(policy.shown(request(http_url, "GET", path, params=params, target=target)))

    options = []
    if level.applied:
        applied = typer.Option("--applied", "-ap", help="Print the effective policy, which includes the levels above.")
        options.append(_parameter("applied", Annotated[bool, applied], False))
    about = f"Print {_the(policy.about)}, as JSON; null if nothing is set."
    return _Command(run, options, level, about, "--applied" if level.applied else "")


def _set(level: Level, policy: Policy) -> _Command:
    def run(target: Target, http_url: str, given: Mapping[str, Any]) -> None:
        values = _values(policy.flags, given)
        body = policy.body(values) if policy.body is not None else None
        params = _query(policy.flags, values)
        path = f"{target.path}/{policy.path}"
        request(http_url, policy.method, path, body=body, params=params, target=target)
        print(f"{target.kind}/{target.name} {policy.name} set")

    others = " and ".join(name for name in (_names(policy)[0], _names(policy)[2]) if name)
    about = f"Set {_the(policy.about)}.\n\nSee also {others}."
    return _Command(run, [_option(flag) for flag in policy.flags], level, about, policy.example)


def _remove(level: Level, policy: Policy) -> _Command:
    flags = tuple(flag for flag in policy.flags if flag.on_remove)

    def run(target: Target, http_url: str, given: Mapping[str, Any]) -> None:
        params = _query(flags, _values(flags, given))
        path = f"{target.path}/{policy.path}"
        request(http_url, "DELETE", path, params=params, target=target)
        print(f"{target.kind}/{target.name} {policy.name} removed")

    about = f"Remove the setting of {_the(policy.about)}, so that the inherited value applies."
    return _Command(run, [_option(flag) for flag in flags], level, about, "")


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(flag: Flag) -> inspect.Parameter:
    if flag.read is None:
        return _parameter(flag.key, Annotated[bool, typer.Option(*flag.names, help=flag.help)], False)
    option = typer.Option(*flag.names, help=flag.help, metavar=flag.metavar)
    if flag.default is None:
        return _parameter(flag.key, Annotated[str, option], inspect.Parameter.empty)
    return _parameter(flag.key, Annotated[str, option], flag.default)


def _values(flags: Iterable[Flag], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        flag.key: flag.read(flag.names[0], given[flag.key]) if flag.read is not None else given[flag.key]
        for flag in flags
    }


def _query(flags: Iterable[Flag], values: Mapping[str, Any]) -> dict[str, str] | None:
    return {flag.query: str(values[flag.key]) for flag in flags if flag.query} or None
