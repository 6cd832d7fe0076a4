"""The real files of the data folder, for the tests that need them."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """STEADYTUNE_DATA, or shared/data beside the repository."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("STEADYTUNE_DATA", default))
    if not (folder / "glue").is_dir():
        pytest.skip(f"no real data in {folder}; set STEADYTUNE_DATA")
    return folder
