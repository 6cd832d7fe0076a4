"""The experiments of the papers as studies: each function returns the plain data of a study file.

    parts.py               what they share: GLUE columns as tasks, recipes of the scales, rates
    mixout.py              tables 1 to 4, figures 4 and 6
    few_sample_bias.py     with and without bias correction: figure 2, table 5; precision: table 4
    few_sample_layers.py   re-init and longer training: table 1, figures 5, 8, 13, 14
    few_sample_methods.py  table 2: eight methods, and the intermediate task that one of them starts from
    few_sample_inside.py   seeds (figures 9, 10), distances (figures 7, 15-18), other models (table 7)
    rdrop_glue.py          R-Drop on GLUE: tables 1 and 2
    translation.py         R-Drop and its controls on translation
    other_tasks.py         R-Drop on summaries, language models and images

Variants are called as the published rows (and settings) are, tasks as the published columns, so that a claim about
("Re-init", "RTE", "longer") finds the runs of the variant `Re-init, longer` on the task `RTE`. Where other data stands
for a column at the small scale, the task is called after that data (STAND_INS).
"""
