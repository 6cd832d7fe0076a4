"""Is our loop faster than transformers.Trainer? Steps per second of both, on the same model, rows and precision.

    python benchmarks/engine.py --json

A 6x384 BERT (the bundled MiniLM where it is installed, else one with random weights), RTE where its files are there (else
made-up rows of its lengths), batch 32, at most 128 tokens, float32 on the CPU. Trainer pads each batch to its longest row
(DataCollatorWithPadding); the engine cuts it by length. Both take the same rows in the same order, and each part of a
round is a whole run of its own, timed from the end of its first step: loading is not in it, collating is.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import finish, machine, ratio, spread
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from steadytune import AdamW, SteadytuneError, Streams
from steadytune.batches import CHUNK_COST, Cutter, Order, round_up
from steadytune.encode import Encoded, encode
from steadytune.models import load_model, resolve
from steadytune.recipe import Recipe
from steadytune.tasks import glue
from steadytune.tasks.base import Data, Rows, Source, Task
from steadytune.train import train

# Every twentieth part of RTE's training rows: tokens of a pair, cut to 128 (mean 67).
RTE_LENGTHS = (13, 29, 32, 34, 36, 39, 41, 44, 46, 49, 53, 57, 62, 69, 78, 91, 110, 128, 128, 128, 128)
STREAMS = Streams(init=1, order=2, noise=3)


def model_directory(folder: Path) -> str:
    try:
        return resolve("builtin:minilm")
    except SteadytuneError:
        pass
    torch.manual_seed(0)
    BertModel(
        BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    ).save_pretrained(folder)
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *map(str, range(1000))])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", model_input_names=names).save_pretrained(folder)
    return str(folder)


def rows_to_learn() -> tuple[str, Data]:
    """RTE's training rows, or rows of its lengths; no validation, so that nothing is scored in between."""
    place = Path(os.environ.get("STEADYTUNE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if (place / "glue" / "RTE" / "train.tsv").is_file():
        data = glue.load(place / "glue", "RTE")
        return "RTE", Data(data.task, data.train)
    draw = np.random.default_rng(0)
    lengths = np.interp(draw.random(2490), np.linspace(0, 1, len(RTE_LENGTHS)), RTE_LENGTHS).astype(int)
    texts = [(" ".join(map(str, draw.integers(0, 1000, length))),) for length in lengths]
    task = Task("rte-like", "classification", "accuracy", ("a", "b"), ("text",))
    source = Source("made up", np.arange(1, len(texts) + 1))
    return "made-up rows of RTE's lengths", Data(task, Rows(source, texts, labels=draw.integers(0, 2, len(texts))))


class Stopwatch(TrainerCallback):
    """Seconds from the end of the first step to the end of the last but one, which is where saving and such begins."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        return self.ends[-2] - self.ends[0]


def engine(recipe: Recipe, encoded: Encoded, bucket: bool = True) -> float:
    watch = Stopwatch()
    train(recipe, encoded, STREAMS, device="cpu", progress=watch.on_step_end, bucket=bucket)
    return watch.seconds


def trainer(recipe: Recipe, encoded: Encoded, folder: str) -> float:
    split = encoded.splits["train"]
    rows = [
        {
            **{name: each[row].tolist() for name, each in split.inputs.items()},
            "labels": int(np.asarray(split.labels)[row]),
        }
        for row in range(len(split))
    ]
    order = Order(len(split), recipe.batch_size, STREAMS)

    class SameRows(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return order.epoch(0).tolist()

    watch = Stopwatch()
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=recipe.batch_size,
        max_steps=recipe.steps or 1,
        learning_rate=recipe.lr,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    model, _ = load_model(recipe, encoded.task, STREAMS.init)
    collator = DataCollatorWithPadding(encoded.encoder.tokenizer)
    SameRows(model.train(), arguments, collator, rows, callbacks=[watch]).train()  # type: ignore[arg-type]
    return watch.seconds


def padded_tokens(recipe: Recipe, encoded: Encoded) -> tuple[int, int]:
    """Tokens that the timed steps compute: in chunks, and padded to the longest row of each batch."""
    sizes = encoded.splits["train"].sizes
    cut = whole = 0
    for batch in Order(len(sizes), recipe.batch_size, STREAMS).batches(1, (recipe.steps or 2) - 1):
        here = sizes[batch]
        chunks = Cutter(CHUNK_COST["cpu"]).chunks(here)
        cut += sum(len(part) * int(round_up(here[part]).max()) for part in chunks)
        whole += len(batch) * int(here.max())
    return cut, whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(
            model=model_directory(Path(folder) / "model"),
            methods=(AdamW(),),
            steps=options.steps + 2,
            batch_size=options.batch_size,
            evaluations=1,
        )
        name, data = rows_to_learn()
        encoded = encode(data, recipe)
        runs = {
            "engine": lambda: engine(recipe, encoded),
            "engine, not cut": lambda: engine(recipe, encoded, bucket=False),
            "trainer": lambda: trainer(recipe, encoded, folder),
        }
        seconds: dict[str, list[float]] = {each: [] for each in runs}
        for turn in range(options.rounds):
            order = list(runs)[turn % len(runs) :] + list(runs)[: turn % len(runs)]
            for each in order:
                seconds[each].append(runs[each]())
    speed = {each: options.steps / sorted(times)[len(times) // 2] for each, times in seconds.items()}
    cut, whole = padded_tokens(recipe, encoded)
    print(
        f"\n{name}: {options.steps} steps of {options.batch_size} rows, {options.rounds} rounds; {whole / cut:.2f} times"
    )
    print("the tokens without cutting, which is about what cutting can gain\n")
    print(f"{'loop':18} {'steps/s':>8} {'±':>6} {'speed over trainer':>19}")
    for each, times in seconds.items():
        wide = spread(times) if len(times) > 1 else 0.0
        print(f"{each:18} {speed[each]:8.2f} {100 * wide:5.1f}% {ratio(seconds, 'trainer', each):19.2f}")
    result = {
        "engine_over_trainer": ratio(seconds, "trainer", "engine"),
        "uncut_over_trainer": ratio(seconds, "trainer", "engine, not cut"),
        "engine_steps_per_second": speed["engine"],
        "trainer_steps_per_second": speed["trainer"],
        "tokens_uncut_over_cut": whole / cut,
        "data": name,
        "machine": machine(),
    }
    finish(result, options.json)


if __name__ == "__main__":
    main()
