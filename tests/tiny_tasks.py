"""A tiny model, a small task and a recipe of every kind, for tests of whole runs. No hub, no download.

`tiny_run("classification", folder)` -> (recipe, data): the recipe's model is saved under `folder` on first use.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from steadytune.engine.encode import Encoded, encode
from steadytune.recipe import Recipe
from steadytune.tasks.base import Data, Rows, Source, Task
from tiny import tiny

WORDS = [f"w{number}" for number in range(40)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # numbered as tiny.py has them: bos 0, pad 1, eos 2
KINDS = {
    "classification": ("bert", "ForSequenceClassification"),
    "regression": ("bert", "ForSequenceClassification"),
    "image": ("vit", "ForImageClassification"),
    "translation": ("bart", "ForConditionalGeneration"),
    "summarization": ("t5", "ForConditionalGeneration"),
    "language-model": ("gpt2", "LMHeadModel"),
}
METRICS = {
    "classification": "accuracy",
    "regression": "rmse",
    "image": "accuracy",
    "translation": "bleu",
    "summarization": "rouge_1",
    "language-model": "perplexity",
}


def tokenizer(pairs: bool = True) -> PreTrainedTokenizerFast:
    """Whole words; rows begin with <s> and end with </s>, as in RoBERTa."""
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*SPECIAL, *WORDS, "\n"])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if pairs else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **names)


def save_model(kind: str, folder: Path, **changes: Any) -> Path:
    """A directory as save_pretrained leaves it, with weights that are the same every time."""
    path = folder / kind
    if not path.exists():
        family, head = KINDS[kind]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if family == "t5":
                changes = {"num_decoder_layers": 3, **changes}  # generate() wants as many as the encoder has
            model = tiny(family, "Model" if "Classification" in head else head, **changes)
        model.save_pretrained(path)
        if kind != "image":
            tokenizer(pairs=family == "bert").save_pretrained(path)
    return path


def rows(kind: str, count: int, number: int = 0) -> Rows:
    """Rows that can be learned: the class is which half of the words is more frequent."""
    draw = random.Random(f"{kind} {number}")
    source = Source(f"{kind}-{number}", np.arange(1, count + 1))
    if kind == "image":
        labels = np.array([i % 3 for i in range(count)])
        pixels = np.array([[[draw.randrange(60) + 60 * label] * 8] * 8 for label in labels], dtype=np.uint8)
        return Rows(source, images=pixels, labels=labels)
    texts = [[draw.choice(WORDS) for _ in range(draw.choice([2, 3, 4, 5, 8, 12, 20]))] for _ in range(count)]
    low = np.array([sum(int(word[1:]) < 20 for word in text) / len(text) for text in texts])
    if kind == "classification":
        return Rows(source, [(" ".join(text),) for text in texts], labels=(low > 0.5).astype(np.int64))
    if kind == "regression":
        halves = [(" ".join(text[::2]), " ".join(text[1::2])) for text in texts]
        return Rows(source, halves, labels=low.astype(np.float64))
    if kind == "language-model":
        return Rows(source, [(" ".join(text),) for text in texts])
    return Rows(source, [(" ".join(text),) for text in texts], targets=[" ".join(text[:4]) for text in texts])


def tiny_data(kind: str, train: int = 44, other: int = 17) -> Data:
    labels = {"classification": ("high", "low"), "image": ("a", "b", "c")}.get(kind, ())
    columns = ("one", "two") if kind == "regression" else ("text",)
    task = Task(f"tiny-{kind}", kind, METRICS[kind], labels, columns)  # type: ignore[arg-type]
    return Data(task, rows(kind, train), rows(kind, other, 1), rows(kind, other, 2))


def tiny_recipe(kind: str, folder: Path, **changes: Any) -> Recipe:
    settings = {"model": str(save_model(kind, folder)), "lr": 1e-3, "batch_size": 8, "steps": 9, "max_length": 24}
    settings |= {"evaluations": 3, "max_target_length": 8, "beams": 2}
    if "epochs" in changes:
        del settings["steps"]
    return Recipe(**{**settings, **changes})  # type: ignore[arg-type]


def tiny_run(kind: str, folder: Path, other: int = 17, **changes: Any) -> tuple[Recipe, Encoded]:
    """`other`: rows of validation and of test."""
    recipe = tiny_recipe(kind, folder, **changes)
    return recipe, encode(tiny_data(kind, other=other), recipe)
