"""Layers whose weight is mixed while they train: the parts that `mixout_` puts in a model.

A layer is not replaced: its *class* is exchanged for a subclass that keeps the same Parameter under the same name. So
keys, tied weights, hooks, references and optimisers stay as they were, `save_pretrained` writes a plain model, and
`unmix_` gives the class back. In eval mode, and at p = 0, the plain layer runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from steadytune.errors import SteadytuneError
from steadytune.kernels.handed_on import Handed
from steadytune.kernels.kept_gradients import KeptGradient
from steadytune.kernels.mixout import Mixture, mask_of, mixed_linear, mixture_of
from steadytune.kernels.mixout_columns import Layer, column_linears, product_type
from steadytune.kernels.mixout_masks import Columns
from steadytune.kernels.mixout_table import Made
from steadytune.methods.mixing import REMEMBERED_CALLS, JointlyMixed, Mix, Mixed, mix
from steadytune.rng import new_counter

COLUMN_DEVICES = {"cuda"}  # where nothing may wait for the device; a CPU counts the kept columns instead


class MixedLinear(Mixed, nn.Linear):
    def _count(self) -> int:
        return self.in_features

    def _spread(self, noise: Tensor) -> Tensor:
        return noise  # one number per column of [out, in]

    def forward(self, x: Tensor) -> Tensor:
        if not self._is_mixing():
            return super().forward(x)
        mix = self.mix
        if mix.distribution == "variational" and mix.p < 1.0:
            spread = (self.weight - mix.target).square()
            return self._local_noise(super().forward(x), functional.linear(x.square(), spread))
        if mix.mask == "neuron" and mix.distribution == "bernoulli" and not torch.compiler.is_compiling():
            grad_scale = self.grad_scale()
            if x.device.type not in COLUMN_DEVICES:
                return mixed_linear(x, self.weight, self.bias, mix.target, self._mixture(x), grad_scale)
            if mix.p < 1.0:
                return self._of_columns(x, grad_scale)
        return functional.linear(x, self.mixed_weight(self.weight), self.bias)

    def _mixture(self, x: Tensor) -> Mixture:
        """Of this call, or of an earlier one of the step that it repeats: a chunk sees the mask of the first."""
        if self.mix_memory is None or self.mix_drawn is not None:
            return mask_of(self.scale())
        call = (self._next_state(), product_type(x))
        if call not in self.mix_memory:
            state, dtype = call
            self.mix_memory[call] = mixture_of(self._scale_of(state), self.weight, self.mix.target, dtype)
        return self.mix_memory[call]

    def _of_columns(self, x: Tensor, grad_scale: float) -> Tensor:
        """By the columns that this call keeps; together with the layers that read the same x, where a pool has drawn
        all of their masks."""
        jointly, found = self.mix_jointly, None
        form = (self.mix.p, grad_scale, self.mix_kept_only)
        if jointly is not None and self.mix_drawn is not None:
            found = jointly.output(self, x, lambda: self._of_all(x, jointly, form))
        own = self.layer_of(self.columns())  # also where the output is there: this is the layer's call
        if found is None:
            (found,) = column_linears(x, [own], *form, self._given(x), _ready(self.mix_made, [own], x))
        return found

    def _of_all(self, x: Tensor, jointly: JointlyMixed, form: tuple[float, float, bool]) -> Sequence[Tensor] | None:
        layers = jointly.layers
        if any(each.mix_drawn is None or not each._is_mixing() or not self._is_like(each) for each in layers):
            return None
        parts = [each.layer_of(each.mix_drawn) for each in layers]
        return column_linears(x, parts, *form, self._given(x), _ready(jointly.made, parts, x))

    def layer_of(self, columns: Columns) -> Layer:
        """With the mask of a call."""
        return Layer(self.weight, self.bias, self.mix.target, columns, self._kept_gradient(columns))

    def grad_scale(self) -> float:
        """c, the factor on the gradient of a kept column."""
        return 1.0 if self.mix.gradient == "paper" or self.mix.p == 1.0 else 1.0 / (1.0 - self.mix.p)

    def _kept_gradient(self, columns: Columns) -> KeptGradient | None:
        """Only for the pool's mask: the optimiser reads it by that one."""
        return self.mix_gradient if columns is self.mix_drawn else None

    def _is_like(self, other: MixedLinear) -> bool:
        """Whether both are mixed alike."""
        mine, its = (
            (each.mix.p, each.mix.gradient, each.mix_kept_only, each.bias is None, each.in_features, each.weight.dtype)
            for each in (self, other)
        )
        return mine == its

    def _given(self, x: Tensor) -> Handed | None:
        """x as the layer before has left it in autocast's type, if it has."""
        return None if self.mix_inputs is None else self.mix_inputs.get(x, product_type(x))


def _ready(made: Made | None, layers: Sequence[Layer], x: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """W' and biases of these layers, if they lie ready."""
    return (made.weight, made.bias) if made is not None and made.is_of(layers, product_type(x)) else None


class MixedConv1D(Mixed, nn.Module):
    """GPT-2's Conv1D: a linear layer that keeps its weight as [in, out]."""

    weight: Tensor
    bias: Tensor
    nf: int

    def _count(self) -> int:
        return self.weight.shape[0]

    def _spread(self, noise: Tensor) -> Tensor:
        return noise.unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.mixed_weight(self.weight) if self._is_mixing() else self.weight
        shape = (*x.shape[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), weight).view(shape)


class MixedEmbedding(Mixed, nn.Embedding):
    """An input neuron is a token: its outgoing weights are a row. Only the rows that are looked up are mixed."""

    def _count(self) -> int:
        return self.num_embeddings

    def _spread(self, noise: Tensor) -> Tensor:
        return noise.unsqueeze(1)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = super().forward(tokens)
        if not self._is_mixing():
            return rows
        mix_ = self.mix
        index = tokens.unsqueeze(-1)
        if mix_.mask == "element":
            index = index * self.embedding_dim + torch.arange(self.embedding_dim, device=tokens.device)
        scale = mix_.noise(self._next_state(), index)
        return mix(rows, functional.embedding(tokens, mix_.target), scale, mix_.p, mix_.gradient)


class _MixedConv(Mixed):
    """An input neuron is an input channel; with groups, channel c feeds the rows of its own group only."""

    in_channels: int
    out_channels: int
    groups: int
    weight: Tensor
    bias: Tensor | None
    _conv_forward: Callable[..., Tensor]

    def _count(self) -> int:
        return self.in_channels

    def _spread(self, noise: Tensor) -> Tensor:
        by_group = noise.view(self.groups, 1, -1).expand(-1, self.out_channels // self.groups, -1)
        return by_group.reshape(self.out_channels, -1, *[1] * (self.weight.dim() - 2))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.mixed_weight(self.weight) if self._is_mixing() else self.weight
        return self._conv_forward(x, weight, self.bias)


class MixedConv1d(_MixedConv, nn.Conv1d):
    pass


class MixedConv2d(_MixedConv, nn.Conv2d):
    pass


class MixedMultiheadAttention(Mixed, nn.MultiheadAttention):
    """Mixes in_proj_weight, with own masks for q, k and v unless they are shared; out_proj is a MixedLinear beside it.

    torch's attention reads its weights itself instead of calling out_proj, hence the explicit functional call.
    """

    def _count(self) -> int:
        return self.embed_dim * (1 if self.mix_shared else 3)

    def _spread(self, noise: Tensor) -> Tensor:
        return noise.view(-1, 1, self.embed_dim).expand(3, self.embed_dim, -1).reshape(3 * self.embed_dim, -1)

    mix_shared: bool = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not self._is_mixing():
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        batched = query.dim() == 3
        if self.batch_first and batched:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        out_proj = self.out_proj
        out, weights = functional.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.mixed_weight(self.in_proj_weight),
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            out_proj.mixed_weight(out_proj.weight) if isinstance(out_proj, MixedLinear) else out_proj.weight,
            out_proj.bias,
            training=True,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (out.transpose(0, 1) if self.batch_first and batched else out), weights


def mixed_class(module: nn.Module) -> type[Mixed] | None:
    """The class that mixes this module, or None. Only modules that run torch's own forward: a subclass that overrides
    it may do anything with its weight."""
    if isinstance(module, Mixed):
        return type(module)
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return MixedConv1D
    plain: dict[Any, type[Mixed]] = {
        nn.Linear.forward: MixedLinear,
        nn.Embedding.forward: MixedEmbedding,
        nn.Conv1d.forward: MixedConv1d,
        nn.Conv2d.forward: MixedConv2d,
        nn.MultiheadAttention.forward: MixedMultiheadAttention,
    }
    return plain.get(type(module).forward)


def weight_name(module: nn.Module) -> str:
    return "in_proj_weight" if isinstance(module, nn.MultiheadAttention) else "weight"


def mix_layer_(module: nn.Module, settings: Mix, key: int, shared: bool = False) -> None:
    """Put the mixing class on a plain layer."""
    cls = mixed_class(module)
    if cls is None:
        raise SteadytuneError(f"{type(module).__name__} cannot be mixed.")
    state: Any = module  # attributes that only a mixed layer has
    state.mix_plain_class = type(module)
    state.mix = settings
    state.mix_shared = shared
    state.mix_calls = deque(maxlen=REMEMBERED_CALLS)
    state.mix_repeated = (None, 0)
    state.register_buffer("mix_state", new_counter(key).to(settings.target.device), persistent=False)
    module.__class__ = cls  # type: ignore[assignment]


def mixed_layers(model: nn.Module) -> Iterator[tuple[str, Mixed]]:
    for name, module in model.named_modules():
        if isinstance(module, Mixed):
            yield name, module


def unmix_(model: nn.Module) -> None:
    """Give every mixed layer its own class back. The weights stay."""
    for _, module in list(mixed_layers(model)):
        layer: Any = module
        layer.__class__ = layer.mix_plain_class
        for name in [name for name in vars(layer) if name == "mix" or name.startswith("mix_")]:
            del vars(layer)[name]
        del layer.mix_state
        layer._non_persistent_buffers_set.discard("mix_state")
