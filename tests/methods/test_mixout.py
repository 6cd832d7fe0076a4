"""Mixout: the mixture itself, its gradients, its special cases, and the theory of the paper as oracles (M1-M11,
D1-D3)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from steadytune import Mixout, NoEffect, SteadytuneError, Streams, apply_, mixout, mixout_, remove_
from steadytune.kernels.mixout import mask_of, mixed_linear, mixture_of
from steadytune.methods.mixing import Mix


def rand(*shape, dtype=torch.float64, grad=False):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


# --- the function -----------------------------------------------------------------------------------------------------


def test_equals_equation_4_literally():
    torch.manual_seed(0)
    w, u, mask, p = rand(4, 6), rand(4, 6), (torch.rand(6) < 0.4).double(), 0.6
    mu = 1 - p
    literal = ((1 - mask) * u + mask * w - (1 - mu) * u) / mu
    torch.testing.assert_close(mixout(w, u, p, mask=mask), literal, rtol=1e-14, atol=1e-14)


def test_a_swapped_column_is_the_target_exactly_and_a_kept_one_is_pushed_away():
    w, u, p = rand(3, 5), rand(3, 5), 0.7
    mask = torch.tensor([1.0, 0, 0, 1, 0])
    mixed = mixout(w, u, p, mask=mask)
    assert torch.equal(mixed[:, mask == 0], u[:, mask == 0])
    torch.testing.assert_close(mixed[:, mask == 1], (w + p / (1 - p) * (w - u))[:, mask == 1])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("gradient", ["exact", "paper"])
def test_gradient_is_the_one_asked_for(p, gradient):
    w, u, mask = rand(3, 4, grad=True), rand(3, 4), torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)
    g = rand(3, 4)
    (grad,) = torch.autograd.grad(mixout(w, u, p, mask=mask, gradient=gradient), w, g)
    torch.testing.assert_close(grad, g * mask / ((1 - p) if gradient == "exact" else 1.0), rtol=1e-12, atol=1e-12)


def test_gradcheck_passes_for_the_exact_gradient_and_not_for_the_papers():
    """D1: public code fails exactly this."""
    w, u, mask = rand(3, 4, grad=True), rand(3, 4), torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda w: mixout(w, u, 0.7, mask=mask), w)
    assert torch.autograd.gradgradcheck(lambda w: mixout(w, u, 0.7, mask=mask).pow(2), w)
    assert not torch.autograd.gradcheck(
        lambda w: mixout(w, u, 0.7, mask=mask, gradient="paper"), w, raise_exception=False
    )


def test_p_zero_is_the_weight_and_p_one_the_target_with_zero_gradient():
    w, u = rand(3, 4, grad=True), rand(3, 4)
    assert mixout(w, u, 0.0) is w
    mixed = mixout(w, u, 1.0)
    assert torch.equal(mixed, u)
    mixed.sum().backward()
    assert torch.equal(w.grad, torch.zeros_like(w))


@pytest.mark.parametrize("distribution", ["bernoulli", "gaussian", "variational"])
@pytest.mark.parametrize("p", [0.3, 0.7])
def test_the_mean_is_the_weight_and_the_variance_that_of_the_paper(distribution, p):
    """E Φ = w (M1), Var Φ = p/(1-p) (w-u)², by Monte Carlo within four standard errors."""
    torch.manual_seed(1)
    w, u, draws = rand(3, 5), rand(3, 5), 20_000
    samples = torch.stack([mixout(w, u, p, distribution=distribution) for _ in range(draws)])
    deviation = p / (1 - p) * (w - u) ** 2
    assert ((samples.mean(0) - w).abs() < 4 * (deviation / draws).sqrt()).all()
    # The variance of a sample variance: (kurtosis - 1) σ⁴ / n; Bernoulli's kurtosis is 3 + (1-6p(1-p))/(p(1-p)).
    kurtosis = 3 + (1 - 6 * p * (1 - p)) / (p * (1 - p)) if distribution == "bernoulli" else 3
    assert ((samples.var(0) - deviation).abs() < 4.5 * deviation * math.sqrt((kurtosis - 1) / draws)).all()


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 7),
    p=st.floats(0.0, 0.999),
    kept=st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_columns_are_one_of_two_values(rows, columns, p, kept):
    w, u = torch.full((rows, columns), 2.0, dtype=torch.float64), torch.full((rows, columns), 1.0, dtype=torch.float64)
    mixed = mixout(w, u, p, mask=torch.tensor(kept[:columns]))
    expected = torch.tensor([1 + 1 / (1 - p) if k or p == 0 else 1.0 for k in kept[:columns]], dtype=torch.float64)
    torch.testing.assert_close(mixed, expected.expand(rows, columns))


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), "0.5", None, True])
def test_a_p_that_is_no_probability_is_refused(p):
    with pytest.raises(SteadytuneError, match=r"probability.*\[0, 1\]"):
        mixout(rand(2, 2), rand(2, 2), p)
    with pytest.raises(SteadytuneError, match=r"Mixout: p is a probability"):
        Mixout(p=p)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(SteadytuneError, match=r"target has shape \(2, 3\), the weight \(2, 2\)"):
        mixout(rand(2, 2), rand(2, 3), 0.5)
    with pytest.raises(SteadytuneError, match="does not broadcast"):
        mixout(rand(2, 2), rand(2, 2), 0.5, mask=torch.ones(3))
    with pytest.raises(SteadytuneError, match="gradient must be one of exact, paper"):
        mixout(rand(2, 2), rand(2, 2), 0.5, gradient="public")


# --- theory as tests --------------------------------------------------------------------------------------------------


def positive_definite(size):
    a = rand(size, size)
    return a @ a.T + 0.1 * torch.eye(size, dtype=torch.float64)


def quadratic(h, b):
    return lambda w: 0.5 * torch.einsum("...i,ij,...j->...", w, h, w) + w @ b


def bernoulli_masks(draws, size, p):
    return (torch.rand(draws, size, dtype=torch.float64) >= p).double()


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_theorem_1_with_the_exact_formula_of_a_general_quadratic(p):
    """D3: independent masks add p/(2(1-p)) Σ H_ii (w_i-u_i)², of which the paper's bound with m = λ_min is a part
    (M10)."""
    torch.manual_seed(2)
    size, draws = 6, 200_000
    h, w, u = positive_definite(size), rand(size), rand(size)
    loss = quadratic(h, rand(size))
    values = loss(u + bernoulli_masks(draws, size, p) / (1 - p) * (w - u))
    added = p / (2 * (1 - p)) * (h.diagonal() * (w - u) ** 2).sum()
    assert abs(values.mean() - loss(w) - added) < 4 * values.std() / math.sqrt(draws)
    bound = torch.linalg.eigvalsh(h)[0] * p / (2 * (1 - p)) * (w - u).square().sum()
    assert values.mean() >= loss(w) + bound - 4 * values.std() / math.sqrt(draws)


@pytest.mark.parametrize("p", [0.3, 0.7])
def test_corollary_1_1_for_shared_masks(p):
    """Mixout masks are shared within a neuron G: p/(2(1-p)) Σ_G d_G' H_GG d_G (D3); equality of the bound for H = mI
    (M11)."""
    torch.manual_seed(3)
    neurons, fan_out, draws = 3, 2, 200_000
    size = neurons * fan_out
    for h in (positive_definite(size), 1.7 * torch.eye(size, dtype=torch.float64)):
        w, u = rand(size), rand(size)
        loss = quadratic(h, rand(size))
        masks = bernoulli_masks(draws, neurons, p).repeat_interleave(fan_out, dim=1)
        values = loss(u + masks / (1 - p) * (w - u))
        d = w - u
        blocks = [slice(g * fan_out, (g + 1) * fan_out) for g in range(neurons)]
        added = p / (2 * (1 - p)) * sum(d[g] @ h[g, g] @ d[g] for g in blocks)
        assert abs(values.mean() - loss(w) - added) < 4 * values.std() / math.sqrt(draws)
        m = torch.linalg.eigvalsh(h)[0]
        bound = m * p / (2 * (1 - p)) * d.square().sum()
        assert added >= bound - 1e-12
        if torch.equal(h, m * torch.eye(size, dtype=torch.float64)):
            torch.testing.assert_close(added, bound)


def test_theorem_1_for_a_convex_loss_that_is_not_quadratic():
    """Logistic loss with an L2 term of weight m is m-strongly convex; the bound must hold for Gaussian masks too."""
    torch.manual_seed(4)
    size, draws, m, p = 5, 200_000, 0.5, 0.4
    x, y, w, u = rand(30, size), (torch.rand(30, dtype=torch.float64) < 0.5).double(), rand(size), rand(size)

    def loss(w):
        return functional.softplus(w @ x.T).sub(y * (w @ x.T)).mean(-1) + m / 2 * w.square().sum(-1)

    gaussian = 1 + math.sqrt(p / (1 - p)) * torch.randn(draws, size, dtype=torch.float64)
    for scale in (bernoulli_masks(draws, size, p) / (1 - p), gaussian):
        values = loss(u + scale * (w - u))
        bound = loss(w) + m * p / (2 * (1 - p)) * (w - u).square().sum()
        assert values.mean() >= bound - 4 * values.std() / math.sqrt(draws)


# --- the layer --------------------------------------------------------------------------------------------------------


def mixed_layer(layer, p=0.7, **settings):
    model = nn.Sequential(layer)
    mixout_(model, p, layers="all", streams=Streams(noise=5), **settings)
    return model.train()[0]


def test_kept_columns_give_the_gradients_of_the_dense_form():
    torch.manual_seed(0)
    x, w, b, u = rand(2, 7, 6, grad=True), rand(4, 6, grad=True), rand(4, grad=True), rand(4, 6)
    scale = torch.tensor([0, 2.5, 0, 0, 2.5, 0], dtype=torch.float64)
    dense = functional.linear(x, torch.lerp(u, w, scale), b)
    fast = mixed_linear(x, w, b, u, mask_of(scale), 2.5)
    torch.testing.assert_close(fast, dense)
    g = rand(2, 7, 4)
    for fast_grad, dense_grad in zip(
        torch.autograd.grad(fast, (x, w, b), g), torch.autograd.grad(dense, (x, w, b), g), strict=True
    ):
        torch.testing.assert_close(fast_grad, dense_grad)
    assert torch.autograd.gradcheck(lambda x, w, b: mixed_linear(x, w, b, u, mask_of(scale), 2.5), (x, w, b))


@pytest.mark.parametrize("kept", [[], [0, 1, 2]])
def test_kept_columns_at_the_extremes(kept):
    x, w, u, scale = rand(5, 3, grad=True), rand(2, 3, grad=True), rand(2, 3), torch.zeros(3, dtype=torch.float64)
    scale[kept] = 2.0
    assert torch.autograd.gradcheck(lambda x, w: mixed_linear(x, w, None, u, mask_of(scale), 2.0), (x, w))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(
    ("width", "count"), [(600, 0), (600, 1), (600, 64), (600, 65), (600, 599), (600, 600), (10, 3), (40, 39)]
)
def test_kept_columns_in_low_precision_are_the_dense_form(width, count, ready, dtype):
    """However many are kept: they are multiplied together with others, whose products must not show."""
    torch.manual_seed(count)
    draw = {"x": rand(3, 7, width), "w": rand(5, width), "b": rand(5), "u": rand(5, width), "g": rand(3, 7, 5)}
    x, w, b, u, g = (each.to(dtype).double() for each in draw.values())  # the same numbers in both types
    scale = torch.zeros(width, dtype=torch.float64)
    scale[torch.randperm(width)[:count]] = 2.0
    for each in (x, w, b):
        each.requires_grad_()
    low_x, low_w, low_b, low_u = (each.detach().to(dtype).requires_grad_() for each in (x, w, b, u))
    low_scale = scale.to(dtype)
    mixture = mixture_of(low_scale, low_w, low_u, dtype) if ready else mask_of(low_scale)
    assert (mixture.weight is not None) == ready
    found = mixed_linear(low_x, low_w, low_b, low_u.detach(), mixture, 2.0)
    expected = functional.linear(x, torch.lerp(u, w, scale), b)
    within = {"rtol": 0.03, "atol": 0.03 * width**0.5, "check_dtype": False}
    torch.testing.assert_close(found, expected, **within)
    low_gradients = torch.autograd.grad(found, (low_x, low_w, low_b), g.to(dtype))
    for low, exact in zip(low_gradients, torch.autograd.grad(expected, (x, w, b), g), strict=True):
        torch.testing.assert_close(low, exact, **within)
    assert torch.equal(low_gradients[1][:, scale == 0], torch.zeros(5, width - count, dtype=dtype))


def test_target_zero_is_dropout_in_front_of_the_layer_for_the_same_mask():
    """M3: MixLinear(target 0) = Dropout(p) in front of Linear."""
    layer = mixed_layer(nn.Linear(8, 3), p=0.4, target="zero")
    x = torch.randn(5, 8)
    state = tuple(layer.mix_state.tolist())
    mask = layer.mix.noise(state, torch.arange(8)) > 0  # the mask that the next forward will draw
    dropped = functional.linear(x * mask / 0.6, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), dropped)


def test_target_zero_with_element_masks_is_dropconnect():
    layer = mixed_layer(nn.Linear(8, 3), p=0.4, target="zero", mask="element")
    x = torch.randn(5, 8)
    mask = layer.mix.noise(tuple(layer.mix_state.tolist()), torch.arange(24)).view(3, 8) > 0
    torch.testing.assert_close(layer(x), functional.linear(x, layer.weight * mask / 0.6, layer.bias))


def moved(layer):
    """Take the weights away from their target, so that mixing shows."""
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p))
    return layer


@pytest.mark.parametrize("mask", ["neuron", "element"])
@pytest.mark.parametrize("distribution", ["bernoulli", "gaussian", "variational"])
def test_a_layer_is_right_on_average(mask, distribution):
    torch.manual_seed(0)
    layer = moved(mixed_layer(nn.Linear(6, 4).double(), p=0.6, mask=mask, distribution=distribution))
    x, draws = rand(3, 6), 4000
    out = torch.stack([layer(x).detach() for _ in range(draws)])
    plain = functional.linear(x, layer.weight, layer.bias)
    assert ((out.mean(0) - plain).abs() < 4.5 * out.std(0) / math.sqrt(draws)).all()
    shared = mask == "neuron" and distribution != "variational"
    d = layer.weight - layer.target
    variance = (x[:, None, :] * d[None]).square().sum(-1) * 1.5  # p/(1-p) Σ_j (x_j d_j)²: both masks sum over columns
    torch.testing.assert_close(out.var(0), variance, rtol=0.25, atol=0)
    rows_move_together = torch.corrcoef(out[:, 0].T).abs().fill_diagonal_(0).max() > 0.2
    assert rows_move_together == shared


def test_variational_noise_is_differentiable_where_the_weights_have_not_moved():
    layer = mixed_layer(nn.Linear(6, 4), p=0.6, distribution="variational")
    layer(torch.randn(3, 6)).sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


def test_fresh_masks_every_forward_and_plain_weights_in_eval():
    layer = moved(mixed_layer(nn.Linear(32, 4)))
    x = torch.randn(3, 32)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), functional.linear(x, layer.weight, layer.bias))


def test_p_one_runs_on_the_target_and_trains_nothing():
    layer = moved(mixed_layer(nn.Linear(6, 4), p=1.0))
    x = torch.randn(3, 6)
    out = layer(x)
    torch.testing.assert_close(out, functional.linear(x, layer.target, layer.bias))
    out.sum().backward()
    assert torch.equal(layer.weight.grad, torch.zeros_like(layer.weight))


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), lambda: torch.randn(3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), lambda: torch.randn(2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3), lambda: torch.randn(2, 4, 5, 5)),
    "conv2d groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), lambda: torch.randn(2, 4, 5, 5)),
    "depthwise": (
        lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="reflect"),
        lambda: torch.randn(2, 4, 5, 5),
    ),
    "embedding": (lambda: nn.Embedding(11, 4, padding_idx=0), lambda: torch.randint(0, 11, (3, 5))),
}


@pytest.mark.parametrize("mask", ["neuron", "element"])
@pytest.mark.parametrize("name", LAYERS)
def test_each_kind_of_layer_mixes_whole_input_neurons(name, mask):
    """With w = u + 1, the mixed weight is u (swapped) or u + 1/(1-p) (kept), by input neuron."""
    torch.manual_seed(0)
    build, inputs = LAYERS[name]
    layer = mixed_layer(build(), p=0.5, mask=mask)
    with torch.no_grad():
        layer.weight.add_(1.0)
    weight = layer.weight.detach()
    seen = (layer.mixed_weight(weight) - layer.target).round(decimals=4)
    assert set(seen.unique().tolist()) == {0.0, 2.0}
    if mask == "neuron":
        groups = getattr(layer, "groups", 1)
        by_group = seen.unflatten(0, (groups, -1)).transpose(1, 2).flatten(3 if seen.dim() > 2 else 2)
        by_neuron = seen if name == "embedding" else by_group.flatten(0, 1)
        assert all(len(row.unique()) == 1 for row in by_neuron)
    out = layer(inputs())
    out.sum().backward()
    assert torch.isfinite(layer.weight.grad).all()
    assert (layer.weight.grad != 0).any()


def test_the_embedding_mixes_the_rows_it_looks_up():
    layer = moved(mixed_layer(nn.Embedding(50, 4), p=0.5))
    tokens = torch.arange(50)
    rows = layer(tokens)
    swapped = (rows == layer.target).all(1)
    assert 10 < swapped.sum() < 40
    kept = layer.weight + (layer.weight - layer.target)
    torch.testing.assert_close(rows[~swapped], kept[~swapped])
    twice = layer(torch.tensor([7, 7]))
    assert torch.equal(twice[0], twice[1])  # one mask per token and forward


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_multihead_attention(batch_first, shared):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    model = nn.Sequential(attention)
    names = mixout_(model, 0.5, layers="all", share_qkv=False)
    assert names == ["0", "0.out_proj"]
    attention.mix_shared = shared
    with torch.no_grad():
        attention.in_proj_weight.add_(1.0)
    seen = (attention.mixed_weight(attention.in_proj_weight) - attention.target).detach().round(decimals=4)
    q, k, v = seen.view(3, 8, 8).unbind()
    assert all(len(column.unique()) == 1 for column in q.T)
    assert torch.equal(q, k) == shared
    assert torch.equal(q, v) == shared
    x = torch.randn(2, 5, 8)
    out, _ = attention(x, x, x)
    assert out.shape == x.shape
    out.sum().backward()
    assert (attention.in_proj_weight.grad != 0).any()
    assert (attention.out_proj.weight.grad != 0).any()
    attention.eval()
    plain = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    plain.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, x, x)[0], plain(x, x, x)[0])


def test_attention_at_its_target_equals_the_plain_one_in_training():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).train()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    before = attention(x, x, x, key_padding_mask=padding)[0]
    mixout_(nn.Sequential(attention), 0.7, layers="all")
    torch.testing.assert_close(attention(x, x, x, key_padding_mask=padding)[0], before)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_pattern_that_matches_nothing_names_what_there_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    with pytest.raises(NoEffect, match=r"'encoder\.\*' matches no module.*such as 0"):
        apply_(model, Mixout(layers="encoder.*"))
    with pytest.raises(NoEffect, match="only 1, which cannot be mixed"):
        apply_(model, Mixout(layers="1"))


def test_frozen_layers_only_is_no_effect():
    model = nn.Sequential(nn.Linear(4, 4)).requires_grad_(False)
    with pytest.raises(NoEffect, match="all 1 that match are frozen"):
        apply_(model, Mixout(layers="all"))


def test_a_target_of_another_shape_or_without_the_layer():
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(SteadytuneError, match=r"target of 0\.weight has shape \(3, 5\), the weight \(3, 4\)"):
        mixout_(model, 0.5, layers="all", target={"0.weight": torch.zeros(3, 5)})
    with pytest.raises(SteadytuneError, match=r"the target has no 0\.weight"):
        mixout_(model, 0.5, layers="all", target={})
    assert type(model[0]) is nn.Linear


def test_a_model_on_the_meta_device_is_refused():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(SteadytuneError, match=r"meta device.*0\.weight"):
        apply_(model, Mixout(layers="all"))


def test_a_quantised_layer_is_refused():
    class Linear4bit(nn.Linear):
        __module__ = "bitsandbytes.nn.modules"

        def forward(self, x):
            return x

    with pytest.raises(SteadytuneError, match="0 is a quantised layer"):
        apply_(nn.Sequential(Linear4bit(4, 3)), Mixout(layers="all"))


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_a_real_quantised_model_is_refused():
    model = nn.Sequential(nn.Linear(4, 3))
    torch.backends.quantized.engine = next(e for e in torch.backends.quantized.supported_engines if e != "none")
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(SteadytuneError, match="0 is a quantised layer"):
        apply_(quantised, Mixout(layers="all"))


def test_a_linear_layer_with_a_forward_of_its_own_is_refused_not_skipped():
    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    with pytest.raises(SteadytuneError, match="0 is a Odd, a linear layer with a forward of its own"):
        apply_(nn.Sequential(Odd(4, 3)), Mixout(layers="all"))


def test_mixing_twice_is_refused():
    model = nn.Sequential(nn.Linear(4, 3))
    apply_(model, Mixout(layers="all"))
    with pytest.raises(SteadytuneError, match="mixed already"):
        apply_(model, Mixout(layers="all"))
    remove_(model)
    apply_(model, Mixout(layers="all"))


def test_settings_that_do_not_exist_are_refused():
    for wrong in ({"mask": "row"}, {"distribution": "cauchy"}, {"gradient": "none"}, {"target": "mean"}, {"head": "x"}):
        with pytest.raises(SteadytuneError, match=r"must be one of"):
            Mixout(**wrong)
    with pytest.raises(SteadytuneError, match="variational"):
        Mixout(distribution="variational", gradient="paper")


def test_noise_of_a_mix_has_mean_one_and_the_papers_variance():
    index = torch.arange(200_000)
    for distribution in ("bernoulli", "gaussian"):
        for p in (0.1, 0.7, 0.9):
            noise = Mix(torch.zeros(1, dtype=torch.float64), p, distribution=distribution).noise((1, 2, 3), index)
            assert abs(noise.mean() - 1) < 4 * math.sqrt(p / (1 - p) / len(index))
            torch.testing.assert_close(noise.var(), torch.tensor(p / (1 - p), dtype=torch.float64), rtol=0.03, atol=0)
