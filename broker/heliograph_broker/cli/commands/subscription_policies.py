"""``heliograph subscriptions …``: policies that single subscriptions of a topic set for themselves."""

from __future__ import annotations

import typer

from heliograph_broker.cli.base.shared_options import subscription_target
from heliograph_broker.cli.policies.policy_commands import Level, add_policy_commands
from heliograph_broker.cli.policies.policy_levels import SUBSCRIPTION_POLICIES

subscriptions_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Manage the policies of single subscriptions, which apply before those of their topic.

    \b
    Examples:
      heliograph subscriptions set-message-ttl orders -s billing --ttl 1h
      heliograph subscriptions set-dead-letter-topic orders -s billing --topic billing-expired
      heliograph subscriptions set-expires orders -s billing --time 30d
      heliograph subscriptions get-message-ttl orders -s billing --applied

    get-NAME prints what set-NAME sets, and remove-NAME removes it. A policy is kept by the subscription's name: it
    applies whenever a subscription of the name exists. 'heliograph topics' creates, lists and deletes them.
    """,
)

add_policy_commands(
    subscriptions_app,
    Level(
        "subscriptions",
        "TOPIC",
        "Topic: 'orders', 'tenant/ns/orders' or the full name.",
        "orders -s billing",
        subscription_target,
        applied=True,
        subscription=True,
    ),
    SUBSCRIPTION_POLICIES,
)
