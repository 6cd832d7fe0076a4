"""Is mixout cheaper than dropout? Forward and backward of a BERT-base-shaped encoder on the CPU, float32.

    python benchmarks/mixout.py --json

Variants, interleaved in one process: no regularisation; dropout(0.1); this library's mixout(0.7) and mixout(0.9) on
every linear layer, as the public code mixes; mixout(0.7) on the paper's selection, which leaves out the Linear fed by
the activation (a third of the weights); and mixout on every linear layer as a straightforward reading of the paper
writes it: a dense mask and the mixed weight, differentiated by autograd.

The floor is by operation count: forward, input gradient and weight gradient cost the same, and mixout needs a fraction
1 - p of the last one for the layers that it mixes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

from common import PeakMemory, finish, interleaved, machine, ratio, spread
from steadytune import Mixout, apply_
from steadytune.methods.mixout import select_layers

PAPER = "mixout(0.7), paper layers"


class DenseMixLinear(nn.Linear):
    """Equation 4 as one would type it in, with the column mask of equation 8."""

    p: float
    target: Tensor

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.empty(self.in_features).bernoulli_(1 - self.p).expand_as(self.weight)
        weight = ((1 - mask) * self.target + mask * self.weight - self.p * self.target) / (1 - self.p)
        return functional.linear(x, weight, self.bias)


def build(layers: int, dropout: float) -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return BertModel(config, add_pooling_layer=False).train()


def dense_(model: BertModel, p: float) -> BertModel:
    for module in select_layers(model, "linear").values():
        target = module.weight.detach().clone()
        module.__class__ = DenseMixLinear
        module.p, module.target = p, target
    return model


def mixed(layers: int, p: float, selection: str) -> BertModel:
    model = build(layers, 0.1)
    apply_(model, Mixout(p=p, layers=selection))
    return model


def step(model: BertModel, tokens: Tensor) -> Callable[[], None]:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=tokens).last_hidden_state.square().mean().backward()

    return run


def floor(model: BertModel, p: float, selection: str) -> float:
    """Time over no regularisation if only multiplications counted."""
    weights = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    mixed_share = sum(weights[name] for name in select_layers(model, selection)) / sum(weights.values())
    return 1 - p * mixed_share / 3


def measure(tokens: int, layers: int, rounds: int) -> dict[str, float]:
    length = 128
    ids = torch.randint(0, 30000, (tokens // length, length))
    models = {
        "none": build(layers, 0.0),
        "dropout(0.1)": build(layers, 0.1),
        "mixout(0.7)": mixed(layers, 0.7, "linear"),
        "mixout(0.9)": mixed(layers, 0.9, "linear"),
        PAPER: mixed(layers, 0.7, "paper"),
        "dense mixout(0.7)": dense_(build(layers, 0.0), 0.7),
    }
    steps = {name: step(model, ids) for name, model in models.items()}
    times = interleaved(steps, rounds)
    memory = {}
    for name, run in steps.items():
        models[name].zero_grad(set_to_none=True)
        with PeakMemory() as peak:
            run()
        memory[name] = peak.peak
    floors = {
        "mixout(0.7)": floor(models["none"], 0.7, "linear"),
        "mixout(0.9)": floor(models["none"], 0.9, "linear"),
        PAPER: floor(models["none"], 0.7, "paper"),
    }
    print(
        f"\n{tokens} tokens, {layers} blocks, {rounds} rounds: medians of the ratio to dropout(0.1) in the same round"
    )
    print(f"{'variant':26} {'ms':>8} {'±':>5} {'time':>6} {'to none':>8} {'memory':>7} {'floor':>6}")
    for name in models:
        low = floors.get(name, 1.0)
        milliseconds = 1000 * sorted(times[name])[rounds // 2]
        to_dropout, to_none = ratio(times, name, "dropout(0.1)"), ratio(times, name, "none")
        print(
            f"{name:26} {milliseconds:8.1f} {100 * spread(times[name]):4.1f}% {to_dropout:6.3f} "
            f"{to_none:8.3f} {memory[name] / memory['dropout(0.1)']:7.3f} {low:6.3f}"
        )
    return {
        "mixout_over_dropout": ratio(times, "mixout(0.7)", "dropout(0.1)"),
        "mixout_over_none": ratio(times, "mixout(0.7)", "none"),
        "mixout_0.9_over_dropout": ratio(times, "mixout(0.9)", "dropout(0.1)"),
        "mixout_paper_layers_over_dropout": ratio(times, PAPER, "dropout(0.1)"),
        "dense_over_dropout": ratio(times, "dense mixout(0.7)", "dropout(0.1)"),
        "memory_over_dropout": memory["mixout(0.7)"] / memory["dropout(0.1)"],
        "floor_over_none": floors["mixout(0.7)"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--layers", type=int, default=12, help="blocks of the encoder (12 is BERT-base)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    options = parser.parse_args()
    print(machine())
    results = {str(tokens): measure(tokens, options.layers, options.rounds) for tokens in options.tokens}
    worst = {key: max(result[key] for result in results.values()) for key in next(iter(results.values()))}
    finish({**worst, "by_tokens": results, "machine": machine()}, options.json)


if __name__ == "__main__":
    main()
