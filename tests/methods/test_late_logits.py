"""Logits that are not computed: the methods that leave them out train as those that do not, or say why not."""

import copy
import warnings

import pytest
import torch
from heads import VOCAB, batch_for, make
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, MarianConfig, MarianMTModel

from steadytune import FraternalDropout, Mixout, Moment, NLLOnly, RDrop, Streams, apply_
from steadytune.engine.train import train
from steadytune.methods import late_logits, rdrop_quick
from steadytune.methods.dropout import set_dropout_
from steadytune.methods.late_logits import LARGE_VOCABULARY, LateLogits, logits_later, output_layer, why_not
from steadytune.methods.loss import call, logits_of
from tiny_tasks import tiny_run

LATE = ["bert-masked-lm", "bart-seq2seq", "bart-decoder", "t5-seq2seq", "gpt2-lm", "llama-lm", "xlnet-lm", "marian"]
NEVER = 10**9


def build(name):
    if name in ("marian", "gemma2"):
        torch.manual_seed(0)
        model = MarianMTModel(marian_config()) if name == "marian" else Gemma2ForCausalLM(gemma2_config())
    else:
        model = make(name)
    if name in ("llama-lm", "gemma2"):
        set_dropout_(model, 0.5)  # they come with none
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias.normal_(generator=torch.Generator().manual_seed(4))
    return model.train()


def batch_of(name):
    return batch_for({"marian": "bart-seq2seq", "gemma2": "gpt2-lm"}.get(name, name))


def marian_config():
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 16}
    tokens = {"vocab_size": VOCAB, "pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1, "eos_token_id": 0}
    return MarianConfig(**sizes, **heads, **tokens)


def gemma2_config():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"head_dim": 8, "num_key_value_heads": 1, "vocab_size": VOCAB, "max_position_embeddings": 16}
    return Gemma2Config(**sizes, **more, attn_implementation="eager")


@pytest.fixture
def large_from(monkeypatch):
    """Moves the line from which on a vocabulary is large."""

    def move(classes):
        monkeypatch.setattr(late_logits, "LARGE_VOCABULARY", classes)
        monkeypatch.setattr(rdrop_quick, "LARGE_VOCABULARY", classes)

    move(VOCAB)
    return move


def trained(method, model, batch):
    """Loss, outputs and gradients of one step."""
    model.zero_grad()
    torch.manual_seed(5)
    loss, outputs = method.loss(model, dict(batch), Moment())
    loss.backward()
    return loss.detach(), outputs, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_alike(one, other):
    torch.testing.assert_close(one[0], other[0])
    assert one[2].keys() == other[2].keys()
    for name in one[2]:
        torch.testing.assert_close(one[2][name], other[2][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", ["concat", "two"])
@pytest.mark.parametrize("name", LATE)
def test_rdrop_without_logits_is_rdrop(name, way, large_from):
    model, batch = build(name), batch_of(name)
    method = RDrop(alpha=2.0, forward=way, label_smoothing=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late = trained(method, model, batch)
    assert type(late[1].logits) is LateLogits
    assert late[1].logits.asked is None  # nobody needed them
    large_from(NEVER)
    plain = trained(method, model, batch)
    assert type(plain[1].logits) is torch.Tensor
    assert_alike(late, plain)
    torch.testing.assert_close(late[1].logits + 0.0, plain[1].logits)  # computed when they are asked for


@pytest.mark.parametrize("variant", ["official-token", "paddle-batchmean", "bert4torch", "official-roberta"])
def test_other_forms_of_the_loss_likewise(variant, large_from):
    model, batch = build("gpt2-lm"), batch_of("gpt2-lm")
    late = trained(RDrop(variant=variant), model, batch)
    assert type(late[1].logits) is LateLogits
    large_from(NEVER)
    assert_alike(late, trained(RDrop(variant=variant), model, batch))


@pytest.mark.parametrize("passes", [2, 3, 4])
def test_the_control_without_divergence_likewise(passes, large_from):
    model, batch = build("bart-seq2seq"), batch_of("bart-seq2seq")
    method = NLLOnly(passes=passes, label_smoothing=0.1)
    late = trained(method, model, batch)
    assert (type(late[1].logits) is LateLogits) == (passes != 3)
    large_from(NEVER)
    assert_alike(late, trained(method, model, batch))


def test_the_real_line_between_few_and_many_classes():
    from heads import bart_config
    from transformers import BartForConditionalGeneration

    batch = batch_for("bart-seq2seq")
    for classes, kind in ((LARGE_VOCABULARY, LateLogits), (LARGE_VOCABULARY - 1, torch.Tensor)):
        model = BartForConditionalGeneration(bart_config(vocab_size=classes)).train()
        assert type(trained(RDrop(), model, batch)[1].logits) is kind


def test_autocast_is_followed(large_from):
    model, batch = build("bart-seq2seq"), batch_of("bart-seq2seq")
    found = []
    for line in (VOCAB, NEVER):
        large_from(line)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(trained(RDrop(), model, batch))
    (late, outputs, grads), (plain, plain_outputs, plain_grads) = found
    assert late.dtype == plain.dtype == torch.float32
    assert outputs.logits.dtype == plain_outputs.logits.dtype == torch.float32  # the bias is float32
    torch.testing.assert_close(outputs.logits + 0.0, plain_outputs.logits, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(late, plain, rtol=1e-5, atol=0.0)
    for name in grads:
        assert grads[name].dtype == torch.float32
        error = (grads[name] - plain_grads[name]).norm() / (plain_grads[name].norm() + 1e-3)
        assert error < 0.05, name


@pytest.mark.parametrize("kind", ["translation", "language-model"])
def test_the_engine_trains_alike(kind, large_from, tmp_path):
    recipe, encoded = tiny_run(kind, tmp_path, other=3, methods=(RDrop(alpha=2.0, label_smoothing=0.1),), steps=3)
    losses = []
    for line in (8, NEVER):
        large_from(line)
        result, _ = train(recipe, encoded, Streams(init=1, order=2, noise=3))
        losses.append(result.losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# --- what is in the way


def says(reason):
    return pytest.warns(UserWarning, match=f"RDrop: .* holds the logits of all passes in full, because .*{reason}")


def test_a_model_that_changes_its_logits_gets_them_and_says_so(large_from):
    model, batch = build("gemma2"), batch_of("gemma2")
    assert model.config.final_logit_softcapping is not None
    with says("changes them after its output layer"):
        late = trained(RDrop(), model, batch)
    large_from(NEVER)
    assert_alike(late, trained(RDrop(), model, batch))


def with_hook(model):
    model.lm_head.register_forward_hook(lambda module, args, out: out * 2.0)
    return model


def with_mixout(model):
    apply_(model, Mixout(p=0.5, layers="linear", target="zero"))
    return model


def with_own_forward(model):
    model.lm_head.forward = lambda hidden: nn.functional.linear(hidden, model.lm_head.weight) * 2.0
    return model


def without_its_layer(model):
    other = copy.deepcopy(model.lm_head)
    model.get_output_embeddings = lambda: other
    return model


WAYS = {
    "has hooks": with_hook,
    "not a plain nn.Linear": with_mixout,
    "output layer has hooks": with_own_forward,
    "without calling its output layer": without_its_layer,
}


@pytest.mark.parametrize("reason", WAYS)
def test_what_is_in_the_way_is_said_and_changes_nothing(reason, large_from):
    model, same = (WAYS[reason](build("gpt2-lm")) for _ in range(2))
    batch = batch_of("gpt2-lm")
    with says(reason):
        late = trained(RDrop(), model, batch)
    assert type(late[1].logits) is torch.Tensor
    large_from(NEVER)
    assert_alike(late, trained(RDrop(), same, batch))


def test_wrapped_and_compiled_models(large_from):
    model, batch = build("gpt2-lm"), batch_of("gpt2-lm")
    layer = output_layer(model)
    assert why_not(model, layer) is None
    assert "inside OptimizedModule" in why_not(torch.compile(model, backend="eager"), layer)
    assert "inside DataParallel" in why_not(nn.DataParallel(model), layer)
    model.compile(backend="eager")
    assert "compiled as a whole" in why_not(model, layer)

    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(build("gpt2-lm"), peft.LoraConfig(target_modules=["c_attn"], task_type="CAUSAL_LM"))
    late = trained(RDrop(), adapted.train(), batch)
    assert type(late[1].logits) is LateLogits
    large_from(NEVER)
    assert_alike(late, trained(RDrop(), adapted, batch))


def test_other_methods_and_evaluation_get_ordinary_logits(large_from):
    model, batch = build("gpt2-lm"), batch_of("gpt2-lm")
    assert type(trained(FraternalDropout(), model, batch)[1].logits) is torch.Tensor
    assert RDrop().loss(model.eval(), batch, Moment()) is None


def test_the_model_is_left_as_it_was_whatever_happens(large_from):
    model, batch = build("bart-seq2seq"), batch_of("bart-seq2seq")
    before, keys = [sorted(vars(module)) for module in model.modules()], list(model.state_dict())
    trained(RDrop(), model, batch)
    with pytest.raises(IndexError):
        RDrop().loss(model, batch | {"input_ids": batch["input_ids"] + 1000}, Moment())
    assert [sorted(vars(module)) for module in model.modules()] == before
    assert list(model.state_dict()) == keys


# --- the tensor itself


def late_and_real(seed=3):
    model, batch = build("bart-seq2seq"), batch_of("bart-seq2seq")
    torch.manual_seed(seed)
    with logits_later(model, "test"):
        late = logits_of(call(model, batch))
    torch.manual_seed(seed)
    return model, late, logits_of(call(model, batch))


def test_late_logits_are_an_ordinary_tensor_for_everyone_else(large_from):
    model, late, real = late_and_real()
    assert isinstance(late, torch.Tensor)
    assert (late.shape, late.dtype, late.device, late.ndim) == (real.shape, real.dtype, real.device, real.ndim)
    assert late.requires_grad
    assert len(late) == len(real)
    assert late.size(-1) == VOCAB
    assert late.asked is None  # so far nothing had to be computed
    parts = late.chunk(2)
    assert all(type(part) is LateLogits and part.asked is None for part in (*parts, late[1:3], late.float()))
    assert torch.equal(torch.cat(parts), real)
    assert torch.equal(late[1:3].exp(), real[1:3].exp())
    assert torch.equal(torch.stack([late, late])[1], real)
    assert torch.equal(late.detach().argmax(-1), real.argmax(-1))
    assert torch.equal(late[..., 0], real[..., 0])
    assert torch.equal(2.0 * late - 1.0, 2.0 * real - 1.0)
    assert repr(late) == repr(real)
    assert late.asked is not None
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    for name, one, other in zip(
        names,
        torch.autograd.grad(late.square().sum(), parameters, allow_unused=True),
        torch.autograd.grad(real.square().sum(), parameters, allow_unused=True),
    ):
        assert (one is None) == (other is None), name
        assert one is None or torch.equal(one, other), name


def test_what_is_added_must_be_a_constant_for_each_class(large_from):
    _, late, real = late_and_real()  # BART has added its constant already
    again = late + torch.ones(VOCAB)
    assert type(again) is torch.Tensor
    torch.testing.assert_close(again, real + 1.0)
    plain = late._with(offset=None)
    assert type(plain + torch.ones(VOCAB)) is LateLogits
    assert type(torch.ones(1, 1, VOCAB) + plain) is LateLogits
    for other in (1.0, torch.ones(()), torch.ones(6, 1), torch.ones(4, 6, VOCAB), nn.Parameter(torch.ones(VOCAB))):
        assert type(plain + other) is torch.Tensor
