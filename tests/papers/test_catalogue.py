"""The catalogue: every table and figure of the acceptance list has an id; claims agree with the published numbers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadytune.errors import SteadytuneError
from steadytune.papers import published
from steadytune.papers.catalogue import ITEMS, KINDS, PAPERS, Cell, Claim, Item, direction, find

ACCEPTANCE = Path(__file__).resolve().parents[3] / "shared" / "papers" / "ACCEPTANCE.md"
PAPER_OF = {"M": "mixout", "V": "few-sample", "R": "rdrop"}
# What issue 5 asks for.
RUN = [*(f"M{i}" for i in range(10, 29)), *(f"V{i}" for i in (*range(2, 7), *range(11, 17), 22, 23, 24))]
RUN += [f"R{i}" for i in range(6, 19)]
CLAIMS = [(item, claim) for item in ITEMS.values() for claim in item.claims]


def acceptance_items():
    """Name -> text of the items M1 ..., V1 ..., R1 ... of the acceptance list."""
    if not ACCEPTANCE.exists():
        pytest.skip("the acceptance list is not beside this checkout (../shared/papers)")
    text = ACCEPTANCE.read_text(encoding="utf-8")
    text = text[text.index("## The items") : text.index("### What all of them need")]
    text = re.sub(r"^(#+|[A-Z ,:>()\-]{6,}).*$", "", text, flags=re.M)  # headings
    # Some lines hold two items: "V18 ...  V19 ...".
    parts = re.split(r"(?:^|  )(?=[MVR]\d+ )", text, flags=re.M)
    return {part.split()[0]: part for part in parts if re.match(r"[MVR]\d+ ", part)}


def published_number(id):
    if id not in published.available():
        return lambda cell, statistic: None

    def number(cell, statistic):
        found = published.load(id).find(*cell, statistic)
        return None if found is None else found.scaled

    return number


def test_every_item_that_is_to_be_run_has_an_id():
    have = {name for item in ITEMS.values() for name in item.items}
    assert not set(RUN) - have
    assert not set(RUN) - set(acceptance_items())


def test_items_are_those_of_the_acceptance_list():
    known = acceptance_items()
    for item in ITEMS.values():
        assert item.items, item.id
        assert all(name in known and PAPER_OF[name[0]] == item.paper for name in item.items), item.id


def test_every_table_and_figure_of_the_acceptance_list_has_an_id():
    named = set()
    for name, text in acceptance_items().items():
        for kind, first, between, last in re.findall(r"(Table|Fig)(?:ure)?s? (\d+)(?:( ?/ ?|-)(\d+))?", text):
            numbers = (
                range(int(first), int(last) + 1) if between == "-" else [int(each) for each in (first, last) if each]
            )
            named |= {f"{PAPER_OF[name[0]]}/{'table' if kind == 'Table' else 'figure'}-{number}" for number in numbers}
    assert len(named) > 35
    assert not named - set(ITEMS)


def test_every_table_and_figure_of_the_brief_has_an_id():
    wanted = [f"mixout/table-{i}" for i in range(1, 5)] + [f"mixout/figure-{i}" for i in range(2, 7)]
    wanted += [f"few-sample/table-{i}" for i in range(1, 8)] + [f"few-sample/figure-{i}" for i in range(1, 19)]
    wanted += [f"rdrop/table-{i}" for i in range(1, 6)] + [f"rdrop/figure-{i}" for i in (1, 2)]
    wanted += ["mixout/theorem-1", "mixout/corollary-1.1", "rdrop/proposition-b1", "mixout/supplement-e"]
    assert not set(wanted) - set(ITEMS)


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_every_id_has_published_numbers_or_a_reason_why_not(item):
    assert (item.id in published.available()) != bool(item.no_data)
    assert item.claims or item.kind == "set-up"
    assert item.number.split()[0].lower() == item.id.split("/")[1].split("-")[0] or item.number.startswith("Section")
    if item.runs_of:
        assert not find(item.runs_of).runs_of
        assert find(item.runs_of).paper == item.paper


def test_no_published_numbers_without_an_id():
    assert not set(published.available()) - set(ITEMS)
    assert {item.paper for item in ITEMS.values()} == set(PAPERS)


@pytest.mark.parametrize(("item", "claim"), CLAIMS, ids=[f"{item.id}: {claim.text[:40]}" for item, claim in CLAIMS])
def test_the_published_numbers_are_as_the_paper_claims(item, claim):
    found = direction(claim, published_number(item.id))
    assert found is not False
    # Every cell of a table is printed, so there its claims can be decided.
    whole = "/table-" in item.id and item.id != "rdrop/table-1" and claim.kind != "reproduces"
    if whole and not any(cell.setting == "no bias correction" for case in claim.cases for cell in case):
        assert found is True
    if claim.kind == "reproduces":
        number = published_number(item.id)
        assert all(number(cell, each) is not None for (cell,) in claim.cases for each in ("mean", "std"))


def test_most_claims_have_numbers_behind_them_and_the_rest_words():
    decided = [direction(claim, published_number(item.id)) is True for item, claim in CLAIMS]
    assert sum(decided) >= 40
    assert all(claim.source for _, claim in CLAIMS)


def test_every_kind_is_used():
    assert {claim.kind for _, claim in CLAIMS} == set(KINDS)


def test_the_catalogue_is_light():
    code = (
        "import sys, steadytune.papers.catalogue, steadytune.papers.published; "
        "print(sorted({'torch', 'numpy', 'scipy', 'pandas', 'yaml', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def claim_of(kind, cells, **settings):
    return Claim("a claim", kind, (tuple(Cell("row", str(i)) for i in range(cells)),), "nowhere", **settings)


@pytest.mark.parametrize(
    ("kind", "yes", "no", "settings"),
    [
        ("greater", [2, 1], [1, 1], {}),
        ("less", [1, 2], [1, 1], {}),
        ("steadier", [1, 2], [2, 1], {}),
        ("fewer_degenerate", [0, 3], [3, 3], {}),
        ("rising", [1, 3, 2, 4], [4, 2, 3, 1], {}),
        ("falling", [4, 2, 3, 1], [1, 1, 1], {}),
        ("best", [3, 1, 3], [2, 1, 3], {}),
        ("peak", [1, 3, 2], [1, 2, 3], {}),
        ("flatter", [1, 1.1, 0, 5], [0, 5, 1, 1.1], {}),
        ("narrower", [2, 1, 5, 1], [5, 1, 1, 2], {}),
        ("no_difference", [1, 1.4], [1, 1.6], {"margin": 0.5}),
        ("no_better", [1.4, 1], [1.6, 1], {"margin": 0.5}),
        ("ratio_at_most", [1.1, 1], [1.3, 1], {"value": 1.1, "margin": 0.1}),
        ("value", [0.4], [0.6], {"value": 0.0, "margin": 0.5}),
        ("bound", [1, 1], [0.9, 1], {}),
    ],
)
def test_what_each_kind_says(kind, yes, no, settings):
    claim = claim_of(kind, len(yes), **settings)
    assert direction(claim, lambda cell, statistic: yes[int(cell.column)]) is True
    claim = claim_of(kind, len(no), **settings)
    assert direction(claim, lambda cell, statistic: no[int(cell.column)]) is False
    assert direction(claim, lambda cell, statistic: None) is None


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6))
def test_rising_backwards_is_falling(values):
    def found(kind, order):
        return direction(claim_of(kind, len(order)), lambda cell, statistic: order[int(cell.column)])

    assert found("rising", values) == found("falling", values[::-1])


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=7))
def test_scope_says_of_how_many_cases_it_must_hold(cases):
    """Against every way to fill in what is missing."""

    def of(scope, each):
        claim = Claim(
            "a", "greater", tuple((Cell("a", str(i)), Cell("b", str(i))) for i in range(len(each))), "b", scope
        )

        def number(cell, statistic):
            known = each[int(cell.column)]
            return None if known is None else float(known == (cell.row == "a"))

        return direction(claim, number)

    def filled(value):
        return [value if case is None else case for case in cases]

    meaning = {"every": all, "most": lambda each: sum(each) > len(each) / 2, "not every": lambda each: not all(each)}
    for scope, holds in meaning.items():
        ways = {holds(filled(True)), holds(filled(False))}
        found = of(scope, cases)
        assert found is (ways.pop() if len(ways) == 1 else None)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: claim_of("grater", 2), "Did you mean 'greater'"),
        (lambda: claim_of("greater", 3), "has 2 cells"),
        (lambda: claim_of("rising", 1), "at least 2 cells"),
        (lambda: claim_of("no_difference", 2), "needs a margin"),
        (lambda: claim_of("greater", 2, value=1.0), "a value belongs to"),
        (lambda: claim_of("value", 1, margin=1.0), "a value belongs to"),
        (lambda: claim_of("greater", 2, scope="some"), "unknown scope 'some'"),
        (lambda: Claim("a", "greater", (), "b"), "speaks of no case"),
        (lambda: Item("bert/table-1", "Table 1", "", ()), "does not begin with one of mixout"),
        (lambda: find("mixout/tabel-1"), "Did you mean 'mixout/table-1'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make, says):
    with pytest.raises(SteadytuneError, match=re.escape(says)):
        make()


def test_what_a_paper_says_against_its_own_method_is_claimed_too():
    """Pages 7, 8 and 10 of the mixout paper."""
    found = {claim.source: claim for item in ITEMS.values() if item.paper == "mixout" for claim in item.claims}
    more_fail = found["section 5, page 7, of figure 3 (b, c)"]
    assert {cell.column for case in more_fail.cases for cell in case} == {"MRPC", "CoLA"}
    best = [claim for claim in find("mixout/table-1").claims if claim.statistic == "max"]
    above = [(claim.cases[0][0].row[:6], sorted({case[0].column for case in claim.cases})) for claim in best]
    assert above[1:] == [("wdecay", ["CoLA", "MRPC", "STS-B"]), ("mixout", ["RTE"])]
    (small_p,) = [claim for claim in find("mixout/figure-4").claims if claim.kind == "no_better"]
    assert {case[0].setting for case in small_p.cases} == {"p=0.1", "p=0.2", "p=0.3"}


def test_what_is_called_an_identity_is_compared_and_not_tested():
    """A test may miss what cannot come out otherwise: then an identity would be said not to hold."""
    found = [claim for item in ITEMS.values() for claim in item.claims if claim.uncounted == "an identity"]
    assert found
    assert {claim.kind for claim in found} <= {"value", "bound", "ratio_at_most"}
