"""Which versions of packages a run was made with."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from steadytune import __version__


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """`{"torch": "2.13.0+cpu", ...}`; "unknown" where a package was not installed in the usual way.

    This package knows its own, also where it is run from its source without being installed (PYTHONPATH=src).
    """
    return {name: __version__ if name == "steadytune" else _installed(name) for name in names}


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
