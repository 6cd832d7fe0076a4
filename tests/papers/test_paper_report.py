"""Cells and the runs behind them; the table, the record, the joined models and the materials beside it."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steadytune.errors import SteadytuneError
from steadytune.papers.catalogue import ITEMS, Case, Cell, Claim
from steadytune.papers.catalogue.claim import along
from steadytune.papers.claim_tests import judge
from steadytune.papers.joined import JointModel
from steadytune.papers.materials.text_models import bpe_tokenizer, made_once
from steadytune.papers.materials.tokenised import tokenised, write_headlines, write_pairs
from steadytune.papers.places import at_scale, by_block, by_minutes, by_seed, by_trials, plain
from steadytune.papers.report import make_report
from steadytune.papers.report_files import markdown, write_files
from steadytune.papers.run import Workshop, run_experiment
from steadytune.papers.samples import Place, Sample, read
from steadytune.papers.tables import beside, measured_item, printed_items
from steadytune.papers.verdicts import Verdict
from steadytune.papers.views import line, view
from steadytune.report.study.table_formats import Item
from steadytune.study.results import Score, StudyResults, TaskInfo, TrialResult, Variant
from steadytune.tasks.base import Baseline

# --- Reading cells ------------------------------------------------------------------------------------------------


def trial(variant, task, seed, value, *, order=None, status="finished", phase="report", test=None, **more):
    order = seed if order is None else order
    score = Score(10, value, value if test is None else test)
    distances = {"start": {str(block): block * value for block in range(1, 7)}}
    history = [{"step": step, "validation": value * step / 10, "distances": distances} for step in (2, 4, 6, 8, 10)]
    settled = {"best": score, "last": score, "steps": 10, "history": history, "losses": [2.0, value], "seconds": 10.0}
    shown = settled if status == "finished" else {}
    streams = {"init": seed, "order": order, "noise": order}
    recipe = {"lr": 1e-4, "model": "m", "from_config": False, "methods": []}
    key = f"{variant}{task}{seed}{order}{phase}"
    return TrialResult(key, task, variant, phase, streams, recipe, status, **{**shown, **more})


def results(trials, tasks=("RTE",), **more):
    baseline = Baseline("none", validation=0.5, test=0.5)
    infos = {task: TaskInfo(task, "accuracy", True, {"validation": 9, "test": 9}, baseline, "f", "s") for task in tasks}
    variants = {each.variant: Variant(each.variant, each.variant) for each in trials}
    return StudyResults("s", "", infos, variants, trials, next(iter(variants)), **more)


def test_a_cell_is_a_variant_and_a_task():
    made = results([trial("Re-init, longer", "RTE", i, 0.7 + i / 100, test=0.6) for i in range(3)])
    found = read(made, plain(Cell("Re-init", "RTE", "longer")), "score", "validation")
    assert found.values.tolist() == pytest.approx([0.70, 0.71, 0.72])
    assert read(made, plain(Cell("Re-init", "RTE", "longer")), "score", "test").number("mean") == pytest.approx(0.6)
    assert read(made, plain(Cell("Re-init", "RTE")), "score") is None
    assert read(made, plain(Cell("Re-init", "CoLA", "longer")), "score") is None
    assert read(made, plain(Cell("Re-init", "RTE", "longer")), "train_loss").values[0] == pytest.approx(1.35)


def test_diverged_runs_count_at_the_level_and_crashed_ones_not():
    runs = [
        trial("a", "RTE", 0, 0.9),
        trial("a", "RTE", 1, 0, status="diverged"),
        trial("a", "RTE", 2, 0, status="failed"),
    ]
    found = read(results([*runs, trial("a", "RTE", 3, 0, status="pending")]), Place("a", "RTE"))
    assert found.values.tolist() == [0.9, 0.5]
    assert (found.diverged, found.crashed, found.missing, found.failed) == (1, 1, 1, 1)
    loss = read(results(runs), Place("a", "RTE"), "train_loss")
    assert loss.values[0] == loss.values[1]  # the worst there is


def test_blocks_seeds_and_the_best_of_n():
    grid = [trial("Standard", "RTE", i, 0.6 + 0.1 * i + 0.01 * j, order=j) for i in range(3) for j in range(4)]
    made = results(grid)
    assert read(made, by_seed(Cell("Standard", "order 2", "every init"))).n == 3
    assert read(made, by_seed(Cell("Standard", "every order", "init 1"))).n == 4
    fixed = read(made, by_seed(Cell("Standard", "average", "init fixed")))
    assert fixed.values.tolist() == pytest.approx([np.std([0, 0.01, 0.02, 0.03], ddof=1)] * 3)
    assert fixed.number("std") == pytest.approx(np.std([0, 0.01, 0.02, 0.03], ddof=1))
    far = read(made, at_scale(by_block(Cell("Standard", "block 24", "RTE")), "small", {}), "distance")
    assert far.place.block == 6
    assert far.values[0] == pytest.approx(6 * 0.6)
    some = read(made, by_trials(Cell("Standard", "RTE", "n=5")), "expected_score", "test")
    most = read(made, by_trials(Cell("Standard", "RTE")), "expected_score", "test")
    one = read(made, by_trials(Cell("Standard", "RTE", "n=1")), "expected_score", "test")
    assert one.number("mean") < some.number("mean") < most.number("mean") <= 0.83
    assert one.number("mean") == pytest.approx(np.mean([t.best.test for t in grid]))
    assert read(made, plain(Cell("Standard", "RTE")), "seconds").values.tolist() == [10.0] * 12


def test_scores_by_time_are_of_the_nearest_evaluation():
    runs = [trial("R-Drop", "RTE", i, 0.8) for i in range(3)] + [
        trial("Baseline", "RTE", i, 0.6, seconds=3.0) for i in range(3)
    ]
    made = results(runs)
    half = read(made, by_minutes(Cell("R-Drop", "RTE", "150 minutes")))
    assert set(half.values.round(6)) <= {0.32, 0.48}  # between the evaluations at 4 and 6 of 10 steps
    assert read(made, by_minutes(Cell("R-Drop", "RTE", "300 minutes"))).values[0] == pytest.approx(0.8)
    assert read(made, by_minutes(Cell("Baseline", "RTE", "90 minutes"))).values[0] == pytest.approx(0.6)
    assert read(made, by_minutes(Cell("Baseline", "RTE", "300 minutes"))) is None  # it had ended
    busy = results([trial("R-Drop", "RTE", i, 0.8, seconds=10.0 + 5 * (i == 0)) for i in range(3)])
    assert read(busy, by_minutes(Cell("R-Drop", "RTE", "300 minutes"))).n == 3  # also of runs on a quiet machine


def test_bias_helps_the_best_of_few():
    """A claim about the best of n runs, by bootstrap."""
    good = [trial("Bias correction", "RTE", i, 0.8 + i / 1000) for i in range(10)]
    poor = [trial("No bias correction", "RTE", i, 0.6 + 0.1 * (i == 0)) for i in range(10)]
    made = results(good + poor)
    item = ITEMS["few-sample/figure-4"].claims[0]
    case: Case = item.cases[0]
    alone = Claim(item.text, "greater", (case,), item.source, quantity="expected_score")
    found = judge(
        alone, lambda cell: read(made, by_trials(cell), "expected_score", "test"), lambda *_: None, full=False
    )
    assert found.holds is True
    assert "bootstrap" in found.how
    rising = Claim("a", "rising", (along("Bias correction", "RTE", ("n=1", "n=5")),), "b", quantity="expected_score")
    assert judge(
        rising, lambda c: read(made, by_trials(c), "expected_score", "test"), lambda *_: None, full=False
    ).holds


def test_a_view_joins_studies_and_shows_the_runs_of_a_choice():
    first = results([trial("Standard, 3 epochs", "RTE", i, 0.6) for i in range(3)])
    tuned = [trial("Re-init, 3 epochs, layers=2", "RTE", i, 0.7, phase="choose") for i in range(3)]
    second = results([*tuned, trial("Re-init, 3 epochs", "RTE", 0, 0.9)])
    lines = [
        line("Standard", "Standard, 3 epochs"),
        line("Re-init, L=2", "Re-init, 3 epochs, layers=2", tuning=True, L=2),
        line("Re-init, L=3", "Re-init, 3 epochs, layers=3", tuning=True, L=3),
    ]
    shown = view([first, second], lines, split="validation")
    assert list(shown.variants) == ["Standard", "Re-init, L=2"]
    assert shown.variants["Re-init, L=2"] == Variant("Re-init, L=2", "Re-init", {"L": 2})
    assert {len(runs) for runs in shown.reported.values()} == {3}
    assert (shown.split, shown.baseline) == ("validation", "Standard")
    assert list(view([first, second]).variants) == ["Standard, 3 epochs", "Re-init, 3 epochs"]
    assert not view([first], tasks=["CoLA"]).trials


def test_a_view_reports_the_weights_that_the_study_of_its_runs_does():
    """Table 5 of R-Drop: averaged checkpoints are a run's last weights, and its models, of another study, its best."""
    models = results([trial("Baseline", "RTE", 0, 0.6)])
    averaged = replace(results([trial("averaged", "RTE", i, 0.5) for i in range(3)]), weights="last")
    assert view([models, averaged], [line("averaged")]).weights == "last"
    assert view([averaged, models], [line("Baseline")]).weights == "best"
    with pytest.raises(SteadytuneError, match="best weights, and some its last"):
        view([models, averaged])


# --- Tables and files ---------------------------------------------------------------------------------------------


def test_measured_numbers_stand_beside_published_ones():
    cell = Cell("Standard", "RTE", "3 epochs")
    here = {
        cell: measured_item(Sample(Place("a", "b"), np.array([0.70, 0.71, 0.72]))),
        Cell("ours", "RTE"): Item(0.5, "0.500"),
    }
    table = beside("t", "T", "c", here, printed_items("few-sample/table-1"))
    texts = {(row[0].text, row[1].text): [item.text for item in row[2:]] for row in table.rows}
    assert table.head()[2:] == (
        "Standard, 3 epochs",
        "Re-init, 3 epochs",
        "Standard, longer",
        "Re-init, longer",
        "ours",
    )
    assert texts["RTE", "here"][0] == here[cell].text  # twelve columns: they are the rows here
    assert texts["RTE", "paper"][0] == "0.695 ± 0.025"
    assert ("CoLA", "here") not in texts
    wide = beside("t", "T", "c", {}, printed_items("mixout/table-1"))
    assert wide.rows[0][2].text == "0.565, max 0.736"
    assert measured_item(Sample(Place("a", "b"), np.zeros(0), missing=3)).text == "3 to run"
    failed = Sample(Place("a", "b"), np.array([0.5, 0.5, 0.8]), level=0.5)
    assert measured_item(failed, ["degenerate", "max"]).text == "0.600 ± 0.173, 2 failed, max 0.800"


def test_settings_stand_by_their_numbers():
    """Claims name them in another order."""
    item = measured_item(Sample(Place("a", "b"), np.array([0.70, 0.71, 0.72])))
    here = {Cell("mix", "RTE", "p=0.1"): item, Cell("drop", "RTE", "p=0.0"): item, Cell("mix", "RTE", "p=0.05"): item}
    table = beside("t", "T", "c", here | {Cell("mix", "RTE"): item}, {})
    assert [row[0] for row in table.texts()] == ["mix", "mix, p=0.05", "mix, p=0.1", "drop, p=0.0"]
    counted = printed_items("mixout/figure-4")[Cell("dropout(p)", "RTE")]
    assert counted.text == "at least 15 failed"


@pytest.fixture(scope="module")
def figure_9(tmp_path_factory):
    workshop = Workshop(tmp_path_factory.mktemp("report") / "out", "smoke")
    assert run_experiment("few-sample/figure-9", workshop, None) == 0
    return make_report("few-sample/figure-9", workshop)


def test_a_record_has_every_seed_and_reads_back(figure_9, tmp_path):
    paths = write_files(figure_9, tmp_path, ("svg",))
    assert [path.suffix for path in paths] == [".svg", ".md", ".json", ".csv"]
    record = json.loads((tmp_path / "few-sample-figure-9.json").read_text())
    assert [len(cell["values"]) for cell in record["cells"]] == [4, 4]
    assert [Verdict.from_data(each) for each in record["verdicts"]] == list(figure_9.verdicts)
    assert record["command"] == "steadytune paper run few-sample/figure-9 --scale smoke"
    assert {"torch", "device"} <= set(record["made_with"])
    text = markdown(figure_9, [])
    assert "cannot be said" in text
    assert "0.7435" in text  # the published mean
    lines = (tmp_path / "few-sample-figure-9.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("row,column,setting,task,mean")


# --- Models that write together ------------------------------------------------------------------------------------


def tiny_translator(seed):
    from transformers import MarianConfig, MarianMTModel

    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 16))}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 8, "max_position_embeddings": 32}
    ids = {"vocab_size": 20, "decoder_vocab_size": 20, "pad_token_id": 0, "eos_token_id": 2}
    torch.manual_seed(seed)
    config = MarianConfig(**sizes, **heads, **ids, decoder_start_token_id=2, forced_eos_token_id=None, init_std=1.0)
    return MarianMTModel(config).eval()


@pytest.fixture(scope="module")
def batch():
    ids = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0], [4, 2, 0, 0]])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


@pytest.mark.parametrize("beams", [1, 3])
def test_a_model_with_itself_writes_as_alone(batch, beams):
    model = tiny_translator(0)
    options = {"num_beams": beams, "max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        alone = model.generate(**batch, **options)
        twice = JointModel([model, model]).generate(**batch, **options)
    assert alone.tolist() == twice.tolist()


def test_joint_writing_follows_the_mean_probability(batch):
    """Against a greedy search by hand."""
    models = [tiny_translator(seed) for seed in (0, 1, 2)]
    with torch.no_grad():
        made = JointModel(models).generate(**batch, num_beams=1, max_new_tokens=5, do_sample=False)
        text = torch.full((3, 1), 2)
        for _ in range(5):
            logits = [model(**batch, decoder_input_ids=text).logits[:, -1] for model in models]
            mean = torch.stack([each.softmax(-1) for each in logits]).mean(0)
            text = torch.cat([text, mean.argmax(-1, keepdim=True)], 1)
    for row, by_hand in zip(made.tolist(), text.tolist()):
        until = by_hand.index(2, 1) + 1 if 2 in by_hand[1:] else len(by_hand)
        assert row[:until] == by_hand[:until]
    assert made.tolist() != models[0].generate(**batch, num_beams=1, max_new_tokens=5, do_sample=False).tolist()


# --- Materials ----------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.text("abcdeéß ", min_size=1, max_size=20), min_size=1, max_size=5))
def test_texts_come_back_from_the_tokenizer(texts):
    rows = [" ".join(text.split()) for text in texts]
    tokenizer = bpe_tokenizer(rows, 40)
    for row in rows:
        ids = tokenizer(row)["input_ids"]
        assert ids[0] == 1
        assert ids[-1] == 2
        assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip() == row


def test_texts_are_tokenised_as_for_multi_bleu(tmp_path):
    assert tokenised("A man's dog, running!") == "a man's dog , running !"
    (tmp_path / "raw").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "raw" / f"{part}.de").write_text("Ein Hund.\n\nZwei\n")
        (tmp_path / "raw" / f"{part}.en").write_text("A dog.\n\nTwo\n")
    write_pairs(tmp_path / "raw", tmp_path / "rows", ("de", "en"), ready=False)
    assert (tmp_path / "rows" / "val.de").read_text() == "ein hund .\n\nzwei\n"  # lines stay aligned
    write_pairs(tmp_path / "raw", tmp_path / "same", ("de", "en"), ready=True)
    assert (tmp_path / "same" / "train.en").read_text() == "A dog.\n\nTwo\n"


def test_headings_are_the_summaries_of_their_first_paragraph(tmp_path):
    (tmp_path / "wiki").mkdir()
    text = " = Valkyria = \n \n Senjō no Valkyria is a game . \n More of it . \n = = Plot = = \n \n It begins . \n"
    for part in ("train", "valid", "test"):
        (tmp_path / "wiki" / f"{part}.txt").write_text(text)
    write_headlines(tmp_path / "wiki", tmp_path / "rows")
    rows = (tmp_path / "rows" / "train.csv").read_text().splitlines()
    assert rows == ["text,heading", "Senjō no Valkyria is a game .,Valkyria", "It begins .,Plot"]


def test_headings_that_could_not_be_learnt_are_left_out(tmp_path):
    (tmp_path / "wiki").mkdir()
    often = " = = Plot = = \n It begins . \n = <unk> Dog = \n A dog . \n = = Plot = = \n It ends . \n"
    texts = {"train": often + " = Once = \n Only here . \n", "valid": often, "test": " = Once = \n Here again . \n"}
    for part, text in texts.items():
        (tmp_path / "wiki" / f"{part}.txt").write_text(text)
    write_headlines(tmp_path / "wiki", tmp_path / "rows", times=2)
    for part, expected in {"train": 2, "valid": 2, "test": 0}.items():
        rows = (tmp_path / "rows" / f"{part}.csv").read_text().splitlines()
        assert len(rows) == 1 + expected, part  # by the training text's counts, without `<unk> Dog`


def test_what_is_made_is_made_once_and_whole(tmp_path):
    def fails():
        with made_once(tmp_path / "new") as folder:
            (folder / "half").write_text("")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        with made_once(tmp_path / "new") as folder:
            if folder is not None:
                (folder / "whole").write_text(str(math.pi))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["whole"]


def test_a_verdict_is_one_of_three_words():
    words = {Verdict("a", holds, None, 3, "b").word for holds in (True, False, None)}
    assert words == {"holds", "does not hold at this scale", "cannot be said"}
    assert SimpleNamespace(**Verdict("a", True, 0.01, 3, "b").to_data()).p_value == 0.01


def test_every_verdict_of_a_record_says_the_same_things():
    """So that a record that is made again is the same byte for byte."""
    plain, beside = Verdict("a", True, 0.01, 3, "b"), Verdict("a", True, 0.01, 3, "b", uncounted="an identity")
    assert plain.to_data()["in_part"] is False
    assert "uncounted" not in plain.to_data()
    assert [Verdict.from_data(each.to_data()) for each in (plain, beside)] == [plain, beside]
