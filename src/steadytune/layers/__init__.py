"""Which part of a model is what: embeddings, block 1..N, pooler, head.

    embeddings -> block 1 -> ... -> block N -> pooler -> head        depth: 0, 1, ..., N, N + 1, N + 1

This is the only place that knows architectures (families.py in tables, placing.py by rules). For any transformer:

1. Wrappers (DDP, torch.compile, FSDP, PEFT) are seen through: a wrapper and what it wraps are one node of the tree.
2. The *stack* is the longest ModuleList of equal blocks (two of them in an encoder-decoder); its items are the blocks.
3. Everything else hangs beside the stack, on one of its ancestors. Outside Hugging Face's base model it is a pooler or
   the head. Inside, its name says what it is, with whether it was registered before or after the stack.
4. What still has no place is refused by name. A parameter in no part would be trained, decayed or re-initialised
   silently wrong, and the experiment with it.

A norm after the last block belongs to that block. The pooler is the dense layer between the last block and the output
projection: `classifier.dense` in RoBERTa (ACCEPTANCE D12), but nothing in ELECTRA, XLNet, BART and T5 (V10).
Relations: re-init asks `top_blocks`, layer-wise learning rates ask `depth`, mixout asks `fed_by_activation`.
"""

from steadytune.layers.families import EMBEDDINGS, HEAD, POOLER, Part
from steadytune.layers.layers import Layers, find_layers

__all__ = ["EMBEDDINGS", "HEAD", "POOLER", "Layers", "Part", "find_layers"]
