"""Reading tables: formats agree, quirks are kept, and memory stays bounded."""

import csv
import gzip
import io
import json
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadytune.errors import SteadytuneError
from steadytune.tasks import delimited, text
from steadytune.tasks.files import Format, column_names, iter_rows, read_rows
from steadytune.tasks.lines import Line

# Any text but what no table can carry: NUL, lone surrogates, and bare carriage returns (a CSV reader's line end).
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12)
ROWS = st.lists(st.tuples(TEXT, TEXT, st.sampled_from(["yes", "no", "1", "a,b", 'q"'])), min_size=1, max_size=8)


def write_all(folder: Path, rows: list[tuple[str, str, str]]) -> dict[str, Path]:
    """The same rows in every format."""
    names = ("first", "second", "label")
    paths = {kind: folder / f"rows.{kind}" for kind in ("csv", "tsv", "jsonl", "parquet")}
    for kind, delimiter in (("csv", ","), ("tsv", "\t")):
        with open(paths[kind], "w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([names, *rows])
    paths["jsonl"].write_text("".join(json.dumps(dict(zip(names, row))) + "\n" for row in rows), encoding="utf-8")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(dict(zip(names, map(list, zip(*rows))))), paths["parquet"])
    return paths


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_every_format_gives_the_same_rows(tmp_path, rows):
    for kind, path in write_all(tmp_path, rows).items():
        read = read_rows(path, ["second", "label", "first"])
        assert read.cells == [(b, label, a) for a, b, label in rows], kind


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=4, max_size=8))
def test_every_format_gives_the_same_fingerprint(tmp_path, rows):
    labelled = [(a + "x", b, ("yes", "no")[i % 2]) for i, (a, b) in enumerate(rows)]
    found = {
        kind: text.load(path, text=["first", "second"], label="label", validation=None, test=None)
        for kind, path in write_all(tmp_path, labelled).items()
    }
    assert len({data.fingerprint for data in found.values()}) == 1
    assert len({data.train.fingerprint for data in found.values()}) == 1


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]), crlf=st.booleans())
def test_csv_is_read_as_the_csv_module_reads_it(tmp_path, rows, quoting, crlf):
    out = io.StringIO()
    writer = csv.writer(out, quoting=quoting, lineterminator="\r\n" if crlf else "\n")
    writer.writerows([("first", "second", "label"), *rows])
    (tmp_path / "rows.csv").write_bytes(out.getvalue().encode())
    expected = list(csv.reader(io.StringIO(out.getvalue(), newline="")))[1:]
    assert [list(cells) for cells in read_rows(tmp_path / "rows.csv", ["first", "second", "label"]).cells] == expected


def test_row_numbers_are_line_numbers_also_after_multi_line_cells(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"one\ntwo\n\nthree",x\n\nfour,y\n"five ""5""",x')
    read = read_rows(tmp_path / "a.csv", ["text", "label"])
    assert read.numbers == [2, 7, 8]
    assert read.cells == [("one\ntwo\n\nthree", "x"), ("four", "y"), ('five "5"', "x")]


def test_windows_files(tmp_path):
    """BOM, CRLF, semicolons: what Excel saves in much of Europe."""
    (tmp_path / "a.csv").write_bytes('\ufeff"text";label\r\n"a; b";x\r\nc,d;y\r\n'.encode())
    assert column_names(tmp_path / "a.csv") == ["text", "label"]
    assert read_rows(tmp_path / "a.csv", ["text"]).cells == [("a; b",), ("c,d",)]


def test_a_delimiter_inside_a_quoted_name_does_not_count(tmp_path):
    (tmp_path / "a.csv").write_text('"text";"label, coarse"\nx, y;a\n')
    assert read_rows(tmp_path / "a.csv", ["text", "label, coarse"]).cells == [("x, y", "a")]


def test_a_key_that_an_object_lacks_is_null(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n{"label": "a", "text": "y"}\n{"label": "b"}\n')
    assert read_rows(path, ["text", "label"]).cells == [("x", None), ("y", "a"), (None, "b")]
    with pytest.raises(SteadytuneError, match=r"there is no column 'lable'.*mean 'label'"):
        read_rows(path, ["text", "lable"])


def test_lines_end_only_at_newlines(tmp_path):
    odd = "a\u2028b\x0bc\x85d\x1ce"
    (tmp_path / "a.tsv").write_text(f"text\tlabel\n{odd}\tx\n", encoding="utf-8")
    assert read_rows(tmp_path / "a.tsv", ["text"]).cells == [(odd,)]


@pytest.mark.parametrize("pack", ["gz", "zip"])
def test_packed_files(tmp_path, pack):
    content = b"text\tlabel\nhello\tx\n"
    if pack == "gz":
        path = tmp_path / "a.tsv.gz"
        path.write_bytes(gzip.compress(content))
    else:
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("../../a.tsv", content)  # inert: nothing is extracted
            archive.writestr("_about.txt", "notes")
    assert read_rows(path, ["text", "label"]).cells == [("hello", "x")]
    assert [p.name for p in tmp_path.parent.glob("a.tsv")] == []


@pytest.mark.parametrize(
    ("quoted", "rows"),
    [
        (False, ['1\t"Hello" she said', '0\tbye "x"']),  # text after the closing quote
        (False, ['1\t" opens only', "0\tplain"]),  # never closes
        (False, ['1\t"starts here', '0\tends here"']),  # pairs up over lines, but both lines are whole as they stand
        (False, ['1\t"great film"', "0\tbad film"]),  # one sentence in quotation marks
        (False, ["1\tno quotes", "0\tat all"]),
        (True, ['1\t"a\tb"', "0\tc"]),  # a tab inside
        (True, ['1\t"a\nb"', "0\tc"]),  # a newline inside
        (True, ['1\t"say ""hi"""', "0\tc"]),  # doubled quotes: a minimal writer
        (True, ['1\t"a"', '0\t"b"']),  # the whole column is quoted
        (True, ['"1"\t"a"', '"0"\t"b"']),
    ],
)
def test_quotes_in_tsv_are_decided_by_rule(tmp_path, quoted, rows):
    path = tmp_path / "a.tsv"
    path.write_text("label\ttext\n" + "\n".join(rows) + "\n")
    assert delimited.find_quoted(path, "\t") == quoted
    if not quoted:
        assert read_rows(path, ["text"]).cells == [(row.split("\t")[1],) for row in rows]
        assert read_rows(path, ["text"], format=Format(quoted=False)).numbers == [2, 3]


def test_quote_rule_on_a_cut_sample():
    lines = [Line(1, "label\ttext\n"), Line(2, '1\t"a ""b"""\n'), Line(3, '0\t"open\n')]
    assert delimited.sniff_quotes(lines, whole=False)
    assert not delimited.sniff_quotes(lines, whole=True)


def test_quoting_can_be_said(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('label\ttext\n1\t"great film"\n0\tbad\n')
    assert read_rows(path, ["text"], format=Format(quoted=True)).cells[0] == ("great film",)
    path = tmp_path / "a.csv"
    path.write_text('label,text\n1,"great" film\n0,bad\n')
    assert read_rows(path, ["text"], format=Format(quoted=False)).cells[0] == ('"great" film',)


@pytest.mark.parametrize("name", ["RTE", "MRPC", "CoLA", "STS-B", "QNLI", "QQP", "MNLI", "SST-2"])
def test_the_rule_on_glue_files(real_data, name):
    """All are unquoted but QQP, which a minimal writer made: `"What does ""TL; DR"" mean?"`. (glue.load keeps such
    quotes as text there too, as every public reader of GLUE does.)"""
    for path in sorted((real_data / "glue" / name).glob("*.tsv")):
        assert delimited.find_quoted(path, "\t") == (name == "QQP"), path


def test_chunks(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"t{i}", "n": i}) for i in range(25)))
    sizes = [len(chunk.numbers) for chunk in iter_rows(path, ["n"], chunk=10)]
    assert sizes == [10, 10, 5]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_memory_is_bounded(tmp_path, kind):
    """A file of 5 MB is read with a small part of that in memory."""
    path = tmp_path / f"big.{kind}"
    words = "lorem ipsum dolor sit amet " * 12
    rows = 15_000
    if kind == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pyarrow.table({"text": [f"{i} {words}" for i in range(rows)]})
        parquet.write_table(table, path, row_group_size=500, compression="none", use_dictionary=False)
        del table
    else:
        with open(path, "w") as file:
            file.write("text\n" if kind == "csv" else "")
            for i in range(rows):
                file.write(f'"{i} {words}"\n' if kind == "csv" else json.dumps({"text": f"{i} {words}"}) + "\n")
    assert path.stat().st_size > 4.8e6
    seen = 0
    tracemalloc.start()
    for numbers, texts in text.iter_texts(path, ["text"], chunk=100):
        seen += len(texts)
        assert len(numbers) == 100
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == rows
    assert peak < 1.6e6


def test_datasets_directory(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    rows = {"text": [f"text {i}" for i in range(40)], "label": [i % 2 for i in range(40)]}
    whole = datasets.Dataset.from_dict(rows, features=features)
    unlabelled = datasets.Dataset.from_dict({"text": ["x", "y"], "label": [-1, -1]}, features=features)
    datasets.DatasetDict({"train": whole, "validation": whole.select(range(6)), "test": unlabelled}).save_to_disk(
        str(tmp_path / "dict")
    )
    data = text.load(tmp_path / "dict", text="text", label="label")
    assert data.task.labels == ("neg", "pos")
    assert [len(rows) for rows in data.splits().values()] == [
        34,
        6,
        6,
    ]  # its test has no labels, so one is cut from train
    assert any("has no labels" in line for line in data.notes.sentences())
    assert data.validation.source.where(0).endswith("dict [validation], row 1")
    whole.save_to_disk(str(tmp_path / "one"))
    single = text.load(tmp_path / "one", text="text", label="label", validation=10 / 40, test=None)
    assert [len(rows) for rows in single.splits().values()] == [30, 10]
    with pytest.raises(SteadytuneError, match=r"dict: there is no column 'txt'|dict, row 1: there is no column 'txt'"):
        read_rows(tmp_path / "dict", ["txt"])
    with pytest.raises(SteadytuneError, match="has no split 'holdout'; it has train, validation, test"):
        read_rows(tmp_path / "dict", ["text"], part="holdout")


def test_hub_without_network_says_what_was_asked_for(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def no_network(name, config):
        assert (name, config) == ("owner/name", "small")
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    with pytest.raises(SteadytuneError, match=r"hub:owner/name:small could not be fetched.*no route"):
        text.load("hub:owner/name:small", text="text", label="label")


@pytest.mark.parametrize(
    ("module", "suffix"), [("pyarrow", ".parquet"), ("datasets", ""), ("sacrebleu", None), ("PIL", ".png")]
)
def test_missing_packages_name_the_extra(tmp_path, monkeypatch, module, suffix):
    from steadytune.tasks import image
    from steadytune.tasks.metrics import METRICS

    monkeypatch.setitem(sys.modules, module, None)  # makes the import fail
    path = tmp_path / f"a{suffix}"
    if suffix == "":
        path.mkdir()
        (path / "dataset_info.json").write_text("{}")
    elif suffix:
        path.write_bytes(b"x")
    calls = {None: lambda: METRICS["bleu"].compute(["a"], ["a"]), ".png": lambda: image.decode(b"x", "a.png")}
    with pytest.raises(SteadytuneError, match=r"pip install steadytune\[data\]"):
        calls.get(suffix, lambda: read_rows(path, ["text"]))()


def test_directory_of_split_files(tmp_path):
    for name, rows in (("train", 20), ("dev", 4), ("test", 6)):
        lines = "".join(f"{name} {i},{i % 2}\n" for i in range(rows))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + lines)
    data = text.load(tmp_path, text="text", label="label")
    assert {name: len(rows) for name, rows in data.splits().items()} == {"train": 20, "validation": 4, "test": 6}
    assert np.array_equal(data.train.source.numbers, np.arange(2, 22))
    (tmp_path / "train.tsv").write_text("text\tlabel\na\t1\n")
    with pytest.raises(SteadytuneError, match=r"more than one train file: train\.csv, train\.tsv"):
        text.load(tmp_path, text="text", label="label")
