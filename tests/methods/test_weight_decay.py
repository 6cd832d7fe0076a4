"""Weight decay against torch.optim's own, bit for bit, and its penalty against its gradient (M7, V18)."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.methods.adamw import AdamW
from steadytune.methods.base import Site, check_methods
from steadytune.methods.weight_decay import DecayHook, WeightDecay, add_decay_, decay_, decay_penalty, decayed_names
from steadytune.rng import Streams


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=20, pad_token_id=0
    )
    return BertForSequenceClassification(config)


def attach_(model, optimizer, **settings):
    hook = WeightDecay(**settings).step_hook(Site.of(model, Streams()))
    if hook is not None:
        hook.attach_(optimizer)
    return optimizer


def groups(model, weight_decay):
    names = decayed_names(model)
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if n in names], "weight_decay": weight_decay},
        {"params": [p for n, p in named if n not in names], "weight_decay": 0.0},
    ]


def train_(model, optimizer, steps=4, schedule=None):
    for i in range(steps):
        generator = torch.Generator().manual_seed(i)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()
        if schedule is not None:
            schedule.step()


def identical(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


# --- which parameters -------------------------------------------------------------------------------------------------


def test_biases_and_norms_are_never_decayed_and_all_else_is():
    model = bert()
    out = set(dict(model.named_parameters())) - decayed_names(model)
    assert out == {n for n, _ in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n}
    assert "bert.embeddings.word_embeddings.weight" in decayed_names(model)


def test_biases_of_other_shapes_and_names():
    xlnet = XLNetForSequenceClassification(XLNetConfig(vocab_size=20, d_model=8, n_layer=1, n_head=2, d_inner=16))
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2))
    attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    for model, without in (
        (xlnet, ["r_w_bias", "r_r_bias", "r_s_bias"]),
        (t5, ["relative_attention_bias.weight"]),
        (attention, ["bias_k", "bias_v", "in_proj_bias"]),
    ):
        names = dict(model.named_parameters())
        for end in without:
            assert [n for n in names if n.endswith(end)], end
            assert not [n for n in decayed_names(model) if n.endswith(end)], end
    assert "transformer.layer.0.rel_attn.seg_embed" in decayed_names(xlnet)
    assert "in_proj_weight" in decayed_names(attention)


def test_a_norm_over_two_dimensions_and_single_numbers_are_left_out():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm((2, 3)), nn.PReLU())
    assert decayed_names(model) == {"0.weight"}


# --- the functions ----------------------------------------------------------------------------------------------------


def test_decay_toward_zero_is_adamws_product():
    w = torch.randn(5, 3)
    expected = w * (1 - 0.1 * 0.3)
    decay_([w], 0.1 * 0.3)
    assert torch.equal(w, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_decay_toward_anchors(dtype):
    w, u = torch.randn(2, 5, 3, dtype=torch.float64).to(dtype)
    expected = w.double() - 0.3 * (w.double() - u.double())
    here, there = w.clone(), u.clone()
    decay_([here, there], 0.3, [u, u])
    torch.testing.assert_close(here.double(), expected, rtol=torch.finfo(dtype).eps * 4, atol=torch.finfo(dtype).eps)
    assert torch.equal(there, u)  # where w = u nothing moves, not by one bit
    decay_([here], 1.0, [u])
    assert torch.equal(here, u)


def test_penalty_is_half_lambda_times_the_squared_distance():
    w, u = torch.randn(2, 5, 3, dtype=torch.float64)
    v = torch.randn(4, dtype=torch.float64)
    assert decay_penalty([w, v], 0.2).item() == pytest.approx(0.1 * (w.norm() ** 2 + v.norm() ** 2).item())
    assert decay_penalty([w], 0.2, [u]).item() == pytest.approx(0.1 * (w - u).norm().item() ** 2)
    assert decay_penalty([w.bfloat16()], 0.2).dtype == torch.float32


def test_gradcheck_and_l2_is_the_gradient_of_the_penalty():
    w, u = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda x: decay_penalty([x, x], 0.7, [u, 2 * u]), (w,))
    decay_penalty([w], 0.7, [u]).backward()
    assert u.grad is None
    by_penalty, w.grad = w.grad, torch.zeros_like(w)
    add_decay_([w], 0.7, [u.detach()])
    torch.testing.assert_close(w.grad, by_penalty)


def test_bad_anchors_and_gradients_get_a_sentence():
    w = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(SteadytuneError, match=r"shape \(3,\)"):
        decay_([w], 0.1, [torch.ones(3)])
    with pytest.raises(SteadytuneError, match="0 anchors for 1"):
        decay_penalty([w], 0.1, [])
    with pytest.raises(NoEffect):
        decay_penalty([], 0.1)
    with pytest.raises(SteadytuneError, match="missing or sparse"):
        add_decay_([w], 0.1)
    decay_([], 0.1), add_decay_([], 0.1)


# --- the method against torch.optim -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "cls", "settings"),
    [
        ("decoupled", torch.optim.AdamW, {"foreach": True}),
        ("decoupled", torch.optim.AdamW, {"foreach": False}),
        ("decoupled", AdamW, {}),
        ("decoupled", AdamW, {"correct_bias": False}),
        ("l2", torch.optim.Adam, {"foreach": True}),
        ("l2", torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
    ],
)
def test_equals_the_optimizers_own_weight_decay_bit_for_bit(form, cls, settings):
    mine, theirs = bert(), bert()
    ours = attach_(mine, cls(groups(mine, 0.0), lr=0.1, **settings), decay=0.3, form=form)
    expected = cls(groups(theirs, 0.3), lr=0.1, **settings)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: 1 / (s + 1)) for o in (ours, expected)]
    train_(mine, ours, schedule=schedules[0])
    train_(theirs, expected, schedule=schedules[1])
    assert identical(mine, theirs)
    assert not identical(mine, bert())


def test_for_plain_sgd_the_two_forms_are_one():
    models = [bert().double(), bert().double()]
    for model, form in zip(models, ("decoupled", "l2")):
        train_(model, attach_(model, torch.optim.SGD(model.parameters(), lr=0.1), decay=0.3, form=form))
    for p, q in zip(*(m.parameters() for m in models)):
        torch.testing.assert_close(p, q)


def test_replaces_the_groups_own_decay_and_leaves_other_groups_alone():
    model = bert()
    names = decayed_names(model)
    held = [p for n, p in model.named_parameters() if n in names]
    biases = [p for n, p in model.named_parameters() if n not in names]
    optimizer = torch.optim.AdamW([{"params": held[:3]}, {"params": biases}], lr=0.1, weight_decay=0.5)
    attach_(model, optimizer, decay=0.3)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.0, 0.5]
    optimizer.add_param_group({"params": held[3:]})  # brings the default of 0.5 with it
    train_(model, optimizer, 1)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.0, 0.5, 0.0]


def test_one_group_for_everything_decays_once_and_no_bias():
    mine, theirs = bert(), bert()
    train_(mine, attach_(mine, torch.optim.AdamW(mine.parameters(), lr=0.1, weight_decay=0.5), decay=0.3))
    train_(theirs, torch.optim.AdamW(groups(theirs, 0.3), lr=0.1))
    assert identical(mine, theirs)


def test_decay_0_is_the_baseline_the_groups_own_decay_included():
    mine, theirs = bert(), bert()
    ours = attach_(mine, torch.optim.AdamW(groups(mine, 0.5), lr=0.1), decay=0.0)
    assert WeightDecay(decay=0.0).is_null()
    train_(mine, ours)
    train_(theirs, torch.optim.AdamW(groups(theirs, 0.5), lr=0.1))
    assert identical(mine, theirs)


def test_parameters_without_a_gradient_are_not_decayed():
    model = bert()
    table = model.bert.embeddings.word_embeddings.weight
    before = table.detach().clone()
    optimizer = attach_(model, torch.optim.AdamW(model.parameters(), lr=0.1), decay=0.3)
    for p in model.parameters():
        p.grad = None if p is table else torch.ones_like(p)
    optimizer.step()
    assert torch.equal(table, before)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(("form", "cls"), [("decoupled", torch.optim.AdamW), ("l2", torch.optim.Adam)])
def test_with_a_closure_decay_comes_after_the_gradients(form, cls, by_name):
    mine = nn.Linear(3, 2, bias=False)
    theirs = copy.deepcopy(mine)
    hook = DecayHook(mine, ["weight"], 0.3, form, takes_over=True, owner="WeightDecay")
    ours, expected = cls(mine.parameters(), lr=0.1), cls(theirs.parameters(), lr=0.1, weight_decay=0.3)
    hook.attach_(ours)

    def closure(model, optimizer):
        def run():
            optimizer.zero_grad()
            loss = model(torch.ones(1, 3)).square().sum()
            loss.backward()
            return loss

        return run

    for _ in range(3):
        run = closure(mine, ours)
        loss = ours.step(closure=run) if by_name else ours.step(run)
        assert torch.equal(loss, expected.step(closure(theirs, expected)))
    assert torch.equal(mine.weight, theirs.weight)


def test_l2_in_lbfgs_joins_every_evaluation():
    w = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.LBFGS(w.parameters(), lr=1.0, max_iter=50, line_search_fn=None)
    DecayHook(w, ["weight"], 2.0, "l2", takes_over=True, owner="WeightDecay").attach_(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = (w.weight - 3.0).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert torch.allclose(w.weight, torch.full((1, 2), 1.5), atol=1e-4)  # argmin of (w - 3)² + w²


def test_frozen_parameters_are_not_its_business_and_nothing_left_is_no_effect():
    model = bert()
    for name, p in model.named_parameters():
        p.requires_grad = name.endswith("bias")
    with pytest.raises(NoEffect, match="no trainable parameter"):
        WeightDecay().check(Site.of(model, Streams()))
    WeightDecay(decay=0.0).check(Site.of(model, Streams()))
    with pytest.raises(NoEffect, match="holds none of the parameters"):
        attach_(bert(), torch.optim.SGD(bert().parameters(), lr=0.1))


def test_accelerate_before_or_after_preparing():
    from accelerate import Accelerator

    results = []
    for when in ("before", "after", "never"):
        model = bert()
        optimizer = torch.optim.AdamW(model.parameters() if when != "never" else groups(model, 0.3), lr=0.1)
        if when == "before":
            attach_(model, optimizer, decay=0.3)
        optimizer = Accelerator(cpu=True).prepare_optimizer(optimizer)
        if when == "after":
            attach_(model, optimizer, decay=0.3)
        train_(model, optimizer)
        results.append(model)
    assert identical(results[0], results[2])
    assert identical(results[1], results[2])


def test_grad_scaler_inside_a_fused_optimizer_is_refused():
    model = bert()
    optimizer = attach_(model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True), decay=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(SteadytuneError, match="fused=False"):
        scaler.step(optimizer)


@pytest.mark.parametrize(("bad", "words"), [({"decay": -0.1}, "decay must be"), ({"form": "L2"}, "decoupled, l2")])
def test_bad_settings_get_a_sentence(bad, words):
    with pytest.raises(SteadytuneError, match=words):
        WeightDecay(**bad)


def test_two_weight_decays_are_refused_but_a_null_one_replaces_nothing():
    with pytest.raises(SteadytuneError, match="both replace the weight decay"):
        check_methods([WeightDecay(0.1), WeightDecay(0.2)])
    assert len(check_methods([WeightDecay(0.1), WeightDecay(0.0)])) == 2
