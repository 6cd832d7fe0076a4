"""BLEU, two ways (R9): sacreBLEU on plain text, and multi-bleu on text that is already tokenised.

    BLEU = 100 BP exp(1/4 sum_{n=1..4} log p_n),    BP = min(1, exp(1 - r / h))

p_n: n-grams of the hypotheses found in their references (clipped to the reference's count) over all n-grams of the
hypotheses, summed over the corpus; r, h: total tokens of references and hypotheses. Both take (references, hypotheses).

Caveat: `tokenized_bleu` splits at white space and does nothing else, as multi-bleu.perl does with the files it is
given; on plain text punctuation sticks to words and the number is too low. Papers' multi-bleu scores are on
Moses-tokenised text.
"""

import math
from collections import Counter
from collections.abc import Sequence

from steadytune.errors import SteadytuneError


def check_texts(references: Sequence[str], hypotheses: Sequence[str]) -> None:
    if len(references) != len(hypotheses):
        raise SteadytuneError(f"{len(hypotheses)} hypotheses cannot be scored against {len(references)} references.")
    if not len(references):
        raise SteadytuneError("There are no texts to score.")


def bleu(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """sacreBLEU with its defaults (tokenizer 13a, mixed case, exponential smoothing): detokenised text on both
    sides."""
    check_texts(references, hypotheses)
    try:
        import sacrebleu
    except ImportError as error:
        raise SteadytuneError(
            "The metric bleu needs the sacrebleu package: pip install steadytune[data], or use tokenized_bleu."
        ) from error
    return float(sacrebleu.corpus_bleu(list(hypotheses), [list(references)]).score)


def tokenized_bleu(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """BLEU as multi-bleu.perl computes it: one reference, white-space tokens, no smoothing (no 4-gram match: 0)."""
    check_texts(references, hypotheses)
    matched, total = [0] * 4, [0] * 4
    reference_length = hypothesis_length = 0
    for reference, hypothesis in zip(references, hypotheses):
        expected, given = reference.split(), hypothesis.split()
        reference_length += len(expected)
        hypothesis_length += len(given)
        for n in range(1, 5):
            found = _ngrams(given, n)
            matched[n - 1] += (found & _ngrams(expected, n)).total()
            total[n - 1] += found.total()
    if 0 in matched:
        return 0.0
    brevity = min(0.0, 1 - reference_length / hypothesis_length)
    return 100 * math.exp(brevity + sum(math.log(m / t) for m, t in zip(matched, total)) / 4)


def _ngrams(tokens: list[str], n: int) -> "Counter[tuple[str, ...]]":
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
