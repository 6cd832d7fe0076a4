"""The report of a study, opened in a real browser: what a reader sees, and what the page must not do."""

import io
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from browser import chromium, opened
from PIL import Image
from synthetic import HOSTILE, synthetic

from steadytune.report.study.write import write_report

NASTY = "".join(HOSTILE) + "</style></script><img src=x onerror=alert(2)>"
SECTIONS = ["Answer", "Results", "Figures", "More tables", "Every trial", "How it was made"]


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    return write_report(synthetic(tasks=2, variants=3, seeds=12, crashed=0.05), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    made = synthetic(tasks=2, variants=10, seeds=3, hostile=True)
    tasks = {
        name: replace(task, notes=HOSTILE, source=NASTY, fingerprint=NASTY, baseline=replace(task.baseline, name=NASTY))
        for name, task in made.tasks.items()
    }
    trials = [
        replace(each, versions={"torch": NASTY, NASTY: "1"}, notes=HOSTILE, recipe={NASTY: NASTY, "methods": [NASTY]})
        for each in made.trials
    ]
    trials[0] = replace(trials[0], status="failed", error=f"Traceback\n{NASTY}\nError: {NASTY}")
    made = replace(made, about=NASTY, text=NASTY, command=NASTY, folder=NASTY, tasks=tasks, trials=trials)
    return write_report(made, tmp_path_factory.mktemp("hostile"))


def test_sections_figures_and_tables_are_there(browser, report):
    with opened(browser, report) as found:
        assert found.texts("h1") == ["synthetic"]
        assert found.texts("h2") == SECTIONS
        assert found.count("#answer p") >= 1
        assert found.count("#figures figure") >= 3
        sizes = found.page.eval_on_selector_all("figure img", "all => all.map(i => [i.naturalWidth, i.clientWidth])")
        assert all(natural > 0 and shown > 200 for natural, shown in sizes)
        assert found.count("#trials tbody tr") == 2 * 3 * 12
        finished = found.count("#trials tr:has(svg path)")
        assert finished >= 60
        box = found.page.locator("#trials svg").first.bounding_box()
        assert (box["width"], box["height"]) == (96, 24)
        assert found.page.locator("#made pre").last.inner_text().strip() == "study: synthetic"
        for link in found.page.locator("nav a").all():  # every entry of the contents leads somewhere
            assert found.count(link.get_attribute("href")) == 1


def test_links_lead_to_files_that_are_there(browser, report):
    with opened(browser, report) as found:
        addresses = found.page.eval_on_selector_all(".files a", "all => all.map(a => a.getAttribute('href'))")
    assert len(addresses) >= 12
    assert all((report.parent / address).stat().st_size > 100 for address in addresses)


def column(found, table, name):
    heads = found.texts(f"{table} >> thead th")
    place = [re.sub(r"[^\w ±%]", "", head).strip() for head in heads].index(name)
    return heads[place], [
        row.locator("th, td").nth(place).inner_text() for row in found.page.locator(f"{table} >> tbody tr").all()
    ]


def test_tables_sort_by_click_and_by_keyboard(browser, report):
    trials = "#trials table.trials >> nth=0"
    with opened(browser, report) as found:
        head = found.page.locator(trials).get_by_role("columnheader", name="seconds")
        _, before = column(found, trials, "seconds")
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        _, rising = column(found, trials, "seconds")
        known = [float(cell) for cell in before if cell != "–"]
        assert [float(cell) for cell in rising if cell != "–"] == sorted(known)
        head.get_by_role("button").focus()
        found.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        _, falling = column(found, trials, "seconds")
        assert [float(cell) for cell in falling if cell != "–"] == sorted(known, reverse=True)
        found.page.keyboard.press("Space")
        assert head.get_attribute("aria-sort") is None
        assert column(found, trials, "seconds")[1] == before
        # Names sort as names, another column takes over, and only one is marked.
        found.page.locator(trials).get_by_role("columnheader", name="variant").get_by_role("button").click()
        names = column(found, trials, "variant")[1]
        assert names == sorted(names)
        assert found.page.locator(trials).locator("[aria-sort]").count() == 1
        assert found.complaints == []


def test_what_is_missing_sorts_last_both_ways(browser, report):
    trials = "#trials table.trials >> nth=0"
    with opened(browser, report) as found:
        button = found.page.locator(trials).get_by_role("columnheader", name="validation").get_by_role("button")
        for _ in range(2):
            button.click()
            cells = column(found, trials, "validation")[1]
            missing = cells.count("–")
            assert missing
            assert cells[-missing:] == ["–"] * missing


def test_trials_can_be_filtered(browser, report):
    with opened(browser, report) as found:
        found.page.get_by_label("Show trials of this status").select_option("diverged")
        shown = found.page.locator("#trials tbody tr:visible")
        assert 0 < shown.count() < 10
        assert all("diverged" in text for text in shown.all_inner_texts())
        found.page.get_by_label("Show trials of this status").select_option("")
        found.page.get_by_label("Show trials that contain these words").fill("reinit FINISHED")
        assert all("reinit" in text and "finished" in text for text in shown.all_inner_texts())
        assert found.page.locator(".filter output").inner_text() == f"{shown.count()} of 72 trials"
        assert found.complaints == []


def test_it_reads_without_javascript(browser, report):
    with opened(browser, report, java_script_enabled=False) as found:
        assert found.texts("h2") == SECTIONS
        assert found.count("#trials tbody tr") == 72
        assert found.count("button, form, input, select") == 0  # nothing that would not work
        assert found.page.locator("#trials tbody tr").last.is_visible()
        assert found.page.locator("figure img").first.is_visible()
        assert found.requests == [report.resolve().as_uri()]


@pytest.mark.parametrize("which", ["report", "hostile"])
def test_nothing_is_requested_and_nothing_complains(browser, which, request):
    file = request.getfixturevalue(which)
    with opened(browser, file) as found:
        found.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        for each in found.page.locator("th button").all()[:5]:
            each.click()
        found.page.wait_for_load_state("networkidle")
        assert found.requests == [file.resolve().as_uri()]
        assert found.complaints == []
        assert found.dialogs == []


def test_the_page_may_not_reach_out_or_run_more_script(browser, report):
    """The policy holds: what slipped through the escaping would still not be run or sent."""
    tries = """async () => {
        const told = [];
        document.addEventListener("securitypolicyviolation", (event) => told.push(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.taken = true";
        document.body.append(script);
        const markups = ["<img src='https://example.org/x'>", "<p style='color: red'>", "<img src=x onerror=taken=1>"];
        for (const markup of markups) {
          const node = document.createElement("div");
          node.innerHTML = markup;
          document.body.append(node);
        }
        await fetch("https://example.org/").catch(() => {});
        await new Promise((done) => setTimeout(done, 0));
        return [window.taken !== undefined, told];
    }"""
    with opened(browser, report) as found:
        taken, told = found.page.evaluate(tries)
        assert not taken
        assert {"script-src-elem", "img-src", "style-src-attr", "connect-src"} <= set(told)
        assert found.requests == [report.resolve().as_uri()]


def test_hostile_texts_are_only_texts(browser, hostile):
    with opened(browser, hostile) as found:
        assert found.dialogs == []
        assert found.count("script") == found.count("style") == 1
        assert found.count("main script, iframe, object, embed, base, link, main img:not(figure img)") == 0
        assert found.texts("h1") == ["<script>alert(1)</script>"]
        body = found.page.locator("body").inner_text()
        assert all(text in body for text in ("<script>alert(1)</script>0", "../../x1", "{{7*7}}2", "]]>"))
        assert "49" not in found.page.locator("#results tbody th").all_inner_texts()
        harmful = "e => [...e.attributes].some(a => a.name.startsWith('on') || /^\\s*javascript:/i.test(a.value))"
        assert not found.page.eval_on_selector_all("*", f"all => all.some({harmful})")
        assert found.overflow() <= 0
        assert found.page.evaluate("document.body.scrollHeight") < 60_000
    assert hostile.stat().st_size < 3_000_000
    assert sorted(file.name for file in hostile.parent.iterdir()) == ["figures", "report.html", "tables"]


def test_right_to_left_names_keep_their_place(browser, hostile):
    with opened(browser, hostile) as found:
        bdi = found.page.locator("#trials bdi", has_text="שלום")
        assert bdi.count() > 0
        assert found.page.evaluate("getComputedStyle(document.querySelector('#trials bdi')).unicodeBidi") == "isolate"
        assert "\u202e" not in found.page.content()


def brightness(browser, file, scheme):
    with opened(browser, file, color_scheme=scheme) as found:
        back = found.page.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor")
        ink = found.page.eval_on_selector("h1", "e => getComputedStyle(e).color")
        assert found.complaints == []
    return tuple(sum(map(int, re.findall(r"\d+", colour)[:3])) / 765 for colour in (back, ink))


def test_light_and_dark(browser, report):
    back, ink = brightness(browser, report, "light")
    assert back > 0.9
    assert ink < 0.3
    back, ink = brightness(browser, report, "dark")
    assert back < 0.2
    assert ink > 0.7


@pytest.mark.parametrize("width", [360, 768, 1920])
@pytest.mark.parametrize("which", ["report", "hostile"])
def test_no_width_makes_the_page_scroll_sideways(browser, which, width, request):
    with opened(browser, request.getfixturevalue(which), viewport={"width": width, "height": 800}) as found:
        assert found.overflow() <= 0


def test_it_prints(browser, report):
    with opened(browser, report) as found:
        pdf = found.page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
        found.page.emulate_media(media="print")
        assert not found.page.locator("nav").is_visible()
        assert not found.page.locator(".filter").is_visible()
        assert found.page.locator("#made details table").is_visible()  # paper cannot be clicked


def test_paper_is_white_also_for_readers_of_dark_pages(browser, report):
    with opened(browser, report, color_scheme="dark") as found:
        found.page.emulate_media(media="print", color_scheme="dark")
        assert found.page.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
        shown = found.page.locator("figure img").first.screenshot()
    pixels = np.asarray(Image.open(io.BytesIO(shown)).convert("L"))
    assert np.median(pixels) > 240
    assert pixels.min() < 80  # letters are dark


def test_a_traceback_opens_from_its_row(browser, report):
    with opened(browser, report) as found:
        link = found.page.locator("#trials td a").first
        assert "CUDA out of memory" in link.inner_text()
        trace = found.page.locator("#trials details pre").first
        assert not trace.is_visible()
        link.click()
        trace.wait_for(state="visible")
        assert "RuntimeError: CUDA out of memory" in trace.inner_text()


def test_names_for_those_who_do_not_see(browser, report):
    """Every image, table, column and control has a name; headings do not skip a level; ids are unique."""
    with opened(browser, report) as found:
        run = found.page.evaluate
        assert run("[...document.images].every(i => i.alt.length > 20)")
        assert run("[...document.querySelectorAll('table.sortable')].every(t => t.caption.textContent.trim())")
        assert run("[...document.querySelectorAll('thead th')].every(t => t.scope === 'col' && t.textContent.trim())")
        assert run("[...document.querySelectorAll('#trials svg')].every(s => s.querySelector('title').textContent)")
        assert run("document.documentElement.lang") == "en"
        levels = run("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert run("(ids => new Set(ids).size === ids.length)([...document.querySelectorAll('[id]')].map(e => e.id))")
        named = "e => document.getElementById(e.getAttribute('aria-labelledby'))"
        assert run(f"[...document.querySelectorAll('[aria-labelledby]')].every({named})")


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_figures_follow_the_scheme(browser, report, scheme, dark):
    with opened(browser, report, color_scheme=scheme) as found:
        image = Image.open(io.BytesIO(found.page.locator("figure img").first.screenshot())).convert("L")
    pixels = np.asarray(image)
    assert (np.median(pixels) < 60) == dark
    assert np.ptp(pixels) > 120  # something is to be seen on it
