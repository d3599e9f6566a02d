"""The ``heliograph`` command. Each subcommand's module is imported here; its dependencies are imported when it runs."""

from __future__ import annotations

import sys

import typer
from heliograph_api import __version__
from heliograph_api.values.names import InvalidName

from heliograph_broker.cli.base.contexts import AccessError
from heliograph_broker.cli.base.global_options import add_to_commands, add_to_root
from heliograph_broker.cli.base.shared_options import CliError, list_whole_sentences
from heliograph_broker.cli.commands.apply import apply
from heliograph_broker.cli.commands.auth import auth_app
from heliograph_broker.cli.commands.backup import backup_app, restore
from heliograph_broker.cli.commands.brokers import brokers_app, clusters_app
from heliograph_broker.cli.commands.context import context_app
from heliograph_broker.cli.commands.explain import explain
from heliograph_broker.cli.commands.messages import consume, produce
from heliograph_broker.cli.commands.namespaces import namespaces_app
from heliograph_broker.cli.commands.standalone import standalone
from heliograph_broker.cli.commands.store import store_app
from heliograph_broker.cli.commands.subscription_policies import subscriptions_app
from heliograph_broker.cli.commands.tenants import tenants_app
from heliograph_broker.cli.commands.tokens import tokens_app
from heliograph_broker.cli.commands.topics import topics_app

app = typer.Typer(
    name="heliograph",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command()(standalone)
app.command()(apply)
for name, group in (
    ("tenants", tenants_app),
    ("namespaces", namespaces_app),
    ("topics", topics_app),
    ("subscriptions", subscriptions_app),
    ("brokers", brokers_app),
    ("clusters", clusters_app),
    ("auth", auth_app),
    ("context", context_app),
    ("store", store_app),
    ("tokens", tokens_app),
):
    list_whole_sentences(group)
    app.add_typer(group, name=name)
app.command()(produce)
app.command()(consume)
app.command()(explain)
app.add_typer(backup_app, name="backup")
app.command()(restore)


@app.command()
def version() -> None:
    """Print the version of Heliograph."""
    print(f"heliograph {__version__}")


def heliograph() -> None:
    """A message broker that speaks Apache Pulsar's protocol.

    \b
    Run a broker, then talk to it from another terminal:
      heliograph standalone
      heliograph topics create orders --partitions 4
      heliograph produce orders -m hello --key customer-1
      heliograph consume orders -s billing --earliest
      heliograph topics stats orders
      heliograph explain orders -s billing
      heliograph namespaces set-retention public/default --size 10G --time 3h

    Every command has its own help: heliograph COMMAND --help
    """


app.callback()(add_to_root(heliograph))
add_to_commands(app)


def main() -> None:
    """Run the command line; expected failures are lines on stderr and exit code 1, never a traceback."""
    try:
        app()
    except (CliError, InvalidName, AccessError) as error:
        for line in str(error).splitlines():
            print(f"heliograph: {line}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output closed the pipe (| head).
        sys.stderr.close()
        sys.exit(1)
