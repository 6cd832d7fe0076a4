"""What a study report says, shows and draws. All of it is a function of `StudyResults`.

    runs.py           what came out of one variant on one task: runs counted, described, with intervals
    comparisons.py    everything against the baseline and the best, computed once for words, tables and figures
    luck.py           where the differences between runs come from: seeds of init and order, predictions
    answer.py         the answer in words
    tables.py         tables as data, and as CSV, Markdown and LaTeX
    figures/          one file per figure; SVG, PNG and PDF
    compare.py        two sides against each other, in the terminal

Words: a run *failed* when it did not beat the score without learning, or diverged (V3, M19). A trial that *crashed*
(status `failed` in the ledger) has no result: it is left out, and every table counts it.
"""
