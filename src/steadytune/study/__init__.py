"""Studies: many seeds, tasks and methods in one file and one command, on any number of workers.

Read `results` first (what all readers see), then `file` and `plan` (from a study file to trials), `ledger` (what has
come out so far, in one SQLite file), and `worker` and `local` (who runs the trials).
"""
