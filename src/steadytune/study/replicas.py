"""Several trials at a time in one worker process: threads that claim and run trials side by side on one GPU.

Each has its own name (the worker's, `#`, a number), its own connection to the ledger and its own heartbeat, so for
the ledger they are workers like others. On the GPU each has a lane (engine/lane.py). What one trial does wrong is its
own affair, but for an error after which the GPU takes nothing more from the process: whose fault that was cannot be
told, so the process ends. A trial whose worker has died is run again when no other is beside it: then it is clear who
is to blame, and no trial fails for what another did.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from steadytune.study.ledger import Claim

_GLANCE = 0.2  # seconds between two looks: signals are handled in between


class Crowd:
    """The trials that run at a time in one process: any number of untroubled ones, or one whose worker has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running, self._troubled = 0, False

    def claim(self, ask: Callable[[bool], Claim | None]) -> Claim | None:
        """What `ask(untroubled)` gives, if there is room for it beside those that run."""
        with self._lock:
            if self._troubled:
                return None
            claim = ask(True)
            if claim is None and not self._running:
                claim = ask(False)
                self._troubled = claim is not None
            self._running += claim is not None
            return claim

    def left(self) -> None:
        with self._lock:
            self._running, self._troubled = self._running - 1, False


def side_by_side(
    work: Callable[[str], object], name: str, count: int, stop: threading.Event, fatal: type[BaseException]
) -> None:
    """Call `work` with `count` names at a time. The first error stops the others, and is raised when they have ended.

    After a fatal one the process ends at once: the other threads wait for a GPU that does not answer.
    """
    with ThreadPoolExecutor(count, thread_name_prefix="trial") as pool:
        running: set[Future[object]] = {pool.submit(work, f"{name}#{number}") for number in range(count)}
        failed: BaseException | None = None
        while running:
            ended, running = wait(running, timeout=_GLANCE, return_when=FIRST_EXCEPTION)
            for error in filter(None, (future.exception() for future in ended)):
                if isinstance(error, fatal):
                    traceback.print_exception(error, file=sys.stderr)
                    sys.stderr.flush()
                    os._exit(1)
                failed = failed or error
                stop.set()
    if failed is not None:
        raise failed
