"""Several forwards of one batch: one concatenated forward is the same as separate ones, or is not used (R2, T5)."""

import pytest
import torch
from heads import ROWS, batch_for, make
from torch import nn

from steadytune import Dropout, NLLOnly, NoEffect, RDrop, SteadytuneError, apply_, mixout_, rdrop_loss
from steadytune.methods.base import Site
from steadytune.methods.dropout import set_dropout_
from steadytune.methods.loss import kind_of
from steadytune.methods.passes import forwards, repeated
from steadytune.rng import Streams


class FixedDropout(nn.Module):
    """Dropout with a mask per use, row and pass: [x; x] takes both passes' masks, two forwards take one each."""

    p = 0.0  # what attention reads off it for its fused kernel, where no mask can be given

    def __init__(self, number):
        super().__init__()
        self.number, self.uses, self.forward_number = number, 0, 0

    def forward(self, x):
        generator = torch.Generator().manual_seed(1000 * self.number + self.uses)
        mask = (torch.rand((2 * ROWS, *x.shape[1:]), generator=generator) < 0.7) / 0.7
        self.uses += 1
        return x * (mask if len(x) == 2 * ROWS else mask[self.forward_number * ROWS :][:ROWS])


def fix_dropout_(model):
    fixed = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout):
                fixed.append(FixedDropout(len(fixed)))
                setattr(parent, name, fixed[-1])
    assert fixed
    set_dropout_(model, 0.0)  # rates kept as plain numbers

    def next_forward(module, args, outputs):
        for each in fixed:
            each.uses, each.forward_number = 0, each.forward_number + 1

    model.register_forward_hook(next_forward)


@pytest.mark.parametrize("name", ["bert-classification", "bert-token", "bert-regression", "gpt2-lm", "t5-seq2seq"])
def test_one_concatenated_forward_equals_two_under_the_same_masks(name):
    found = {}
    for way in ("concat", "two"):
        model, batch = make(name).train(), batch_for(name)
        fix_dropout_(model)
        logits, outputs = forwards(model, batch, "test", forward=way)
        assert logits[0].shape == logits[1].shape == outputs.logits.shape
        assert not torch.allclose(logits[0], logits[1])  # the masks do something
        rdrop_loss(*logits, batch["labels"], kind=kind_of(model, logits[0], batch["labels"])).backward()
        found[way] = [*logits, outputs.logits, *[p.grad for p in model.parameters() if p.grad is not None]]
    for one, two in zip(found["concat"], found["two"], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def mlp(*middle):
    return nn.Sequential(nn.Linear(4, 8), *middle, nn.Linear(8, 3))


def rows(count=6):
    torch.manual_seed(2)
    return {"input": torch.randn(count, 4), "labels": torch.arange(count) % 3}


def counted(model):
    model.sizes = []
    model.register_forward_hook(lambda module, args, kwargs, out: module.sizes.append(len(out)), with_kwargs=True)
    return model.train()


def test_auto_is_one_forward_where_rows_are_independent():
    model = counted(mlp(nn.Dropout(0.5)))
    forwards(model, rows(), "test")
    assert model.sizes == [12]


def test_auto_is_two_forwards_with_batch_normalisation():
    model = counted(mlp(nn.BatchNorm1d(8), nn.Dropout(0.5)))
    forwards(model, rows(), "test")
    assert model.sizes == [6, 6]


def test_auto_is_two_forwards_with_mixed_layers_and_skipped_layers():
    model = counted(mlp(nn.ReLU(), nn.Dropout(0.5)))
    mixout_(model, p=0.5, layers="all", target="zero")
    logits, _ = forwards(model, rows(), "test")
    assert model.sizes == [6, 6]
    assert not torch.allclose(logits[0], logits[1])

    model, batch = make("bart-seq2seq").train(), batch_for("bart-seq2seq")
    model.model.encoder.layerdrop = 0.5
    calls = []
    model.register_forward_hook(lambda module, args, out: calls.append(len(out.logits)))
    forwards(model, batch, "test")
    assert calls == [4, 4]


def test_concat_with_masks_that_both_halves_share_is_refused():
    model = mlp(nn.ReLU()).train()
    mixout_(model, p=0.5, layers="all", target="zero")
    with pytest.raises(NoEffect, match="same noise"):
        forwards(model, rows(), "RDrop", forward="concat")


def test_auto_is_two_forwards_where_an_input_has_no_rows():
    batch = rows() | {"extra": torch.zeros(5)}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp(nn.Dropout(0.5))

        def forward(self, input, extra):
            return self.inner(input) + extra.sum()

    model = counted(Model())
    forwards(model, batch, "test")
    assert model.sizes == [6, 6]
    with pytest.raises(SteadytuneError, match="'extra' does not have the 6 rows"):
        forwards(model, batch, "test", forward="concat")


def test_repeated_leaves_alone_what_belongs_to_no_row():
    batch = {
        "labels": torch.arange(3),
        "input_ids": torch.arange(6).reshape(3, 2),
        "position_ids": torch.arange(2).reshape(1, 2),
        "cache_position": torch.arange(3),
        "scale": torch.tensor(2.0),
        "output_hidden_states": True,
    }
    twice = repeated(batch, 2)
    assert twice["input_ids"].tolist() == [[0, 1], [2, 3], [4, 5]] * 2
    assert twice["labels"].tolist() == [0, 1, 2] * 2
    for name in ("position_ids", "cache_position", "scale", "output_hidden_states"):
        assert twice[name] is batch[name]
    with pytest.raises(SteadytuneError, match="'nested'"):
        repeated(batch | {"nested": [torch.zeros(3)]}, 2)


def test_a_batch_that_is_not_the_first_dimension_is_noticed():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head, self.drop = nn.GRU(4, 8), nn.Linear(8, 3), nn.Dropout(0.5)

        def forward(self, input):
            return self.head(self.drop(self.rnn(input)[0][-1]))

    model, batch = TimeFirst().train(), {"input": torch.randn(5, 5, 4), "labels": torch.zeros(5, dtype=torch.long)}
    with pytest.raises(SteadytuneError, match="5 rows of logits came out"):
        forwards(model, batch, "test")
    logits, _ = forwards(model, batch, "test", forward="two")
    assert len(logits) == 2


def test_outputs_are_those_of_the_first_copy():
    model, batch = make("gpt2-lm").train(), batch_for("gpt2-lm")
    logits, outputs = forwards(model, {**batch, "output_hidden_states": True}, "test")
    assert type(outputs) is type(model(**batch))
    assert torch.equal(outputs.logits, logits[0])
    assert [len(state) for state in outputs.hidden_states] == [4, 4]
    assert outputs.past_key_values is None


def test_no_noise_is_refused_at_the_first_batch():
    for way in ("auto", "concat", "two"):
        with pytest.raises(NoEffect, match="every dropout is 0"):
            forwards(mlp(nn.Dropout(0.0)).train(), rows(), "RDrop", forward=way)
    applied = apply_(model := make("bert-classification"), [Dropout(p=0.0), RDrop()])
    with pytest.raises(NoEffect, match="RDrop"):
        applied.loss(model.train(), batch_for("bert-classification"))


def test_noise_that_cannot_be_seen_is_believed():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, input):
            return self.inner(input + 0.1 * torch.randn_like(input))

    logits, _ = forwards(Noisy().train(), rows(), "RDrop")
    assert not torch.equal(*logits)


def test_no_noise_is_refused_when_applied_where_nothing_else_could_bring_some():
    site = Site.of(mlp(nn.Dropout(0.0)), Streams())
    for method in (RDrop(), NLLOnly()):
        site.methods = [method]
        with pytest.raises(NoEffect, match="would be the same"):
            method.check(site)
        site.methods = [Dropout(p=0.1), method]
        method.check(site)
    site.methods = [RDrop(alpha=0.0)]
    RDrop(alpha=0.0).check(site)
