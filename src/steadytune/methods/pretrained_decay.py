"""Decay toward the pretrained weights: what fine-tuning started from keeps pulling.

    decoupled    w <- w - α λ (w - ŵ)          before each step (few-sample paper, section 7.1; V17)
    l2           loss + (λ/2) ||w - ŵ||²       wdecay(w_pre, λ) of the mixout paper, section 2 (Wiese et al. 2017; M7)

ŵ are the weights when the method is applied. The head and re-initialised layers have no pretrained value and are left
out, as are biases and norms.

Relations: `WeightDecay` with ŵ instead of 0. Mixout(w_pre, p) pulls the same way, with a strength that follows the
loss's curvature; the mixout paper also combines the two (M20).
Caveats: public code takes ŵ when the optimiser is built, after re-init, and pulls the new head to its random start
because of a branch that is never true (D10); here neither happens. ŵ is one more copy of the weights in memory, in no
checkpoint: build the model from the same pretrained weights before resuming. The groups' usual weight decay stays as
it is; the mixout paper sets it to 0 (section 5).
"""

from __future__ import annotations

from steadytune.errors import NoEffect
from steadytune.methods.base import MIXOUT, Method, Site, StepHook, check_at_least, check_choice, method
from steadytune.methods.weight_decay import FORMS, DecayHook, Form, decayed_names


def anchored_names(site: Site) -> list[str]:
    """The parameters that have a pretrained value to go back to: trainable, decayed, and not fresh."""
    names = decayed_names(site.model) - site.fresh
    return [name for name, p in site.model.named_parameters() if name in names and p.requires_grad]


@method("pretrained_decay", place="optimizer", paper=MIXOUT, items="M7 V17", null={"decay": 0.0})
class PretrainedDecay(Method):
    """Decay the weights toward their pretrained values; head, re-initialised layers, biases and norms stay free."""

    decay: float = 0.01  # λ; 0 is no decay
    form: Form = "decoupled"  # "decoupled" (a step toward ŵ, times the learning rate) or "l2" (added to the gradient)

    def __post_init__(self) -> None:
        check_at_least("decay", self.decay, 0.0, "PretrainedDecay")
        check_choice("form", self.form, FORMS, "PretrainedDecay")

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.is_null() else frozenset({"decay toward pretrained"})

    def check(self, site: Site) -> None:
        if not self.is_null() and not anchored_names(site):
            raise NoEffect(
                f"PretrainedDecay: nothing in {type(site.model).__name__} is left to decay. The head, re-initialised "
                "layers, frozen parameters, biases and norms are not pulled toward pretrained values."
            )

    def step_hook(self, site: Site) -> StepHook | None:
        if self.is_null():
            return None
        self.check(site)  # again: re-init may have left nothing
        names = anchored_names(site)
        named = dict(site.model.named_parameters())
        anchors = {name: named[name].detach().clone() for name in names}
        return DecayHook(site.model, names, self.decay, self.form, anchors, takes_over=False, owner="PretrainedDecay")
