"""Which layers of a pool keep their gradients in place; that these are the dense ones; on the CPU in plain torch."""

import copy

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from steadytune import AdamW, Mixout, Streams, apply_, remove_
from steadytune.methods import mixed_layers as layers_module
from steadytune.methods.mask_pool import MaskPool, use_kept_columns_
from steadytune.methods.mixed_layers import mixed_layers


def mixed(**settings):
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 70}
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=2, max_position_embeddings=32, **sizes))
    apply_(model, Mixout(p=0.6, layers="linear", **settings), streams=Streams(noise=3))
    return model.train()


def backward(model, chunks=1, low=None):
    """Stops between the forward and the backward pass of each chunk."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 60, (6, 7), generator=generator)
    for part in tokens.chunk(chunks):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low is not None):
            loss = model(input_ids=part, labels=torch.arange(len(part)) % 2).loss
        yield part
        loss.backward()


def dense_gradients(model, chunks, low):
    pool = MaskPool(model, low)
    use_kept_columns_(model, True)
    pool.draw_()
    pool.mix_()
    for _ in backward(model, chunks, low):
        pool.reuse_()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def kept_gradients(model, chunks, low):
    """Dense ones again; and the kept ones themselves."""
    pool = MaskPool(model, low)
    use_kept_columns_(model, True)
    kept = pool.keep_gradients_(lambda _: True)
    pool.draw_()
    pool.mix_()
    for number, _ in enumerate(backward(model, chunks, low)):
        kept.begin_(number == 0)
        pool.reuse_()
    kept.finish_()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    made = {name: kept.of[p].dense() for name, p in model.named_parameters() if p in kept.of}
    assert not made.keys() & found.keys()
    return found | made, kept


@pytest.fixture(autouse=True)
def device_path(monkeypatch):
    monkeypatch.setattr(layers_module, "COLUMN_DEVICES", {"cpu"})


@pytest.mark.parametrize("settings", [{}, {"gradient": "paper"}, {"share_qkv": True}])
@pytest.mark.parametrize("low", [None, torch.bfloat16])
@pytest.mark.parametrize("chunks", [1, 3])
def test_gradients_are_the_dense_ones(chunks, low, settings):
    """Query, key and value together; each layer for itself; weights that the pool mixes, or the layer."""
    model = mixed(**settings)
    model.bert.encoder.layer[0].output.dense.bias = None
    dense = dense_gradients(copy.deepcopy(model), chunks, low)
    found, kept = kept_gradients(model, chunks, low)
    assert len(kept.of) == len(list(mixed_layers(model)))
    assert found.keys() == dense.keys()
    for name, expected in dense.items():
        close = {"rtol": 0, "atol": 0} if chunks == 1 else {"rtol": 1e-4, "atol": 1e-7}
        torch.testing.assert_close(found[name], expected, **close, msg=lambda m, n=name: f"{n}: {m}")


def test_frozen_parts():
    """A weight, a bias, and both; the others of the same attention train."""
    model = mixed()
    attention, output = model.bert.encoder.layer[1].attention.self, model.bert.encoder.layer[1].output.dense
    attention.key.weight.requires_grad_(False)
    attention.value.bias.requires_grad_(False)
    output.weight.requires_grad_(False)
    output.bias.requires_grad_(False)
    dense = dense_gradients(copy.deepcopy(model), 1, None)
    found, kept = kept_gradients(model, 1, None)
    assert found.keys() == dense.keys()
    assert all(torch.equal(found[name], dense[name]) for name in dense)
    assert len(list(mixed_layers(model))) - len(kept.of) == 2
    assert (kept.of[attention.value.weight].values[:, -1] == 0).all()
    assert not kept.covers(attention.key.bias)  # its gradient comes by itself
    assert not kept.covers(attention.value.bias)


def test_layers_whose_parameters_are_not_theirs_alone_have_dense_gradients():
    model = mixed()
    first, second = (model.bert.encoder.layer[i].output.dense for i in (0, 1))
    self_0, self_1 = (model.bert.encoder.layer[i].attention.self for i in (0, 1))
    second.weight = first.weight
    self_1.key.bias = self_0.key.bias
    self_0.value.weight.register_hook(lambda grad: grad)
    self_1.value.mix.target = self_1.value.mix.target.double()
    refused = self_0.query.weight
    kept = MaskPool(model).keep_gradients_(lambda weights: weights[0] is not refused)
    out = {first, second, self_0.key, self_1.key, self_0.value, self_1.value, self_0.query}
    assert {layer for _, layer in mixed_layers(model) if layer.mix_gradient is None} == out
    assert not any(kept.covers(layer.weight) for layer in out)


def test_no_layer_no_gradients():
    assert MaskPool(mixed()).keep_gradients_(lambda _: False) is None


def test_attention_that_reads_the_weight_itself():
    model = nn.Sequential(nn.Linear(8, 8))
    model.attention = nn.MultiheadAttention(8, 2)
    apply_(model, Mixout(p=0.5, layers="linear"), streams=Streams(noise=3))
    kept = MaskPool(model).keep_gradients_(lambda _: True)
    assert set(kept.of) == {model[0].weight}


def test_what_a_copy_or_a_model_that_moved_has():
    model = mixed()
    MaskPool(model).keep_gradients_(lambda _: True)
    assert all(layer.mix_gradient is None for _, layer in mixed_layers(copy.deepcopy(model)))
    model.double()
    assert all(layer.mix_gradient is None for _, layer in mixed_layers(model))
    remove_(model)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("mix")]


def test_a_mask_of_their_own_goes_the_dense_way():
    """Without the pool's masks, or where a mask may be too long."""
    model = mixed()
    pool = MaskPool(model)
    use_kept_columns_(model, True)
    kept = pool.keep_gradients_(lambda _: True)
    pool.draw_()
    pool.clear_()
    list(backward(model))
    assert all(p.grad is not None for p in kept.of)
    assert not any(each.is_written for each in kept.of.values())
    model.zero_grad()
    use_kept_columns_(model, False)
    pool.draw_()
    list(backward(model))
    assert all(p.grad is not None for p in kept.of)


@pytest.mark.parametrize("one_pass", [False, True])
def test_an_optimiser_without_its_kernel_expands_them(one_pass):
    model, twin = mixed(), mixed()
    _, kept = kept_gradients(model, 1, None)
    dense_gradients(twin, 1, None)
    found = []
    for each in (model, twin):
        optimizer = AdamW(each.parameters(), lr=0.01, weight_decay=0.1)
        if one_pass:
            optimizer.in_one_pass_()
        if each is model:
            optimizer.read_kept_(kept.of)
        optimizer.step(grad_factor=torch.tensor(0.5))
        found.append([p.detach() for p in each.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
