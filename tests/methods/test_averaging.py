"""Averaging weights and checkpoints: the mean, and everything that is refused (R18)."""

import json

import pytest
import torch
from heads import make
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from steadytune import CheckpointAverage, SteadytuneError, average_checkpoints, average_weights


def random_state(seed, dtype=torch.float32):
    torch.manual_seed(seed)
    return {"w": torch.randn(3, 4).to(dtype), "b": torch.randn(3).to(dtype), "ids": torch.arange(5)}


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    return folder


@pytest.fixture
def checkpoints(tmp_path):
    """Three checkpoints of one run, the first in shards."""
    model, folders = make("bert-classification"), []
    for step in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.1)
        options = {"max_shard_size": "10KB"} if step == 0 else {}
        folders.append(save(model, tmp_path / f"checkpoint-{step}", **options))
    assert (folders[0] / "model.safetensors.index.json").exists()
    return folders


# --- weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_is_the_mean_computed_in_float64(dtype):
    states = [random_state(seed, dtype) for seed in range(3)]
    mean = average_weights(states)
    expected = torch.stack([state["w"].double() for state in states]).mean(0).to(dtype)
    assert mean["w"].dtype == dtype
    torch.testing.assert_close(mean["w"], expected, rtol=1e-15 if dtype == torch.float64 else 0, atol=0)
    assert torch.equal(mean["ids"], torch.arange(5))


def test_one_is_itself_bit_for_bit_and_a_copy():
    state = random_state(0)
    state["w"][0, 0] = -0.0
    mean = average_weights([state])
    assert all(torch.equal(mean[name], state[name]) for name in state)
    assert torch.signbit(mean["w"][0, 0])
    mean["w"].zero_()
    assert state["w"].abs().sum() > 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=4), st.integers(2, 7))
def test_copies_average_to_themselves_and_order_does_not_matter(values, copies):
    state = {"w": torch.tensor(values)}
    assert torch.equal(average_weights([state] * copies)["w"], state["w"])
    other = {"w": state["w"].flip(0)}
    assert torch.equal(average_weights([state, other])["w"], average_weights([other, state])["w"])


def test_batch_normalisation_takes_the_last_step_counter():
    states = []
    for step in (3, 7):
        layer = nn.BatchNorm1d(2)
        layer.num_batches_tracked.fill_(step)
        layer.running_mean.fill_(float(step))
        states.append(layer.state_dict())
    mean = average_weights(states)
    assert mean["num_batches_tracked"] == 7
    assert mean["running_mean"].tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda s: s.pop("b"), "number 2 and number 1 do not both have b"),
        (lambda s: s.update(c=torch.zeros(1)), "do not both have c"),
        (lambda s: s.update(w=torch.zeros(4, 3)), r"w is \[3, 4\] torch.float32 in number 1 and \[4, 3\]"),
        (lambda s: s.update(w=s["w"].double()), "w is .* torch.float64 in number 2"),
        (lambda s: s.update(ids=torch.arange(5) + 1), "ids holds whole numbers that differ"),
        (lambda s: s["w"].fill_(float("nan")), "w of number 2 has NaN or infinite values"),
        (lambda s: s["b"].fill_(float("inf")), "b of number 2 has NaN or infinite values"),
    ],
)
def test_what_is_not_one_run_is_refused_by_name(change, match):
    other = random_state(1)
    change(other)
    with pytest.raises(SteadytuneError, match=match):
        average_weights([random_state(0), other])


def test_nothing_is_refused():
    for function in (average_weights, average_checkpoints):
        with pytest.raises(SteadytuneError, match="no weights to average"):
            function([])


# --- checkpoints


def test_checkpoints_average_as_their_weights_do_and_load_into_the_model(checkpoints):
    model = make("bert-classification")
    states = [dict(type(model).from_pretrained(folder).state_dict()) for folder in checkpoints]
    mean = average_checkpoints([str(checkpoints[0]), *checkpoints[1:]])
    assert mean.keys() == states[0].keys()
    expected = average_weights(states)
    assert all(torch.equal(mean[name], expected[name]) for name in mean)
    model.load_state_dict(mean)


def test_the_method_takes_the_last_ones(checkpoints):
    last_two = average_checkpoints(checkpoints[1:])
    found = CheckpointAverage(last=2).finish(checkpoints)
    assert all(torch.equal(found[name], last_two[name]) for name in last_two)
    states = [random_state(seed) for seed in range(3)]
    assert torch.equal(CheckpointAverage(last=1).finish(states)["w"], states[2]["w"])
    with pytest.raises(SteadytuneError, match="kept only 3 checkpoints"):
        CheckpointAverage(last=4).finish(checkpoints)
    with pytest.raises(SteadytuneError, match="all of one kind"):
        CheckpointAverage(last=2).finish([checkpoints[0], states[0]])
    with pytest.raises(SteadytuneError, match="last must be a whole number"):
        CheckpointAverage(last=0)


def test_other_architectures_are_refused(checkpoints, tmp_path):
    other = save(make("bert-token"), tmp_path / "other")
    with pytest.raises(SteadytuneError, match=r"BertForTokenClassification.*only checkpoints of one run"):
        average_checkpoints([checkpoints[1], other])
    (other / "config.json").unlink()
    with pytest.raises(SteadytuneError, match=r"without config.json"):
        average_checkpoints([checkpoints[1], other])


def test_pickles_adapters_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(SteadytuneError, match=r"has no model.safetensors"):
        average_checkpoints([tmp_path / "nowhere"])
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(SteadytuneError, match=r"pytorch_model.bin, a pickle"):
        average_checkpoints([tmp_path])
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(SteadytuneError, match="PEFT adapter"):
        average_checkpoints([tmp_path])


def test_damaged_files_are_named(checkpoints):
    weights = checkpoints[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(SteadytuneError, match=r"checkpoint-1/model.safetensors is damaged"):
        average_checkpoints(checkpoints)
    (checkpoints[2] / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(SteadytuneError, match=r"checkpoint-2/config.json is damaged"):
        average_checkpoints(checkpoints[2:])


def test_an_index_cannot_lead_out_of_its_folder(checkpoints):
    index = checkpoints[0] / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    name, shard = next(iter(content["weight_map"].items()))
    for bad in ("../checkpoint-1/model.safetensors", "/etc/passwd", "missing.safetensors"):
        index.write_text(json.dumps({"weight_map": content["weight_map"] | {name: bad}}), encoding="utf-8")
        with pytest.raises(SteadytuneError, match="is not beside it"):
            average_checkpoints(checkpoints)
    index.write_text(json.dumps({"weight_map": {"ghost": shard}}), encoding="utf-8")
    with pytest.raises(SteadytuneError, match="does not hold ghost"):
        average_checkpoints([checkpoints[0]])
    index.write_text("{}", encoding="utf-8")
    with pytest.raises(SteadytuneError, match="weight_map"):
        average_checkpoints([checkpoints[0]])
