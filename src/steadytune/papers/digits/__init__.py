"""Digits to digits: does mixout keep a fine-tuned network near the pretrained one? (mixout paper, section 4, figure 2)

    result = run("small", source="usps/usps.npz", target="mnist")
    claims(result), figure(result), result.to_data()

Set-up (section 4 and supplement C.1): a 784-300-100-10 network is pretrained on the source digits (M15: Adam, learning
rate 1e-4, batch 32, dropout(0.1), wdecay(0, 0.01), five random runs for each of 1, ..., 20 epochs; the run with the
best validation accuracy gives w_pre), then fine-tuned on MNIST with mixout(w_pre, p) and with dropout(p) (M16: learning
rate 5e-5, 5 epochs, no weight decay, 10 restarts that differ in the order of the rows and in the noise). Measured:
||w_ft - w_pre||², validation accuracy on the target, and validation accuracy on the source (what is forgotten).

The paper's source is EMNIST Digits; where that is not at hand, USPS stands for it. The paper does not say which p its
figure has; here 0.0, 0.1, ..., 0.9, where p = 0 is one run for both methods.
"""

from steadytune.papers.digits.cells import DISTANCE, cells
from steadytune.papers.digits.claims import claims
from steadytune.papers.digits.data import Digits, load
from steadytune.papers.digits.drawn import drawn_digits
from steadytune.papers.digits.experiment import run
from steadytune.papers.digits.figure import figure
from steadytune.papers.digits.plan import SCALES, Plan
from steadytune.papers.digits.results import DigitsResult, FineTuned

__all__ = [
    "DISTANCE",
    "SCALES",
    "Digits",
    "DigitsResult",
    "FineTuned",
    "Plan",
    "cells",
    "claims",
    "drawn_digits",
    "figure",
    "load",
    "run",
]
