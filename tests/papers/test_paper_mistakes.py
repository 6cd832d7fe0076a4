"""What is asked for wrongly, and files that are damaged: said in a sentence, before anything is written."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steadytune.cli_paper import paper
from steadytune.errors import SteadytuneError
from steadytune.papers.joined import AVERAGES, ENSEMBLES, FILE, joined_numbers
from steadytune.papers.needed_models import refuse_missing_models
from steadytune.papers.report import make_report
from steadytune.papers.report_files import write_files
from steadytune.papers.run import Workshop, run_experiment
from steadytune.papers.settings import Setting
from steadytune.papers.study_parts import PARTS
from steadytune.study.known import keep

THEORY = "mixout/figure-5"


@pytest.fixture
def steadytune(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEADYTUNE_DATA", raising=False)

    def command(*arguments, refused=True):
        found = CliRunner().invoke(paper, [*map(str, arguments)])
        if refused:
            assert isinstance(found.exception, SteadytuneError), found.output
            return str(found.exception)
        assert found.exit_code == 0, (found.output, found.exception)
        return found.output

    return command


def nothing_written(folder=None):
    return not list((folder or Path()).iterdir())


# --- Before a run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "value"), [("--task", "RTE"), ("--seeds", "3")])
def test_what_is_computed_has_neither_tasks_nor_seeds(steadytune, option, value):
    said = steadytune("run", THEORY, "--scale", "smoke", option, value)
    assert f"{THEORY} is computed as a whole" in said
    assert f"without {option}" in said
    assert nothing_written()


def test_an_unknown_task_is_refused_before_materials_are_made(steadytune):
    said = steadytune("run", "few-sample/table-4", "--scale", "smoke", "--task", "COLA")
    assert "Did you mean 'CoLA'" in said
    assert nothing_written()


def test_every_item_is_looked_at_before_the_first_is_run(steadytune):
    assert "computed as a whole" in steadytune(
        "run", "few-sample/table-4", THEORY, "--scale", "smoke", "--task", "CoLA"
    )
    assert nothing_written()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("bert=.", "no experiment has a model 'bert'. Did you mean bert-large-uncased or bert-base-cased?"),
        ("roberta-larg=.", "Did you mean roberta-large?"),
        ("albert=.", "Choose from"),
        ("roberta-large=/nonexist", "there is no directory '/nonexist'"),
        ("roberta-large=", "there is no directory ''"),
        ("roberta-large", "--model is written NAME=DIR"),
        ("roberta-large=.", "has no config.json, so it is no model's directory"),
    ],
)
def test_a_model_that_is_not_there_is_refused_at_once(steadytune, given, says):
    assert says in steadytune("run", "mixout/table-1", "--scale", "smoke", "--model", given)
    assert nothing_written()


def test_models_that_cannot_be_had_are_named_before_hundreds_of_runs_ask_for_them(steadytune, tmp_path, monkeypatch):
    monkeypatch.setattr("steadytune.hub.online", lambda: False)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: None)
    full = ("--scale", "full", "--data", tmp_path)
    said = steadytune("run", "mixout/table-1", *full)
    assert "mixout/table-1 is run with bert-large-uncased, which this machine does not have" in said
    assert "--model bert-large-uncased=DIR" in said
    several = steadytune("run", "few-sample/table-7", *full)
    assert all(name in several for name in ("xlnet-large-cased", "roberta-large", "electra-large", "bart-large"))
    assert nothing_written()
    (tmp_path / "bert").mkdir()
    workshop = Workshop(tmp_path / "out", "full", tmp_path, {"bert-large-uncased": str(tmp_path / "bert")})
    for id in ("mixout/table-1", "rdrop/translation", THEORY):  # the second makes its model
        refuse_missing_models(id, workshop)
    refuse_missing_models("mixout/table-1", Workshop(tmp_path / "out", "full", tmp_path, known=("kept",)))


def test_theory_needs_no_data_folder(steadytune):
    assert "result.json" in steadytune("run", THEORY, "few-sample/table-6", "--scale", "small", refused=False)
    for id in ("mixout/figure-2", "few-sample/table-3", "mixout/table-1"):
        assert "--data DIR" in steadytune("run", id, "--scale", "small")


def test_a_place_that_cannot_be_written_is_found_before_it_is_computed(tmp_path, monkeypatch):
    from dataclasses import replace

    from steadytune.papers import run
    from steadytune.papers.experiments import EXPERIMENTS

    (tmp_path / "file").write_text("")
    computed = []
    stub = replace(EXPERIMENTS[THEORY], compute=lambda setting, say: computed.append(setting) or {})
    with pytest.raises(SteadytuneError, match=r"cannot be made: .* Name another --out"):
        run.compute(stub, Workshop(tmp_path / "file", "small"), print)
    assert not computed


def test_with_fewer_seeds_settings_are_still_chosen_by_all(tmp_path):
    """Else the rest, which may follow, would follow another choice; and it is said."""
    said, seen = [], []

    def stopped(file, known, alone):
        seen.append(file.read_text())
        return 130

    run_experiment("mixout/figure-6", Workshop(tmp_path, "small", tmp_path, seeds=1), stopped, said.append)
    assert "settings are chosen by 3 seeds all the same" in said[0]
    assert "choose:\n  seeds: 3" in seen[0]


# --- After a run --------------------------------------------------------------------------------------------------


@pytest.fixture
def workshop(tmp_path):
    made = Workshop(tmp_path / "out", "smoke")
    assert run_experiment(THEORY, made, None) == 0
    return made


def damages(whole):
    renamed = {("fited" if name == "fitted" else name): value for name, value in json.loads(whole).items()}
    return ["", "{}", "[]", "null", '"text"', whole[:-40], json.dumps(renamed)]


def test_a_damaged_result_is_named_by_run_and_report(workshop):
    path = workshop.folder(THEORY) / "result.json"
    whole = path.read_text()
    for text in damages(whole):
        path.write_text(text)
        for act in (make_report, run_experiment):
            with pytest.raises(SteadytuneError, match=r"result\.json is damaged.*Delete it, and run"):
                act(THEORY, workshop, *([None] if act is run_experiment else []))
        assert path.read_text() == text
    path.write_text(whole)
    assert make_report(THEORY, workshop).verdicts


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"Transformer": {}}', f'{{"{ENSEMBLES}": 1, "{AVERAGES}": 2}}'])
def test_damaged_joined_models_are_named(tmp_path, text):
    assert joined_numbers(tmp_path) == {}
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SteadytuneError, match=r"joined\.json is damaged.*Delete it"):
        joined_numbers(tmp_path)


def test_a_record_or_kept_runs_where_a_file_is(steadytune, workshop, tmp_path):
    (tmp_path / "file").write_text("what was there")
    options = ("--out", workshop.out, "--no-pages")
    assert "Name another --record" in steadytune("report", THEORY, *options, "--record", tmp_path / "file")
    assert not (workshop.folder(THEORY) / "report").exists()
    with pytest.raises(SteadytuneError, match="cannot be made"):
        write_files(make_report(THEORY, workshop), tmp_path / "file")
    assert run_experiment("few-sample/table-4", workshop, None) == 0
    ledger = workshop.folder("few-sample/table-4") / "ledger.sqlite"
    with pytest.raises(SteadytuneError, match=r"cannot be made: .* Name another folder"):
        keep(ledger, tmp_path / "file" / "a.runs.gz")
    assert (tmp_path / "file").read_text() == "what was there"


def test_all_items_are_known_before_the_first_report_is_written(steadytune, workshop):
    for bad in ("mixout/tabel-1", "mixout/table-1"):  # unknown; not run
        steadytune("report", THEORY, bad, "--out", workshop.out)
        assert not (workshop.folder(THEORY) / "report").exists()
    steadytune("report", THEORY, "--out", workshop.out, refused=False)
    assert (workshop.folder(THEORY) / "report").is_dir()


# --- Texts that studies make their rows of ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "valid.en").unlink(), "iwslt14 has no valid.en: parallel lines"),
        (lambda folder: (folder / "test.de").unlink(), "iwslt14 has no test.de: parallel lines"),
        (lambda folder: (folder / "valid.en").write_bytes(b"caf\xe9\n"), "valid.en, row 1: byte 0xe9"),
        (lambda folder: (folder / "test.en").write_text("a\nb\n"), "test.de ends after row 1 but"),
        (lambda folder: (folder / "train.de").write_text(""), "train.de ends after row 0 but"),
    ],
)
def test_parallel_texts_that_do_not_belong_together_are_named_and_leave_nothing_behind(tmp_path, damage, says):
    """What is made once would stay after the files are put right."""
    folder = tmp_path / "data" / "iwslt14"
    folder.mkdir(parents=True)
    for part in ("train", "valid", "test"):
        for language in ("de", "en"):
            (folder / f"{part}.{language}").write_text("ein hund\n")
    damage(folder)
    setting = Setting("full", tmp_path / "data", tmp_path / "out" / "rdrop" / "translation")
    with pytest.raises(SteadytuneError, match=says):
        PARTS["rdrop/translation"].prepare(setting)
    assert not list(tmp_path.rglob("rows"))


def test_damaged_texts_are_named(steadytune, tmp_path):
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    for part in ("train", "valid", "test"):
        (folder / f"{part}.txt.gz").write_bytes(b"not gzipped")
    said = steadytune("run", "rdrop/summarization", "--scale", "small", "--data", "data", "--out", "out")
    assert "train.txt.gz is damaged" in said


def test_the_table_of_datasets_needs_one(steadytune, tmp_path):
    """An empty result would stay, and be reported, also after the data has been found."""
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    say = ("run", "few-sample/table-3", "--scale", "small", "--data", "data")
    assert "data has no folder of a GLUE task, such as glue/RTE" in steadytune(*say)
    assert not list(tmp_path.rglob("result.json"))
    rte = tmp_path / "data" / "glue" / "RTE"
    rte.mkdir(parents=True)
    for name, rows in (("train.tsv", 30), ("dev.tsv", 12)):
        lines = [f"{i}\ta {i}\tb\t{'not_' * (i % 2)}entailment" for i in range(rows)]
        (rte / name).write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n")
    assert "left out: MRPC" in " ".join(steadytune(*say, refused=False).split())


@pytest.mark.parametrize(
    ("id", "folder", "endings"),
    [("rdrop/translation", "multi30k", ("de", "en")), ("rdrop/summarization", "wikitext-2", ("txt",))],
)
def test_rows_that_were_made_of_other_data_are_refused(tmp_path, id, folder, endings):
    """They were taken for rows of the data that is named now."""
    data, out = tmp_path / "data" / folder, tmp_path / "out" / id
    data.mkdir(parents=True)
    for part in ("train", "valid", "test"):
        for ending in endings:
            (data / f"{part}.{ending}").write_text(" = Hund = \n ein hund \n" * 5)
    setting = Setting("small", tmp_path / "data", out)
    prepare = PARTS[id].prepare
    prepare(setting)
    prepare(setting)  # the same data
    changed = data / f"train.{endings[0]}"
    before = changed.read_text()
    changed.write_text(before.replace("ein", "kein"))
    with pytest.raises(SteadytuneError, match="was made of other data than --data holds now"):
        prepare(setting)
    changed.write_text(before)
    prepare(setting)
    changed.unlink()
    prepare(setting)  # the rows are there: the data is not needed any more
