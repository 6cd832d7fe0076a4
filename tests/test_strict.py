"""Settings as text and as data: by the types of the fields, and nothing else."""

import pytest

from steadytune import AdamW, Dropout, LinearSchedule, Longer, Mixout, Reinit, SteadytuneError
from steadytune.recipe import parse_method


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("mixout", Mixout()),
        ("mixout:", Mixout()),
        (" mixout : p = 0.8 ", Mixout(p=0.8)),
        ("mixout:p=1", Mixout(p=1.0)),
        ("mixout:p=0.7,layers=all", Mixout(p=0.7, layers="all")),
        ("mixout:layers=*.query,*.key,share_qkv=TRUE", Mixout(layers="*.query,*.key", share_qkv=True)),
        ("reinit:layers=3", Reinit(layers=3)),
        ("reinit:layers=0.25,pooler=false", Reinit(layers=0.25, pooler=False)),
        ("dropout:p=none", Dropout(p=None)),
        ("adamw:betas=0.9,0.98,eps=1e-6", AdamW(betas=(0.9, 0.98), eps=1e-6)),
        ("adamw:betas=(0.9, 0.98)", AdamW(betas=(0.9, 0.98))),
        ("linear_schedule:warmup=10%", LinearSchedule(warmup="10%")),
        ("linear_schedule:warmup=100", LinearSchedule(warmup=100)),
        ("longer:steps=800", Longer(steps=800)),
    ],
)
def test_methods_as_text(text, made):
    assert parse_method(text) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mixot:p=0.7", "no method 'mixot'. Did you mean 'mixout'?"),
        ("", "no method ''"),
        ("mixout:prob=0.7", "Mixout has no setting 'prob'"),
        ("mixout:p", "'p' is no setting. Write name=value"),
        ("mixout:p=", "p must be a number, not ''"),
        ("mixout:p=high", "p must be a number, not 'high'"),
        ("mixout:p=0.5,p=0.6", "p is given twice"),
        ("mixout:p=1.5", "must lie in [0, 1]"),
        ("mixout:share_qkv=1", "share_qkv must be true or false, not '1'"),
        ("reinit:layers=two", "layers must be a whole number or a number, not 'two'"),
        ("adamw:betas=0.9", "betas must be a list of 2"),
        ("adamw:betas=0.9,0.98,0.99", "betas must be a list of 2"),
        ("pretrained_decay:form=l3", "form must be one of decoupled, l2"),
    ],
)
def test_methods_as_text_that_are_wrong(text, said):
    with pytest.raises(SteadytuneError) as error:
        parse_method(text)
    assert said in str(error.value)
