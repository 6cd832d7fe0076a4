"""The thread beside a run that says it is alive, and tells the run when it has to stop."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steadytune.errors import SteadytuneError
from steadytune.study.ledger import Claim, Ledger

_TICK = 0.1  # seconds within which a stop is passed on
_OFTEN = 2.0  # seconds between two beats at most: those who watch want to see something move


class Pulse:
    """What a run and its heart share."""

    def __init__(self, claim: Claim, every: float) -> None:
        self.claim, self.every = claim, every
        self.stop = threading.Event()
        self.progress: dict[str, Any] | None = None
        self.due = time.monotonic() + every

    def say(self, progress: dict[str, Any]) -> None:
        """Called by the run after a step; costs nothing, the heart writes it with its next beat."""
        self.progress = progress


class Heart:
    """Beats for one trial at a time, in a thread with a connection of its own."""

    def __init__(self, ledger: str | Path, lease: float, stop: threading.Event, parent: int | None = None) -> None:
        self._ledger, self._lease, self._stop, self._parent = ledger, lease, stop, parent
        self._pulse: Pulse | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @contextmanager
    def beats_for(self, claim: Claim) -> Iterator[Pulse]:
        self._pulse = pulse = Pulse(claim, min(self._lease / 4, _OFTEN))
        try:
            yield pulse
        finally:
            self._pulse = None

    def _beat(self) -> None:
        ledger: Ledger | None = None
        try:
            while not self._over.wait(_TICK):
                if self._parent is not None and os.getppid() != self._parent:
                    self._stop.set()  # whoever started us was killed
                pulse = self._pulse
                if pulse is None:
                    continue
                if self._stop.is_set():
                    pulse.stop.set()
                if time.monotonic() < pulse.due:
                    continue
                pulse.due = time.monotonic() + pulse.every
                try:
                    ledger = ledger or Ledger.open(self._ledger)
                    if not ledger.beat(pulse.claim, self._lease, pulse.progress):
                        pulse.stop.set()  # the lease ran out, and the trial is another's
                except SteadytuneError as error:  # perhaps the next beat gets through
                    print(f"No sign of life of trial {pulse.claim.key}: {error}", file=sys.stderr, flush=True)
        finally:
            if ledger is not None:
                ledger.close()
