"""Encoding, the order of rows, and the cutting of batches: against the tokenizer itself, and by brute force."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steadytune import SteadytuneError, Streams
from steadytune.engine.batches import Cutter, Order, collate, round_up, to_pixels
from steadytune.engine.encode import Encoder, Pixels, Ragged, encode
from steadytune.models import load_tokenizer
from steadytune.tasks.base import Data, Rows, Source, Task
from tiny_tasks import KINDS, WORDS, rows, save_model, tiny_data, tiny_recipe, tiny_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_tokens_are_the_tokenizers_own(kind, folder):
    recipe, encoded = tiny_run(kind, folder, max_length=12)
    tokenizer = load_tokenizer(recipe)
    data = tiny_data(kind)
    for name, split in encoded.splits.items():
        texts = data.splits()[name].texts
        assert len(split) == len(texts)
        long = 0
        for number, row in enumerate(texts):
            plain = tokenizer(*row, truncation=True, max_length=12)
            assert split.inputs["input_ids"][number].tolist() == plain["input_ids"]
            assert split.inputs["token_type_ids"][number].tolist() == plain["token_type_ids"]
            long += len(tokenizer(*row)["input_ids"]) > 12
        assert split.cut == long > 0
    assert [note for note in encoded.notes if "train" in note] == [
        f"{encoded.splits['train'].cut} of 44 train rows have more than 12 tokens and were cut."
    ]


def test_an_empty_text_is_still_a_row(folder):
    _recipe, encoded = tiny_run("classification", folder)
    tokenizer = encoded.encoder.tokenizer
    tokenizer.backend_tokenizer.post_processor = None  # one that adds nothing, as GPT-2's
    split = Encoder(encoded.task, tokenizer).encode(Rows(Source("x", np.arange(2)), [("",), ("w1 w2",)]))
    assert split.inputs["input_ids"].lengths.tolist() == [1, 2]
    assert split.labels is None


def test_every_token_of_a_language_model_but_the_first_is_predicted_once(folder):
    _recipe, encoded = tiny_run("language-model", folder, max_length=7)
    split, tokenizer = encoded.splits["train"], encoded.encoder.tokenizer
    text = "\n".join(line for (line,) in tiny_data("language-model").train.texts)
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    blocks = [split.inputs["input_ids"][row].tolist() for row in range(len(split))]
    assert [token for block in blocks for token in block[1:]] == whole[1:]
    assert split.weights.sum() == len(whole) - 1
    assert all(block[0] == before[-1] for before, block in itertools.pairwise(blocks))
    assert max(map(len, blocks)) == 7


def test_long_texts_are_tokenised_in_pieces_with_the_same_result(folder, monkeypatch):
    recipe, encoded = tiny_run("language-model", folder)
    monkeypatch.setattr("steadytune.engine.encode._LINES", 5)
    again = encode(tiny_data("language-model"), recipe)
    assert again.fingerprint == encoded.fingerprint


def test_targets_end_in_the_end_token_and_are_cut(folder):
    _recipe, encoded = tiny_run("translation", folder, max_target_length=4)
    split, end = encoded.splits["train"], encoded.encoder.tokenizer.eos_token_id
    assert split.labels.lengths.max() == 4
    assert all(split.labels[row][-1] == end for row in range(len(split)))
    assert split.weights.tolist() == split.labels.lengths.tolist()
    assert list(split.references) == list(tiny_data("translation").train.targets)
    tokenizer = encoded.encoder.tokenizer
    tokenizer.backend_tokenizer.post_processor = None
    bare = Encoder(encoded.task, tokenizer, 24, 4).encode(tiny_data("translation").train)
    assert all(bare.labels[row][-1] == end for row in range(len(bare)))
    assert bare.labels.lengths.max() == 4


def test_reports_how_far_it_is(folder, monkeypatch):
    monkeypatch.setattr("steadytune.engine.encode._AT_ONCE", 20)
    recipe = tiny_recipe("classification", folder)
    heard = []
    encode(tiny_data("classification"), recipe, lambda *news: heard.append(news))
    assert heard == [("train", 20, 44), ("train", 40, 44), ("train", 44, 44), ("validation", 17, 17), ("test", 17, 17)]


def test_the_fingerprint_is_of_what_training_sees(folder):
    recipe, encoded = tiny_run("classification", folder)
    data = tiny_data("classification")
    assert encode(data, recipe).fingerprint == encoded.fingerprint
    assert encode(data, dataclasses.replace(recipe, lr=1.0)).fingerprint == encoded.fingerprint
    assert encode(data, dataclasses.replace(recipe, max_length=9)).fingerprint != encoded.fingerprint
    other = dataclasses.replace(data, train=data.train.take(np.arange(43)))
    assert encode(other, recipe).fingerprint != encoded.fingerprint


def test_what_does_not_fit_is_refused_with_a_sentence(folder):
    recipe, encoded = tiny_run("classification", folder)
    with pytest.raises(SteadytuneError, match=r"max_length is 41, but .* has positions for 40 tokens only"):
        encode(tiny_data("classification"), dataclasses.replace(recipe, max_length=41))
    with pytest.raises(SteadytuneError, match="cut to 24 tokens and the recipe asks for 16"):
        encoded.check(dataclasses.replace(recipe, max_length=16))
    with pytest.raises(SteadytuneError, match=r"encoded for .*classification, the recipe's model is .*regression"):
        encoded.check(tiny_recipe("regression", folder))
    task = Task("three", "classification", "accuracy", ("a", "b"), ("x", "y", "z"))
    with pytest.raises(SteadytuneError, match="one text or a pair, not 3"):
        Encoder.of(recipe, task)
    short = Data(Task("t", "language-model", "perplexity"), Rows(Source("one.txt", np.arange(1)), [("w1",)]))
    language = tiny_recipe("language-model", folder)
    with pytest.raises(SteadytuneError, match="at least two tokens"):
        encode(short, language)


# --- order ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_an_epoch_sees_every_row_once_in_an_order_of_its_own(count, size, number):
    order = Order(count, size, Streams(order=number))
    batches = list(order.batches(0, 2 * order.steps_per_epoch))
    first, second = batches[: len(batches) // 2], batches[len(batches) // 2 :]
    for epoch in (first, second):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(count))
        assert [len(batch) for batch in epoch[:-1]] == [size] * (len(epoch) - 1)
        assert 1 <= len(epoch[-1]) <= size
    other = Order(count, size, Streams(init=7, order=number, noise=9))
    middle = len(batches) // 3
    for mine, theirs in zip(batches[middle:], other.batches(middle, len(batches))):
        assert mine.tolist() == theirs.tolist()


def test_the_order_is_the_streams_own():
    expected = torch.randperm(9, generator=Streams(order=4).generator("order", 1)).tolist()
    assert Order(9, 2, Streams(order=4)).epoch(1).tolist() == expected
    assert Order(9, 2, Streams(order=5)).epoch(1).tolist() != expected


# --- chunks -----------------------------------------------------------------------------------------------------------

sizes_of_rows = st.lists(st.integers(1, 60), min_size=1, max_size=9)


def cost(chunks, sizes, constant):
    return sum(len(part) * round_up(sizes[part]).max(0).sum() + constant for part in chunks)


@given(sizes_of_rows, st.sampled_from([0.0, 8.0, 64.0, 500.0]))
@settings(max_examples=150, deadline=None)
def test_no_cut_of_the_sorted_rows_costs_less(lengths, constant):
    sizes = np.array(lengths)[:, None]
    chunks = Cutter(constant).chunks(sizes)
    assert sorted(np.concatenate(chunks).tolist()) == list(range(len(lengths)))
    order = np.argsort(sizes[:, 0], kind="stable")
    cheapest = min(
        cost([order[a:b] for a, b in itertools.pairwise((0, *cuts, len(order)))], sizes, constant)
        for k in range(len(order))
        for cuts in itertools.combinations(range(1, len(order)), k)
    )
    assert cost(chunks, sizes, constant) == cheapest


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=20),
    st.integers(1, 25),
    st.one_of(st.none(), st.integers(8, 300)),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_chunks_are_a_partition_with_as_many_parts_as_asked_for(lengths, least, limit, bucket):
    sizes = np.array(lengths)
    chunks = Cutter(64.0, least, bucket, limit).chunks(sizes)
    assert sorted(np.concatenate(chunks).tolist()) == list(range(len(lengths)))
    assert len(chunks) >= min(least, len(lengths))
    assert all(len(part) for part in chunks)
    if limit is not None:
        assert all(len(part) == 1 or len(part) * round_up(sizes[part]).max(0).sum() <= limit for part in chunks)
    if not bucket:
        assert np.concatenate(chunks).tolist() == list(range(len(lengths)))
        assert limit is not None or len(chunks) == min(least, len(lengths))


def test_short_rows_are_not_paid_for_as_long_ones():
    sizes = np.array([10] * 31 + [128])[:, None]
    assert [len(part) for part in Cutter(64.0).chunks(sizes)] == [31, 1]
    assert len(Cutter(4096.0).chunks(sizes)) == 1  # a GPU does not gain from it
    assert len(Cutter(64.0, bucket=False).chunks(sizes)) == 1


# --- collating --------------------------------------------------------------------------------------------------------


def test_a_batch_is_padded_as_the_tokenizer_pads(folder):
    _recipe, encoded = tiny_run("regression", folder)
    split, tokenizer = encoded.splits["train"], encoded.encoder.tokenizer
    chosen = np.array([3, 0, 7, 5])
    texts = [tiny_data("regression").train.texts[row] for row in chosen]
    for side in ("right", "left"):
        tokenizer.padding_side = side
        expected = tokenizer([a for a, _ in texts], [b for _, b in texts], padding=True, return_tensors="pt")
        batch = collate(encoded.encoder, split, chosen, CPU, rounded=False)
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            assert torch.equal(batch[name], expected[name]), (side, name)
    assert batch["labels"].dtype == torch.float32
    rounded = collate(encoded.encoder, split, chosen, CPU)
    longest = int(split.sizes[chosen].max())
    assert rounded["input_ids"].shape[1] == min(24, -(-longest // 8) * 8)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=70),
    grain=st.integers(2, 20),
    cost=st.sampled_from([0, 64, 2000]),
    multiple=st.sampled_from([8, 16]),
)
def test_chunks_of_a_gpu_have_few_shapes(lengths, grain, cost, multiple):
    """All of a grain's multiples but the first, every row once, and no dearer than one chunk."""
    sizes = np.array(lengths)[:, None]
    cutter = Cutter(cost, multiple=multiple, grain=grain)
    chunks = cutter.chunks(sizes)
    assert sorted(np.concatenate(chunks).tolist()) == list(range(len(lengths)))
    assert all(len(part) % grain == 0 for part in chunks[1:])
    assert len(chunks[0]) % grain == len(lengths) % grain
    whole = len(lengths) * int(round_up(sizes, multiple).max())
    assert sum(cutter.padded(sizes, part) + cost for part in chunks) <= whole + cost


def test_widths_are_not_rounded_beyond_what_the_model_has_positions_for(folder):
    _recipe, encoded = tiny_run("classification", folder, max_length=21)
    split = encoded.splits["train"]
    batch = collate(encoded.encoder, split, np.argsort(split.sizes[:, 0])[-2:], CPU)
    assert batch["input_ids"].shape[1] == 21


def test_labels_of_texts_are_ignored_where_padded(folder):
    _, encoded = tiny_run("translation", folder)
    split = encoded.splits["train"]
    batch = collate(encoded.encoder, split, np.arange(6), CPU)
    assert int((batch["labels"] != -100).sum()) == split.weights[:6].sum()
    assert "labels" not in collate(encoded.encoder, split, np.arange(6), CPU, labels=False)


def test_images_are_scaled_widened_and_resized():
    pixels = Pixels((4, 4), 3, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    grey = torch.full((2, 8, 8), 255, dtype=torch.uint8)
    made = to_pixels(grey, pixels)
    assert made.shape == (2, 3, 4, 4)
    assert torch.allclose(made, torch.full_like(made, 2.0))
    colour = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    colour[..., 1] = 255
    assert torch.allclose(to_pixels(colour, Pixels(None, 1, (0.0,), (1.0,))), torch.tensor(0.587))
    assert to_pixels(colour, pixels)[0, :, 0, 0].tolist() == [-2.0, 2.0, -2.0]


def test_pixels_come_from_the_model(folder):
    path = save_model("image", folder)
    recipe = tiny_recipe("image", folder)
    task = tiny_data("image").task
    assert Encoder.of(recipe, task).pixels == Pixels((8, 8), 3, (0.5,) * 3, (0.5,) * 3)
    settings_file = path / "preprocessor_config.json"
    settings_file.write_text('{"image_mean": [0.1, 0.2, 0.3], "image_std": 1.0}')
    assert Encoder.of(recipe, task).pixels == Pixels((8, 8), 3, (0.1, 0.2, 0.3), (1.0,) * 3)
    settings_file.unlink()


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_ragged_rows_come_back(values):
    ragged = Ragged.of(values)
    assert [ragged[row].tolist() for row in range(len(ragged))] == values
    assert ragged.lengths.tolist() == [len(row) for row in values]
    padded = ragged.padded(np.arange(len(values)), 7, -1)
    assert padded.tolist() == [row + [-1] * (7 - len(row)) for row in values]
    left = ragged.padded(np.arange(len(values)), 7, -1, left=True)
    assert left.tolist() == [[-1] * (7 - len(row)) + row for row in values]


def test_the_helpers_rows_are_there():
    assert set(KINDS) == {"classification", "regression", "image", "translation", "summarization", "language-model"}
    assert all(word in WORDS for word in rows("classification", 3).texts[0][0].split())
