"""Checkpoints: what goes in comes out bit for bit, and which ones are kept. (tests/crash kills and damages them.)"""

import shutil

import pytest
import torch
from checkpoint_writers import contents, is_whole, names, same, write
from hypothesis import given, settings
from hypothesis import strategies as st

from steadytune import SteadytuneError, checkpoint


def test_every_kind_of_tensor_comes_back_bit_for_bit(tmp_path):
    base, square = torch.randn(6, 4), torch.randn(3, 3)
    named = {
        "plain": base,
        "tied": base,
        "transposed": base.t(),
        "square": square,
        "square transposed": square.t(),
        "rows": base[2:],
        "every second": base[::2],
        "flat": base.view(-1),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "also empty": torch.empty(0, 3),
        "half": base.half(),
        "bfloat16": base.bfloat16(),
        "double": base.double(),
        "whole": torch.tensor([2**62, -1]),
        "bytes": torch.arange(256, dtype=torch.uint8),
        "truth": torch.tensor([True, False]),
        "not finite": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "expanded": torch.randn(3, 1).expand(3, 5),
        "ünï/code.名": torch.ones(2),
    }
    path = checkpoint.write(tmp_path, 1, {"model": named, "nothing": {}}, {})
    tensors, _ = checkpoint.read(path)
    assert tensors["nothing"] == {}
    assert tensors["model"].keys() == named.keys()
    for name, tensor in named.items():
        found = tensors["model"][name]
        assert found.shape == tensor.shape
        assert found.dtype == tensor.dtype
        bits = [part.detach().contiguous().flatten().view(torch.uint8) for part in (found, tensor)]
        assert torch.equal(*bits), name


def test_tied_tensors_are_written_once_and_come_back_tied(tmp_path):
    weight = torch.randn(1000, 10)
    path = checkpoint.write(tmp_path, 1, {"model": {"embedding": weight, "decoder": weight}}, {})
    assert (path / "model.safetensors").stat().st_size < 1.5 * weight.nbytes
    tensors, _ = checkpoint.read(path)
    assert tensors["model"]["decoder"].data_ptr() == tensors["model"]["embedding"].data_ptr()


def test_a_view_is_written_without_the_rest_of_its_memory(tmp_path):
    path = checkpoint.write(tmp_path, 1, {"model": {"row": torch.randn(1000, 100)[5]}}, {})
    assert (path / "model.safetensors").stat().st_size < 2000


def test_what_was_read_does_not_change_the_file_and_outlives_it(tmp_path):
    path = write(tmp_path, 1)
    tensors, _ = checkpoint.read(path)
    tensors["model"]["a"].add_(1.0)
    same(checkpoint.read(path), contents(1))
    kept, data = checkpoint.read(path)
    shutil.rmtree(path)
    same((kept, data), contents(1))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(data=st.dictionaries(st.text(), plain, max_size=4))
def test_data_comes_back_exactly(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("data")
    assert repr(checkpoint.read(checkpoint.write(folder, 0, {}, data))[1]) == repr(data)


def test_a_diverged_runs_nan_comes_back(tmp_path):
    _, data = checkpoint.read(checkpoint.write(tmp_path, 0, {}, {"loss": float("nan"), "norm": float("inf")}))
    assert data["loss"] != data["loss"]
    assert data["norm"] == float("inf")


def test_none_where_there_are_none(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "not there") is None
    (tmp_path / "step-12").mkdir()  # not ours: too few digits
    (tmp_path / "model").mkdir()
    assert checkpoint.latest(tmp_path) is None


def test_the_newest_by_number_and_the_one_before_it_stay(tmp_path):
    for step in (0, 9, 999_999, 1_000_000):
        write(tmp_path, step)
    assert names(tmp_path) == ["step-1000000", "step-999999"]
    assert is_whole(tmp_path, {1_000_000})


def test_more_can_be_kept(tmp_path):
    for step in range(5):
        write(tmp_path, step, keep=3)
    assert names(tmp_path) == ["step-000002", "step-000003", "step-000004"]


def test_the_same_step_again_replaces_it_and_keeps_the_one_before(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2)
    for word in ("again", "and again"):
        checkpoint.write(tmp_path, 2, {}, {"said": word})
        assert checkpoint.latest(tmp_path).data == {"said": word}
        assert checkpoint.latest(tmp_path).step == 2
        assert len(names(tmp_path)) == 2
    assert names(tmp_path)[0] == "step-000001"


@pytest.mark.parametrize("step", [-1, 1.0, True, "1"])
def test_a_step_that_is_none(tmp_path, step):
    with pytest.raises(SteadytuneError, match="whole number"):
        checkpoint.write(tmp_path, step, {}, {})


@pytest.mark.parametrize("stem", ["../out", "a/b", "", ".hidden", "ü"])
def test_a_file_name_that_leads_elsewhere_is_refused(tmp_path, stem):
    with pytest.raises(SteadytuneError, match="cannot be the name"):
        checkpoint.write(tmp_path / "in", 1, {stem: {}}, {})
    assert names(tmp_path / "in") == []


@pytest.mark.parametrize("data", [{"x": object()}, {"x": {1, 2}}, {"x": torch.ones(1)}, {(1, 2): 3}, {"x": {1: "a"}}])
def test_data_that_json_would_lose_is_refused_and_nothing_is_left(tmp_path, data):
    write(tmp_path, 1)
    with pytest.raises(SteadytuneError, match="must be plain"):
        checkpoint.write(tmp_path, 2, {}, data)
    assert names(tmp_path) == ["step-000001"]


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("I am a file")
    with pytest.raises(SteadytuneError, match="could not be written"):
        write(tmp_path / "file" / "checkpoints", 1)
