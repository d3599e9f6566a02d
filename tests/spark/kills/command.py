"""``scripts/reading-kills``: any number of messages and kills."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from .killed import JobFailed
from .run import Finished, Plan, differences, run
from .targets import TARGETS


def main() -> int:
    """Return 1 if a target does not have every message once, a job failed, or no kill found one at work."""
    parser = argparse.ArgumentParser(
        prog="scripts/reading-kills", description="Kill jobs at random moments, and look for every message once."
    )
    parser.add_argument("--messages", type=int, default=20_000, help="how many are published (%(default)s)")
    parser.add_argument("--kills", type=int, default=4, help="how often jobs are killed, in turn (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (%(default)s)")
    parser.add_argument("--target", action="append", choices=TARGETS, help="this one only; may be repeated")
    given = parser.parse_args()
    if given.kills < 1 or given.messages < given.kills:
        parser.error("there is at least one kill, and a message for each")
    plan = Plan(given.messages, given.kills, given.seed, tuple(given.target or TARGETS))
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerProcess(Path(directory) / "data") as broker,
    ):
        try:
            finished = run(broker, Path(directory), plan, _say)
        except JobFailed as error:
            _say(str(error))
            return 1
        return judge(finished, plan)


def judge(finished: Finished, plan: Plan) -> int:
    """Print how each target differs from what was published, and return the exit code."""
    _say(f"{finished.hits} of {plan.kills} kills found a job at work")
    wrong = not finished.hits
    for name, target in finished.targets.items():
        began = time.monotonic()
        found = differences(target, plan.messages)
        wrong = wrong or bool(found)
        took = f"(checked in {time.monotonic() - began:.0f} s)"
        _say(f"{name}: {'; '.join(found) or f'each of {plan.messages:,} messages once'} {took}")
    return int(wrong)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
