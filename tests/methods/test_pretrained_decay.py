"""Decay toward the pretrained weights: against its formula, and what is left out (M7, V17, D10)."""

import copy

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.methods.adamw import AdamW
from steadytune.methods.base import Site, check_methods
from steadytune.methods.pretrained_decay import PretrainedDecay, anchored_names
from steadytune.methods.weight_decay import WeightDecay, decay_penalty, decayed_names
from steadytune.rng import Streams


def bert(dtype=torch.float32):
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=20, pad_token_id=0
    )
    return BertForSequenceClassification(config).to(dtype)


def site_of(model, fresh=()):
    site = Site.of(model, Streams())
    site.reinitialised.update(fresh)
    return site


def attach_(model, optimizer, fresh=(), **settings):
    hook = PretrainedDecay(**settings).step_hook(site_of(model, fresh))
    hook.attach_(optimizer)
    return hook


def set_grads_(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_decoupled_is_the_formula_of_v17():
    """w <- w - lr λ (w - ŵ), then the plain step; head, biases and norms take the plain step only."""
    model, twin = bert(torch.float64), bert(torch.float64)
    pretrained, lr, decay = weights(model), 0.1, 0.7
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    attach_(model, optimizer, decay=decay)
    pulled = decayed_names(model) - {"classifier.weight"}
    for i in range(4):
        set_grads_(model, i), set_grads_(twin, i)
        optimizer.step()
        with torch.no_grad():
            for name, p in twin.named_parameters():
                toward = lr * decay * (p - pretrained[name]) if name in pulled else 0.0
                p -= toward + lr * p.grad
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, dict(twin.named_parameters())[name], msg=name)


def test_l2_is_the_gradient_of_the_penalty():
    mine, theirs = bert(torch.float64), bert(torch.float64)
    pretrained = weights(theirs)
    ours, expected = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (mine, theirs))
    attach_(mine, ours, decay=0.7, form="l2")
    pulled = decayed_names(theirs) - {"classifier.weight"}
    for i in range(4):
        set_grads_(mine, i), set_grads_(theirs, i)
        ours.step()
        named = {n: p for n, p in theirs.named_parameters() if n in pulled}
        decay_penalty(named.values(), 0.7, [pretrained[n] for n in named]).backward()  # adds to the gradients
        expected.step()
    for p, q in zip(mine.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q)


def test_the_first_step_is_the_plain_one_bit_for_bit():
    """Training starts at ŵ, where the pull is exactly zero: the decay cannot disturb what it is meant to keep."""
    for form in ("decoupled", "l2"):
        mine, theirs = bert(), bert()
        ours, expected = (torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.0) for m in (mine, theirs))
        attach_(mine, ours, decay=0.7, form=form)
        for model, optimizer in ((mine, ours), (theirs, expected)):
            set_grads_(model, 0)
            optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), theirs.parameters()))


def test_anchors_leave_out_head_fresh_frozen_biases_and_norms():
    model = bert()
    model.bert.embeddings.word_embeddings.weight.requires_grad = False
    block = {n for n, _ in model.named_parameters() if "layer.1." in n}  # re-initialised, say
    hook = PretrainedDecay().step_hook(site_of(model, fresh=block))
    assert set(hook.anchors) == decayed_names(model) - block - {
        "classifier.weight",
        "bert.embeddings.word_embeddings.weight",
    }
    assert set(hook.anchors) == set(anchored_names(site_of(model, fresh=block)))
    for name, anchor in hook.anchors.items():
        p = dict(model.named_parameters())[name]
        assert torch.equal(anchor, p)
        assert anchor.data_ptr() != p.data_ptr()
        assert not anchor.requires_grad


def test_anchors_follow_the_model_and_keep_their_own_bytes():
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    hook = attach_(model, optimizer, decay=1.0)
    taken = {name: anchor.clone() for name, anchor in hook.anchors.items()}
    model.double()  # after apply_, as a move to another device would be
    for i in range(2):
        set_grads_(model, i)
        optimizer.step()
        copies = {id(t) for t in hook._near.values()}
        assert all(t.dtype == torch.float64 for t in hook._near.values())
    assert copies == {id(t) for t in hook._near.values()}  # made once
    for name, anchor in hook.anchors.items():  # the record that checkpoints are compared with
        assert anchor.dtype == torch.float32
        assert torch.equal(anchor, taken[name])


def test_no_copy_where_nothing_moved():
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    hook = attach_(model, optimizer)
    set_grads_(model, 0)
    optimizer.step()
    assert all(hook._near[name] is anchor for name, anchor in hook.anchors.items())


def test_anchors_are_in_no_state_dict():
    model = bert()
    keys = set(model.state_dict())
    optimizer, plain = (torch.optim.AdamW(model.parameters(), lr=0.1) for _ in range(2))
    attach_(model, optimizer)
    for stepper in (optimizer, plain):
        set_grads_(model, 0)
        stepper.step()
    assert set(model.state_dict()) == keys
    state, expected = optimizer.state_dict(), plain.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    assert {k: set(v) for k, v in state["state"].items()} == {k: set(v) for k, v in expected["state"].items()}


def test_leaves_the_usual_weight_decay_alone_and_combines_with_it():
    model = bert(torch.float64)
    start = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)
    site = site_of(model)
    for method in check_methods([WeightDecay(decay=0.5), PretrainedDecay(decay=0.5)]):
        method.step_hook(site).attach_(optimizer)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    name = "bert.encoder.layer.0.output.dense.weight"
    u = start[name]
    expected = u * (1 - 0.05)
    expected = expected - 0.05 * (expected - u)
    torch.testing.assert_close(dict(model.named_parameters())[name].detach(), expected)
    model = bert()
    group = torch.optim.AdamW(model.parameters(), weight_decay=0.25)
    attach_(model, group)
    assert group.param_groups[0]["weight_decay"] == 0.25


@pytest.mark.parametrize("forms", [("decoupled", "decoupled"), ("decoupled", "l2"), ("l2", "decoupled"), ("l2", "l2")])
def test_merged_into_our_adamw_it_is_the_hook_bit_for_bit(forms):
    """torch.optim.AdamW(foreach=True) is our AdamW bit for bit, and runs the decays as hooks before its step."""
    mine, theirs = bert(), bert()
    ours = AdamW(mine.parameters(), lr=0.1, weight_decay=0.25)
    torchs = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.25, foreach=True)
    for model, optimizer in ((mine, ours), (theirs, torchs)):
        site = site_of(model)
        for method in (WeightDecay(0.5, form=forms[0]), PretrainedDecay(0.7, form=forms[1])):
            method.step_hook(site).attach_(optimizer)
    assert not ours._optimizer_step_pre_hooks
    assert len(torchs._optimizer_step_pre_hooks) == 2
    for i in range(4):
        set_grads_(mine, i), set_grads_(theirs, i)
        ours.step(), torchs.step()
        assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), theirs.parameters()))


@pytest.mark.parametrize("form", ["decoupled", "l2"])
def test_a_factor_of_the_gradient_leaves_out_what_decay_adds(form):
    """As clipping does, which comes before l2."""
    mine, theirs = bert(), bert()
    ours, expected = (AdamW(m.parameters(), lr=0.1) for m in (mine, theirs))
    attach_(mine, ours, decay=0.7, form=form), attach_(theirs, expected, decay=0.7, form=form)
    for i in range(3):
        set_grads_(mine, i), set_grads_(theirs, i)
        for p in theirs.parameters():
            p.grad *= 0.25
        ours.step(grad_factor=torch.tensor(0.25)), expected.step()
        assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), theirs.parameters()))


def test_decay_0_is_the_baseline():
    assert PretrainedDecay(decay=0.0).is_null()
    assert PretrainedDecay(decay=0.0).step_hook(site_of(bert())) is None


def test_nothing_left_is_no_effect_at_check_and_after_reinit():
    model = bert()
    everything = {name for name, _ in model.named_parameters()}
    PretrainedDecay().check(site_of(model))
    for call in (PretrainedDecay().check, PretrainedDecay().step_hook):
        with pytest.raises(NoEffect, match="nothing in BertForSequenceClassification is left"):
            call(site_of(model, fresh=everything))
    PretrainedDecay(decay=0.0).check(site_of(model, fresh=everything))


def test_a_copied_model_is_another_model():
    model = bert()
    hook = PretrainedDecay().step_hook(site_of(model))
    with pytest.raises(NoEffect, match="holds none of the parameters"):
        hook.attach_(torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1))


@pytest.mark.parametrize(("bad", "words"), [({"decay": -0.1}, "decay must be"), ({"form": "none"}, "decoupled, l2")])
def test_bad_settings_get_a_sentence(bad, words):
    with pytest.raises(SteadytuneError, match=words):
        PretrainedDecay(**bad)


def test_two_are_refused():
    with pytest.raises(SteadytuneError, match="both replace the decay toward pretrained"):
        check_methods([PretrainedDecay(0.1), PretrainedDecay(0.2)])
