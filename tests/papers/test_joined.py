"""Models that write one text together: each step by the mean probability of all, read anew or remembered."""

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from steadytune.papers.joined import JointModel

LONGEST = 9


@pytest.fixture(scope="module")
def models():
    sizes = {"d_model": 16, "vocab_size": 30, "decoder_vocab_size": 30, "max_position_embeddings": 32}
    sizes |= {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "init_std": 0.5}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    made = []
    for seed in range(3):
        torch.manual_seed(seed)
        made.append(MarianMTModel(MarianConfig(**sizes, **ids)).eval())
    return made


@pytest.fixture(scope="module")
def batch():
    ids = torch.randint(3, 30, (6, 7), generator=torch.Generator().manual_seed(0))
    ids[:3, 5:] = 0
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


@torch.no_grad()
def by_hand(models, batch):
    """Greedy search with the whole prefix at every step."""
    text = torch.full((6, 1), 1)
    over = torch.zeros(6, dtype=torch.bool)
    for _ in range(LONGEST):
        each = [model(**batch, decoder_input_ids=text).logits[:, -1].softmax(-1) for model in models]
        following = torch.stack(each).mean(0).argmax(-1)
        following[over] = 0
        over |= following == 2
        text = torch.cat([text, following[:, None]], 1)
        if over.all():
            break
    return text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_greedy_search_takes_the_word_of_the_highest_mean_probability(models, batch, count):
    options = {"num_beams": 1, "do_sample": False, "max_new_tokens": LONGEST}
    with torch.no_grad():
        found = JointModel(models[:count]).generate(**batch, **options)
    assert torch.equal(found, by_hand(models[:count], batch))
    with torch.no_grad():
        assert not torch.equal(found, models[-1 if count == 1 else 0].generate(**batch, **options)), "they differ"


def test_a_model_joined_with_itself_writes_what_it_writes_alone(models, batch):
    for beams in (1, 3):
        options = {"num_beams": beams, "do_sample": False, "max_new_tokens": LONGEST}
        with torch.no_grad():
            alone, joint = (
                models[0].generate(**batch, **options),
                JointModel([models[0]] * 2).generate(**batch, **options),
            )
        assert torch.equal(alone, joint), beams
