"""Studies on a Ray cluster: `run_ray`.

`running` (connect, stop, take back), `driver` (the loop, and what becomes of a trial), `cluster` (room, sending),
`remote` (what runs on a node), `cargo` (what travels).
"""

from steadytune.study.ray.running import run_ray, run_trials

__all__ = ["run_ray", "run_trials"]
