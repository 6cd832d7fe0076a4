"""Models that the papers' studies make for themselves."""

import json

import pytest

from steadytune.papers.materials.text_models import bpe_tokenizer, save_model

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_made_model_is_the_same_files_wherever_it_is_made(tmp_path, monkeypatch):
    """A trial is known by its model's files: runs of another machine were run again, for a version in one of them."""
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 40}
    tokenizer = bpe_tokenizer(["one text\nand another"], 40)
    save_model(tmp_path / "here", "GPT2Config", sizes, tokenizer, "GPT2LMHeadModel")
    monkeypatch.setattr("transformers.configuration_utils.__version__", "5.99.0")
    monkeypatch.setattr("transformers.generation.configuration_utils.__version__", "5.99.0")
    save_model(tmp_path / "elsewhere", "GPT2Config", sizes, tokenizer, "GPT2LMHeadModel")
    files = sorted(file.name for file in (tmp_path / "here").iterdir())
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    for name in files:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "elsewhere" / name).read_bytes(), name
    assert json.loads((tmp_path / "here" / "config.json").read_text())["n_embd"] == 8
