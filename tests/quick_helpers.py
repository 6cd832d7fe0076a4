"""What tests of quick layers share: on a CPU, in plain torch."""

import torch


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
