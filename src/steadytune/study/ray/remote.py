"""What runs on the nodes of a Ray cluster: `run_task`, one trial; and the `Board`, where driver and trials talk.

A node knows nothing of the ledger. It is handed a trial, and what it returns the driver records.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from steadytune.study import trial_folders
from steadytune.study.outcome import Outcome, Run, Stopped
from steadytune.study.ray.cargo import Files, different, node_folder, plain, read_files, versions, write_files
from steadytune.study.worker import BEGINS, disk_is_full

_SAY_EVERY = 1.0  # seconds between two words to the board
_HEARD_WITHIN = 2.0  # seconds; it takes milliseconds
_ANSWER_WITHIN = 10.0


@dataclass(frozen=True, eq=False)
class Job:
    """What all trials of a run share. It is sent to each node once."""

    study: str  # names the study's folder on the nodes
    meta: Mapping[str, Any]  # of the ledger
    threads: int
    deterministic: bool
    gpu: bool
    versions: Mapping[str, str]  # of the driver
    data: Mapping[str, Any]  # task -> reference of its Data
    models: Mapping[str, tuple[str, Any]]  # what recipes say -> (digest, reference of the files)
    board: Any
    run: Run | None = None


@dataclass(frozen=True)
class Work:
    """One trial."""

    key: str
    spec: dict[str, Any]
    attempt: int
    token: str


@dataclass(frozen=True, eq=False)
class Returned:
    """What became of it. `outcome` is there where it ended by itself, `text` says what happened otherwise.

    failed: it raised an error. stopped: it was asked to. full, unfit: this is no place for any trial.
    """

    kind: Literal["ended", "failed", "stopped", "full", "unfit"]
    text: str = ""
    node: str = ""
    outcome: Outcome | None = None
    model: Files = field(default_factory=dict)  # of a trial whose model is kept


@dataclass(frozen=True)
class News:
    """What a running trial says of itself."""

    node: str  # Ray's name for it
    address: str
    pid: int
    log: str  # a file on that node; empty where it is not known
    progress: dict[str, Any] | None = None


def run_task(job: Job, work: Work) -> Returned:
    """One trial, on a node. Raises nothing: an error of a trial is an answer too."""
    if found := different(job.versions, versions()):
        return Returned("unfit", f"Node {ray.util.get_node_ip_address()} has {', '.join(found)}.")
    print(BEGINS.format(work.key), file=sys.stderr, flush=True)  # what the log has of this trial begins here
    names: tuple[str, str] | None = None
    with Line(job.board, work.token) as line:
        try:
            root = node_folder(job.study)
            spec, names = _with_local_model(job, work.spec, root)
            run = job.run or _run_of(job, spec, root)
            folder = trial_folders.take_over(root / "trials", work.key, work.attempt)
            outcome = run(spec, folder, line.say, line.stop)
            if names is not None:
                outcome = Outcome(outcome.status, plain(outcome.result, *names), outcome.arrays)
            kept = root / "models" / work.key
            model = read_files(kept) if kept.is_dir() else {}
            shutil.rmtree(kept, ignore_errors=True)
            trial_folders.delete(root / "trials", work.key)
            return Returned("ended", "", line.news.node, outcome, model)
        except BaseException as error:  # SystemExit too: a trial does not end its process
            return _explained(error, line, names)


def _explained(error: BaseException, line: Line, names: tuple[str, str] | None) -> Returned:
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, Stopped) and line.stop.is_set()):
        return Returned("stopped", "", line.news.node)
    if disk_is_full(error):
        return Returned("full", f"A trial could not write on node {line.news.address}: {error}.", line.news.node)
    text = "".join(traceback.format_exception(error))
    return Returned("failed", text if names is None else text.replace(*names), line.news.node)


# -- what the trials of one process share ------------------------------------------------------------------------------

# The only state of a process: Ray hands a process one trial after another and keeps nothing between them, and to read
# and tokenise the data again can take longer than a small trial. A process serves one driver.
_RUNS: dict[tuple[str, str, str, str, bool], Run] = {}


def _run_of(job: Job, spec: Mapping[str, Any], root: Path) -> Run:
    """How trials of this task are run here."""
    device = _device(job.gpu)
    key = (job.study, spec["task"], spec["content"]["data"], device, job.deterministic)
    if key not in _RUNS:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from steadytune.study.trial import make_run

        data = {spec["task"]: ray.get(job.data[spec["task"]])}
        _RUNS[key] = make_run({**job.meta, "base": "."}, root, device, data, deterministic=job.deterministic)
    import torch

    torch.set_num_threads(job.threads)  # numbers must not depend on the machine
    if device != "cpu":
        torch.cuda.set_device(device)  # where Triton's kernels run
    return _RUNS[key]


def _device(gpu: bool) -> str:
    """The GPU that Ray has given to this trial. The process sees all of its node (`driver.NO_MASK`), because it
    may get another one for its next trial."""
    if not gpu:
        return "cpu"
    mine, visible = str(ray.get_gpu_ids()[0]), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return f"cuda:{visible.split(',').index(mine) if visible else mine}"


def _with_local_model(job: Job, spec: dict[str, Any], root: Path) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """The spec with a copy of the model on this node, and (the copy, what the recipe says)."""
    recipe = spec.get("content", {}).get("recipe", {})
    which = "start_from" if recipe.get("start_from") else "model"
    if recipe.get(which) not in job.models:
        return spec, None
    digest, files = job.models[recipe[which]]
    copy = root / "encoders" / digest
    if not copy.is_dir():
        write_files(ray.get(files), copy)
    content = {**spec["content"], "recipe": {**recipe, which: str(copy)}}
    return {**spec, "content": content}, (str(copy), str(recipe[which]))


# -- driver and trials talk --------------------------------------------------------------------------------------------


class Board:
    """A small actor: trials leave their news and read whether to stop; the driver takes the news.

    Nothing depends on it. Where its process dies, Ray starts another, which hears all within a second.
    """

    def __init__(self) -> None:
        self.last: dict[str, News] = {}
        self.new: dict[str, News] = {}
        self.stops: frozenset[str] = frozenset()

    def say(self, token: str, news: News) -> bool:
        """From a trial; whether it should stop."""
        self.last[token] = self.new[token] = news
        return token in self.stops

    def look(self, stops: frozenset[str]) -> dict[str, News]:
        """From the driver: who should stop. Returns what is new."""
        self.stops, new, self.new = stops, self.new, {}
        return new

    def about(self, token: str) -> News | None:
        """From the driver: the last that was heard of a trial."""
        return self.last.get(token)


class Line:
    """The thread beside a trial that talks with the board, so that a slow board does not hold up the trial."""

    def __init__(self, board: Any, token: str) -> None:
        self.board, self.token = board, token
        self.stop, self._heard, self._over = threading.Event(), threading.Event(), threading.Event()
        context = ray.get_runtime_context()
        self.news = News(context.get_node_id(), ray.util.get_node_ip_address(), os.getpid(), _log())
        self._thread = threading.Thread(target=self._talk, name="line", daemon=True)

    def __enter__(self) -> Line:
        self._thread.start()
        self._heard.wait(_HEARD_WITHIN)  # whatever the trial does next, it is known where it ran
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_SAY_EVERY)  # it may be waiting for a board that does not answer

    def say(self, progress: dict[str, Any]) -> None:
        """Called by the run after a step; costs nothing."""
        self.news = replace(self.news, progress=progress)

    def _talk(self) -> None:
        while not self._over.is_set():
            try:
                if ray.get(self.board.say.remote(self.token, self.news), timeout=_ANSWER_WITHIN):
                    self.stop.set()
                self._heard.set()
            except RayError:
                pass  # the board is starting again
            self._over.wait(_SAY_EVERY)


def _log() -> str:
    """Where this process writes its stderr: Ray has sent it to a file."""
    try:
        return os.readlink("/proc/self/fd/2")
    except OSError:
        return ""


# -- small tasks -------------------------------------------------------------------------------------------------------


def last_words(log: str) -> str:
    """What a process that has died on this node said last."""
    from steadytune.study.crew import last_words as read

    return read(Path(log)) if log else ""


def forget(study: str) -> None:
    """A study has ended: nothing of it stays on this node."""
    shutil.rmtree(node_folder(study), ignore_errors=True)
