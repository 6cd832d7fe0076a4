"""How one weight is mixed with its target while it trains: the mask, its replay, and the mixture itself.

One noise source per weight (rng.py): the mask is a function of (key, call number), so it needs no generator, and a
forward that gradient checkpointing runs again can be given the mask of the forward it repeats.

The target is a plain attribute and not a buffer, because DistributedDataParallel would send every buffer over the
network before each forward; the counter is a buffer, because that very broadcast makes all ranks draw the same mask.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadytune.errors import SteadytuneError
from steadytune.kernels.handed_on import Jointly, SharedCast
from steadytune.kernels.kept_gradients import KeptGradient
from steadytune.kernels.mixout import Mixture
from steadytune.kernels.mixout_masks import Columns, Rule, draw, draw_next_, new_rule
from steadytune.kernels.mixout_table import Made
from steadytune.rng import normal, random_bits

REMEMBERED_CALLS = 256


@dataclass
class Mix:
    """How one weight of a layer is mixed."""

    target: Tensor
    p: float
    mask: str = "neuron"  # "neuron": one draw per input neuron; "element": one per weight
    distribution: str = "bernoulli"  # or "gaussian", "variational"
    gradient: str = "exact"  # or "paper"
    offset: int = 0  # first draw of this process in the stream; 0 everywhere makes all ranks draw the same mask

    def noise(self, state: Any, index: Tensor) -> Tensor:
        """s = M/μ for the draws named by `index`: E s = 1, Var s = p/(1-p) for every distribution."""
        if self.p == 1.0:
            return torch.zeros(index.shape, dtype=self.target.dtype, device=index.device)
        if self.distribution == "bernoulli":
            kept = random_bits(state, index + self.offset) < round((1.0 - self.p) * 2.0**32)
            return kept.to(self.target.dtype).div_(1.0 - self.p)
        return (1.0 + math.sqrt(self.p / (1.0 - self.p)) * normal(state, index + self.offset)).to(self.target.dtype)


def mix(weight: Tensor, target: Tensor, scale: Tensor, p: float, gradient: str) -> Tensor:
    """Φ(w; u, M) = u + (M/μ)(w - u) = lerp(u, w, M/μ); its gradient to w is M/μ, or M where the paper's is asked
    for."""
    if gradient == "paper":
        constant = weight.detach()
        weight = constant + (1.0 - p) * (weight - constant)  # the value of w, and (1 - p) times its gradient
    return torch.lerp(target, weight, scale)


def _in_backward() -> bool:
    """Whether this runs inside a backward pass: gradient checkpointing repeats a forward there."""
    return torch._C._current_graph_task_id() != -1


class Call(NamedTuple):
    """One forward of a mixed layer, as gradient checkpointing needs to find it again."""

    state: Any
    sequence: int  # number that the next autograd node would have got
    segment: weakref.ref[Any] | None  # of the checkpointed segment that it ran in, if any


class JointlyMixed(Jointly):
    """Mixed layers that read the same tensor."""

    made: Made | None = None  # their mixed weights, one below the other


class Mixed:
    """What every mixed layer shares. A mixin for classes that are put on an existing module."""

    is_mixed = True
    training: bool
    mix: Mix
    mix_state: Tensor  # int64 [3]: key low, key high, calls so far
    mix_calls: deque[Call]  # recent calls, for gradient checkpointing
    mix_repeated: tuple[Any, int]  # (which recomputation, how many calls of it are done)
    mix_drawn: Columns | None = None  # the mask that a MaskPool has drawn for this layer
    mix_uses: int = 0  # how many forwards may still use it
    mix_kept_only: bool = False  # whether masks are known to fit their capacity (`use_kept_columns_`)
    mix_jointly: JointlyMixed | None = None  # with the layers that read the same tensor (mask_pool.py)
    mix_made: Made | None = None  # the mixed weight, where a MaskPool has made it
    mix_gradient: KeptGradient | None = None  # where the gradient of kept columns is to stay
    mix_memory: dict[Any, Mixture] | None = None  # by call and type; an engine's, for as long as a step (masks.py)
    mix_inputs: SharedCast | None = None  # where the layer before may have left its output in autocast's type

    @property
    def target(self) -> Tensor:
        return self.mix.target

    @property
    def p(self) -> float:
        return self.mix.p

    def calls(self) -> int:
        return int(self.mix_state[2])

    def set_calls_(self, calls: int) -> None:
        self.mix_state[2] = calls

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """`.to()`, `.half()`, `.cuda()` move the target along with the weight."""
        super()._apply(fn, recurse)  # type: ignore[misc]
        self.mix.target = fn(self.mix.target)
        # A pool's masks stay where they were.
        self.mix_drawn = self.mix_made = self.mix_gradient = self.mix_memory = None
        return self

    def _is_mixing(self) -> bool:
        return self.training and self.mix.p > 0.0

    def _next_state(self) -> Any:
        """The state of this call's draw, and the counter one further; in a recomputation, the state of the call
        repeated."""
        if torch.compiler.is_compiling():
            state: Any = self.mix_state.clone()
            self.mix_state[2] += 1
            return state
        if _in_backward():
            return self._repeated_state()
        # On a CPU three Python ints are cheaper than tensor arithmetic; on a GPU reading them would wait for the
        # device.
        state = tuple(self.mix_state.tolist()) if self.mix_state.device.type == "cpu" else self.mix_state.clone()
        self._remember(state)
        self.mix_state[2] += 1
        return state

    def _remember(self, state: Any) -> None:
        """Note a call that gradient checkpointing may repeat.

        It runs its forwards without gradients or under hooks. No other call is noted on a device, so that no tensor of
        a CUDA graph's memory is held after its capture; three ints of a CPU cost nothing.
        """
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if isinstance(state, Tensor) and not hooks and torch.is_grad_enabled():
            return
        segment = weakref.ref(hooks[1]) if hooks else None
        self.mix_calls.append(Call(state, torch.autograd._get_sequence_nr(), segment))

    def _repeated_state(self) -> Any:
        """Gradient checkpointing runs a forward again; it must see the mask of the forward that it repeats.

        Autograd numbers its nodes as they are made, so the node under evaluation tells which forward that was. The
        reentrant kind makes one node before it runs its segment: the calls repeated are the ones right after it. The
        other kind is asked for by a node inside its segment: the last call before that node belongs to the segment,
        and so do all calls that ran under the same hooks. Within the segment calls come in their old order.
        """
        node = torch._C._current_autograd_node()
        number = node._sequence_nr()
        if node.name() == "CheckpointFunctionBackward":
            calls = [call for call in self.mix_calls if call.sequence > number]
        else:
            last = next((call for call in reversed(self.mix_calls) if call.sequence <= number), None)
            segment = last.segment() if last is not None and last.segment is not None else None
            calls = [
                call for call in self.mix_calls if segment is not None and call.segment and call.segment() is segment
            ]
        where = (torch._C._current_graph_task_id(), number)
        done = self.mix_repeated[1] if self.mix_repeated[0] == where else 0
        self.mix_repeated = (where, done + 1)
        if done >= len(calls):
            raise SteadytuneError(
                f"{type(self).__name__} runs inside a backward pass, but not as the repetition of one of its last "
                f"{REMEMBERED_CALLS} forwards, so its mask is unknown. Call backward sooner after forward."
            )
        return calls[done].state

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles start with no calls to repeat and no pool: those belong to the original."""
        return {
            **vars(self),
            "mix_calls": deque(maxlen=REMEMBERED_CALLS),
            "mix_drawn": None,
            "mix_jointly": None,
            "mix_inputs": None,
            "mix_made": None,
            "mix_gradient": None,
            "mix_memory": None,
        }

    def _count(self) -> int:
        """How many input neurons the weight has; one mask entry each."""
        raise NotImplementedError

    def _spread(self, noise: Tensor) -> Tensor:
        """One number per input neuron, shaped to broadcast against the weight."""
        raise NotImplementedError

    def rule(self) -> Rule:
        """How the kept columns of a Bernoulli mask by neuron are drawn."""
        return new_rule(self._count(), self.mix.p, self.mix.offset)

    def columns(self) -> Columns:
        """The columns that this call keeps, for a Bernoulli mask by neuron; nothing waits for the device."""
        if self.mix_drawn is not None:
            return self._pooled()
        if _in_backward():
            return draw(self._repeated_state(), self.rule())
        columns, state = draw_next_(self.mix_state, self.rule())
        self._remember(state)
        return columns

    def _pooled(self) -> Columns:
        """The mask of the pool. A forward that gradient checkpointing repeats sees it again; another forward must not:
        it would be a second call with the mask of the first."""
        assert self.mix_drawn is not None
        if not torch.compiler.is_compiling() and not _in_backward():
            if not self.mix_uses:
                raise SteadytuneError(
                    f"A {type(self).__name__} runs more than once on one draw of the mask pool. Draw again before each "
                    "forward, or call clear_() on the pool: then every call draws a mask of its own."
                )
            self.mix_uses -= 1
        return self.mix_drawn

    def scale(self) -> Tensor:
        """M/μ of this call, broadcastable to the weight."""
        if self.mix_drawn is not None:
            kept = self._pooled().place >= 0
            return self._spread(kept.to(self.mix.target.dtype).div_(1.0 - self.mix.p))
        return self._scale_of(self._next_state())

    def _scale_of(self, state: Any) -> Tensor:
        weight = self.mix.target
        if self.mix.mask == "element":
            index = torch.arange(weight.numel(), device=weight.device)
            return self.mix.noise(state, index).view(weight.shape)
        return self._spread(self.mix.noise(state, torch.arange(self._count(), device=weight.device)))

    def mixed_weight(self, weight: Tensor) -> Tensor:
        return mix(weight, self.mix.target, self.scale(), self.mix.p, self.mix.gradient)

    def _local_noise(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Local reparameterisation (Kingma et al. 2015): the sum of independent Gaussian weight noise, drawn at the
        output.

        One fresh draw per example and output unit instead of one per weight: the same distribution for each output, and
        gradients of far lower variance. The small constant keeps the square root differentiable at w = u.
        """
        noise = normal(self._next_state(), torch.arange(mean.numel(), device=mean.device)).view(mean.shape)
        alpha = self.mix.p / (1.0 - self.mix.p)
        return mean + torch.sqrt(alpha * variance + 1e-16) * noise.to(mean.dtype)
