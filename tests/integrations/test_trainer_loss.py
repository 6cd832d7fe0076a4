"""The loss inside Trainer: gradient accumulation cuts a batch in pieces and changes nothing else."""

import functools
import re

import pytest
import torch
from small_trainer import arguments, assert_close, assert_same, bert, losses, rows, train, weights
from torch import nn
from transformers import LlamaForCausalLM, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer

import steadytune as st
from steadytune import SteadyTrainer, SteadytuneError
from steadytune.methods.dropout import set_dropout_
from tiny import VOCABULARY, batch, tiny

COUNT = 11  # batches of 8 and 3; in micro-batches of 2: 2, 2, 2, 2 and 2, 1


class Alternating(nn.Module):
    """Stands in for dropout: one fixed mask in odd forwards, another in even ones, whatever the batch is."""

    def __init__(self, features):
        super().__init__()
        random = torch.Generator().manual_seed(features)
        self.masks, self.calls = torch.rand(2, features, generator=random, dtype=torch.float64) + 0.5, 0

    def forward(self, x):
        self.calls += self.training
        return x * self.masks[self.calls % 2].to(x.dtype) if self.training else x


def controlled(task, noisy=True):
    """The task's model in float64, without dropout; its only noise is an `Alternating` behind each norm."""
    torch.manual_seed(0)
    model = TASKS[task][0]()
    set_dropout_(model, 0.0)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if noisy and re.search("Norm$", type(child).__name__):
                setattr(module, name, nn.Sequential(child, Alternating(child.weight.numel())))
    return model.double()


def tokens():
    ids = batch("bert", COUNT)["input_ids"]
    first = torch.arange(COUNT)[:, None] % 4  # rows differ in how many labels they have, and in having a first one
    return ids.masked_fill((torch.arange(10) < first) | (ids == 1), -100)


numbers = torch.linspace(-1, 1, COUNT, dtype=torch.float64)
TASKS = {
    "classification": (lambda: tiny("bert", "ForSequenceClassification"), None),
    "regression": (lambda: tiny("bert", "ForSequenceClassification", num_labels=1), numbers),
    "multilabel": (
        lambda: tiny("bert", "ForSequenceClassification", problem_type="multi_label_classification"),
        (torch.arange(COUNT)[:, None] % torch.tensor([2, 3, 5]) == 0).double(),
    ),
    "token": (lambda: tiny("bert", "ForTokenClassification", num_labels=VOCABULARY), tokens()),
    "causal-lm, gpt2": (lambda: tiny("gpt2", "LMHeadModel"), tokens()),  # Trainer does not know that it shifts
    "causal-lm, llama": (lambda: tiny("llama", "ForCausalLM"), tokens()),
    "seq2seq": (lambda: tiny("t5", "ForConditionalGeneration"), tokens()),
}
METHODS = {
    "rdrop": st.RDrop(alpha=2.0, forward="two"),
    "nll_only": st.NLLOnly(forward="two"),
    "fraternal_dropout": st.FraternalDropout(kappa=1.0, forward="two"),
    "plain": st.WeightDecay(0.01),  # Trainer's own loss
}
SGD = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 0.05, "num_train_epochs": 1}  # nothing hides a factor


def run(folder, task, method, size, accumulate, **changes):
    labels = TASKS[task][1]
    data = rows(COUNT, **({} if labels is None else {"labels": labels}))
    pieces = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}
    return train(
        folder,
        method,
        model=controlled(task, noisy=method is not METHODS["plain"]),
        data=data,
        **{**SGD, **pieces, **changes},
    )


ALL = [(method, task) for method in ("rdrop", "plain") for task in TASKS]


@pytest.mark.parametrize(("method", "task"), [*ALL, ("nll_only", "token"), ("fraternal_dropout", "causal-lm, gpt2")])
def test_accumulation_changes_nothing(method, task, tmp_path):
    whole = run(tmp_path, task, METHODS[method], 8, 1)
    for size, accumulate in ((4, 2), (2, 4)):
        pieces = run(tmp_path, task, METHODS[method], size, accumulate)
        assert_close(weights(whole), weights(pieces), 1e-7)
        assert losses(whole) == pytest.approx(losses(pieces), rel=1e-5)
    start = controlled(task, noisy=method != "plain").state_dict()
    assert max((end - start[name]).abs().max() for name, end in weights(whole).items()) > 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_the_reported_loss_is_the_functions(task, tmp_path):
    trainer = run(tmp_path, task, METHODS["rdrop"], 2, 4, train_sampling_strategy="sequential")
    model, labels = controlled(task).train(), TASKS[task][1]
    data = {**batch("bert", COUNT), **({} if labels is None else {"labels": labels})}
    first = {name: values[:8] for name, values in data.items()}
    inputs = {name: values for name, values in first.items() if name != "labels"}
    if task == "seq2seq":
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=first["labels"])
    one, two = (model(**inputs).logits for _ in range(2))
    kind = task.partition(",")[0]
    loss = st.rdrop_loss(one, two, first["labels"], alpha=2.0, kind=kind).item()
    if "gpt2" in task:  # Trainer counts the first label, which nothing predicts; its own loss is divided by it, too
        counted = first["labels"] != -100
        loss *= counted[:, 1:].sum().item() / counted.sum().item()
    assert losses(trainer)[0] == pytest.approx(loss, rel=1e-5)


def test_a_micro_batch_without_labels_counts_for_nothing(tmp_path):
    labels = tokens()
    labels[2:4] = -100
    TASKS["holes"] = (TASKS["token"][0], labels)
    sequential = {"train_sampling_strategy": "sequential", "logging_nan_inf_filter": False}
    runs = [run(tmp_path, "holes", METHODS["rdrop"], size, 8 // size, **sequential) for size in (8, 2)]
    assert_close(weights(runs[0]), weights(runs[1]), 1e-7)
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=1e-5)


def test_a_model_that_keeps_its_logits_is_weighed_as_trainer_counts(tmp_path, monkeypatch):
    """As Liger's kernels do: a loss, and nothing to tell the task from."""
    forward = LlamaForCausalLM.forward

    @functools.wraps(forward)
    def without_logits(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        return type(outputs)(loss=outputs.loss)

    monkeypatch.setattr(LlamaForCausalLM, "forward", without_logits)
    cut = [run(tmp_path, "causal-lm, llama", METHODS["plain"], size, 8 // size) for size in (8, 2)]
    assert_close(*map(weights, cut), 1e-7)


def test_evaluate_and_predict_are_one_plain_forward(tmp_path):
    trained = train(tmp_path, [st.Mixout(p=0.5), st.RDrop()], num_train_epochs=1)
    plain = bert()
    plain.load_state_dict(trained.model.state_dict())
    expected = Trainer(model=plain, args=arguments(tmp_path))
    calls = []
    trained.model.register_forward_pre_hook(lambda *_: calls.append(1))
    got, want = (trainer.predict(rows(16)) for trainer in (trained, expected))
    assert len(calls) == 2  # batches of 8
    assert torch.equal(torch.tensor(got.predictions), torch.tensor(want.predictions))
    assert got.metrics["test_loss"] == want.metrics["test_loss"]
    assert trained.evaluate(rows())["eval_loss"] == expected.evaluate(rows())["eval_loss"]


def test_training_sees_two_passes_and_evaluation_one(tmp_path):
    calls = {True: 0, False: 0}
    model = bert()
    model.register_forward_pre_hook(lambda module, _: calls.update({module.training: calls[module.training] + 1}))
    trainer = SteadyTrainer(
        model=model,
        args=arguments(tmp_path, eval_strategy="epoch", num_train_epochs=1),
        train_dataset=rows(),
        eval_dataset=rows(),
        methods=[st.Mixout(p=0.5), st.RDrop()],
    )
    trainer.train()
    assert calls == {True: 2 * 8, False: 2}


def test_bf16_autocast(tmp_path):
    exact, low = (train(tmp_path, [st.Mixout(p=0.5), st.RDrop()], bf16=bf16) for bf16 in (False, True))
    assert low.accelerator.mixed_precision == "bf16"
    assert all(tensor.dtype == torch.float32 for tensor in weights(low).values() if tensor.is_floating_point())
    assert losses(low) == pytest.approx(losses(exact), rel=0.1)
    assert any(not torch.equal(a, b) for a, b in zip(weights(exact).values(), weights(low).values()))


def test_label_smoothing_of_trainer_is_kept_by_methods_that_leave_the_loss_alone(tmp_path):
    cut = [run(tmp_path, "token", METHODS["plain"], n, 8 // n, label_smoothing_factor=0.2) for n in (8, 2)]
    assert_close(*map(weights, cut), 1e-7)
    settings = {"label_smoothing_factor": 0.2, "gradient_accumulation_steps": 1}
    assert_same(
        weights(train(tmp_path, st.WeightDecay(0.0), **settings)),
        weights(train(tmp_path, None, cls=Trainer, **settings)),
    )


def test_label_smoothing_and_compute_loss_func_are_refused_by_a_loss(tmp_path):
    for method in (st.RDrop(), st.NLLOnly(), st.FraternalDropout(), st.ExpectationLinearDropout()):
        name = type(method).__name__
        with pytest.raises(SteadytuneError, match=rf"{name} .*label_smoothing_factor=0.1 .* set it in {name}"):
            SteadyTrainer(model=bert(), args=arguments(tmp_path, label_smoothing_factor=0.1), methods=method)
        with pytest.raises(SteadytuneError, match=f"{name} computes the loss, so compute_loss_func"):
            SteadyTrainer(model=bert(), args=arguments(tmp_path), compute_loss_func=lambda *_, **__: 0, methods=method)
    SteadyTrainer(model=bert(), args=arguments(tmp_path, label_smoothing_factor=0.1), methods=st.RDrop(alpha=0.0))


def test_with_seq2seq_trainer(tmp_path):
    """The two trainers meet in one class; each has its own part."""

    class SteadySeq2SeqTrainer(SteadyTrainer, Seq2SeqTrainer):
        pass

    settings = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "max_steps": 2, "save_strategy": "no"}
    args = Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, **settings)
    data = rows(COUNT, labels=tokens())
    torch.manual_seed(0)
    trainer = SteadySeq2SeqTrainer(
        tiny("bart", "ForConditionalGeneration"), args, train_dataset=data, methods=st.RDrop()
    )
    trainer.train()
    assert trainer.predict(data).predictions.dtype.kind == "i"  # generated tokens, not logits
