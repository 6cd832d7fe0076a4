"""Rows that lie on the device, padded once: the same batches as padding them anew."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadytune.engine.batches import collate
from steadytune.engine.resident import Resident
from tiny_tasks import KINDS, tiny_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_batches_are_those_of_collate(kind, side, folder, data):
    encoded = tiny_run(kind, folder)[1]
    split, encoder = encoded.splits["train"], encoded.encoder
    if encoder.tokenizer is not None:
        encoder.tokenizer.padding_side = side
    elif side == "left":
        return
    rows = np.array(data.draw(st.lists(st.integers(0, len(split) - 1), min_size=1, max_size=9)))
    rounded, multiple = data.draw(st.booleans()), data.draw(st.sampled_from([8, 16, 64]))
    wanted = collate(encoder, split, rows, CPU, rounded=rounded, multiple=multiple)
    resident = Resident(encoder, split, CPU)
    made = resident.batch(torch.from_numpy(rows), resident.widths(rows, rounded, multiple))
    assert made.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert made[name].dtype == tensor.dtype
        assert torch.equal(made[name], tensor), name
