"""The bundled demo data: acceptable and unacceptable English sentences in minimal pairs, from a small grammar.

    rows = generate(rows=2000, stream=0)             # [(sentence, "acceptable" | "unacceptable", phenomenon), ...]
    write("demo-data")                               # train.csv, validation.csv, test.csv

Rows 2i and 2i + 1 are a minimal pair: one sentence of each label, as alike as the phenomenon allows, so nothing but
grammar tells them apart. Deterministic in (rows, stream); no sentence twice; a pair is never divided between splits.
Phenomena take turns, so every split has an equal share of each. Labels are those of standard written English, about
form only: nobody need sell a piano to a nun for the sentence to be good.

The phenomena follow the textbook cases that CoLA and BLiMP (Warstadt et al. 2019, 2020) collect; words and frames
are our own. Frames avoid what speakers differ on (that-trace, singular they, resultatives, embedded inversion).
"""

import csv
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks import acceptability_words as lists
from steadytune.tasks.acceptability_words import Words

ACCEPTABLE, UNACCEPTABLE = "acceptable", "unacceptable"
COLUMNS = ("sentence", "label", "phenomenon")


class Example(NamedTuple):
    sentence: str
    label: str
    phenomenon: str


def _met(verb: str) -> str:
    return verb + "d" if verb.endswith("e") else verb + "ed"


def _agreement(w: Words) -> tuple[str, str]:
    noun, verb, rest, plural = w.someone(), w.one(lists.IDLE), w.one(lists.ADJUNCTS), w.coin()
    forms = (verb, verb + "s") if plural else (verb + "s", verb)
    subject = f"The {noun}s" if plural else f"The {noun}"
    return f"{subject} {forms[0]} {rest}.", f"{subject} {forms[1]} {rest}."


def _agreement_past_phrase(w: Words) -> tuple[str, str]:
    (head, other), plural = w.two(lists.THINGS), w.coin()
    where, quality = w.one(("near", "behind", "beside", "next to", "in front of", "under")), w.one(lists.QUALITIES)
    subject = f"The {head}s {where} the {other}" if plural else f"The {head} {where} the {other}s"
    right, wrong = ("are", "is") if plural else ("is", "are")
    return f"{subject} {right} {quality}.", f"{subject} {wrong} {quality}."


def _agreement_past_clause(w: Words) -> tuple[str, str]:
    (head, other), verb, state, plural = w.two(lists.PEOPLE), w.one(lists.MEET), w.one(lists.STATES), w.coin()
    subject = f"The {head}s who {verb} the {other}" if plural else f"The {head} who {verb}s the {other}s"
    right, wrong = ("are", "is") if plural else ("is", "are")
    return f"{subject} {right} {state}.", f"{subject} {wrong} {state}."


def _determiner(w: Words) -> tuple[str, str]:
    who, verb, quality, thing = w.someone(), w.action().past, w.one(lists.QUALITIES), w.one(lists.THINGS)
    if w.coin():
        determiner, right, wrong = w.one(("these", "those")), thing + "s", thing
    else:
        determiner, right, wrong = w.one(("this", "that")), thing, thing + "s"
    return f"The {who} {verb} {determiner} {quality} {right}.", f"The {who} {verb} {determiner} {quality} {wrong}."


def _reflexive_form(w: Words) -> tuple[str, str]:
    verb, time, man = w.one(lists.TO_SELF), w.one(lists.TIMES), w.coin()
    noun = w.one(lists.MEN if man else lists.WOMEN)
    mine, other = ("himself", "herself") if man else ("herself", "himself")
    if w.coin() and not noun.endswith("man"):  # policemans is not a word
        noun, mine, other = _plural(noun), "themselves", mine
    return f"The {noun} {verb} {mine} {time}.", f"The {noun} {verb} {other} {time}."


def _plural(noun: str) -> str:
    return noun + "es" if noun.endswith("ss") else noun + "s"


def _reflexive_binding(w: Words) -> tuple[str, str]:
    """The antecedent must be the subject of the same clause; the other noun, of the other gender, is not."""
    man, woman, verb = w.one(lists.MEN), w.one(lists.WOMEN), w.one(lists.TO_SELF)
    (near, far), mine, other = (
        ((man, woman), "himself", "herself") if w.coin() else ((woman, man), "herself", "himself")
    )
    if w.coin():
        start = f"The {near} who {_met(w.one(lists.MEET))} the {far} {verb}"
    else:
        start = f"The {far} {w.one(('said', 'thought', 'believed', 'knew', 'noticed'))} that the {near} {verb}"
    return f"{start} {mine}.", f"{start} {other}."


def _adjective_order(w: Words) -> tuple[str, str]:
    adjective, noun = w.one(lists.ADJECTIVES), w.one(lists.PEOPLE)
    rest = f"{w.action().past} the {w.one(lists.THINGS)}"
    return f"The {adjective} {noun} {rest}.", f"The {noun} {adjective} {rest}."


def _adverb_order(w: Words) -> tuple[str, str]:
    who, verb, thing = w.someone(), w.action().third, w.one(lists.THINGS)
    adverb = w.one(("often", "never", "always", "rarely", "usually"))
    return f"The {who} {adverb} {verb} the {thing}s.", f"The {who} {verb} {adverb} the {thing}s."


def _question_order(w: Words) -> tuple[str, str]:
    asked, helper = w.one(("Why", "When", "Where", "How")), w.one(("will", "did", "should", "can", "must"))
    who, verb, thing = w.someone(), w.action().base, w.one(lists.THINGS)
    return f"{asked} {helper} the {who} {verb} the {thing}?", f"{asked} the {who} {helper} {verb} the {thing}?"


def _verb_form(w: Words) -> tuple[str, str]:
    who, thing, case = w.someone(), w.one(lists.THINGS), int(w.draw.integers(5))
    base, third, past, participle, ing = w.action()
    if case == 4:
        past, participle = w.one(lists.IRREGULAR)
        return f"The {thing} was {participle} by the {who}.", f"The {thing} was {past} by the {who}."
    frame, right, wrong = (
        (w.one(("will", "can", "must")), base, w.one((third, past, ing))),
        ("has", participle, w.one((base, third, ing))),
        ("is", ing, w.one((base, third))),
        ("did not", base, w.one((third, past))),
    )[case]
    return f"The {who} {frame} {right} the {thing}.", f"The {who} {frame} {wrong} the {thing}."


def _transitivity(w: Words) -> tuple[str, str]:
    who, when = w.someone(), w.one(lists.TIMES)
    if w.coin():
        verb, preposition = w.one(lists.NEEDS_PREPOSITION).split()
        other = w.one(lists.PEOPLE)
        return f"The {who} {verb} {preposition} the {other} {when}.", f"The {who} {verb} the {other} {when}."
    verb = w.one(lists.NEEDS_OBJECT)
    return f"The {who} {verb} the {w.one(lists.THINGS)} {when}.", f"The {who} {verb} {when}."


def _complement(w: Words) -> tuple[str, str]:
    who, thing, case = w.someone(), w.one(lists.THINGS), int(w.draw.integers(4))
    base, _, _, _, ing = w.action()
    start, right, wrong = (
        (w.one(lists.TAKES_TO), f"to {base}", ing),
        (w.one(lists.TAKES_ING), ing, f"to {base}"),
        (w.one(("must", "should", "might")), base, f"to {base}"),
        (f"{w.one(('made', 'let'))} the {w.one(lists.PEOPLE)}", base, f"to {base}"),
    )[case]
    return f"The {who} {start} {right} the {thing}.", f"The {who} {start} {wrong} the {thing}."


def _polarity(w: Words) -> tuple[str, str]:
    who, thing, case = w.one(lists.PEOPLE), w.one(lists.THINGS), int(w.draw.integers(3))
    done = f"{w.action().participle} the {thing}"
    if case == 0:
        return f"The {who} has never {done}.", f"The {who} has ever {done}."
    if case == 1:
        return f"No {who} has ever {done}.", f"This {who} has ever {done}."
    return f"The {who} has not {done} yet.", f"The {who} has {done} yet."


def _gap(w: Words) -> tuple[str, str]:
    """A gap must stay empty in a relative clause, and a subject must not be left out."""
    thing, who, verb, quality = w.one(lists.THINGS), w.someone(), w.action().past, w.one(lists.QUALITIES)
    if w.coin():
        start = f"The {thing} that the {who} {verb}"
        return f"{start} was {quality}.", f"{start} it was {quality}."
    start = f"The {who} {verb} the {thing} because"
    return f"{start} it was {quality}.", f"{start} was {quality}."


def _island(w: Words) -> tuple[str, str]:
    """A question word needs a gap, and the gap may not lie in a "before" clause. The main verb of such a bad sentence
    never takes an object, so no second gap can save it."""
    (who, other), when = w.two(lists.PEOPLE), w.one(("before", "after", "when"))
    verb, thing, (falls, fell) = w.one(lists.ONE_OBJECT), w.one(lists.THINGS), w.one(lists.NEVER_OBJECT)
    if w.coin():
        rest = f"did the {who} {falls} {when} the {other} {verb.past}"
        return f"D{rest[1:]} the {thing}?", f"What {rest}?"
    start, rest = f"What did the {who} {verb.base}", f"{when} the {other} {fell}?"
    return f"{start} {rest}", f"{start} the {thing} {rest}"


def _case(w: Words) -> tuple[str, str]:
    subject, object_ = w.one((("she", "her"), ("he", "him"), ("they", "them"), ("we", "us"), ("I", "me")))
    who, verb, time = w.someone(), _met(w.one(lists.MEET)), w.one(lists.TIMES)
    if w.coin():
        right, wrong = (form[0].upper() + form[1:] for form in (subject, object_))
        return f"{right} {verb} the {who} {time}.", f"{wrong} {verb} the {who} {time}."
    return f"The {who} {verb} {object_} {time}.", f"The {who} {verb} {subject} {time}."


def _comparison(w: Words) -> tuple[str, str]:
    """Of things, not people: "the singer was quieter as the judge" is fine, on a stage."""
    (one, other), (plain, more), verb = w.two(lists.THINGS), w.one(lists.COMPARATIVES), w.one(("is", "was"))
    if w.coin():
        return f"The {one} {verb} {more} than the {other}.", f"The {one} {verb} {more} as the {other}."
    return f"The {one} {verb} as {plain} as the {other}.", f"The {one} {verb} as {plain} than the {other}."


def _quantity(w: Words) -> tuple[str, str]:
    noun, right, wrong = (
        (w.one(lists.STUFF), "much", "many") if w.coin() else (w.one(lists.THINGS) + "s", "many", "much")
    )
    start = f"The {w.someone()} did not {w.one(('buy', 'sell', 'steal', 'move', 'choose'))}"
    return f"{start} {right} {noun}.", f"{start} {wrong} {noun}."


def _dative(w: Words) -> tuple[str, str]:
    verb, news, (who, other) = w.one(lists.TELLS), w.one(lists.NEWS), w.two(lists.PEOPLE)
    return f"The {who} {verb} the {news} to the {other}.", f"The {who} {verb} the {other} the {news}."


def _reciprocal(w: Words) -> tuple[str, str]:
    who, verb, time = w.someone(), _met(w.one(lists.MEET)), w.one(lists.TIMES)
    return f"The {who}s {verb} each other {time}.", f"The {who} {verb} each other {time}."


PHENOMENA: dict[str, Callable[[Words], tuple[str, str]]] = {
    "agreement": _agreement,
    "agreement past a phrase": _agreement_past_phrase,
    "agreement past a clause": _agreement_past_clause,
    "determiner and noun": _determiner,
    "reflexive form": _reflexive_form,
    "reflexive binding": _reflexive_binding,
    "adjective order": _adjective_order,
    "adverb order": _adverb_order,
    "question order": _question_order,
    "verb form": _verb_form,
    "transitivity": _transitivity,
    "complement form": _complement,
    "polarity": _polarity,
    "gap": _gap,
    "island": _island,
    "pronoun case": _case,
    "comparison": _comparison,
    "much and many": _quantity,
    "dative": _dative,
    "reciprocal": _reciprocal,
}


def generate(rows: int = 2000, stream: int = 0) -> list[Example]:
    """`rows` sentences (an even number), half of them acceptable, pair after pair, phenomena in turn."""
    if rows < 2 or rows % 2:
        raise SteadytuneError(f"{rows} sentences were asked for; pairs need an even number, at least 2.")
    words = Words(np.random.default_rng(np.random.SeedSequence([zlib.crc32(b"acceptability"), stream])))
    found: list[Example] = []
    seen: set[str] = set()
    names = list(PHENOMENA)
    while len(found) < rows:
        name = names[len(found) // 2 % len(names)]
        for _ in range(1000):
            good, bad = PHENOMENA[name](words)
            if good not in seen and bad not in seen:
                break
        else:
            raise SteadytuneError(f"The grammar has no more sentences on {name} after {len(found)}; ask for fewer.")
        seen |= {good, bad}
        found += [Example(good, ACCEPTABLE, name), Example(bad, UNACCEPTABLE, name)]
    return found


def write_csv(path: str | Path, examples: Sequence[Example]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(examples)


def write(directory: str | Path, train: int = 1600, validation: int = 400, test: int = 800, stream: int = 0) -> Path:
    """train.csv, validation.csv and test.csv, which `text.load(directory, text="sentence", label="label")` reads."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for size in (train, validation, test):
        if size % 2:
            raise SteadytuneError(f"A split of {size} sentences would divide a pair; use even numbers.")
    examples = generate(train + validation + test, stream)
    for name, start, size in (
        ("train", 0, train),
        ("validation", train, validation),
        ("test", train + validation, test),
    ):
        write_csv(directory / f"{name}.csv", examples[start : start + size])
    return directory
