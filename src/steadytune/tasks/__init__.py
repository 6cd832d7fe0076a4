"""Data and metrics: from the files a user has to rows, splits, baselines and scores. No torch here.

Read `base` first (what a Task, Rows and Data are); then one file per source of data, each with a `load`:
`text` (csv, tsv, jsonl, parquet, datasets), `glue`, `image`, `translation` (also summaries), `language_model`, and
`acceptability` (the bundled demo data). `metrics` scores; `splits`, `baselines` and `checks` say how, against what,
and what is odd. Nothing here imports transformers, datasets, pyarrow, PIL or sacrebleu until a function needs it.
"""

from steadytune.tasks.base import Baseline, Data, Notes, Rows, Source, Task

__all__ = ["Baseline", "Data", "Notes", "Rows", "Source", "Task"]
