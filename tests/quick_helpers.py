"""What tests of quick layers share: on a CPU, in plain torch."""

import copy

import torch
from torch.utils.checkpoint import checkpoint


def on_the_cpu(monkeypatch, kernels):
    """Switch quick layers on there, without Triton."""
    monkeypatch.setattr(kernels, "DEVICES", {"cpu"})
    monkeypatch.setattr(kernels, "_HAS_TRITON", False)


def counted(monkeypatch, module, *functions):
    """The arguments of all calls that `module` makes to these functions, in a list that grows."""
    made = []

    def counting(compute):
        return lambda *arguments: made.append(arguments) or compute(*arguments)

    for compute in functions:
        monkeypatch.setattr(module, compute.__name__, counting(compute))
    return made


def autocast(dtype=torch.bfloat16):
    return torch.autocast("cpu", dtype=dtype)


def gradients(model, inputs, context):
    model.train()
    model.zero_grad()
    torch.manual_seed(0)  # the same dropout for all
    with context:
        loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def errors(found, exact):
    """Relative, of the gradients that are more than noise: attention does not feel the bias of its keys."""
    assert found.keys() == exact.keys()
    largest = max(each.norm() for each in exact.values())
    telling = [name for name in exact if exact[name].norm() > 1e-4 * largest]
    return torch.stack([(found[name] - exact[name]).norm() / exact[name].norm() for name in telling])


def assert_runs_as_the_plain_layer(layer, twin, x, calls, more):
    """Where a quick layer has nothing to gain; `more` are further ways of calling a layer, by name."""
    ways = {
        "no autocast": lambda each: each(x),
        "another type": lambda each: autocast(torch.float16)(each)(x),
        "inference": lambda each: torch.inference_mode()(autocast()(each))(x),
        "a copy": lambda each: autocast()(copy.deepcopy(each))(x),
        "compiled": lambda each: torch.compile(autocast()(each), backend="eager", fullgraph=True)(x),
        "torch.func": lambda each: autocast()(torch.func.vmap(each))(x),
    }
    for name, way in (ways | more).items():
        found, expected = way(layer), way(twin)
        assert found.dtype == expected.dtype, name
        assert torch.equal(found, expected), name
        assert not calls, name
    layer.eval()
    with autocast():
        layer(x)
    assert not calls
    layer.train()


def with_and_without_checkpoints(body, x, reentrant):
    """Output and gradients of a module with dropout under autocast: straight, and recomputed in the backward pass."""
    found = []
    for saving in (False, True):
        own = x.clone().requires_grad_()
        body.zero_grad()
        torch.manual_seed(1)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = checkpoint(body, own, use_reentrant=reentrant) if saving else body(own)
        y.float().square().sum().backward()
        found.append([y.detach(), own.grad, *(p.grad for p in body.parameters())])
    return zip(*found, strict=True)
