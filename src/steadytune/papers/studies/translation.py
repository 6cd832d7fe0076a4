"""R-Drop and its controls on translation, from scratch (R-Drop's appendix A.1 and C): BLEU on IWSLT14 De-En.

Set-up (R9): fairseq's transformer_iwslt_de_en (6 + 6 layers, 512 wide, 1,024 inside, 4 heads, dropout 0.3), joint BPE
of 10,000, Adam(0.9, 0.98) with eps 1e-9, 5e-4 after 4,000 steps of warm-up, then the inverse square root, label
smoothing 0.1, decay 1e-4, α = 5, multi-bleu of a beam of 5. The model is Marian's, that architecture in transformers.
The paper's batch is 4,096 tokens; here as many sentence pairs as have that many. Its single numbers are of one run;
here 3, the fewest that a test may be based on, and 6 where it joins 6 models. It does not say how long it trained: the
authors' script has 300,000 updates, and 90 of the 300 minutes of table 3 are the baseline's.
At the small scale Multi30k, tokenised and in small letters in the same way: 1,000 pairs, so few that the baseline stops
rising before the end (R-Drop is said to help where a model would overfit), which 2 + 2 layers, 128 wide, see 96 times
in 3,000 steps; a BPE of 2,000, scored by greedy search; 5 seeds, 3 where checkpoints are averaged (the last 1, 2, 4).
One core takes 3 to 5 minutes a run.
"""

from __future__ import annotations

from pathlib import Path

from steadytune.papers.catalogue.rdrop_controls import IWSLT
from steadytune.papers.materials.text_models import bpe_tokenizer, made_once, save_model
from steadytune.papers.materials.tokenised import lines_of, parallel_texts, said_by, write_pairs
from steadytune.papers.settings import SMALL_RECIPE, SMOKE_RECIPE, Setting, relative
from steadytune.papers.studies.parts import Data, lengthless

STAND_INS = {IWSLT: "Multi30k De-En"}
BASELINE, RDROP, DOUBLE, NLL, FRATERNAL = "Baseline", "R-Drop", "Double batch", "NLL only", "FD"
MODELS = 6
CHECKPOINTS = {BASELINE: "Transformer full-model weight averaging (checkpoint)"}
CHECKPOINTS[RDROP] = "R-Drop full-model weight averaging (checkpoint)"
_LANGUAGES = ("de", "en")
_SHARED = "translation-model"  # beside the studies that use it: rows made ready, tokenizer, configuration


def prepare(setting: Setting) -> None:
    """The rows, tokenised; a tokenizer of both languages; the model's configuration. Made once for all studies."""
    source = setting.data / setting.pick(full="iwslt14", small="multi30k", smoke="multi30k")
    with made_once(_folder(setting), said_by(parallel_texts(source, _LANGUAGES))) as new:
        if new is None:
            return
        write_pairs(source, new / "rows", _LANGUAGES, ready=setting.scale == "full")
        texts = (line for name in ("train.de", "train.en") for line in lines_of(new / "rows" / name))
        tokenizer = bpe_tokenizer(texts, setting.pick(full=10_000, small=2_000, smoke=60))
        layers, wide, inside, heads = setting.pick(full=(6, 512, 1024, 4), small=(2, 128, 256, 4), smoke=(2, 16, 32, 2))
        config = {f"{side}_layers": layers for side in ("encoder", "decoder")}
        config |= {f"{side}_ffn_dim": inside for side in ("encoder", "decoder")}
        config |= {f"{side}_attention_heads": heads for side in ("encoder", "decoder")}
        more = {
            "vocab_size": len(tokenizer),
            "decoder_vocab_size": len(tokenizer),
            "d_model": wide,
            "dropout": 0.3,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "activation_function": "relu",
            "scale_embedding": True,
            "share_encoder_decoder_embeddings": True,
            "max_position_embeddings": 256,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
        }
        save_model(new / "model", "MarianConfig", config | more, tokenizer)


def controls(setting: Setting) -> Data:
    """The baseline, R-Drop, and what else could explain its gain: sections C.1, C.2 and C.4."""
    variants = {
        BASELINE: {},
        RDROP: _loss("rdrop", alpha=5.0),
        DOUBLE: {"add": [{"method": "doubled_batch", "times": 2}]},
        NLL: _loss("nll_only"),
        FRATERNAL: _loss("fraternal_dropout"),
    }
    return _study(setting, "R-Drop and its controls on translation", variants)


def step_time(setting: Setting) -> Data:
    """What a step costs: long runs without evaluations to speak of, so that little else is timed."""
    made = _study(
        setting,
        "R-Drop, section C.1: time per step",
        {DOUBLE: {"add": [{"method": "doubled_batch", "times": 2}]}, RDROP: _loss("rdrop", alpha=5.0)},
    )
    task = next(iter(made["tasks"].values())) | {"limit": {"validation": 4, "test": 4}}
    short = lengthless(setting, {"evaluations": 1, "steps": setting.pick(full=1000, small=300, smoke=0)})
    return made | {"tasks": {"time per step": task}, "base": made["base"] | short | {"beams": 1}}


def by_time(setting: Setting) -> Data:
    """Table 3: R-Drop with half the batch, so that a step takes about as long; the baseline for 90 of its 300 minutes.

    A minute is a share of R-Drop's time, whose steps take up to a third longer. So the baseline runs on for another
    third, or it would end before its 90 minutes; its rate does not know of an end, so nothing earlier changes.
    """
    steps = setting.pick(full=300_000, small=3000, smoke=6)
    base, mine = (lengthless(setting, {"steps": number, "evaluations": each}) for number, each in _lengths(steps))
    variants = {BASELINE: base, RDROP: _loss("rdrop", alpha=5.0, half_batch=True) | mine}
    made = _study(setting, "R-Drop, table 3: BLEU by training time", variants)
    return made | {
        "seeds": setting.pick(full=3, small=5, smoke=2),
        "report": {"split": "validation", "weights": "last"},
    }


def _lengths(steps: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(steps, evaluations): one evaluation every 10 of the paper's minutes."""
    return (max(1, steps * 120 // 300), 12), (steps, 30)


def models(setting: Setting) -> Data:
    """Table 5: models of different seeds, kept, to be joined (joined.py)."""
    made = _study(setting, "R-Drop, table 5: models of different seeds", {BASELINE: {}})
    return made | {"seeds": setting.pick(full=MODELS, small=MODELS, smoke=2), "keep_models": True}


def checkpoints(setting: Setting) -> Data:
    """Table 5: the mean of the last evaluations' weights. The same seed takes the same way, so each is one run more.

    Those are "epoch checkpoints" there, and averaging is said to help "nearby" ones. An epoch of IWSLT14 has 1,000
    steps of this batch; at the small scale an evaluation comes after three epochs.
    """
    variants: Data = {}
    numbers = setting.pick(full=range(1, MODELS + 1), small=(1, 2, 4), smoke=(1, 2))
    for name, row in CHECKPOINTS.items():
        for number in numbers:
            made = _loss("rdrop", alpha=5.0) if name == RDROP else {}
            if number > 1:
                made = made | {"add": [*made.get("add", []), {"method": "checkpoint_average", "last": number}]}
            variants[f"{row}, {number} model{'s' * (number > 1)}"] = made
    found = _study(setting, "R-Drop, table 5: averaged checkpoints", variants)
    often = lengthless(setting, {"evaluations": setting.pick(full=300, small=30, smoke=0)})
    report = {"split": "test", "weights": "last"}
    seeds = setting.pick(full=3, small=3, smoke=2)
    return found | {"base": found["base"] | often, "seeds": seeds, "report": report}


def _study(setting: Setting, name: str, variants: Data) -> Data:
    column = setting.pick(full=IWSLT, small=STAND_INS[IWSLT], smoke=IWSLT)
    rows = relative(_folder(setting) / "rows", setting.folder)
    task: Data = {"translation": rows, "source": "de", "target": "en", "metric": "tokenized_bleu"}
    if setting.scale == "small":
        task["limit"] = {"train": 1000, "validation": 200, "test": 1000}
    return {
        "study": name,
        "base": _base(setting),
        "tasks": {column: task},
        "variants": variants,
        "seeds": setting.pick(full=3, small=5, smoke=2),
    }


def _base(setting: Setting) -> Data:
    schedule = setting.pick(full=4000, small=300, smoke=2)
    scale = setting.pick(
        full={"batch_size": 160, "steps": 300_000, "evaluations": 30, "max_length": 200, "precision": "fp16"},
        small={
            **SMALL_RECIPE,
            "batch_size": 32,
            "steps": 3000,
            "evaluations": 4,
            "max_length": 40,
            "lr": 2e-3,
            "beams": 1,
        },
        smoke={**SMOKE_RECIPE, "beams": 2, "max_target_length": 8},
    )
    return {
        "model": relative(_folder(setting) / "model", setting.folder),
        "from_config": True,
        "methods": [
            {"method": "adamw", "betas": [0.9, 0.98], "eps": 1e-9},
            {"method": "inverse_sqrt_schedule", "warmup": schedule},
        ],
        "lr": 5e-4,
        "weight_decay": 1e-4,
        "clip": 0.0,
        "label_smoothing": 0.1,
        "beams": 5,
        "length_penalty": 1.0,
        **scale,
    }


def _loss(name: str, **changes: object) -> Data:
    """A method that makes the loss, and so smooths labels itself."""
    return {"label_smoothing": 0.0, "add": [{"method": name, "label_smoothing": 0.1, **changes}]}


def _folder(setting: Setting) -> Path:
    return setting.folder.parent / _SHARED
