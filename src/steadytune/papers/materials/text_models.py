"""Tokenizers and model directories that are made here: of tiny random models, and of models that train from scratch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steadytune.errors import SteadytuneError

MADE_OF = "made-of.txt"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # numbered 0 to 3


@contextmanager
def made_once(folder: Path, of: str = "") -> Iterator[Path | None]:
    """Yields a hidden folder to fill, which then gets the name; None where it is there already.

    `of`: what tells the data that it is made of from other data (tokenised.said_by). A folder that was made of other
    data is refused: a study of its rows would be taken for one of the data that are named now.
    """
    note = folder / MADE_OF
    if folder.exists():
        if of and note.is_file() and note.read_text(encoding="utf-8") != of:
            raise SteadytuneError(
                f"{folder} was made of other data than --data holds now. Put the old files back, or name another --out."
            )
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        hidden = folder.with_name(f".{folder.name}-{os.urandom(8).hex()}")
        hidden.mkdir()  # not tempfile's, which nobody else may read
    except OSError as error:
        raise SteadytuneError(f"{folder} cannot be made: {error.strerror or error}. Name another --out.") from error
    try:
        yield hidden
        if of:
            (hidden / MADE_OF).write_text(of, encoding="utf-8")
        try:
            os.rename(hidden, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same
                raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def word_tokenizer(words: Sequence[str], pairs: bool = False) -> Any:
    """Whole words, for generated rows."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {word: number for number, word in enumerate([*SPECIAL, *words, "\n"])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    )
    return _fast(made, pairs)


def bpe_tokenizer(texts: Iterable[str], size: int) -> Any:
    """Byte-pair encoding of words, trained on these texts; decoding gives a text with single spaces back."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    made.train_from_iterator(texts, trainer)
    return _fast(made, False)


def _fast(made: Any, pairs: bool) -> Any:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if pairs else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **names)


def save_model(folder: Path, config: str, changes: dict[str, Any], tokenizer: Any, model: str | None = None) -> None:
    """A model directory: configuration and tokenizer; with `model`, a class of transformers, random weights too."""
    import torch
    import transformers

    from steadytune.models import quiet

    made = getattr(transformers, config)(**changes)
    with quiet():
        if model is not None:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                getattr(transformers, model)(made).save_pretrained(folder)
        else:
            made.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        _only_what_it_is(folder / name)


def _only_what_it_is(file: Path) -> None:
    """Where a directory was made is nobody's business, nor with which version: a trial is known by its model's files,
    so its runs would not be known where another version is installed."""
    if file.is_file():
        data = json.loads(file.read_text(encoding="utf-8"))
        told = ("name_or_path", "local_files_only", "transformers_version")
        kept = {name: value for name, value in data.items() if name not in told}
        file.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")
