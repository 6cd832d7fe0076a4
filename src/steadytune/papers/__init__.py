"""The papers' experiments: every table and figure, run and held against what was published.

    catalogue/   what each table and figure shows and claims; light to import
    published/   the numbers that the papers print, as data
    theory/      what the papers prove, checked with numbers: least squares with mixout (M12), theorem 1 and corollary
                 1.1 (M10, M11), Adam's bias (V2), proposition B.1 of R-Drop (R13)
    digits/      digits to digits: pretrain a small network on one set, fine-tune it on another (M14-M16, mixout figure
                 2), many restarts at once
    studies/     the other experiments, each as the plain data of a study file
    materials/   what they need besides data: tokenizers, configurations, generated rows

    settings.py      what full, small and smoke mean
    study_parts.py   the studies, and which comes after which
    experiments.py   each table and figure: which studies it shows, and how (experiment.py, places.py, views.py)
    run.py           running one; cost.py, listing.py: what each costs
    report.py        what came out: tables.py, figures.py, report_files.py
    claim_tests.py   every claim tested on the runs: samples.py, case_tests.py, verdicts.py
    joined.py        ensembles and averages of kept models

Each module of theory/, and digits/, has `SCALES`, `run(scale, ...)`, which returns a frozen result with `to_data()` for
a JSON file, and `claims(result)`, which says what came out. They write no file.
"""
