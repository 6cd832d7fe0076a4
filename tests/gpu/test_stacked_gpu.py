"""Many restarts of the digits' network at once on a real GPU: `python -m pytest -m gpu tests/gpu`"""

import pytest
import torch

from steadytune import Streams
from steadytune.papers.digits import drawn_digits
from steadytune.papers.digits.network import Restart, Training, start_weights
from steadytune.papers.digits.stacked import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def test_a_gpu_trains_the_same_restarts():
    digits = drawn_digits("drawn", 72)  # two whole batches and a smaller one
    restarts = [
        Restart(method=method, p=p, epochs=1 + i % 2, lr=1e-3 * (1 + i), streams=Streams(i, 10 + i, 20 + i))
        for i, (method, p) in enumerate([("mixout", 0.0), ("mixout", 0.4), ("dropout", 0.4), ("dropout", 1.0)])
    ]
    starts = [start_weights(Streams(3 + i), torch.float64) for i in range(len(restarts))]
    here = train(starts, restarts, Training(weight_decay=0.1), digits.train)
    there = train(starts, restarts, Training(weight_decay=0.1), digits.to("cuda").train)
    for name, each in here.weights.items():
        torch.testing.assert_close(there.weights[name].cpu(), each, rtol=1e-6, atol=1e-6)
