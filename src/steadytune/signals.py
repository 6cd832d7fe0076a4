"""Ctrl-C and SIGTERM ask for a clean end: the run writes a checkpoint between two steps, then everything stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Something was asked to stop, and did, with a checkpoint. `exit_code`: 130 after Ctrl-C, 143 after SIGTERM."""

    def __init__(self, number: int | None, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + (number or signal.SIGINT)


class Stop(threading.Event):
    """Whether somebody asked for an end. `signal`: the number of the signal that did."""

    def __init__(self) -> None:
        super().__init__()
        self.signal: int | None = None


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Inside the block the first signal only sets the event; a second Ctrl-C breaks off at once."""
    asked = Stop()
    if threading.current_thread() is not threading.main_thread():  # only the main thread can be told of signals
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.signal = asked.signal or number
        asked.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
