"""Is our loop faster than transformers.Trainer? Seconds per step of both, on the same model, rows and precision.

    python benchmarks/engine.py --json
    python benchmarks/engine.py --task CoLA --precision bf16 --json        # short rows

A 6x384 BERT (the bundled MiniLM where it is installed, else random weights), RTE where its files are there (else rows
of its lengths), batch 32, at most 128 tokens, float32 on the CPU. Trainer pads each batch to its longest row
(DataCollatorWithPadding); the engine cuts it by length. "Plain" is the engine without what it does on a CPU besides:
torch's fused AdamW, and gradients of embedding tables that keep their memory. The loops run side by side in one process
and hand over after every step, so that each pair of times is of the same rows at the same moment. The first, a warm-up,
is not counted.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
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

from common import finish, machine, ratio, spread
from steadytune import AdamW, SteadytuneError, Streams
from steadytune.engine import quick_embedding
from steadytune.engine.batches import CHUNK_COST, Cutter, Order, round_up
from steadytune.engine.encode import Encoded, Split, encode
from steadytune.engine.state import Progress
from steadytune.engine.train import train
from steadytune.models import load_model, resolve
from steadytune.recipe import Recipe
from steadytune.tasks import glue
from steadytune.tasks.base import Data, Rows, Source, Task

# Every twentieth part of RTE's training rows: tokens of a pair, cut to 128 (mean 67).
RTE_LENGTHS = (13, 29, 33, 37, 40, 43, 45, 47, 50, 53, 56, 59, 62, 67, 72, 85, 103, 120, 128, 128, 128)
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


def rows_to_learn(task: str = "RTE") -> tuple[str, Data]:
    """A task's training rows, or rows of RTE's lengths; no validation, so that nothing is scored in between."""
    place = Path(os.environ.get("STEADYTUNE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if (place / "glue" / task / "train.tsv").is_file():
        data = glue.load(place / "glue", task)
        return task, Data(data.task, data.train)
    draw = np.random.default_rng(0)
    lengths = np.interp(draw.random(2490), np.linspace(0, 1, len(RTE_LENGTHS)), RTE_LENGTHS).astype(int)
    texts = [(" ".join(map(str, draw.integers(0, 1000, length))),) for length in lengths]
    like = Task("rte-like", "classification", "accuracy", ("a", "b"), ("text",))
    source = Source("made up", np.arange(1, len(texts) + 1))
    return "made-up rows of RTE's lengths", Data(like, Rows(source, texts, labels=draw.integers(0, 2, len(texts))))


class Turns:
    """Loops in threads of their own, of which one runs at a time: each hands over to the next after every step."""

    def __init__(self, loops: dict[str, Callable[[Callable[[], None]], None]]) -> None:
        self.names = list(loops)
        self.batons = {name: threading.Semaphore(0) for name in loops}
        self.seconds: dict[str, list[float]] = {name: [] for name in loops}
        self.failed: list[BaseException] = []
        threads = [threading.Thread(target=self._run, args=item, daemon=True) for item in loops.items()]
        for thread in threads:
            thread.start()
        self.batons[self.names[0]].release()
        while any(thread.is_alive() for thread in threads) and not self.failed:
            time.sleep(0.05)
        if self.failed:
            raise self.failed[0]

    def _run(self, name: str, loop: Callable[[Callable[[], None]], None]) -> None:
        self.batons[name].acquire()
        following = self.names[(self.names.index(name) + 1) % len(self.names)]
        began = time.perf_counter()

        def step_done() -> None:
            nonlocal began
            self.seconds[name].append(time.perf_counter() - began)
            self.batons[following].release()
            self.batons[name].acquire()
            began = time.perf_counter()

        try:
            loop(step_done)
        except BaseException as error:
            self.failed.append(error)
        self.batons[following].release()


def engine(
    recipe: Recipe, encoded: Encoded, *, bucket: bool = True, plain: bool = False
) -> Callable[[Callable[[], None]], None]:
    def run(step_done: Callable[[], None]) -> None:
        with ExitStack() as patches:  # of what is decided while the run is built; undone before others have their turn
            if plain:
                patches.enter_context(mock.patch.object(quick_embedding, "LEAST", 10**12))
                patches.enter_context(mock.patch.object(AdamW, "in_one_pass_"))

            def heard(_: Progress) -> None:
                patches.close()
                step_done()

            train(recipe, encoded, STREAMS, device="cpu", progress=heard, bucket=bucket)

    return run


def rows_for_trainer(split: Split) -> list[dict[str, Any]]:
    labels = np.asarray(split.labels)
    return [
        {**{name: each[row].tolist() for name, each in split.inputs.items()}, "labels": int(labels[row])}
        for row in range(len(split))
    ]


def trainer(recipe: Recipe, encoded: Encoded, folder: str, device: str = "cpu") -> Callable[[Callable[[], None]], None]:
    split = encoded.splits["train"]
    rows = rows_for_trainer(split)
    order = Order(len(split), recipe.batch_size, STREAMS).epoch(0).tolist()

    class SameRows(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return order

    class Teller(TrainerCallback):
        def __init__(self, step_done: Callable[[], None]) -> None:
            self.step_done = step_done

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.step_done()

    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=recipe.batch_size,
        max_steps=recipe.steps or 1,
        learning_rate=recipe.lr,
        use_cpu=device == "cpu",
        bf16=recipe.precision == "bf16",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )

    def run(step_done: Callable[[], None]) -> None:
        model, _ = load_model(recipe, encoded.task, STREAMS.init)
        collator = DataCollatorWithPadding(encoded.encoder.tokenizer)
        made: Any = SameRows(model.train(), arguments, collator, rows, callbacks=[Teller(step_done)])  # type: ignore[arg-type]
        made.train()

    return run


def padded_tokens(recipe: Recipe, encoded: Encoded) -> tuple[int, int]:
    """Tokens that the timed steps compute: in chunks, and padded to the longest row of each batch."""
    sizes = encoded.splits["train"].sizes
    cut = whole = 0
    for batch in Order(len(sizes), recipe.batch_size, STREAMS).batches(1, (recipe.steps or 2) - 1):
        here = sizes[batch]
        chunks = Cutter(CHUNK_COST).chunks(here)
        cut += sum(len(part) * int(round_up(here[part]).max()) for part in chunks)
        whole += len(batch) * int(here.max())
    return cut, whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--steps", type=int, default=16, help="timed steps of each loop")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--task", default="RTE", help="whose rows: RTE, CoLA, ...")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(
            model=model_directory(Path(folder) / "model"),
            methods=(AdamW(),),
            steps=options.steps + 2,  # the first warms up, the last has the end of the run in it
            batch_size=options.batch_size,
            evaluations=1,
            precision=options.precision,
        )
        name, data = rows_to_learn(options.task)
        encoded = encode(data, recipe)
        loops = {
            "engine": engine(recipe, encoded),
            "engine, plain": engine(recipe, encoded, plain=True),
            "engine, not cut": engine(recipe, encoded, bucket=False),
            "trainer": trainer(recipe, encoded, folder),
        }
        seconds = {each: times[1:-1] for each, times in Turns(loops).seconds.items()}
    cut, whole = padded_tokens(recipe, encoded)
    print(f"\n{name}: {options.steps} steps of {options.batch_size} rows; medians, and of the ratio in the same step")
    print(f"{'loop':16} {'ms/step':>8} {'±':>6} {'speed':>6}")
    for each, times in seconds.items():
        milliseconds = 1000 * sorted(times)[len(times) // 2]
        print(f"{each:16} {milliseconds:8.0f} {100 * spread(times):5.1f}% {ratio(seconds, 'trainer', each):6.2f}")
    print(f"padding to the longest row of a batch makes {whole / cut:.2f} times the tokens of the chunks")
    result = {
        "engine_over_trainer": ratio(seconds, "trainer", "engine"),
        "engine_over_plain": ratio(seconds, "engine, plain", "engine"),
        "uncut_over_trainer": ratio(seconds, "trainer", "engine, not cut"),
        "engine_steps_per_second": options.steps / sum(seconds["engine"]),
        "trainer_steps_per_second": options.steps / sum(seconds["trainer"]),
        "tokens_uncut_over_cut": whole / cut,
        "data": name,
        "precision": options.precision,
        "machine": machine(),
    }
    finish(result, options.json)


if __name__ == "__main__":
    main()
