"""The words of the demo data, chosen so that every frame in `acceptability` is clearly good or clearly bad.

What is missing is missing for a reason. "find": its past "found" is also a verb, so "will found" has a reading.
"hide" with its two participles stays out of the passives. "trust" and "know" take clauses; "finish to sell" could
mean "in order to sell"; "describe last week" has an object. A word added here deserves the same suspicion.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Verb(NamedTuple):
    base: str
    third: str
    past: str
    participle: str
    ing: str


def _list(text: str, by: str | None = None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(by))


PEOPLE = _list(
    """teacher doctor student farmer artist lawyer nurse singer writer pilot driver baker painter guest tourist soldier
    dancer engineer manager scientist gardener musician judge reporter librarian"""
)
MEN = _list("boy man king prince monk groom policeman grandfather fisherman nobleman salesman bachelor")
WOMEN = _list("girl woman queen princess nun bride policewoman grandmother ballerina duchess saleswoman widow")
THINGS = _list(
    """chair table lamp bicycle guitar piano boat mirror clock camera basket suitcase statue carpet umbrella ladder ring
    kettle telescope blanket"""
)
STUFF = _list("rice furniture milk sugar luggage bread equipment butter flour jewelry cheese soap")
ADJECTIVES = _list("tall friendly old gentle clever famous honest nervous cheerful polite lonely proud clumsy careful")
QUALITIES = _list("expensive heavy beautiful cheap broken ugly dirty useful old new")
STATES = _list("tired happy hungry angry ill late busy sad")
COMPARATIVES = [
    ("old", "older"),
    ("cheap", "cheaper"),
    ("heavy", "heavier"),
    ("small", "smaller"),
    ("clean", "cleaner"),
    ("dirty", "dirtier"),
    ("large", "larger"),
    ("new", "newer"),
    ("strong", "stronger"),
    ("ugly", "uglier"),
]
ADJUNCTS = _list(
    "every morning|in the garden|near the river|after dinner|on Sundays|at the station|in the kitchen|at night", "|"
)
# None is a bare noun phrase: "described last night" would have an object.
TIMES = _list("on Monday|in the morning|before lunch|two days ago|in the summer|after the party|at noon|on Friday", "|")

# What people do to things.
ACTIONS = [
    Verb(*line.split())
    for line in _list(
        """buy buys bought bought buying; sell sells sold sold selling; hide hides hid hidden hiding;
        steal steals stole stolen stealing; choose chooses chose chosen choosing; lose loses lost lost losing;
        draw draws drew drawn drawing; clean cleans cleaned cleaned cleaning; move moves moved moved moving;
        repair repairs repaired repaired repairing; borrow borrows borrowed borrowed borrowing;
        carry carries carried carried carrying; photograph photographs photographed photographed photographing""",
        ";",
    )
]
# Those that never take two objects: "what did you buy the boat?" has a reading.
ONE_OBJECT = [verb for verb in ACTIONS if verb.base in ("hide", "lose", "clean", "move", "repair", "photograph")]
# Past and participle of verbs that keep them apart in every dictionary.
IRREGULAR = [
    ("stole", "stolen"),
    ("chose", "chosen"),
    ("drew", "drawn"),
    ("took", "taken"),
    ("threw", "thrown"),
    ("saw", "seen"),
    ("gave away", "given away"),
]
# Regular verbs without an object.
IDLE = _list("sing laugh work wait swim dance travel sleep smile complain rest")
# What people do to people.
MEET = _list("admire help visit avoid follow call thank support praise greet interview")
TO_SELF = _list("hurt blamed praised admired defended introduced criticized photographed described")
NEEDS_PREPOSITION = _list(
    "looked at|listened to|waited for|laughed at|smiled at|relied on|apologized to|complained about|stared at", "|"
)
NEEDS_OBJECT = _list("destroyed discovered damaged described mentioned admired ruined")
NEVER_OBJECT = [
    ("arrive", "arrived"),
    ("faint", "fainted"),
    ("sneeze", "sneezed"),
    ("vanish", "vanished"),
    ("fall asleep", "fell asleep"),
]
TELLS = _list("explained described announced mentioned revealed reported")
NEWS = _list("plan problem secret story rule accident answer mistake result")
TAKES_TO = _list("decided hoped refused agreed promised managed")
TAKES_ING = _list("enjoyed avoided denied risked postponed considered")


class Words:
    """Draws from the lists; the only source of randomness."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.draw = draw

    def one(self, words: Sequence[T]) -> T:
        return words[int(self.draw.integers(len(words)))]

    def two(self, words: Sequence[str]) -> tuple[str, str]:
        first, second = self.draw.choice(len(words), 2, replace=False)
        return words[first], words[second]

    def coin(self) -> bool:
        return bool(self.draw.integers(2))

    def action(self) -> Verb:
        return self.one(ACTIONS)

    def someone(self) -> str:
        """A noun, with an adjective half of the time."""
        noun = self.one(PEOPLE)
        return f"{self.one(ADJECTIVES)} {noun}" if self.coin() else noun
