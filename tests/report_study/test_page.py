"""The page of a study and the files beside it, read as text: no browser is needed here (see test_browser.py)."""

import base64
import hashlib
import os
import re
import resource
import time
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic import HOSTILE, synthetic

from steadytune.errors import SteadytuneError
from steadytune.report.study import write
from steadytune.report.study.answer import answer
from steadytune.report.study.comparisons import compare_all
from steadytune.report.study.page import PageTable, isolated, isolated_names, make_page, overview, svg_size
from steadytune.report.study.readable import readable
from steadytune.report.study.tables import tables
from steadytune.report.study.write import safe_name, write_report

SMALL = synthetic(tasks=1, variants=3, seeds=6, crashed=0.1)
VOID = {"meta", "img", "br", "link", "input", "hr", "path"}


class Read(HTMLParser):
    """Tags, attributes and text of a page; fails on tags that do not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def page_without_figures(results) -> str:
    """Drawing takes seconds; what the words, tables and trials look like does not depend on it."""
    compared = compare_all(results)
    listed = [PageTable(table.name, table) for table in tables(compared)]
    return make_page(readable(results), answer(compared).sentences(), listed, [])


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_report(SMALL, tmp_path_factory.mktemp("report"))


def test_what_is_written(written):
    folder = written.parent
    assert written == folder / "report.html"
    assert sorted(path.name for path in folder.iterdir()) == ["figures", "report.html", "tables"]
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert "distribution" in names
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".svg", ".png", ".pdf"}
    assert len(list((folder / "figures").iterdir())) == 3 * len(names)
    stems = {path.stem for path in (folder / "tables").iterdir()}
    assert "scores" in stems
    assert len(list((folder / "tables").iterdir())) == 3 * len(stems)
    assert {path.suffix for path in (folder / "tables").iterdir()} == {".csv", ".md", ".tex"}


def test_the_parts_come_in_their_order(written):
    page = written.read_text(encoding="utf-8")
    read = Read(page)
    assert "".join(read.texts["h1"]) == "synthetic"
    assert read.texts["h2"] == ["Answer", "Results", "Figures", "More tables", "Every trial", "How it was made"]
    assert "steadytune study run synthetic.yaml" in page
    assert "study: synthetic\n" in page
    assert "ab" * 32 in page
    assert "2.13.0" in page


def test_the_page_is_one_file(written):
    """It names nothing to load: every address is in the page, or a file that a reader may choose to open."""
    page = written.read_text(encoding="utf-8")
    read = Read(page)
    for tag, name, value in read.attributes:
        if name in ("src", "srcset", "href", "data", "action", "poster", "xlink:href"):
            assert value is not None
            assert (tag, name) in (("img", "src"), ("a", "href"))
            assert value.startswith("data:image/svg+xml;base64," if tag == "img" else ("#", "figures/", "tables/"))
    styles = "".join(read.texts["style"])
    assert not re.search(r"url\(|@import", styles)
    for source in re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page):
        svg = base64.b64decode(source).decode()
        assert not re.search(r"<script|<foreignObject|\bon\w+=|href=\"(?!#)|@import|url\((?!#)", svg)


def test_the_policy_names_what_is_there(written):
    page = written.read_text(encoding="utf-8")
    read = Read(page)
    policy = next(value for tag, name, value in read.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        assert read.tags[tag] == 1
        told = base64.b64encode(hashlib.sha256("".join(read.texts[tag]).encode()).digest()).decode()
        assert f"{directive} 'sha256-{told}'" in policy
    assert not [name for _, name, _ in read.attributes if name == "style" or name.startswith("on")]


def test_the_same_study_gives_the_same_bytes(written, tmp_path):
    again = write_report(SMALL, tmp_path / "new" / "folder")
    for path in sorted(written.parent.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (again.parent / path.relative_to(written.parent)).read_bytes(), path.name


def test_a_run_that_trials_share_is_timed_once():
    made = synthetic(tasks=1, variants=1, seeds=2)
    trials = [replace(each, key="same", seconds=90.0) for each in made.trials]
    assert "1 min 30 s in all" in page_without_figures(replace(made, trials=trials))


@pytest.mark.parametrize("text", HOSTILE[:-1], ids=lambda text: repr(text[:12]))
def test_no_text_breaks_out(text):
    """The text everywhere at once: the page has the tags it has with a plain text, and stays short."""

    def page(nasty):
        made = synthetic(tasks=1, variants=2, seeds=3)
        (task,), (first, second) = made.tasks, made.variants
        info = replace(
            made.tasks[task],
            name=f"{nasty} t",
            source=nasty,
            fingerprint=nasty,
            notes=[nasty],
            baseline=replace(made.tasks[task].baseline, name=nasty),
        )
        variants = {
            f"{nasty} {old}": replace(made.variants[old], name=f"{nasty} {old}", family=f"{nasty} {old}")
            for old in (first, second)
        }
        trials = [
            replace(
                each,
                task=info.name,
                variant=f"{nasty} {each.variant}",
                notes=[nasty],
                versions={"torch": nasty},
                recipe={"model": nasty, "methods": [{"method": nasty, "p": nasty}]},
            )
            for each in made.trials
        ]
        trials[0] = replace(trials[0], status="failed", error=f'  File "{nasty}"\n{nasty}')
        made = replace(
            made,
            name=nasty,
            about=nasty,
            text=nasty,
            command=nasty,
            folder=nasty,
            tasks={info.name: info},
            variants=variants,
            trials=trials,
            baseline=next(iter(variants)),
        )
        return page_without_figures(made)

    hostile, plain = Read(page(text)), Read(page("plain"))
    ignored = ("bdi",)  # right-to-left names have one
    assert {k: v for k, v in hostile.tags.items() if k not in ignored} == {
        k: v for k, v in plain.tags.items() if k not in ignored
    }
    assert hostile.texts["script"] == plain.texts["script"]
    assert hostile.texts["style"] == plain.texts["style"]
    assert sum(len(each) for many in hostile.texts.values() for each in many) < 500_000


@pytest.mark.parametrize(
    "made",
    [
        replace(synthetic(), trials=[]),
        replace(synthetic(), trials=[], tasks={}, variants={}, baseline=""),
        synthetic(unfinished=1.0),
        synthetic(crashed=1.0),
        synthetic(tasks=1, variants=1, seeds=1),
        synthetic(tasks=2, variants=3, tuned=True, unfinished=0.3),
        synthetic(without_test=(0, 1)),
        synthetic(evaluations=1),
    ],
    ids=["no trials", "nothing", "unfinished", "crashed", "one", "tuned", "no test", "one evaluation"],
)
def test_any_state_of_a_study_has_a_page(made):
    read = Read(page_without_figures(made))
    assert "Answer" in read.texts["h2"]
    assert read.tags["tr"] >= len(made.trials)


@pytest.mark.parametrize(
    "made", [synthetic(crashed=1.0), replace(synthetic(), trials=[], tasks={}, variants={}, baseline="")]
)
def test_a_study_without_results_has_a_report(made, tmp_path):
    assert write_report(made, tmp_path).is_file()


def test_ten_thousand_trials(tmp_path):
    made = synthetic(tasks=4, variants=25, seeds=100, evaluations=10)
    assert len(made.trials) == 10_000
    start = time.process_time()  # of this process: what else runs on the machine does not count
    page = write_report(made, tmp_path)
    seconds = time.process_time() - start
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert page.read_text(encoding="utf-8").count('<svg viewBox="0 0 96 24"') >= 9_900
    assert seconds < 60
    assert size < 20_000_000


def test_ten_thousand_different_tracebacks_stay_small(tmp_path):
    made = synthetic(tasks=1, variants=10, seeds=1_000, crashed=1.0)
    trials = [replace(each, error=f"Traceback\n{'x' * 20_000}\nError: {k}") for k, each in enumerate(made.trials)]
    page = write_report(replace(made, trials=trials), tmp_path)
    assert page.stat().st_size < 10_000_000
    assert "9,900 other tracebacks are in the ledger" in page.read_text(encoding="utf-8")


def test_a_full_disk_leaves_the_old_report(tmp_path, monkeypatch):
    drawn = write.figures
    monkeypatch.setattr(write, "figures", lambda compared: drawn(compared)[:1])
    made = synthetic(tasks=1, variants=2, seeds=3)
    page = write_report(made, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 1_000, 20_000, len(before[page]) - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(SteadytuneError, match="could not be written"):
                write_report(replace(made, about="another " * 20), tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        assert sorted(os.listdir(tmp_path)) == ["figures", "report.html", "tables"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SteadytuneError, match=r"The report could not be written to .*file"):
        write_report(synthetic(), tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("scores", "scores"),
        ("../../x", "x"),
        ("/etc/passwd", "etc-passwd"),
        ("Curves, RTE", "curves-rte"),
        ("שלום", "unnamed"),
        ("a" * 500, "a" * 60),
        ("taken", "taken-2"),
        ("Taken", "taken-2"),
        ("x\0y\n", "x-y"),
    ],
)
def test_safe_names(name, made):
    assert safe_name(name, {"taken"}) == made


def test_overview():
    told = overview(synthetic(tasks=1, variants=2, seeds=20))
    assert told.startswith("1 task · 2 variants · 40 trials: 39 finished, 1 diverged · reported: test score")
    assert "2 tasks · 3 variants, chosen from 11 candidates · " in overview(synthetic(variants=3, tuned=True))
    assert "last step" in overview(replace(synthetic(), weights="last"))
    results = synthetic(tasks=1, variants=2, seeds=20)
    trials = [replace(trial, key=str(trial.streams)) for trial in results.trials]
    assert "40 trials (20 of them share a run with another row): " in overview(replace(results, trials=trials))


def test_right_to_left_is_isolated():
    assert isolated("mixout <p>") == "mixout &lt;p&gt;"
    assert isolated("שלום") == "<bdi>שלום</bdi>"
    told = isolated_names("שלום 5 beats <b> on שלום.", ["שלום 5", "שלום", "<b>"])
    assert told == "<bdi>שלום 5</bdi> beats &lt;b&gt; on <bdi>שלום</bdi>."


@pytest.mark.parametrize(
    ("svg", "size"),
    [
        ('<svg width="72pt" height="36pt" viewBox="0 0 1 1">', (96, 48)),
        ('<?xml version="1.0"?><svg viewBox="0 0 300 200.4">', (300, 200)),
        ('<svg width="10" height="20px">', (10, 20)),
    ],
)
def test_svg_size(svg, size):
    assert svg_size(svg) == size


def test_the_page_is_packaged():
    """The wheel takes the whole folder; these are the files that are not Python."""
    import steadytune.report.study as package

    folder = Path(package.__file__).parent
    assert {path.name for path in folder.iterdir() if path.name.startswith("study.")} == {
        "study.css",
        "study.html.jinja",
        "study.js",
    }
