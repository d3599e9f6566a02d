"""Ctrl-C for processes that tests start, whatever the tests themselves were started from."""

from __future__ import annotations

import signal


def take_interrupts() -> None:
    """Restore the default for SIGINT; give it to ``Popen`` as ``preexec_fn``.

    A shell without job control starts background commands with SIGINT ignored, and their children inherit that, so
    one to which a test sends SIGINT would never notice. Commands that people run in the background rightly stay that
    way: the default is the test's business and not the command's.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
