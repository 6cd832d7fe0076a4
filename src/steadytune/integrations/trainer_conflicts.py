"""What a script asks of Trainer that a method would override, or that would go wrong, without a word.

Each is a sentence; `SteadyTrainer` raises the first before anything is touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from steadytune.methods.base import Method

# What Trainer reads no longer where a method replaces the thing, with the values that ask for nothing.
_UNREAD: dict[str, dict[str, tuple[Any, ...]]] = {
    "optimizer": {
        "optim": ("adamw_torch", "adamw_torch_fused"),
        "optim_args": (None,),
        "adam_beta1": (0.9,),
        "adam_beta2": (0.999,),
        "adam_epsilon": (1e-8,),
    },
    "schedule": {"lr_scheduler_type": ("linear",), "lr_scheduler_kwargs": (None, {}), "warmup_steps": (0,)},
    "loss": {"label_smoothing_factor": (0.0,)},
}


def finishing(methods: Sequence[Method]) -> list[Method]:
    """Those that have something to do when the run has ended."""
    return [item for item in methods if item.place == "finish" and not item.is_null()]


def conflicts(trainer: Any, methods: Sequence[Method]) -> Iterator[str]:
    """Sentences about what an initialised Trainer and these methods cannot both have."""
    owner = {thing: type(item).__name__.removesuffix("Method") for item in methods for thing in item.replaces()}
    yield from _of_the_machine(trainer)
    for thing in _UNREAD.keys() & owner.keys():
        for name, silent in _UNREAD[thing].items():
            value = getattr(trainer.args, name)
            if value not in silent:
                yield (
                    f"{owner[thing]} replaces the {thing}, so args.{name}={value!r} would be ignored. Leave it out of "
                    f"the arguments, and set it in {owner[thing]}(...)."
                )
    own_class = getattr(trainer, "optimizer_cls_and_kwargs", None) is not None
    for thing in ("optimizer", "learning rate per layer"):
        if thing in owner and (trainer.optimizer is not None or (own_class and thing == "optimizer")):
            yield f"{owner[thing]} sets the {thing}, but the trainer was given an optimizer. Keep one of them."
    if "schedule" in owner and trainer.lr_scheduler is not None:
        yield f"{owner['schedule']} is a schedule, but the trainer was given one in `optimizers`. Keep one of them."
    if "loss" in owner and trainer.compute_loss_func is not None:
        yield f"{owner['loss']} computes the loss, so compute_loss_func would be ignored. Keep one of them."
    for item in finishing(methods):
        yield from _of_finishing(trainer, item)


def _of_the_machine(trainer: Any) -> Iterator[str]:
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    if sharded or getattr(trainer.accelerator, "parallelism_config", None) is not None:
        yield (
            "SteadyTrainer does not run with FSDP, DeepSpeed or a parallelism_config: they cut the weights into "
            "pieces, which methods would not find. Start it with DDP, the default of `accelerate launch`."
        )
    if trainer.args.n_gpu > 1:
        yield (
            "SteadyTrainer does not run under DataParallel (several GPUs in one process). Start it with `torchrun` or "
            "`accelerate launch`, one process per GPU, or make one GPU visible."
        )


def _of_finishing(trainer: Any, item: Any) -> Iterator[str]:
    args = trainer.args
    if item.name == "ensemble":
        yield "Ensemble joins the models of several runs: train them, then call Ensemble(...).finish(models)."
        return
    if args.load_best_model_at_end:
        yield f"{item} and load_best_model_at_end both say which weights the run ends with. Keep one of them."
    if args.save_strategy == "no":
        yield f"{item} averages checkpoints, and save_strategy='no' keeps none. Set it to 'epoch' or 'steps'."
    if args.save_total_limit is not None and args.save_total_limit < item.last:
        yield f"{item} averages {item.last} checkpoints, but save_total_limit={args.save_total_limit} keeps fewer."
    if hasattr(trainer.model, "peft_config"):
        yield (
            f"{item} cannot average a PEFT adapter: the mean of its factors is not the mean of the models. Merge the "
            "checkpoints of the run first (merge_and_unload), then call average_checkpoints."
        )


def too_few_checkpoints(trainer: Any, item: Any, steps: int, steps_per_epoch: int) -> str | None:
    """Whether a run of so many steps will leave fewer than are to be averaged; a callback of the script's own may save
    whenever it likes."""
    args = trainer.args
    if any(not type(each).__module__.startswith("transformers.") for each in trainer.callback_handler.callbacks):
        return None
    if args.save_strategy == "epoch":
        every = steps_per_epoch
    elif args.save_strategy == "steps":
        every = args.save_steps if args.save_steps >= 1 else math.ceil(steps * args.save_steps)
    else:
        return None
    count = math.ceil(steps / (every or steps))  # the last step is saved whatever its number
    if count >= item.last:
        return None
    return (
        f"{item} averages {item.last} checkpoints, and a run of {steps} steps that saves every {every} keeps {count}. "
        "Save more often, or average fewer."
    )
