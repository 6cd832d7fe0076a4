"""The papers' experiments, as functions of this library.

    theory/     what the papers prove, checked with numbers: least squares with mixout (M12), theorem 1 and corollary
                1.1 (M10, M11), Adam's bias (V2), proposition B.1 of R-Drop (R13)
    digits/     digits to digits: pretrain a small network on one set, fine-tune it on another (M14-M16, figure 2 of the
                mixout paper), many restarts at once

Each module has `SCALES` (full: the paper's set-up; small: what fits one GPU in minutes or two CPU cores in an hour;
smoke: seconds), `run(scale, ...)` which returns a frozen result with `to_data()` for a JSON file, `claims(result)`
which says what the paper claims and whether it came out. `digits.figure(result)`, and `theory.figures`, make the
paper's figures. Nothing here writes a file, and published numbers are kept elsewhere.
"""
