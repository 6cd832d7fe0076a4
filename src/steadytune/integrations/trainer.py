"""The methods inside Hugging Face's Trainer: three lines of a script change, nothing else does.

    trainer = SteadyTrainer(model=model, args=args, train_dataset=train, eval_dataset=dev,
                            methods=[Reinit(layers=3), Mixout(p=0.7), RDrop(alpha=1.0)])

Each override below is one place of a run (methods/base.py), in the order in which Trainer reaches them. With no methods
every override is Trainer's own, bit for bit.

Caveat: Trainer takes it that a model which accepts any keyword divides its loss by the `num_items_in_batch` it gets.
BERT and most classifiers accept it and take the plain mean, so that k micro-batches, or k processes, make loss and
gradient k times too large (transformers 5.17 to 5.22). With methods that does not happen: every loss is the mean over
its micro-batch, weighed by the share that the micro-batch has in the step.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from steadytune.apply import Applied, apply_
from steadytune.errors import SteadytuneError
from steadytune.integrations.trainer_conflicts import conflicts, finishing, too_few_checkpoints
from steadytune.methods.base import Length, Method, Moment, ParamGroup, check_methods
from steadytune.methods.loss import IGNORED, kept, kind_of, logits_of
from steadytune.rng import Streams

try:
    from accelerate.utils import broadcast
except ModuleNotFoundError as error:
    message = "SteadyTrainer needs accelerate, as Trainer itself does: pip install 'steadytune[trainer]'."
    raise ModuleNotFoundError(message, name="accelerate") from error

STATE_FILE = "steadytune.json"


class SteadyTrainer(Trainer):
    """`transformers.Trainer` with `methods`, a method or a list of them. All else is as in Trainer.

    Randomness of the methods comes from `streams`; by default every stream has the number `args.seed`.
    """

    optimizer: Any
    applied: Applied | None = None
    _steps_per_epoch: int | None = None
    _hooked: Any = None  # the optimiser that has the methods' step hooks
    _saved: list[Path]  # this run's checkpoints, oldest first

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *trainer_args: Any,
        methods: Method | Iterable[Method] = (),
        streams: Streams | None = None,
        **trainer_kwargs: Any,
    ) -> None:
        self.methods, self._streams, self._saved = check_methods(methods), streams, []
        if self.methods:
            args = self._adjusted(args or TrainingArguments("tmp_trainer"))
        super().__init__(model, args, *trainer_args, **trainer_kwargs)
        if self.methods:
            for conflict in conflicts(self, self.methods):
                raise SteadytuneError(conflict)
            if self.model_init is None:
                self.applied = self._apply_(self.model)

    def _adjusted(self, args: TrainingArguments) -> TrainingArguments:
        args = copy.copy(args)  # the caller's own stay as they are
        for item in self.methods:
            args.per_device_train_batch_size = item.batch_size(args.per_device_train_batch_size)
        return args

    # weights, model: on the pretrained weights, before any checkpoint is loaded

    def call_model_init(self, trial: Any = None) -> nn.Module:
        model = super().call_model_init(trial)
        if self.methods:
            self.applied = self._apply_(model)
        return model

    def _apply_(self, model: nn.Module) -> Applied:
        if self.args.world_size > 1:  # each process drew its own head; DDP will take the first's, and so must targets
            for parameter in model.parameters():
                parameter.data.copy_(broadcast(parameter.data.to(self.args.device)))
        seed = self.args.seed
        return apply_(model, self.methods, streams=self._streams or Streams(init=seed, order=seed, noise=seed))

    # schedule: how long

    def set_initial_training_values(self, args: TrainingArguments, *rest: Any) -> tuple[Any, ...]:
        values = super().set_initial_training_values(args, *rest)
        if self.applied is None:
            return values
        length = self.applied.length(steps=values[-1], steps_per_epoch=values[1])
        self._steps_per_epoch = length.steps_per_epoch
        if length.steps != values[-1]:
            args = copy.copy(args)
            args.max_steps = length.steps
            values = super().set_initial_training_values(args, *rest)
        for item in finishing(self.methods):
            too_few = too_few_checkpoints(self, item, values[-1], values[1])
            if too_few is not None:  # better now than after hours of training
                raise SteadytuneError(too_few)
        return values

    # groups, optimizer

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        given = self.optimizer is not None
        super().create_optimizer(model)
        if self.applied is not None:
            if not given:
                self.optimizer = self._refined(self.applied, self.optimizer)
            plain = getattr(self.optimizer, "optimizer", self.optimizer)  # a second train() finds accelerate's wrapper
            if plain is not self._hooked:
                self._hooked = self.applied.attach_(plain)
        return self.optimizer

    def _refined(self, applied: Applied, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        groups: list[ParamGroup] = applied.refine([dict(group) for group in optimizer.param_groups])
        regrouped = any(item.place == "groups" for item in self.methods)
        if regrouped:
            groups.sort(key=lambda group: -group["lr"])  # Trainer logs the first one's lr: let it be the one asked for
        shared = {"params", "lr", "weight_decay", "name"}  # what is left are settings of this optimiser's class
        built = applied.build_optimizer(
            [{key: value for key, value in group.items() if key in shared} for group in groups], self.args.learning_rate
        )
        if built is None and regrouped:
            optimizer.param_groups.clear()
            for group in groups:
                optimizer.add_param_group(group)
        return built or optimizer

    # schedule: the learning rate

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        applied = self.applied
        length = Length(num_training_steps, self._steps_per_epoch or num_training_steps)
        if self.lr_scheduler is None and applied is not None and applied.lr_factor(0, length) is not None:
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, lambda step: applied.lr_factor(step, length) or 0.0
            )
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    # loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        if self.applied is None or self.compute_loss_func is not None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs.get("labels")  # Trainer's label smoothing takes them out
        made = self.applied.own_loss(model, inputs, self._moment())
        loss, outputs = made or super().compute_loss(model, inputs, return_outputs=True)
        if labels is not None and num_items_in_batch is not None and self.model_accepts_loss_kwargs:
            # Trainer adds up what the micro-batches return, and DDP takes the mean over processes.
            share = torch.as_tensor(self._items(model, outputs, labels) / num_items_in_batch, device=loss.device)
            if self.args.average_tokens_across_devices:
                share = share * self.accelerator.num_processes
            loss = torch.where(share > 0, loss * share, 0.0)  # a micro-batch without a label has no mean
        return (loss, outputs) if return_outputs else loss

    def _items(self, model: nn.Module, outputs: Any, labels: Tensor) -> Any:
        """How many labels the loss is the mean over; in a task that we do not know, as Trainer counts them."""
        try:
            counted = kept(labels, kind_of(model, logits_of(outputs), labels))
        except SteadytuneError:
            counted = (labels[..., 1:] if self._loss_shifts_labels else labels) != IGNORED
        return labels.numel() if counted is None else counted.sum()

    def _moment(self) -> Moment:
        group = self.optimizer.param_groups[0] if self.optimizer is not None else {}
        scale = group["lr"] / group["initial_lr"] if group.get("initial_lr") else 1.0
        return Moment(self.state.global_step, max(1, self.state.max_steps), scale)

    # checkpoints: which masks come next, and which weights they are mixed with

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.applied is None:
            return
        folder = Path(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        self._saved = [*(other for other in self._saved if other != folder), folder]
        if self.args.should_save:
            state = {**self.applied.state_dict(), "checkpoints": [saved.name for saved in self._saved]}
            (folder / STATE_FILE).write_text(json.dumps(state, indent=1), encoding="utf-8")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self._resume(Path(resume_from_checkpoint))  # first: what is refused leaves the model as it was
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _resume(self, checkpoint: Path) -> None:
        file = checkpoint / STATE_FILE
        if not file.is_file():
            if self.applied is None:
                return  # a checkpoint of Trainer, in what is Trainer
            raise SteadytuneError(
                f"{checkpoint} has no {STATE_FILE}, so no SteadyTrainer with methods wrote it. Resume it with the "
                "trainer that wrote it, or start from its weights without resume_from_checkpoint."
            )
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
            names = [item["method"] for item in state["methods"]]
            saved = [checkpoint.parent / Path(name).name for name in state["checkpoints"]]
            if not {"noise", "anchors"} <= state.keys():
                raise KeyError("noise, anchors")
        except (ValueError, KeyError, TypeError) as error:
            raise SteadytuneError(f"{file} is damaged: {error!r}. Resume from another checkpoint.") from error
        if self.applied is None:
            raise SteadytuneError(f"{checkpoint} was made with the methods {', '.join(names)}; this run has none.")
        for part in ("optimizer.pt", "scheduler.pt", "rng_state*.pth"):  # Trainer would go on without, to other numbers
            if not any(checkpoint.glob(part)):
                raise SteadytuneError(f"{checkpoint} has no {part}, so the run cannot go on as it would have.")
        self.applied.load_state_dict(state)
        self._saved = saved

    # finish

    def train(self, *train_args: Any, **train_kwargs: Any) -> Any:
        self._saved = []
        output = super().train(*train_args, **train_kwargs)
        for item in finishing(self.methods):
            self.accelerator.wait_for_everyone()  # the main process may still be writing the last checkpoint
            averaged = item.finish([str(folder) for folder in self._saved if folder.is_dir()])
            _replace_weights_(self.model, averaged)
        return output


def _replace_weights_(model: Any, weights: dict[str, Tensor]) -> None:
    """Load all of them, or none. A checkpoint holds tied weights once."""
    here = model.state_dict()
    covered = {here[name].data_ptr() for name in weights if name in here}
    odd = [name for name in weights if name not in here]
    odd += [name for name, tensor in here.items() if name not in weights and tensor.data_ptr() not in covered]
    if odd:
        raise SteadytuneError(
            f"The checkpoints and the model do not hold the same weights; the first odd one is {odd[0]}."
        )
    model.load_state_dict(weights, strict=False)
