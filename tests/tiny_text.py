"""A tiny BERT with a tokenizer, and rows it can learn from: for tests of whole fits. No hub, no download."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

GOOD = ("lovely", "great", "fine", "superb", "charming")
BAD = ("awful", "poor", "dull", "dreadful", "boring")
OTHER = ("the", "film", "was", "and", "a", "story", "with", "music", "actors", "plot", "of", "in", "it", "very")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def save_encoder(folder: Path, *, hidden: int = 32, layers: int = 2, head: bool = False) -> Path:
    """A pretrained-looking directory: config, safetensors, tokenizer. With `head`: a classifier of two labels."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = [*SPECIAL, *GOOD, *BAD, *OTHER]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * hidden,
        max_position_embeddings=64,
        pad_token_id=0,
        **({"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}} if head else {}),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertForSequenceClassification(config) if head else BertModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def reviews(rows: int, number: int = 0) -> list[tuple[str, str]]:
    """(text, label): good texts have more good words than bad ones; no text twice."""
    draw = random.Random(number)
    found: dict[str, str] = {}
    while len(found) < rows:
        label = "good" if len(found) % 2 else "bad"
        words = [draw.choice(GOOD if label == "good" else BAD) for _ in range(2)]
        words += [draw.choice(OTHER) for _ in range(draw.randrange(2, 10))]
        draw.shuffle(words)
        found.setdefault(" ".join(words), label)
    return list(found.items())


def write_csv(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("text", "label")) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path
