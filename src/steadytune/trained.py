"""A fitted classifier or regressor, loaded to predict: weights, tokenizer, label names, and what it was trained on.

Any Hugging Face directory with a sequence-classification head will do; one that `fit` wrote also says which columns it
read and how many tokens of a row. Weights are safetensors: nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn

from steadytune.engine.encode import Encoder
from steadytune.engine.evaluate import Predictions, predict
from steadytune.errors import SteadytuneError
from steadytune.hub import online
from steadytune.models import position_limit, quiet, source
from steadytune.recipe import Recipe
from steadytune.tasks.base import Rows, Source, Task
from steadytune.tasks.metrics import DEFAULT_METRIC

FACTS = "steadytune.json"  # beside the weights: the task and the length, for `predict`
_MOST_TOKENS = 512  # where neither the model nor the tokenizer says


@dataclass(frozen=True, eq=False)
class Trained:
    """A model in eval mode, and how rows are turned into what it reads."""

    model: nn.Module
    encoder: Encoder

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes in the order of the model's outputs; none for a number."""
        return self.encoder.task.labels

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns it was trained on; none where that is not known."""
        return self.encoder.task.text_columns

    def predict(self, texts: Sequence[Sequence[str]]) -> Predictions:
        """For texts, or pairs of texts, in their order."""
        rows = Rows(Source("the given texts", np.arange(1, len(texts) + 1)), texts=[tuple(each) for each in texts])
        return predict(self.model, self.encoder, self.encoder.encode(rows))


def load_trained(
    directory: str | Path, *, device: str | None = None, max_length: int | None = None, trust_remote_code: bool = False
) -> Trained:
    """From a fit's directory, its model directory, or any Hugging Face name of a model with a classification head."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    where = source(Recipe(model=_model_directory(directory), trust_remote_code=trust_remote_code))
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    nowhere = not Path(where).is_dir() and not online()  # a mistyped directory; unasked, the hub is tried for long
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": nowhere}
    try:
        with quiet():
            config = AutoConfig.from_pretrained(where, **options)
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                where, config=config, use_safetensors=True, output_loading_info=True, **options
            )
            tokenizer = AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if nowhere:
            raise SteadytuneError(
                f"{directory} is neither a directory nor a model in the local cache, and the hub cannot be reached. "
                "Name the directory that fit wrote."
            ) from error
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SteadytuneError(f"{directory} cannot be loaded as a classifier: {first}") from error
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"])[:3])
        raise SteadytuneError(
            f"{directory} has no trained classification head ({missing} is not among its weights), so its predictions "
            "would be noise. Fit it first: steadytune fit FILE --model ..."
        )
    task, trained_length = _facts(Path(where), config)
    length = max_length or trained_length or _longest(config, tokenizer)
    limit = position_limit(config)
    if limit is not None and length > limit:
        raise SteadytuneError(f"max_length is {length}, but {directory} has positions for {limit} tokens only.")
    return Trained(model.eval().to(place), Encoder(task, tokenizer, length))


def _model_directory(given: str | Path) -> str:
    """The directory of a fit stands for the model in it."""
    folder = Path(given)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return str(given)
    if (folder / "model" / "config.json").is_file():
        return str(folder / "model")
    fit = (folder / "fit.json").is_file()
    hint = " The fit there has not finished: run its command again." if fit else ""
    raise SteadytuneError(f"{given} holds no model: there is no config.json in it.{hint}")


def _facts(where: Path, config: Any) -> tuple[Task, int | None]:
    """The task, and the length that rows were cut to: as `fit` wrote them down, or as far as the model itself says."""
    number = config.num_labels == 1 or config.problem_type == "regression"
    labels = () if number else tuple(str(config.id2label[index]) for index in range(config.num_labels))
    kind: Any = "regression" if number else "classification"
    columns: tuple[str, ...] = ()
    length = None
    if (where / FACTS).is_file():
        try:
            found = json.loads((where / FACTS).read_text(encoding="utf-8"))
            columns, length = tuple(map(str, found["task"]["text_columns"])), int(found["max_length"])
        except (ValueError, KeyError, TypeError) as error:
            raise SteadytuneError(f"{where / FACTS} is damaged: {error!r}. Delete it, and say --text.") from error
    return Task("predictions", kind, DEFAULT_METRIC[kind], labels, columns), length


def _longest(config: Any, tokenizer: Any) -> int:
    known = (position_limit(config), getattr(tokenizer, "model_max_length", None))
    return min([_MOST_TOKENS, *(value for value in known if isinstance(value, int) and value > 0)])
