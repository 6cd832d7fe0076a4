"""Models of different seeds joined (R-Drop's table 5): ensembles that predict together, and averaged weights.

    P(y|x) = 1/k Σ_i P_i(y|x)  at every step of the beam search;        w̄ = 1/k Σ_i w_i

The models are those that a study has kept. In a beam search the first model is asked as always, and a processor of its
scores asks the others about the same prefixes: rows of one sentence stay together, so row r belongs to sentence r //
beams. Which beam a row comes from is not told there, so the others read their prefixes anew at every step; in a greedy
search, where rows stay what they are, they remember them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from steadytune.errors import SteadytuneError
from steadytune.papers.catalogue import Cell
from steadytune.papers.catalogue.rdrop_controls import IWSLT
from steadytune.papers.settings import Setting

if TYPE_CHECKING:
    from steadytune.study.results import StudyResults

FILE = "joined.json"
ENSEMBLES = "Transformer full-model deep ensembling"
AVERAGES = "Transformer full-model weight averaging (model)"


class JointModel(nn.Module):
    """Several encoder-decoders that write one text together."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        first: Any = self.models[0]
        joint = _JointScores(list(self.models)[1:], input_ids, attention_mask, options.get("num_beams", 1))
        return first.generate(input_ids=input_ids, attention_mask=attention_mask, logits_processor=[joint], **options)


class _JointScores:
    """What a search is told instead of the first model's scores: the log of the mean probability of all."""

    def __init__(self, others: Sequence[Any], input_ids: Tensor, attention_mask: Tensor, beams: int) -> None:
        self.others, self.mask = others, attention_mask.repeat_interleave(beams, 0)
        self.remembers = beams == 1
        self.past: list[Any] = [None for _ in others]  # what a model has read, as it keeps it
        read = [model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask) for model in others]
        self.read = [made.last_hidden_state.repeat_interleave(beams, 0) for made in read]

    def __call__(self, prefixes: Tensor, scores: Tensor) -> Tensor:
        from transformers.modeling_outputs import BaseModelOutput

        from steadytune.methods.ensemble import ensemble_logits

        logits = [scores]
        for number, (model, states) in enumerate(zip(self.others, self.read)):
            made = model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                attention_mask=self.mask,
                decoder_input_ids=prefixes[:, -1:] if self.remembers else prefixes,
                past_key_values=self.past[number],
                use_cache=self.remembers,
            )
            if self.remembers:
                self.past[number] = made.past_key_values
            logits.append(made.logits[:, -1])
        return ensemble_logits(logits).to(scores.dtype)


def join_models(setting: Setting, results: StudyResults) -> None:
    """Score ensembles and averages of the first 1, 2, ... models on the test rows; writes `joined.json`."""
    import torch

    from steadytune.engine.encode import encode
    from steadytune.engine.evaluate import Search, predict, score
    from steadytune.engine.saving import load_weights_, weights
    from steadytune.methods.averaging import average_weights
    from steadytune.study.data import located
    from steadytune.study.file import load_study
    from steadytune.study.folder import FILE as STUDY
    from steadytune.study.new_file import write_text

    folders = [setting.folder / "models" / trial.key for trial in results.trials if trial.status == "finished"]
    if not folders or joined_numbers(setting.folder):
        return
    study = load_study(setting.folder / STUDY)
    ((task, source),) = study.tasks.items()
    recipe = located(next(iter(study.groups.values()))[0].recipes[task], setting.folder)
    encoded = encode(source.load(setting.folder), recipe)
    split, search = encoded.splits["test"], Search(recipe.beams, recipe.length_penalty)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    models = [_loaded(folder).to(device) for folder in folders]

    def scored(model: nn.Module) -> float:
        return score(encoded.task, split, predict(model, encoded.encoder, split, search=search))

    found: dict[str, dict[str, float]] = {ENSEMBLES: {}, AVERAGES: {}}
    for number in range(1, len(models) + 1):
        name = f"{number} model{'s' * (number > 1)}"
        found[ENSEMBLES][name] = scored(models[0] if number == 1 else JointModel(models[:number]))
        mean = _loaded(folders[0]).to(device)
        load_weights_(mean, average_weights([weights(model) for model in models[:number]]))
        found[AVERAGES][name] = scored(mean)
    write_text(setting.folder / FILE, json.dumps(found, indent=2) + "\n")


def joined_numbers(folder: Path) -> Mapping[Cell, float]:
    """What `join_models` has left in the folder of its study."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {Cell(row, IWSLT, name): float(found[row][name]) for row in (ENSEMBLES, AVERAGES) for name in found[row]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SteadytuneError(
            f"{path} is damaged ({error!r}). Delete it, and run the experiment again: its models are joined anew."
        ) from error


def _loaded(folder: Path) -> nn.Module:
    from transformers import AutoModelForSeq2SeqLM

    from steadytune.models import quiet

    if not (folder / "config.json").is_file():
        raise SteadytuneError(f"{folder} has no model any more: run the experiment again with another --out.")
    with quiet():
        model: nn.Module = AutoModelForSeq2SeqLM.from_pretrained(folder, use_safetensors=True)
    return model.eval()
