"""Re-initialisation: what is drawn, from which stream, by which rule, per architecture (V10, D12, T4)."""

import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from steadytune import Mixout, NoEffect, PretrainedDecay, Reinit, SteadytuneError, Streams, apply_, reinit_
from steadytune.layers import HEAD, POOLER, find_layers
from tiny import TINY

ARCHITECTURES = [name for name in TINY if name != "mlp"]


def build(name):
    """Weights that no initialiser would give, so that every re-initialised one shows."""
    torch.manual_seed(0)
    model = TINY[name]()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5)
    return model


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_top_blocks_and_pooler_change_and_nothing_else(name):
    model = build(name)
    layers = find_layers(model)
    count = min(2, layers.count)
    before = weights(model)
    drawn = set(reinit_(model, layers=count, streams=Streams(init=1)))
    expected = {n for block in layers.top_blocks(count) for n in layers.parameters(block)}
    expected |= set(layers.parameters(POOLER))
    assert drawn == expected
    after = weights(model)
    assert {n for n in before if not torch.equal(before[n], after[n])} == expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_head_has_the_same_bytes_with_and_without(name):
    """Appendix B: only the head's draw may decide what the head is."""
    plain, redrawn = build(name), build(name)
    state = torch.get_rng_state()
    reinit_(redrawn, layers=1)
    assert torch.equal(torch.get_rng_state(), state)
    for n in find_layers(plain).parameters(HEAD):
        assert torch.equal(plain.get_parameter(n), redrawn.get_parameter(n)), n


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "distilbert", "vit"])
def test_values_are_those_of_the_paper(name):
    """N(0, 0.02²), biases 0, norm weights 1 and biases 0."""
    model = build(name)
    drawn = reinit_(model, layers=2)
    matrices = []
    for n in drawn:
        p, owner = model.get_parameter(n), model.get_submodule(n.rpartition(".")[0])
        if isinstance(owner, nn.LayerNorm):
            assert (p == (1.0 if n.endswith("weight") else 0.0)).all(), n
        elif n.endswith("bias"):
            assert (p == 0).all(), n
        else:
            matrices.append(p.flatten())
    values = torch.cat(matrices)
    assert abs(values.mean()) < 4 * 0.02 / len(values) ** 0.5
    torch.testing.assert_close(values.std(), torch.tensor(0.02), rtol=0.05, atol=0)


def test_initializer_range_is_the_models_own():
    model = build("bert")
    model.config.initializer_range = 0.5
    drawn = reinit_(model, layers=1)
    values = torch.cat([model.get_parameter(n).flatten() for n in drawn if model.get_parameter(n).dim() == 2])
    torch.testing.assert_close(values.std(), torch.tensor(0.5), rtol=0.1, atol=0)


def test_t5_is_drawn_by_its_own_rule():
    """d_model^-0.5 for key and value, and the query scaled, as T5's attention has no 1/sqrt(d)."""
    model = build("t5")
    drawn = [n for n in reinit_(model, layers=1) if "SelfAttention.k.weight" in n or "SelfAttention.v.weight" in n]
    values = torch.cat([model.get_parameter(n).flatten() for n in drawn])
    torch.testing.assert_close(values.std(), torch.tensor(16**-0.5), rtol=0.15, atol=0)


def test_a_block_gets_the_same_values_whatever_the_number_of_blocks():
    one, three = build("bert"), build("bert")
    reinit_(one, layers=1, streams=Streams(init=4))
    reinit_(three, layers=3, streams=Streams(init=4))
    top = find_layers(one).parameters(4)
    assert top
    assert all(torch.equal(one.get_parameter(n), three.get_parameter(n)) for n in top)


def test_streams_decide():
    a, b, c = build("bert"), build("bert"), build("bert")
    reinit_(a, streams=Streams(init=1))
    reinit_(b, streams=Streams(init=1, noise=9, order=9))
    reinit_(c, streams=Streams(init=2))
    name = "bert.encoder.layer.3.output.dense.weight"
    assert torch.equal(a.get_parameter(name), b.get_parameter(name))
    assert not torch.equal(a.get_parameter(name), c.get_parameter(name))


def test_blocks_differ_from_each_other():
    model = build("bert")
    reinit_(model, layers=2)
    first, second = (model.bert.encoder.layer[i].output.dense.weight for i in (2, 3))
    assert not torch.equal(first, second)


def test_pooler_alone_is_the_papers_l_of_zero():
    model = build("bert")
    assert set(reinit_(model, layers=0, pooler=True)) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert not any("pooler" in n for n in reinit_(build("bert"), layers=1, pooler=False))
    assert reinit_(build("bert"), layers=0) == []


def test_robertas_real_pooler():
    """T4: RobertaForSequenceClassification's pooler is classifier.dense; the head proper is out_proj."""
    drawn = reinit_(build("roberta"), layers=0, pooler=True)
    assert set(drawn) == {"classifier.dense.weight", "classifier.dense.bias"}


@pytest.mark.parametrize("name", ["electra", "xlnet", "bart", "t5", "gpt2", "llama", "vit"])
def test_no_pooler_to_ask_for(name):
    with pytest.raises(NoEffect, match="has no pooler"):
        apply_(build(name), Reinit(layers=0, pooler=True))


@pytest.mark.parametrize("layers", [-1, 1.5, True, "2", None])
def test_a_number_of_layers_that_is_none(layers):
    with pytest.raises(SteadytuneError, match="whole number of blocks"):
        Reinit(layers=layers)


@pytest.mark.parametrize(("part", "same_as"), [(0.25, 1), (0.3, 2), (0.99, 3)])
def test_a_part_of_the_blocks_is_rounded_up_but_never_all(part, same_as):
    assert reinit_(build("bert"), layers=part) == reinit_(build("bert"), layers=same_as)  # of 4


def test_a_part_of_the_one_block_that_albert_shares_is_the_pooler_alone():
    small = {"vocab_size": 20, "embedding_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    shared = AlbertForSequenceClassification(AlbertConfig(**small, num_hidden_layers=4))
    assert set(reinit_(shared, layers=0.25)) == {"albert.pooler.weight", "albert.pooler.bias"}


def test_a_part_that_is_nothing_has_no_effect():
    one = GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8, pad_token_id=0)
    with pytest.raises(NoEffect, match="less than all, is none"):
        reinit_(GPT2ForSequenceClassification(one), layers=0.5)


def test_a_part_of_a_decoder_counts_its_own_blocks():
    count = find_layers(build("bart")).top_count
    assert 0 < count < find_layers(build("bart")).count
    assert reinit_(build("bart"), layers=0.5) == reinit_(build("bart"), layers=count // 2)


def test_more_layers_than_the_model_has():
    with pytest.raises(SteadytuneError, match="4"):
        apply_(build("bert"), Reinit(layers=5))
    with pytest.raises(SteadytuneError, match=r"share|1"):
        apply_(build("albert"), Reinit(layers=3))


def test_with_mixout_the_random_start_is_the_target():
    model = build("bert")
    apply_(model, [Mixout(p=0.7), Reinit(layers=1)], streams=Streams(init=3))
    layer = model.bert.encoder.layer[3].attention.self.query
    assert torch.equal(layer.target, layer.weight)
    fresh = build("bert")
    reinit_(fresh, layers=1, streams=Streams(init=3))
    assert torch.equal(layer.target, fresh.bert.encoder.layer[3].attention.self.query.weight)


def test_after_mixout_it_is_refused():
    model = build("bert")
    apply_(model, Mixout(p=0.7))
    with pytest.raises(SteadytuneError, match="Apply both in one call"):
        apply_(model, Reinit(layers=1))


def test_decay_toward_pretrained_leaves_re_initialised_layers_out():
    applied = apply_(build("bert"), [PretrainedDecay(0.1), Reinit(layers=1)])
    (hook,) = applied._hooks
    assert any(n.startswith("bert.encoder.layer.2.") for n in hook.anchors)
    assert not any(n.startswith(("bert.encoder.layer.3.", "bert.pooler", "classifier")) for n in hook.anchors)


def test_a_plain_perceptron():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    before = weights(model)
    drawn = reinit_(model, layers=1)
    assert set(drawn) == {"3.weight", "3.bias"}
    torch.testing.assert_close(model[3].weight.std(), torch.tensor(0.02), rtol=0.1, atol=0)
    assert (model[3].bias == 0).all()
    assert torch.equal(before["5.weight"], model[5].weight)
