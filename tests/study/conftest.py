"""A ledger for tests that need one."""

import pytest

from steadytune.study.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger.create(path, {}) as made:
        yield made
