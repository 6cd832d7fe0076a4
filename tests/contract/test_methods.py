"""Contracts that every method keeps on every architecture. A new method is found here by itself."""

import copy
import dataclasses
import itertools
import json
import pathlib

import pytest
import torch
from suite import METHODS, STEPS, Run, assert_same, batch, build, null, small, weights
from torch import nn
from transformers import PreTrainedModel

from steadytune import (
    AdamW,
    Dropout,
    LayerwiseLR,
    Mixout,
    NoEffect,
    PretrainedDecay,
    RDrop,
    Reinit,
    SteadytuneError,
    apply_,
    remove_,
)
from steadytune.methods.base import PLACES, check_methods

ARCHITECTURES = [
    "bert",
    "roberta",
    "distilbert",
    "albert",
    "electra",
    "deberta-v2",
    "xlnet",
    "bart",
    "t5",
    "gpt2",
    "vit",
    "mlp",
]
every_method = pytest.mark.parametrize("name", METHODS)
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def is_schedule(name):
    return "lr_factor" in METHODS[name].__dict__


# --- what a method is -------------------------------------------------------------------------------------------------


@every_method
def test_a_method_is_documented_cited_and_frozen(name):
    cls = METHODS[name]
    assert cls.__doc__
    assert cls.paper.url.startswith("https://")
    assert cls.place in PLACES
    assert cls.null or is_schedule(name), "only a schedule may have no value that leaves the baseline alone"
    if cls.null:
        assert null(name).is_null()
        assert not small(name).is_null()
    with pytest.raises(AttributeError):
        setattr(small(name), dataclasses.fields(cls)[0].name, 1)
    assert json.loads(json.dumps(small(name).describe()))["method"] == name
    page = pathlib.Path(__file__).parents[2] / "docs" / "methods" / f"{cls.__module__.rpartition('.')[2]}.md"
    assert page.is_file(), f"{page} is missing"


@every_method
def test_hooks_stay_in_one_place(name):
    cls = METHODS[name]
    hooks = {hook for hooks in PLACES.values() for hook in hooks if hook in cls.__dict__}
    assert hooks <= set(PLACES[cls.place])


# --- null value = baseline --------------------------------------------------------------------------------------------


@every_architecture
@every_method
def test_the_null_value_is_the_baseline_bit_for_bit(name, architecture):
    if is_schedule(name):
        pytest.skip("a schedule's null is the bare optimiser: test_a_constant_schedule_is_the_bare_optimiser")
    data = batch(architecture)
    plain, nulled = Run(build(architecture), []), Run(build(architecture), [null(name)])
    plain.advance(data, 2)
    nulled.advance(data, 2)
    assert_same(weights(plain.model), weights(nulled.model))


def test_a_constant_schedule_is_the_bare_optimiser():
    plain, nulled = Run(build("bert"), []), Run(build("bert"), [null("constant_schedule")])
    plain.scheduler = torch.optim.lr_scheduler.ConstantLR(plain.optimizer, factor=1.0)
    for group in plain.optimizer.param_groups:
        group["lr"] = 1e-3
    for run in (plain, nulled):
        run.advance(batch("bert"), 2)
    assert_same(weights(plain.model), weights(nulled.model))


# --- a method does something ------------------------------------------------------------------------------------------


@every_architecture
@every_method
def test_a_method_changes_the_run(name, architecture):
    if METHODS[name].place == "finish":
        pytest.skip("acts after the run: tests/methods/test_averaging.py, test_ensemble.py")
    if name in ("dropout", "linear_schedule", "polynomial_schedule", "doubled_batch"):
        pytest.skip("its default is the baseline's own value, or acts on the loader: see its own tests")
    data = batch(architecture)
    plain, changed = Run(build(architecture), []), Run(build(architecture), [small(name)])
    plain.advance(data, STEPS)
    changed.advance(data, STEPS)
    a, b = weights(plain.model), weights(changed.model)
    assert any(not torch.equal(a[key], b[key]) for key in a)
    assert all(torch.isfinite(value).all() for value in b.values())


# --- pairs ------------------------------------------------------------------------------------------------------------

PAIRS = list(itertools.combinations(METHODS, 2))


# Every pair on BERT, and on one of the other architectures in turn: each of those sees about one pair in eleven.
PAIRS_ON = [
    (first, second, architecture)
    for number, (first, second) in enumerate(PAIRS)
    for architecture in ("bert", ARCHITECTURES[1 + number % (len(ARCHITECTURES) - 1)])
]


@pytest.mark.parametrize(("first", "second", "architecture"), PAIRS_ON, ids=["+".join(case) for case in PAIRS_ON])
def test_every_pair_composes_in_any_order_or_is_refused(first, second, architecture):
    pair = [small(first), small(second)]
    if pair[0].replaces() & pair[1].replaces():
        with pytest.raises(SteadytuneError, match=r"both replace the"):
            check_methods(pair)
        return
    data = batch(architecture)
    runs = [Run(build(architecture), methods) for methods in (pair, pair[::-1])]
    for run in runs:
        assert torch.isfinite(run.advance(data, 2))
    assert_same(weights(runs[0].model), weights(runs[1].model))


# --- what training does to a model ------------------------------------------------------------------------------------


@every_architecture
@every_method
def test_resume_is_bit_identical(name, architecture):
    data = batch(architecture)
    whole = Run(build(architecture), [small(name)])
    whole.advance(data, 1)
    saved = json.loads(json.dumps(whole.applied.state_dict()))
    state = {**copy.deepcopy(whole.state()), "applied": saved}
    whole.advance(data, 2)
    resumed = Run(build(architecture), [small(name)])
    resumed.load(state)
    resumed.advance(data, 2)
    assert_same(weights(whole.model), weights(resumed.model))


@every_architecture
@every_method
def test_a_saved_model_is_plain(name, architecture, tmp_path):
    """Keys do not change, and what was saved answers the same without any method."""
    model = build(architecture)
    keys = list(model.state_dict())
    run = Run(model, [small(name)])
    run.advance(batch(architecture), 1)
    assert list(model.state_dict()) == keys
    model.eval()
    inputs = {k: v for k, v in batch(architecture).items() if k != "labels"}
    if isinstance(model, PreTrainedModel):
        model.save_pretrained(tmp_path)
        plain = type(model).from_pretrained(tmp_path).eval()
    else:
        plain = build(architecture).eval()
        plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        ours, theirs = model(**inputs), plain(**inputs)
    assert torch.equal(getattr(ours, "logits", ours), getattr(theirs, "logits", theirs))


@every_architecture
@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if cls.place in ("model", "loss", "groups")])
def test_a_deepcopy_goes_on_alike(name, architecture):
    data = batch(architecture)
    run = Run(build(architecture), [small(name)])
    run.advance(data, 1)
    other = copy.deepcopy(run)
    assert next(other.model.parameters()).data_ptr() != next(run.model.parameters()).data_ptr()
    run.advance(data, 1)
    other.advance(data, 1)
    assert_same(weights(run.model), weights(other.model))


@every_architecture
@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if cls.place == "model"])
def test_remove_leaves_a_plain_model(name, architecture):
    model, untouched = build(architecture), build(architecture)
    Run(model, [small(name)]).advance(batch(architecture), 1)
    remove_(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in untouched.modules()]
    assert [sorted(vars(m)) for m in model.modules()] == [sorted(vars(m)) for m in untouched.modules()]
    untouched.load_state_dict(model.state_dict())
    runs = [Run(model, []), Run(untouched, [])]
    for run in runs:
        run.advance(batch(architecture), 1)
    assert_same(weights(model), weights(untouched))


COMPILED = [
    *(
        ("mixout", architecture)
        for architecture in ("bert", "distilbert", "albert", "electra", "gpt2", "llama", "vit", "mlp")
    ),
    *((name, "bert") for name, cls in METHODS.items() if cls.place in ("model", "loss") and name != "mixout"),
]


@pytest.mark.parametrize(("name", "architecture"), COMPILED)
def test_a_compiled_model_trains_alike(name, architecture):
    """torch.compile with fullgraph, two steps. Dropout is off, since compiled dropout draws other numbers than eager
    dropout; what needs noise gets it from mixout, which draws the same."""
    methods = [Dropout(p=0.0)] if name == "dropout" else [small(name)]
    if name in ("rdrop", "fraternal_dropout", "expectation_linear", "nll_only"):
        methods.append(Mixout(p=0.5, layers="linear"))
    losses = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = without_dropout(architecture)
        run = Run(model, methods)
        losses.append(
            run.advance(
                batch(architecture), 2, torch.compile(model, fullgraph=True, backend="eager") if compiled else None
            )
        )
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)


# --- NoEffect ---------------------------------------------------------------------------------------------------------


class Bare(nn.Module):
    """No linear layer, no dropout, one depth."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x * self.weight


def frozen(architecture):
    return build(architecture).requires_grad_(False)


def without_dropout(architecture):
    model = build(architecture)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


NOTHING_MATCHES = {
    "mixout": lambda: apply_(Bare(), Mixout(layers="all")),
    "dropout": lambda: apply_(Bare(), Dropout(p=0.5)),
    "reinit": lambda: apply_(build("gpt2"), Reinit(layers=0, pooler=True)),
    "layerwise_lr": lambda: Run(nn.Sequential(nn.Linear(4, 3)), [LayerwiseLR(0.9)]),
    "pretrained_decay": lambda: apply_(frozen("bert"), PretrainedDecay(0.1)),
    "weight_decay": lambda: Run(frozen("bert"), [METHODS["weight_decay"](0.1)]),
    "rdrop": lambda: Run(without_dropout("bert"), [RDrop()]).advance(batch("bert"), 1),
    "fraternal_dropout": lambda: Run(without_dropout("bert"), [small("fraternal_dropout")]).advance(batch("bert"), 1),
    "expectation_linear": lambda: Run(without_dropout("bert"), [small("expectation_linear")]).advance(batch("bert"), 1),
    "longer": lambda: Run(build("bert"), [METHODS["longer"](steps=STEPS)]),
}
ALWAYS_ACTS = {
    "adamw": "an optimiser is always built",
    "constant_schedule": "a schedule always sets the rate",
    "linear_schedule": "a schedule always sets the rate",
    "inverse_sqrt_schedule": "a schedule always sets the rate",
    "polynomial_schedule": "a schedule always sets the rate",
    "doubled_batch": "a batch can always be doubled",
    "nll_only": "two forwards can always be made",
    "checkpoint_average": "too few checkpoints is an error of its own",
    "ensemble": "too few models is an error of its own",
}


@every_method
def test_a_method_that_matches_nothing_raises(name):
    if name in ALWAYS_ACTS:
        assert name not in NOTHING_MATCHES
        return
    with pytest.raises(NoEffect):
        NOTHING_MATCHES[name]()


def test_an_error_leaves_the_model_untouched():
    model, same = build("bert"), build("bert")
    with pytest.raises(NoEffect):
        apply_(model, [Reinit(layers=1), Mixout(layers="nothing.*")])
    assert_same(weights(model), weights(same))
    assert [type(m) for m in model.modules()] == [type(m) for m in same.modules()]


def test_what_is_no_method_is_refused():
    with pytest.raises(SteadytuneError, match="is not a method"):
        apply_(build("bert"), ["mixout"])
    with pytest.raises(SteadytuneError, match="is not a method"):
        apply_(build("bert"), [AdamW(build("bert").parameters())])


def test_reinit_larger_than_the_model():
    with pytest.raises(SteadytuneError, match=r"\d"):
        apply_(build("bert"), Reinit(layers=100))
