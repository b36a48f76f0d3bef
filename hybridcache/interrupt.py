"""Ctrl-C ends a command with one line."""

import sys
from types import TracebackType


def say_interrupted() -> None:
    """From now on an interrupt that nobody catches prints one line instead of a traceback.

    The process still ends by the signal, so that a shell sees status 130 and stops its own loop.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = hook
