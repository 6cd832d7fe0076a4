"""A Ray cluster as the driver sees it: how many trials it has room for, and how one is sent there."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from steadytune.errors import SteadytuneError
from steadytune.study.ray import remote
from steadytune.study.ray.cargo import Cargo, digest, read_files, versions

_LOOK_EVERY = 1.0  # seconds between two looks at the nodes, and at the board
_PATIENCE = 600.0  # seconds to wait for a node that trials fit on; one may be starting
_FORGET_WITHIN = 10.0

# Ray would show each task its own GPU only, by CUDA_VISIBLE_DEVICES, which a process reads once. Its next trial may
# get another GPU: so it is shown all, and told which to use.
NO_MASK = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}


class Cluster:
    """The cluster that Ray is connected to, with one study's cargo on it.

    workers   trials at a time; by default as many as there is room for, also on nodes that come later
    per_gpu   trials at a time on each GPU. Where there are GPUs, trials run on these only: a CPU rounds differently
    threads   CPUs of a trial that has no GPU
    """

    def __init__(
        self,
        study: str,
        meta: Mapping[str, Any],
        cargo: Cargo,
        *,
        workers: int | None,
        per_gpu: int | None,
        threads: int,
        deterministic: bool = False,
        patience: float = _PATIENCE,
    ) -> None:
        self.study, self.workers, self.threads, self.patience = study, workers, threads, patience
        self.per_gpu = per_gpu or (1 if any(node.get("GPU") for node in _nodes().values()) else 0)
        self._places, self._look_at, self._none_since = 0, 0.0, 0.0
        self._answer: Any = None  # the board's, to come
        self._ask_at = 0.0
        here = ray.get_runtime_context().get_node_id()  # where the driver lives, and dies
        self.board: Any = _quick(remote.Board, here, soft=True, max_restarts=-1).remote()
        models = {}
        for name, folder in cargo.models.items():
            files = read_files(folder)
            models[name] = (digest(files), ray.put(files))
        data = {name: ray.put(each) for name, each in cargo.data.items()}
        gpu = bool(self.per_gpu)
        job = remote.Job(study, meta, threads, deterministic, gpu, versions(), data, models, self.board, cargo.run)
        self._job = ray.put(job)
        needs: dict[str, Any] = {"num_cpus": threads}
        if gpu:
            needs = {"num_cpus": 0, "num_gpus": share(self.per_gpu), "runtime_env": NO_MASK}
        # max_calls: also a process that has used a GPU stays for its next trial.
        self._task: Any = ray.remote(max_retries=0, max_calls=0, **needs)(remote.run_task)

    def send(self, work: remote.Work) -> Any:
        """The reference of what will come back."""
        return self._task.remote(self._job, work)

    def kill(self, ref: Any) -> None:
        """End the process that this would come back from."""
        with suppress(RayError, ValueError):  # it has ended, or this is a question to the board
            ray.cancel(ref, force=True)

    def room(self) -> int:
        """How many trials can be out. Without any place for them one is sent, for an autoscaler to see."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._places = sum(places(node, self.per_gpu, self.threads) for node in _nodes().values())
            self._wait_for_a_place(now)
        return self.workers or max(1, self._places)

    def _wait_for_a_place(self, now: float) -> None:
        if self._places:
            self._none_since = 0.0
            return
        need = "a GPU" if self.per_gpu else f"{self.threads} CPUs" if self.threads > 1 else "a CPU for trials"
        has = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in _nodes().values())
        problem = f"No node of the Ray cluster has {need}. Its nodes have: {has}."
        if not self._none_since:
            self._none_since = now
            print(f"{problem} Waiting for one that has.", file=sys.stderr, flush=True)
        elif now > self._none_since + self.patience:
            raise SteadytuneError(
                f"{problem} None came in {self.patience:.0f} seconds. The same command goes on later."
            )

    def news(self, stops: Iterable[str]) -> dict[str, remote.News]:
        """What trials have said lately; those in `stops` are told to stop. Never waits: the board may be starting."""
        now, stops = time.monotonic(), frozenset(stops)
        if self._answer is None and (stops or now >= self._ask_at):
            self._answer = self.board.look.remote(stops)
        if self._answer is None or not ray.wait([self._answer], timeout=0)[0]:
            return {}
        answer, self._answer, self._ask_at = self._answer, None, now + _LOOK_EVERY
        try:
            return dict(ray.get(answer))
        except RayError:
            return {}

    def ask_for_log(self, news: remote.News) -> Any:
        """The reference of what a dead process said last."""
        return _quick(remote.last_words, news.node, max_retries=0).remote(news.log)

    def forget(self, nodes: Collection[str]) -> None:
        """Delete what these nodes have of the study, as far as they answer."""
        alive = [node for node in _nodes() if node in nodes]
        with suppress(RayError):
            refs = [_quick(remote.forget, node, max_retries=0).remote(self.study) for node in alive]
            ray.wait(refs, num_returns=len(refs), timeout=_FORGET_WITHIN)


def share(per_gpu: int) -> float:
    """Of a GPU. Ray counts in ten-thousandths; one that is rounded up would leave room for one trial less."""
    return math.floor(10_000 / per_gpu) / 10_000


def places(node: Mapping[str, float], per_gpu: int, threads: int) -> int:
    """How many trials fit on a node with these resources. A share of a GPU is of one GPU."""
    return int(node.get("GPU", 0)) * per_gpu if per_gpu else int(node.get("CPU", 0) // threads)


def _nodes() -> dict[str, dict[str, float]]:
    """The resources of all living nodes, by name."""
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def _quick(thing: Any, node: str, soft: bool = False, **options: Any) -> Any:
    """A task or actor on one node that needs none of its CPUs; `soft`: or on another one."""
    where = NodeAffinitySchedulingStrategy(node, soft=soft)
    return ray.remote(num_cpus=0, scheduling_strategy=where, **options)(thing)
