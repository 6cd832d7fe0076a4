"""R-Drop on summaries, language models and images (R-Drop's appendix A.2, A.3, A.5; images also C.4).

Full scale: facebook/bart-large on CNN/DailyMail with fairseq's settings for it (20,000 updates at 3e-5, beam 4); the
12-layer transformer of gpt2's configuration on WikiText-103 from scratch (50,000 updates, fairseq's settings; the
paper's second model, with adaptive inputs, is not in transformers); ViT-B/16 and L/16 of ImageNet-21k on CIFAR-100 and
ImageNet (10,000 steps in batches of 512 as in ViT's own code, but with AdamW, which this engine has, in place of SGD;
the images of table 4 are a ResNet's in the paper, which has no dropout in transformers: here they are ViT's).
α is that of the authors' scripts: 0.7, 1.0; for images 0.6 per example, as their 0.3 has no factor ½ (D14). Their sum
over the batch is not taken over: it would mean another α for every batch size, and cannot be taken in micro-batches.
In section C.4 (table 4) α of images falls with the learning rate: `images_of_table_4`.
Small scale, all from scratch: headings of WikiText-2's sections as summaries of their first paragraphs, of those that
its training text has at least five times, so that they can be learnt; 3,000 lines of WikiText-2, so few that the
baseline stops improving before the end (as with translation); ten classes of a CIFAR-10 subset. What a number of these
is, only the comparison says.
"""

from __future__ import annotations

from typing import Any

from steadytune.papers.catalogue.rdrop import VIT_L
from steadytune.papers.materials.text_models import bpe_tokenizer, made_once, save_model
from steadytune.papers.materials.tokenised import lines_of, said_by, wikitext, write_headlines
from steadytune.papers.settings import BART, GPT2, SMALL_RECIPE, SMOKE_RECIPE, VIT_BASE, VIT_LARGE, Setting
from steadytune.papers.studies.parts import Data

BASELINE, RDROP, FRATERNAL = "Baseline", "R-Drop", "FD"
STAND_INS = {"CNN/DailyMail": "WikiText-2 headings", "WikiText-103": "WikiText-2", "CIFAR-100": "CIFAR-10 subset"}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _column(setting: Setting, name: str) -> str:
    return setting.pick(full=name, small=STAND_INS[name], smoke=name)


def _hub(setting: Setting, name: str) -> str:
    """A model of the full scale; at the others the value is not used."""
    return setting.model(name) if setting.scale == "full" else name


def _rdrop(alpha: float, **changes: Any) -> Data:
    return {"method": "rdrop", "alpha": alpha, **changes}


def prepare_summaries(setting: Setting) -> None:
    """Rows and model of the small scale: both from WikiText-2. A smoke run has tiny models, but the same rows."""
    if setting.scale == "full":
        return
    source = setting.data / "wikitext-2"
    with made_once(setting.folder / "rows", said_by(wikitext(source))) as new:
        if new is not None:
            new.rmdir()
            write_headlines(source, new, times=setting.pick(full=1, small=5, smoke=1))
    if setting.scale == "small":
        sizes = {f"{side}_{what}": number for side in ("encoder", "decoder") for what, number in _SMALL_BART.items()}
        config = {**_IDS, **sizes, "d_model": 128, "max_position_embeddings": 256, "decoder_start_token_id": 2}
        _from_scratch(setting, "BartConfig", config | {"forced_eos_token_id": None})


_SMALL_BART = {"layers": 2, "ffn_dim": 256, "attention_heads": 4}


def summaries(setting: Setting) -> Data:
    if setting.scale == "full":
        folder = setting.path("cnn_dailymail")
        rows = {"summarization": f"{folder}/train.csv", "source": "article", "target": "highlights"}
        rows |= {"validation": f"{folder}/validation.csv", "test": f"{folder}/test.csv"}
    else:
        rows = {"summarization": "rows/train.csv", "source": "text", "target": "heading"}
        rows |= {"validation": "rows/valid.csv", "test": "rows/test.csv"}
    scale: Data = setting.pick(
        full={
            "model": _hub(setting, BART),
            "lr": 3e-5,
            "steps": 20_000,
            "batch_size": 32,
            "max_length": 1024,
            "max_target_length": 140,
            "precision": "fp16",
            "clip": 0.1,
            "beams": 4,
            "length_penalty": 2.0,
            "evaluations": 5,
            "weight_decay": 0.01,
        },
        small={
            **SMALL_RECIPE,
            "model": "model",
            "from_config": True,
            "lr": 1e-3,
            "steps": 2000,
            "batch_size": 32,
            "max_length": 100,
            "max_target_length": 16,
            "beams": 4,
            "evaluations": 5,
            "weight_decay": 0.01,
        },
        smoke={"model": setting.path("models/bart"), **SMOKE_RECIPE, "beams": 2, "max_target_length": 6},
    )
    warmup = setting.pick(full=500, small=100, smoke=1)
    schedule = [{"method": "adamw"}, {"method": "polynomial_schedule", "warmup": warmup}]
    smoothed = {"label_smoothing": 0.0, "add": [_rdrop(0.7, label_smoothing=0.1)]}
    limit = {"limit": {"train": 24, "validation": 6, "test": 6}} if setting.scale == "smoke" else {}
    return {
        "study": "R-Drop: summaries",
        "base": {"methods": schedule, "label_smoothing": 0.1, **scale},
        "tasks": {_column(setting, "CNN/DailyMail"): rows | {"metric": "rouge_l"} | limit},
        "variants": {BASELINE: {}, RDROP: smoothed},
        "seeds": setting.pick(full=3, small=5, smoke=2),
    }


def prepare_language_model(setting: Setting) -> None:
    if setting.scale == "small":
        config = {**_IDS, "n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 128, "resid_pdrop": 0.1}
        _from_scratch(setting, "GPT2Config", config)


def language_model(setting: Setting) -> Data:
    corpus = setting.pick(full="wikitext-103", small="wikitext-2", smoke="wikitext-2")
    scale: Data = setting.pick(
        full={"model": _hub(setting, GPT2), "steps": 50_000, "batch_size": 64}
        | {"max_length": 512, "precision": "fp16"},
        small=SMALL_RECIPE | {"model": "model", "lr": 2e-3, "steps": 2000, "batch_size": 32, "max_length": 128},
        smoke={"model": setting.path("models/gpt2"), **SMOKE_RECIPE},
    )
    schedule = {"method": "inverse_sqrt_schedule", "warmup": setting.pick(full=4000, small=400, smoke=2)}
    limit = {"limit": {"train": 3000}} if setting.scale == "small" else {}  # lines
    return {
        "study": "R-Drop: language models",
        "base": {
            "from_config": True,
            "lr": 5e-4,
            "weight_decay": 0.01,
            "clip": 0.0,
            "evaluations": 5,
            "methods": [{"method": "adamw", "betas": [0.9, 0.98]}, schedule],
            **scale,
        },
        "tasks": {_column(setting, "WikiText-103"): {"language_model": setting.path(corpus), **limit}},
        "variants": {BASELINE: {}, RDROP: {"add": [_rdrop(1.0)]}},
        "seeds": setting.pick(full=3, small=5, smoke=2),
    }


def prepare_images(setting: Setting) -> None:
    if setting.scale == "small":
        sizes = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 384}
        config = {**sizes, "image_size": 32, "patch_size": 4, "hidden_dropout_prob": 0.1}
        with made_once(setting.folder / "model") as new:
            if new is not None:
                save_model(new, "ViTConfig", config | {"attention_probs_dropout_prob": 0.1}, None)


def images(setting: Setting) -> Data:
    """ViT with and without R-Drop: CIFAR-100 and ImageNet; and fraternal dropout for table 4."""
    places = {"CIFAR-100": "cifar-100", "ImageNet": "imagenet"}
    if setting.scale != "full":
        places = {"CIFAR-100": setting.pick(full="", small="cifar10-subset/images.zip", smoke="images.npz")}
    scale: Data = setting.pick(
        full={"model": _hub(setting, VIT_BASE), "lr": 3e-4, "steps": 10_000}
        | {"batch_size": 512, "micro_batches": 8, "precision": "fp16"},
        small=SMALL_RECIPE | {"model": "model", "from_config": True, "lr": 5e-4, "epochs": 20.0, "batch_size": 64},
        smoke={"model": setting.path("models/vit"), **SMOKE_RECIPE},
    )
    variants: Data = {
        BASELINE: {},
        RDROP: {"add": [_IMAGE_RDROP]},
        FRATERNAL: {"add": [{"method": "fraternal_dropout"}]},
    }
    if setting.scale == "full":
        larger = {"model": setting.model(VIT_LARGE)}
        variants |= {f"{name}, {VIT_L}": {**larger, **variants[name]} for name in (BASELINE, RDROP)}
    return {
        "study": "R-Drop: images",
        "base": {
            "methods": [{"method": "adamw"}, {"method": "linear_schedule", "warmup": 0.05}, _DROPOUT],
            "evaluations": 5,
            **scale,
        },
        "tasks": {
            column if setting.scale != "small" else STAND_INS[column]: {
                "images": setting.path(place),
                **_SIZES.get(column, {}),
            }
            for column, place in places.items()
        },
        "variants": variants,
        "seeds": setting.pick(full=3, small=10, smoke=2),
    }


def images_of_table_4(setting: Setting) -> Data:
    """CIFAR-100 as in section C.4, where α of R-Drop falls with the learning rate; else the runs of `images`."""
    made = images(setting)
    tasks = {"CIFAR-100": made["tasks"]["CIFAR-100"]}
    variants = {name: made["variants"][name] for name in (BASELINE, RDROP, FRATERNAL)}
    variants[RDROP] = {"add": [{**_IMAGE_RDROP, "alpha_schedule": "lr"}]}
    return made | {"study": "R-Drop, table 4: images", "tasks": tasks, "variants": variants}


_DROPOUT = {"method": "dropout", "p": 0.1}
_SIZES = {"ImageNet": {"size": 224}}  # its files have many; those of the others have one
_IMAGE_RDROP = {"method": "rdrop", "alpha": 0.6}  # the authors' α (KL + KL) with 0.3, where the paper has α ½ (KL + KL)


def _from_scratch(setting: Setting, config: str, changes: Data) -> None:
    """A BPE of WikiText-2's training text, and a configuration that fits it, in `model/`."""
    with made_once(setting.folder / "model") as new:
        if new is not None:
            tokenizer = bpe_tokenizer(lines_of(setting.data / "wikitext-2" / "train.txt"), 2000)
            save_model(new, config, {**changes, "vocab_size": len(tokenizer)}, tokenizer)
