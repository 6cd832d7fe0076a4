"""The engine: rows to numbers (`encode`), numbers to a run (`train`), a run to a record (`result`).

Read `train` first; it goes from top to bottom, and the other files are what it calls, in the order it calls them:
`encode` and `batches` (which rows make a step, cut by length), `gradients` (one batch's gradient), `evaluate`,
`distances`, `state` and `saving` (what a checkpoint holds), `noise` and `processes` (randomness and torchrun).
"""
