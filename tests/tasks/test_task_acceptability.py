"""The demo grammar: balanced, without repetition, deterministic, and careful English."""

import csv
import re
from collections import Counter

import pytest

from steadytune.errors import SteadytuneError
from steadytune.tasks import acceptability as demo

ROWS = demo.generate(8000)


def pairs(rows=ROWS):
    return list(zip(rows[::2], rows[1::2]))


def test_balanced_and_without_repetition():
    assert Counter(row.label for row in ROWS) == {"acceptable": 4000, "unacceptable": 4000}
    assert len({row.sentence for row in ROWS}) == len(ROWS)
    assert len(demo.PHENOMENA) >= 10
    assert set(Counter(row.phenomenon for row in ROWS).values()) == {8000 // len(demo.PHENOMENA)}


def test_deterministic():
    assert demo.generate(400, stream=3) == demo.generate(400, stream=3)
    assert demo.generate(400, stream=3) != demo.generate(400, stream=4)
    assert demo.generate(400) == ROWS[:400]  # more rows only add to fewer
    assert ROWS[0] == ("The lawyers complain at the station.", "acceptable", "agreement")


def test_pairs_are_minimal():
    """The two sentences of a pair share all but a few words."""
    for good, bad in pairs():
        assert (good.label, bad.label) == ("acceptable", "unacceptable")
        assert good.phenomenon == bad.phenomenon
        a, b = (Counter(row.sentence.lower().strip(".?").split()) for row in (good, bad))
        assert max((a - b).total(), (b - a).total()) <= 5, (good, bad)


def test_sentences_look_like_sentences():
    for row in ROWS:
        assert re.fullmatch(r"[A-Z][a-zA-Z ]+[.?]", row.sentence), row
        assert "  " not in row.sentence
        assert not re.search(r"\ba [aeiou]", row.sentence)


def test_no_label_can_be_read_off_one_word():
    """A bag of words must not solve it: no frequent word may stand almost always in one label."""
    seen: dict[str, Counter] = {}
    for row in ROWS:
        for word in set(row.sentence.lower().strip(".?").split()):
            seen.setdefault(word, Counter())[row.label] += 1
    for word, counts in seen.items():
        if counts.total() >= 120:
            assert max(counts.values()) / counts.total() < 0.9, (word, counts)


def test_every_phenomenon_has_many_sentences():
    assert Counter(row.phenomenon for row in demo.generate(20_000)) == dict.fromkeys(demo.PHENOMENA, 1000)


def test_agreement_is_what_it_says():
    for good, bad in pairs():
        if good.phenomenon == "agreement past a clause":
            head = good.sentence.split()[1]
            assert (" are " in good.sentence) == head.endswith("s"), good
            assert (" is " in bad.sentence) == head.endswith("s"), bad
        if good.phenomenon == "reflexive form":
            assert ("themselves" in good.sentence) == bool(re.search("([^s]s|sses)$", good.sentence.split()[1])), good


def test_split_files(tmp_path):
    demo.write(tmp_path / "demo", train=200, validation=80, test=120, stream=1)
    found = {}
    for name in ("train", "validation", "test"):
        with open(tmp_path / "demo" / f"{name}.csv", newline="") as file:
            found[name] = list(csv.DictReader(file))
        assert set(found[name][0]) == set(demo.COLUMNS)
        assert Counter(row["label"] for row in found[name])["acceptable"] == len(found[name]) / 2
        for good, bad in zip(found[name][::2], found[name][1::2]):  # pairs stay whole
            assert (good["label"], bad["label"]) == ("acceptable", "unacceptable")
    sentences = [row["sentence"] for rows in found.values() for row in rows]
    assert len(sentences) == len(set(sentences)) == 400


@pytest.mark.parametrize("rows", [0, 3, -2])
def test_odd_numbers_are_refused(rows):
    with pytest.raises(SteadytuneError, match="even number"):
        demo.generate(rows)


def test_odd_splits_and_too_many_rows_are_refused(tmp_path):
    with pytest.raises(SteadytuneError, match="divide a pair"):
        demo.write(tmp_path, train=3, validation=1)
    with pytest.raises(SteadytuneError, match="no more sentences on"):
        demo.generate(400_000)
