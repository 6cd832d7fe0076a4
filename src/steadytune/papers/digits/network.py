"""The network of the digits experiment, and one restart of it trained alone, by a plain loop (M14-M16).

    784 -> 300 -> 100 -> 10;   a hidden layer is  Linear, ReLU, LayerNorm, Dropout   (supplement C.1)

Where noise acts. "We use dropout(0.1) for all layers except the input and output layers": the 300 and the 100 hidden
neurons are dropped. Fine-tuning "replaces dropout(p) with mixout(w_pre, p)", and mixout swaps the weights that LEAVE a
dropped neuron (figure 1, equation 8). So `hidden_2` and `output` are mixed, column by column, and `hidden_1`, whose
columns belong to pixels, is not. `layers="linear"` mixes all three, as the public code does.
Relations: dropout(p) in front of a linear layer is mixout toward 0 of that layer, one mask per example. So LayerNorm
stands before the dropout here; after it, the two would not correspond.

Here a restart is trained as any model is: methods from the library on an `nn.Sequential`. `stacked.py` trains many at
once; the tests hold the two together.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from steadytune.apply import apply_
from steadytune.engine.batches import Order
from steadytune.errors import SteadytuneError
from steadytune.methods.adamw import AdamWMethod
from steadytune.methods.base import Method, check_choice, check_probability
from steadytune.methods.dropout import Dropout
from steadytune.methods.mixout import Mixout
from steadytune.methods.schedules import LinearSchedule
from steadytune.methods.weight_decay import WeightDecay
from steadytune.papers.digits.data import Images
from steadytune.rng import Streams, random_bits, stream_seed

WIDTHS = (784, 300, 100, 10)
INIT_STD = 0.02  # C.1: weights from N(0, 0.02²), biases 0
MIXED = {"hidden": ("hidden_2", "output"), "linear": ("hidden_1", "hidden_2", "output")}
DROPPED = ("dropout_1", "dropout_2")


@dataclass(frozen=True)
class Restart:
    """One training run: what may differ from one replica of a stack to the next."""

    method: str  # "mixout" or "dropout"
    p: float
    epochs: int
    lr: float
    streams: Streams = field(default_factory=Streams)
    mask: str = "neuron"  # of mixout: "neuron" or "element"
    gradient: str = "exact"  # of mixout: "exact" or "paper" (D1)
    layers: str = "hidden"  # of mixout: a key of MIXED

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("mixout", "dropout"), "Restart")
        check_probability("p", self.p, "Restart")
        check_choice("mask", self.mask, ("neuron", "element"), "Restart")
        check_choice("gradient", self.gradient, ("exact", "paper"), "Restart")
        check_choice("layers", self.layers, MIXED, "Restart")
        if self.epochs < 1:
            raise SteadytuneError(f"Restart: epochs must be at least 1, not {self.epochs}.")


@dataclass(frozen=True)
class Training:
    """What all restarts of a stage share: Adam with 10% warm-up and linear decay (section 4)."""

    batch_size: int = 32
    weight_decay: float = 0.0
    decay_form: str = "l2"  # section 2: wdecay(0, λ) adds (λ/2) ||w||² to the loss; "decoupled" is AdamW's
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warmup: float = 0.1

    def steps_per_epoch(self, rows: int) -> int:
        return math.ceil(rows / self.batch_size)


class StreamDropout(nn.Dropout):
    """Dropout whose mask is a function of (noise stream, layer name, call): the same on every device, alone or
    stacked."""

    key: int = 0
    calls: int = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        state = (self.key & 0xFFFFFFFF, self.key >> 32, self.calls)
        self.calls += 1
        kept = random_bits(state, torch.arange(x.numel(), device=x.device)) < round((1.0 - self.p) * 2.0**32)
        return x * kept.view(x.shape).to(x.dtype).div_(1.0 - self.p if self.p < 1.0 else 1.0)


def new_network(streams: Streams, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """The network with fresh weights of the stream init."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs) in enumerate(itertools.pairwise(WIDTHS[:-1]), start=1):
        layers[f"hidden_{number}"] = nn.Linear(inputs, outputs)
        layers[f"relu_{number}"] = nn.ReLU()
        layers[f"norm_{number}"] = nn.LayerNorm(outputs)
        layers[f"dropout_{number}"] = StreamDropout(0.0)
    layers["output"] = nn.Linear(*WIDTHS[-2:])
    network = nn.Sequential(layers).to(dtype)
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear):
            generator = streams.generator("init", name)
            layer.weight.data.copy_(INIT_STD * torch.randn(layer.weight.shape, generator=generator))
            layer.bias.data.zero_()
        elif isinstance(layer, StreamDropout):
            layer.key = stream_seed("noise", streams.noise, "dropout", name)
    return network


def network_of(weights: Mapping[str, Tensor], streams: Streams) -> nn.Sequential:
    """The network with the given weights, on their device, and the noise of these streams."""
    some = next(iter(weights.values()))
    network = new_network(streams, some.dtype).to(some.device)
    network.load_state_dict(dict(weights))
    return network


def start_weights(streams: Streams, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in new_network(streams, dtype).state_dict().items()}


def methods_of(restart: Restart, training: Training) -> list[Method]:
    """The restart in the library's terms."""
    chosen: list[Method] = [Dropout(p=restart.p)]
    if restart.method == "mixout":
        names = ",".join(MIXED[restart.layers])
        chosen = [Mixout(p=restart.p, layers=names, mask=restart.mask, gradient=restart.gradient)]
    if training.weight_decay:
        chosen.append(WeightDecay(training.weight_decay, form=training.decay_form))  # type: ignore[arg-type]
    return [*chosen, AdamWMethod(betas=training.betas, eps=training.eps), LinearSchedule(training.warmup)]


def train_alone(start: Mapping[str, Tensor], restart: Restart, training: Training, images: Images) -> nn.Sequential:
    """One restart, by the loop that anybody would write. Images, weights and result are on one device."""
    network = network_of(start, restart.streams).train()
    applied = apply_(network, methods_of(restart, training), streams=restart.streams)
    order = Order(len(images), training.batch_size, restart.streams)
    steps = order.steps_per_epoch * restart.epochs
    optimizer: Any = applied.optimizer(lr=restart.lr)
    scheduler = applied.scheduler(optimizer, steps, order.steps_per_epoch)
    dtype = next(network.parameters()).dtype
    for rows in order.batches(0, steps):
        chosen = torch.from_numpy(rows).to(images.labels.device)
        loss = functional.cross_entropy(network(images.rows(chosen, dtype)), images.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return network.eval()


@torch.no_grad()
def accuracy_alone(network: nn.Sequential, images: Images) -> float:
    network.eval()
    found = network(images.rows(slice(None), next(network.parameters()).dtype)).argmax(-1)
    return int((found == images.labels).sum()) / len(images)
