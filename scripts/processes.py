"""Ends a command of the project: after its cleanup, also on a signal, and with the exit code of what failed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn


def exit_code(returncode: int) -> int:
    """Return a shell's exit code for a process that returned this: 128 and the number of the signal that ended it."""
    return 128 - returncode if returncode < 0 else returncode


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command line with the arguments of this process, and exit with the code it returns.

    SIGTERM and SIGHUP unwind it like Ctrl-C, so that its cleanup runs. A process that it runs and that fails
    ends it with the same exit code: that process has said why.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The user may want it to outlive a terminal.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _unwind)
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = exit_code(-signal.SIGINT)
    except subprocess.CalledProcessError as error:
        code = exit_code(error.returncode)
    sys.exit(code)


def _unwind(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(exit_code(-number))
