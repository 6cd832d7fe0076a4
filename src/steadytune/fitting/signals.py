"""Ctrl-C and SIGTERM ask for a clean end: the run writes a checkpoint between two steps, then everything stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A fit was asked to stop, and did, with a checkpoint. `exit_code`: 130 after Ctrl-C, 143 after SIGTERM."""

    def __init__(self, number: int | None, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + (number or signal.SIGINT)


class Stop:
    """Whether somebody asked for an end; `train` polls it between steps."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Inside the block the first signal only sets the flag; a second Ctrl-C breaks off at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # only the main thread can be told of signals
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
