"""One of the two processes of test_mixout_models.py: the gradients of a mixed model under DDP."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from two_processes import RANK, WORLD, die_with_launcher, leave  # noqa: E402

die_with_launcher()

import torch  # noqa: E402
from test_mixout_models import batch, bert, moved_  # noqa: E402
from torch import nn  # noqa: E402

from steadytune import Mixout, apply_  # noqa: E402


def gradients(ranks):
    model = bert()
    torch.manual_seed(100 + RANK)  # ranks are often seeded apart; masks must agree all the same
    apply_(model, Mixout(p=0.7, ranks=ranks))
    moved_(model).train()
    ddp = nn.parallel.DistributedDataParallel(model)
    mine = {k: v[RANK::WORLD] for k, v in batch(8).items()}
    for _ in range(2):
        ddp.zero_grad()
        ddp(**mine).loss.backward()
    return model.bert.pooler.dense.mix_state, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    leave({ranks: gradients(ranks) for ranks in ("same", "own")}, sys.argv[1])
