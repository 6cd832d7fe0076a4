"""What a study report says, shows and draws. All of it is a function of `StudyResults`.

    runs.py           what came out of one line of the tables on one task: runs counted, described, with intervals
    luck.py           where runs of one recipe differ: seeds of init and order, predictions
    comparisons.py    every line against the baseline and the best, computed once for words, tables and figures
    answer.py         the answer in words (remarks.py: what to know beside it; telling.py: what sentences are made of)
    tables.py         the tables (tables_beside.py: choices, instability, variance, cost; table_formats.py: CSV, LaTeX)
    figures/          one file per figure; SVG, PNG and PDF
    write.py          the report on the disk: page.py and its parts, figures and tables
    compare.py        two sides against each other, in the terminal (sides.py reads them; compare_words.py)
    naming.py         names and numbers as they are shown (readable.py: texts that a page can bear)

Words: a run *failed* when it did not beat the score without learning, or diverged (V3, M19). A trial that *crashed*
(status `failed` in the ledger) has no result: it is left out, and every table counts it.
"""
