"""What a reader wants to know first, each question with the numbers that answer it and the claim that was tested.

A question names cells and one claim of records; what stands in the answer is read from there. A question whose records
are not there is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from steadytune.papers.verdicts import Verdict
from steadytune.report.words import number

Records = Mapping[str, Mapping[str, Any]]  # by item, as they are in their files


@dataclass(frozen=True)
class Line:
    """Cells of one row of a record, of every column that was run, under a short name."""

    name: str
    row: str
    setting: str = ""
    item: str = ""  # where it is not that of the question


@dataclass(frozen=True)
class Question:
    text: str
    item: str
    claim: str  # how the claim's text begins
    lines: tuple[Line, ...] = ()  # none: what the claim measured says it


class Answer(NamedTuple):
    question: Question
    measured: str
    verdict: Verdict


_STANDARD = Line("Standard", "Standard")
_DROPOUT = Line("dropout(0.1)", "dropout(0.1) + wdecay(0, 0.01)")
_BLEU = "rdrop/figure-2"
_WITH_AND_WITHOUT = (Line("baseline", "Baseline"), Line("R-Drop", "R-Drop"))

QUESTIONS = (
    Question(
        "Does omitted bias correction make runs useless?",
        "few-sample/figure-2",
        "Fewer runs are degenerate with bias correction",
        (Line("with", "Bias correction"), Line("without", "No bias correction")),
    ),
    Question(
        "Does bias correction matter on a large set?",
        "few-sample/table-5",
        "On a large dataset bias correction makes no difference",
        (Line("with", "Bias correction", "test"), Line("without", "No bias correction", "test")),
    ),
    Question(
        "Does mixout help, without bias correction?",
        "mixout/table-1",
        "mixout(w_pre, 0.7 to 0.9) has a higher mean than dropout",
        (Line("mixout(0.7)", "mixout(w_pre, 0.7)"), _DROPOUT, Line("decay toward w_pre", "wdecay(w_pre, 0.01)")),
    ),
    Question(
        "And with bias correction?",
        "few-sample/table-2",
        "Mixout does not have a higher mean than Standard everywhere",
        (_STANDARD, Line("mixout", "Mixout"), Line("decay toward w_pre", "Pre-trained WD")),
    ),
    Question(
        "Does it matter which p mixout has?",
        "mixout/figure-4",
        "The mean dev score of mixout(w_pre, p) rises with p",
        tuple(Line(f"{p}:", "mixout(w_pre, p)", f"p={p}") for p in ("0.1", "0.3", "0.5", "0.7", "0.9")),
    ),
    Question(
        "Does mixout harm on a large set?",
        "mixout/table-2",
        "On SST-2 mixout(w_pre, 0.7) with decay and dropout",
        (Line("mixout(0.7) and decay toward w_pre", "mixout(w_pre, 0.7) + wdecay(w_pre, 0.01)"), _DROPOUT),
    ),
    Question(
        "Does it matter which gradient mixout has (D1)?",
        "mixout/table-1",
        "(ours, D1) Which gradient",
        (Line("exact", "mixout(w_pre, 0.7), exact gradient"), Line("g⊙M", "mixout(w_pre, 0.7)")),
    ),
    Question(
        "Does mixout stay near the pretrained weights, and dropout not?",
        "mixout/figure-2",
        "(a): mixout(w_pre, p) ends nearer to w_pre than dropout(p)",
    ),
    Question(
        "Do re-initialised top blocks help on 1,000 rows?",
        "few-sample/table-1",
        "Re-init has a higher mean than Standard on every dataset",
        (Line("Standard", "Standard", "3 epochs"), Line("Re-init", "Re-init", "3 epochs")),
    ),
    Question(
        "Does longer training, on 1,000 rows?",
        "few-sample/table-1",
        "Longer training has a higher mean than 3 epochs",
        (Line("Standard", "Standard", "longer"), Line("Re-init", "Re-init", "longer")),
    ),
    Question(
        "On the small sets, does re-init, or an intermediate task?",
        "few-sample/table-2",
        "Re-init has a higher mean than Standard on every dataset",
        (_STANDARD, Line("Re-init", "Re-init"), Line("MNLI first", "Int. Task")),
    ),
    Question(
        "How many re-initialised blocks are too many?",
        "few-sample/figure-5",
        "More blocks help up to a point",
        (_STANDARD, *(Line(f"L = {L}:", "Re-init", f"L={L}") for L in (1, 2, 4))),
    ),
    Question(
        "Is re-init better whatever the seeds of initialisation and order?",
        "few-sample/figure-9",
        "Re-init 5 is better on average over the 10 x 10 seeds",
        (Line("Standard", "Standard", "every init"), Line("Re-init", "Re-init 5", "every init")),
    ),
    Question(
        "Does mixed precision cost anything?",
        "few-sample/table-4",
        "Mixed and full precision do not differ",
        (Line("mixed", "Mixed precision"), Line("full", "Full precision")),
    ),
    Question(
        "Does R-Drop help translation from scratch, and is it the KL term?",
        "rdrop/section-c2",
        "Without the KL term most of the gain is gone",
        (
            Line("baseline", "Baseline"),
            Line("R-Drop", "R-Drop"),
            Line("no KL term", "NLL only"),
            Line("twice the batch", "Double batch", item=_BLEU),
            Line("fraternal dropout", "FD", item="rdrop/table-4"),
        ),
    ),
    *(
        Question(f"Does R-Drop help {what} from scratch?", f"rdrop/{item}", claim, _WITH_AND_WITHOUT)
        for what, item, claim in (
            ("a language model", "language-modeling", "R-Drop has a lower perplexity"),
            ("summaries", "summarization", "R-Drop has a higher ROUGE"),
            ("images", "image-classification", "R-Drop has a higher accuracy"),
        )
    ),
    Question(
        "Does R-Drop help fine-tuning?",
        "rdrop/table-1",
        "R-Drop has a higher score than plain fine-tuning",
        _WITH_AND_WITHOUT,
    ),
    Question(
        "Does it matter which α R-Drop has?",
        "rdrop/table-2",
        "α = 1 is best for most tasks",
        tuple(Line(f"{alpha}:", "R-Drop", f"α={alpha}") for alpha in ("0.1", "0.5", "1.0", "1.5")),
    ),
    Question(
        "Is one R-Drop model better than an ensemble of six without?",
        "rdrop/table-5",
        "One model with R-Drop is better than an ensemble of 6",
        (
            Line("R-Drop", "R-Drop full-model weight averaging (checkpoint)", "1 model"),
            Line("ensemble of 6", "Transformer full-model deep ensembling", "6 models"),
        ),
    ),
    Question(
        "Are averaged weights of independent models useless?",
        "rdrop/table-5",
        "The averaged weights of independent models are useless",
        (
            Line("one model", "Transformer full-model weight averaging (model)", "1 model"),
            Line("two averaged", "Transformer full-model weight averaging (model)", "2 models"),
        ),
    ),
)


def answers(records: Records) -> list[Answer]:
    """Of the questions whose records are there."""
    found = []
    for question in QUESTIONS:
        verdict = _verdict(question, records)
        if verdict is not None:
            measured = _measured(question, records) if question.lines else verdict.measured
            found.append(Answer(question, measured, verdict))
    return found


def _verdict(question: Question, records: Records) -> Verdict | None:
    verdicts = records.get(question.item, {}).get("verdicts", ())
    return next((Verdict.from_data(each) for each in verdicts if each["text"].startswith(question.claim)), None)


def _measured(question: Question, records: Records) -> str:
    """`RTE: with 0.525 (12 failed), without 0.526 (18 failed); MRPC: ...`: means, and how many runs failed."""
    by_task: dict[str, list[str]] = {}
    for line in question.lines:
        for cell in records.get(line.item or question.item, {}).get("cells", ()):
            if (cell["row"], cell["setting"]) == (line.row, line.setting) and cell["mean"] is not None:
                failed = f" ({cell['failed']} failed)" if cell["failed"] else ""
                by_task.setdefault(cell["task"], []).append(f"{line.name} {number(cell['mean'])}{failed}")
    return "; ".join(f"{task}: {', '.join(told)}" for task, told in by_task.items())
