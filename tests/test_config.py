"""Recipe files: plain data only, strict, and every refusal names the file and the line."""

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from steadytune import AdamW, LinearSchedule, Mixout, Reinit, SteadytuneError
from steadytune.config import dump_recipe, load_recipe, load_yaml
from steadytune.recipe import PRESETS, Recipe, preset
from steadytune.strict import BadValue


@pytest.fixture
def file(tmp_path):
    def save(text):
        path = tmp_path / "recipe.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return save


def test_a_recipe_file(file):
    text = """
    # what a person writes
    model: roberta-base
    lr: 2e-5
    epochs: 5
    precision: bf16
    methods:
      - {method: mixout, p: 0.8}
      - method: adamw
        betas: [0.9, 0.98]
    """
    assert load_recipe(file(text)) == Recipe(
        model="roberta-base", lr=2e-5, epochs=5.0, precision="bf16", methods=[AdamW(betas=(0.9, 0.98)), Mixout(p=0.8)]
    )


def test_a_file_can_start_from_a_preset(file):
    assert load_recipe(file("preset: recommended")) == preset("recommended")
    changed = load_recipe(file("lr: 1e-4\npreset: recommended\nsteps: 50"))
    assert changed == preset("recommended").updated({"lr": 1e-4, "steps": 50})
    assert load_recipe(file("preset: mixout\nmethods: []")).methods == ()


def test_json_is_yaml(file):
    assert load_recipe(file('{"lr": 1e-4, "methods": [{"method": "reinit", "layers": 0.25}]}')) == Recipe(
        lr=1e-4, methods=[Reinit(layers=0.25)]
    )


WORDS = {
    "2e-5": 2e-5,
    "2E5": 2e5,
    "-1.5e+3": -1500.0,
    "1.": 1.0,
    ".5": 0.5,
    "3": 3,
    "-0": 0,
    "+7": 7,
    "true": True,
    "null": None,
    "~": None,
    "": None,
    "text": "text",
    "'2e-5'": "2e-5",
    '"true"': "true",
    # texts here, something else in YAML 1.1 or to Python
    "yes": "yes",
    "no": "no",
    "on": "on",
    "True": "True",
    "010": "010",
    "0x10": "0x10",
    "0b1": "0b1",
    "1_000": "1_000",
    "1:30": "1:30",
    "2020-01-01": "2020-01-01",
    ".inf": ".inf",
    "nan": "nan",
    "e5": "e5",
    "=": "=",
    "[1, a]": [1, "a"],
    "{a: 1}": {"a": 1},
}


@pytest.mark.parametrize(("text", "value"), WORDS.items())
def test_words_mean_what_they_say(file, text, value):
    found = load_yaml(file(f"x: {text}")).data["x"]
    assert found == value
    assert type(found) is type(value)


BAD = [
    ("lr: 1\nlrr: 2\n", 2, "no setting 'lrr'. Did you mean 'lr'?"),
    ("lr: 1\nmodel: x\nlr: 2\n", 3, "'lr' is given twice, first in line 1"),
    ("methods:\n- method: mixout\n  p: 0.1\n  p: 0.2\n", 4, "'p' is given twice, first in line 3"),
    ("methods:\n- method: mixout\n  p: 1.5\n", 3, "must lie in [0, 1]"),
    ("methods:\n- method: adamw\n\n- method: mixot\n", 4, "Did you mean 'mixout'?"),
    ("methods:\n- method: adamw\n- mixout\n", 3, "A method is written"),
    ("methods:\n- method: mixout\n- method: dropout\n", 1, "both replace the dropout"),
    ("batch_size: 32\n\nlr: fast\n", 3, "lr must be a number, not 'fast'"),
    ("trust_remote_code: yes\n", 1, "trust_remote_code must be true or false, not 'yes'"),
    ("batch_size: 010\n", 1, "batch_size must be a whole number, not '010'"),
    ("epochs: 1\nsteps: 2\n", 2, "give one or the other"),
    ("lr: 1e999\n", 1, "lr must be a number above 0, not inf"),
    ("steps: " + "9" * 5000, 1, "digits"),
    ("lr: 1\npreset: recomended\n", 2, "Did you mean 'recommended'?"),
    ("preset: [recommended]\n", 1, "no recipe ['recommended']"),
    ("preset: recommended\n\nlrr: 1\n", 3, "Did you mean 'lr'?"),
    ("lr: 1\nmodel: !!python/object/apply:os.system [true]\n", 2, "python/object/apply:os.system is not used here"),
    ("lr: !!float 1\n", 1, "tag"),
    ("model: !secret x\n", 1, "!secret is not used here"),
    ("a: &x 1\nb: *x\n", 1, "anchors"),
    ("lr: 1\nmodel: *x\n", 2, "anchors (&) and aliases (*)"),
    ("? [1, 2]\n: 3\n", 1, "a setting's name must be a word"),
    ("lr: 1\n5: x\n", 2, "a setting's name must be a word"),
    ("lr: 1\ntrue: x\n", 2, "a setting's name must be a word"),
    ("<<: {lr: 1}\n", 1, "no setting '<<'"),
    ("lr: [1\n", 2, "expected"),
    ("lr: 1\n model: x\n", 2, "mapping values are not allowed here"),
    ("lr: 1\n---\nlr: 2\n", 2, "but found another document"),
    (b"lr: 1\nmodel: \xff\n", 2, "not UTF-8"),
    ("x: " + "[" * 5000, 1, "nested more than 30 deep"),
    ("x: " + "{a: " * 5000, 1, "nested more than 30 deep"),
]


@pytest.mark.parametrize(("text", "line", "said"), BAD)
def test_what_is_wrong_is_said_with_file_and_line(file, text, line, said):
    path = file(text)
    with pytest.raises(SteadytuneError) as error:
        load_recipe(path)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{path}, line {line}: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("lr: 1\x00", "is not YAML"),
        ("recommended", ": A recipe is a list of settings"),
        ("- lr: 1", ": A recipe is a list of settings"),
        ("#" * 1_000_001, "at most 1000000"),
    ],
)
def test_files_that_are_no_recipes(file, text, said):
    path = file(text)
    with pytest.raises(SteadytuneError, match=f"{re.escape(str(path))}.*{said}"):
        load_recipe(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(SteadytuneError, match=r"none\.yaml cannot be read: No such file"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(SteadytuneError, match=r"is a folder; name the \.yaml file"):
        load_recipe(tmp_path)


def test_a_byte_order_mark_is_no_letter(file):
    assert load_recipe(file("\ufefflr: 1e-3\n".encode())).lr == 1e-3


def test_lines_for_readers_of_other_files(file):
    """What a study file needs: the line of anything in it, and errors that say it."""
    path = file("tasks:\n- RTE\n- name: MRPC\n  rows: 5\nrecipes:\n  ours:\n    lr: 1\n")
    document = load_yaml(path)
    assert document.data == {"tasks": ["RTE", {"name": "MRPC", "rows": 5}], "recipes": {"ours": {"lr": 1}}}
    assert document.where(("tasks", 1, "rows")) == f"{path}, line 4"
    assert document.where(("recipes", "ours")) == f"{path}, line 6"
    assert document.where(("recipes", "ours", "lr", "deeper")) == f"{path}, line 7"
    with pytest.raises(SteadytuneError, match="line 4: too few"), document.blame(("tasks", 1)):
        raise BadValue("too few", ("rows",))


# -- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_presets_make_the_trip_through_a_file(file, name):
    assert load_recipe(file(dump_recipe(preset(name)))) == preset(name)


texts = st.text(min_size=1).filter(str.strip) | st.sampled_from([text for text in WORDS if text.strip()])


@settings(max_examples=100, deadline=None)
@given(model=texts, start=st.none() | texts, lr=st.floats(1e-300, 1e300), warmup=st.integers(0, 9) | st.just("10%"))
def test_any_recipe_makes_the_trip_through_a_file(tmp_path_factory, model, start, lr, warmup):
    """Also texts that look like numbers, dates or tags, and letters of any kind."""
    recipe = Recipe(model=model, start_from=start, lr=lr, methods=LinearSchedule(warmup=warmup))
    path = tmp_path_factory.mktemp("trip") / "recipe.yaml"
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(path) == recipe
    assert load_recipe(path).key() == recipe.key()


def test_other_readers_read_the_same(file):
    """What is written is also plain YAML 1.1, so PyYAML's own loader agrees."""
    for item in PRESETS.values():
        assert yaml.safe_load(dump_recipe(item.recipe)) == item.recipe.to_data()
