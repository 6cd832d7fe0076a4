"""ROUGE-1, -2, -L and -Lsum: the overlap of a summary with its reference, as F1 in 0-100, averaged over rows (R10).

    P = overlap / size of the summary,    R = overlap / size of the reference,    F = 2 P R / (P + R)

ROUGE-n: overlap in n-grams. ROUGE-L: the longest common subsequence of tokens. ROUGE-Lsum: sentence by sentence (split
at newlines, as everyone who reports CNN/DailyMail numbers does), the union of each reference sentence's common
subsequences with all sentences of the summary.

Follows Google's `rouge_score` package (tested equal) without stemming: lower case, runs of a-z and 0-9 are tokens.
Caveat: so letters outside a-z split words; compare methods with it in any language, but report it for English.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from steadytune.tasks.bleu import check_texts


def tokens(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _f(overlap: int, given: int, expected: int) -> float:
    """F = 2 P R / (P + R) = 2 overlap / (given + expected)."""
    return 2 * overlap / (given + expected) if given and expected else 0.0


def _mean(
    one: Callable[[str, str], float],
    references: Sequence[str],
    hypotheses: Sequence[str],
) -> float:
    check_texts(references, hypotheses)
    return 100 * sum(map(one, references, hypotheses)) / len(references)


def _rouge_n(reference: str, hypothesis: str, n: int) -> float:
    expected, given = (
        Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for words in (tokens(reference), tokens(hypothesis))
    )
    return _f((expected & given).total(), given.total(), expected.total())


def lcs(a: list[str], b: list[str]) -> list[int]:
    """Positions in `a` of one longest common subsequence of `a` and `b`."""
    length = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, word in enumerate(a, 1):
        row, above = length[i], length[i - 1]
        for j, other in enumerate(b, 1):
            row[j] = above[j - 1] + 1 if word == other else max(above[j], row[j - 1])
    positions = []
    i, j = len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            positions.append(i - 1)
            i, j = i - 1, j - 1
        elif length[i][j - 1] > length[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return positions[::-1]


def _rouge_l(reference: str, hypothesis: str) -> float:
    expected, given = tokens(reference), tokens(hypothesis)
    return _f(len(lcs(expected, given)), len(given), len(expected))


def _rouge_lsum(reference: str, hypothesis: str) -> float:
    expected = [tokens(line) for line in reference.split("\n")]
    given = [tokens(line) for line in hypothesis.split("\n")]
    # A token counts at most as often as both sides hold it, however many sentence pairs it was matched in.
    left_expected = Counter(word for line in expected for word in line)
    left_given = Counter(word for line in given for word in line)
    overlap = 0
    for line in expected:
        matched = sorted({position for other in given for position in lcs(line, other)})
        for word in (line[position] for position in matched):
            if left_expected[word] > 0 and left_given[word] > 0:
                overlap += 1
                left_expected[word] -= 1
                left_given[word] -= 1
    return _f(overlap, sum(map(len, given)), sum(map(len, expected)))


def rouge_1(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    return _mean(lambda r, h: _rouge_n(r, h, 1), references, hypotheses)


def rouge_2(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    return _mean(lambda r, h: _rouge_n(r, h, 2), references, hypotheses)


def rouge_l(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    return _mean(_rouge_l, references, hypotheses)


def rouge_lsum(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    return _mean(_rouge_lsum, references, hypotheses)
