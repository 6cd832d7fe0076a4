"""Generated data in the forms of the public files, and tiny random models: all that a smoke run needs.

The rows can be learned, a little: the label says which half of the words a text has more of.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from steadytune.papers.materials.text_models import made_once, save_model, word_tokenizer
from steadytune.tasks.glue import TASKS

WORDS = [f"w{number}" for number in range(30)]
_LARGE_ROWS = 1100  # the loader takes 1,000 of a large task's rows to validate
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 40}
_WIDTH: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
_BERT: dict[str, Any] = {**_IDS, **_WIDTH, "num_hidden_layers": 4, "max_position_embeddings": 40}
_BART: dict[str, Any] = {
    **_IDS,
    **{
        f"{side}_{what}": number for side in ("encoder", "decoder") for what, number in (("layers", 3), ("ffn_dim", 32))
    },
    "d_model": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 40,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # name -> configuration, model, what makes it small
    "bert": ("BertConfig", "BertModel", _BERT),
    "roberta": ("RobertaConfig", "RobertaModel", _BERT),
    "electra": ("ElectraConfig", "ElectraModel", {**_BERT, "embedding_size": 16}),
    "xlnet": ("XLNetConfig", "XLNetModel", {**_IDS, "d_model": 16, "n_layer": 4, "n_head": 2, "d_inner": 32}),
    "bart": ("BartConfig", "BartModel", _BART),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {**_IDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}),
    "vit": (
        *("ViTConfig", "ViTModel"),
        {**_WIDTH, "num_hidden_layers": 3, "image_size": 8, "patch_size": 4, "num_channels": 1},
    ),
}


def write_materials(folder: Path) -> Path:
    """All of it, once: a second call finds it there."""
    with made_once(folder) as new:
        if new is not None:
            for name in TASKS:
                _glue(new / "glue" / name, name)
            _pairs(new / "multi30k")
            _text(new / "wikitext-2")
            _images(new / "images.npz")
            for name, (config, model, changes) in MODELS.items():
                tokenizer = None if name == "vit" else word_tokenizer(WORDS, pairs=name == "bert")
                save_model(new / "models" / name, config, changes, tokenizer, model)
    return folder


def _texts(count: int, seed: str, longest: int = 6) -> Iterator[tuple[str, bool]]:
    """Texts, and whether most of their words are of the first half: every second time."""
    draw = random.Random(seed)
    for number in range(count):
        while True:
            words = [draw.choice(WORDS) for _ in range(draw.randrange(3, longest + 1))]
            first = sum(WORDS.index(word) < len(WORDS) // 2 for word in words) * 2 > len(words)
            if first == (number % 2 == 0):
                yield " ".join(words), first
                break


def _glue(folder: Path, name: str) -> None:
    task = TASKS[name]
    folder.mkdir(parents=True)
    for file, count in (("train.tsv", 48 if task.small else _LARGE_ROWS), (task.dev, 24)):
        columns = list(task.header or (*task.text, task.label))
        lines = [] if task.header else ["\t".join(columns)]
        for number, (text, first) in enumerate(_texts(count, f"{name} {file}")):
            half = len(text.split()) // 2
            parts = [text] if len(task.text) == 1 else [" ".join(text.split()[:half]), " ".join(text.split()[half:])]
            label = task.labels[(number % len(task.labels))] if len(task.labels) > 2 else ""
            label = label or (task.labels[first] if task.labels else f"{5 * number / count:.3f}")
            cells = dict.fromkeys(columns, "") | dict(zip(task.text, parts)) | {task.label: label}
            lines.append("\t".join(cells[column] for column in columns))
        (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pairs(folder: Path) -> None:
    """A translation is the same words, in small and in capital letters."""
    folder.mkdir(parents=True)
    for part, count in (("train", 40), ("val", 8), ("test", 8)):
        rows = [text for text, _ in _texts(count, f"pairs {part}")]
        (folder / f"{part}.de").write_text("\n".join(rows) + "\n", encoding="utf-8")
        (folder / f"{part}.en").write_text("\n".join(row.replace("w", "v") for row in rows) + "\n", encoding="utf-8")


def _text(folder: Path) -> None:
    """In the form of WikiText: headings between = signs, paragraphs, blank lines."""
    folder.mkdir(parents=True)
    for part, count in (("train", 40), ("valid", 10), ("test", 10)):
        lines = [
            f" = {text.split()[0]} = \n\n {text} {text} . " for text, _ in _texts(count, f"text {part}", longest=8)
        ]
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _images(path: Path) -> None:
    draw: Callable[..., Any] = np.random.default_rng(0).integers
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", 40), ("test", 12)):
        labels = np.arange(count) % 3
        arrays[f"x_{part}"] = (draw(0, 60, (count, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
        arrays[f"y_{part}"] = labels
    np.savez(path, allow_pickle=False, **arrays)
