"""Bad files: a sentence that names the file, the row and the column, every time."""

import contextlib
import datetime
import gzip
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadytune.errors import SteadytuneError
from steadytune.tasks import text
from steadytune.tasks.files import Format, read_rows

GOOD = "text,label\n" + "".join(f"row {i},{'ab'[i % 2]}\n" for i in range(20))


def refused(path, *parts, **options):
    """Loading fails with a sentence that holds all parts; returns it."""
    with pytest.raises(SteadytuneError) as caught:
        text.load(path, **{"text": "text", "label": "label", **options})
    message = str(caught.value)
    for part in (str(path), *parts):
        assert part in message, message
    assert message.rstrip().endswith((".", "?", "'")), message
    return message


def put(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_good_file_is_good(tmp_path):
    assert len(text.load(put(tmp_path, "a.csv", GOOD), text="text", label="label").train) == 14


def test_missing_column_with_the_nearest_name(tmp_path):
    path = put(tmp_path, "a.csv", "Review,Sentiment\nx,a\ny,b\n")
    refused(path, "no column 'review'", "Did you mean 'Review'?", "'Sentiment'", text="review", label="Sentiment")
    refused(path, "no column 'sentimnt'", "Did you mean 'Sentiment'?", text="Review", label="sentimnt")
    path = put(tmp_path, "a.jsonl", '{"text": "x", "label": "a"}\n{"text": "y"}\n{"text": "z", "label": "b"}\n' * 2)
    refused(path, "row 2", "column 'label'", "the label is missing")
    refused(path, "no column 'lable'", "Did you mean 'label'?", label="lable")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_empty_file(tmp_path, name):
    refused(put(tmp_path, name, ""), "is empty")
    if name != "a.parquet":
        refused(put(tmp_path, name, "\n\n"), "is empty")
        refused(put(tmp_path, name, b"\xef\xbb\xbf"), "is empty")


def test_header_only(tmp_path):
    refused(put(tmp_path, "a.csv", "text,label\n"), "columns text, label but no rows")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": [""], "label": [""]}).slice(0, 0), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "columns text, label but no rows")


def test_no_such_file_or_format(tmp_path):
    refused(tmp_path / "reviews.csv", "does not exist", "hub:owner/name")
    refused(put(tmp_path, "a.xlsx", "PK"), "cannot tell the format from '.xlsx'", ".csv")
    refused(tmp_path, "holds no train file")
    with pytest.raises(SteadytuneError, match="not one that datasets' save_to_disk wrote"):
        read_rows(tmp_path, ["text"])


def test_one_class_only(tmp_path):
    refused(put(tmp_path, "a.csv", "text,label\nx,a\ny,a\n"), "column 'label'", "all 2 rows have the label 'a'")


def test_a_label_in_dev_that_train_lacks(tmp_path):
    train = put(tmp_path, "a.csv", GOOD.replace(",a", ",positive").replace(",b", ",negative"))
    dev = put(tmp_path, "dev.csv", "text,label\nx,positive\ny,postive\n")
    message = refused(train, "'postive'", "Did you mean 'positive'?", validation=dev)
    assert message.startswith(f"{dev}, row 3, column 'label'")


@pytest.mark.parametrize("bad", ["NaN", "inf", "high", "1,5", "1_000", "-Infinity", "0x10"])
def test_what_is_not_a_number_to_regress(tmp_path, bad):
    path = put(tmp_path, "a.tsv", "text\tlabel\nx\t1.5\ny\t2.5\nz\t" + bad + "\n")
    message = refused(path, "row 4", "column 'label'", bad, "not a finite number", kind="regression")
    assert ("decimal comma" in message) == (bad == "1,5")


def test_json_labels_that_are_not_numbers(tmp_path):
    lines = ['{"text": "x", "label": 1.5}', '{"text": "y", "label": true}', '{"text": "z", "label": NaN}']
    refused(put(tmp_path, "a.jsonl", "\n".join(lines)), "row 2", "'label'", "truth value", kind="regression")
    refused(put(tmp_path, "a.jsonl", lines[0] + "\n" + lines[2]), "row 2", "'label'", "missing", kind="regression")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_bytes_that_are_not_utf8(tmp_path, name):
    if name == "a.csv":
        raw = 'text,label\n"two\nlines",a\ncafé,b\n'.encode()
        row, column = 4, "'text'"
    else:
        raw = '{"text": "x", "label": "a"}\n{"label": "b", "text": "café"}\n'.encode()
        row, column = 2, "'text'"
    raw = raw.replace("é".encode(), b"\xe9")
    message = refused(put(tmp_path, name, raw), f"row {row}", f"column {column}", "byte 0xe9", "not UTF-8")
    offset = int(re.search(r"offset (\d+)", message)[1])
    assert raw[offset] == 0xE9
    shifted = put(tmp_path, name, b"\xef\xbb\xbf" + raw)
    assert f"offset {offset + 3} " in refused(shifted)


def test_bad_bytes_in_header_and_other_encodings(tmp_path):
    refused(put(tmp_path, "a.csv", b"t\xe9xt,label\nx,a\n"), "row 1", "header", "byte 0xe9 at offset 1")
    refused(put(tmp_path, "a.csv", GOOD.encode("utf-16")), "UTF-16")
    refused(put(tmp_path, "a.csv", GOOD.replace("\n", "\r")), "bare carriage returns")
    refused(put(tmp_path, "a.jsonl", b'{"text": \xff\xfe}'), "row 1", "byte 0xff")


def test_ragged_rows(tmp_path):
    path = put(tmp_path, "a.csv", GOOD + "one cell\n")
    refused(path, "row 22", "1 cells where the header has 2", "column 'label'")
    path = put(tmp_path, "b.csv", GOOD + "a,b,c\n")
    refused(path, "row 22", "3 cells where the header has 2")
    data = text.load(path, text="text", label="label", format=Format(skip_ragged=True))
    assert any("1 ragged rows" in line for line in data.notes.sentences())


def test_ten_megabytes_in_one_cell(tmp_path):
    huge = "x" * 10_000_000
    refused(put(tmp_path, "a.csv", f"text,label\nok,a\n{huge},b\n"), "row 3", "column 'text'", "10,000,000 characters")
    huge = ("line " * 19 + "line\n") * 100_000
    refused(
        put(tmp_path, "a.csv", f'text,label\nok,a\n"{huge}",b\n'), "row 3", "column 'text'", "10,000,000 characters"
    )
    refused(put(tmp_path, "a.jsonl", json.dumps({"text": huge, "label": "a"})), "row 1", "'text'", "10,000,000")


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("steadytune.tasks.delimited.MAX_LINE", 1000)
    refused(put(tmp_path, "a.csv", 'text,label\n"' + "line\n" * 500), "row 2", "column 'text'", "does not close")


@pytest.mark.parametrize(
    ("row", "column", "why"),
    [
        ('"open,a', "text", "never closes"),
        ('"a"b,a', "text", "after a closing quote"),
        ('x,"a', "label", "never closes"),
    ],
)
def test_quotes_that_do_not_pair(tmp_path, row, column, why):
    refused(put(tmp_path, "a.csv", f"text,label\nok,a\n{row}\nfine,b\n"), "row 3", f"column '{column}'", why)


def test_fewer_rows_than_classes(tmp_path):
    path = put(tmp_path, "a.csv", "text,label\n" + "".join(f"t{i},name {i}\n" for i in range(9)) + "t,name 0\n")
    refused(path, "column 'label'", "10 rows for 9 classes")
    path = put(tmp_path, "b.csv", "text,label\na,x\nb,x\nc,y\nd,y\n")
    refused(
        path, "4 rows less 2 for validation and 2 for test", "fewer rows than the 2 classes", validation=0.4, test=0.4
    )


def test_missing_labels(tmp_path):
    path = put(tmp_path, "a.csv", GOOD + "x,\ny,  \n")
    refused(path, "row 22", "column 'label'", "missing (and in 1 more rows: 23", "missing='drop'")
    data = text.load(path, text="text", label="label", missing="drop")
    assert sum(map(len, data.splits().values())) == 20
    assert any("2 rows of" in line and "without a label" in line for line in data.notes.sentences())
    refused(put(tmp_path, "b.csv", "text,label\nx,\n"), "column 'label'", "all 1 rows lack a label")
    refused(put(tmp_path, "c.csv", "text,label\nx,1.5\ny,\n"), "row 3", "label is missing")


def test_duplicated_column_names(tmp_path):
    path = put(tmp_path, "a.csv", "text,text,label,x,x\n1,2,a,,\n3,4,b,,\n")
    refused(path, "row 1", "column 'text'", "2 columns have this name")
    assert read_rows(path, ["label"]).cells == [("a",), ("b",)]  # only a column that is asked for must be unique
    refused(put(tmp_path, "a.jsonl", '{"text": "a", "text": "b", "label": "x"}'), "row 1", "'text'", "stands twice")


def test_nul_bytes_and_half_characters(tmp_path):
    refused(put(tmp_path, "a.csv", GOOD + "x\0y,a\n"), "row 22", "column 'text'", "NUL")
    refused(put(tmp_path, "a.jsonl", '{"text": "a\\u0000", "label": "x"}'), "row 1", "column 'text'", "NUL")
    refused(put(tmp_path, "a.jsonl", '{"text": "\\ud800", "label": "x"}'), "row 1", "column 'text'", "surrogate")


@pytest.mark.parametrize(("value", "what"), [('{"a": 1}', "an object"), ("[1, 2]", "a list")])
@pytest.mark.parametrize("column", ["text", "label"])
def test_nested_json(tmp_path, value, what, column):
    other = "label" if column == "text" else "text"
    path = put(tmp_path, "a.jsonl", f'{{"{column}": {value}, "{other}": "x"}}\n')
    refused(path, "row 1", f"column '{column}'", f"the cell is {what}")


def test_truth_values_are_labels_but_not_texts(tmp_path):
    refused(
        put(tmp_path, "a.jsonl", '{"text": true, "label": 1}\n' * 2 + '{"text": "", "label": 0}\n' * 2),
        "row 1",
        "'text'",
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('["a", "b"]', "not an object"),
        ('{"text": "x", "label": ', "not a JSON object on one line"),
        ("[" * 100_000, "nested too deeply"),
        ('{"text": "x", "label": ' + "9" * 5000 + "}", "not a JSON object on one line"),
    ],
)
def test_broken_jsonl(tmp_path, line, why):
    refused(put(tmp_path, "a.jsonl", '{"text": "x", "label": "a"}\n' + line + "\n"), "row 2", why)


def test_broken_parquet_gzip_and_zip(tmp_path):
    pytest.importorskip("pyarrow")
    refused(put(tmp_path, "a.parquet", "PAR1 but not really"), "not a whole Parquet file")
    refused(put(tmp_path, "a.csv.gz", b"\x1f\x8b\x08\x00broken"), "damaged")
    refused(put(tmp_path, "b.csv.gz", "plain"), "damaged")
    refused(put(tmp_path, "a.zip", "PK not"), "not a whole zip file")


def test_typed_parquet_cells(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def table(**columns):
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    refused(table(text=["x", "y"], label=[b"a", b"b"]), "row 1", "column 'label'", "the cell is bytes")
    refused(table(text=["x"], label=[[1]]), "row 1", "column 'label'", "a list")
    refused(table(text=["x"], label=[datetime.date(2020, 1, 1)]), "row 1", "column 'label'", "date")
    refused(table(text=["x", "y"], label=[1.5, None]), "row 2", "column 'label'", "missing")
    good = table(text=["x", None, "z", "w"], label=[True, False, True, False])
    data = text.load(good, text="text", label="label", validation=None, test=None)
    assert (data.task.labels, data.notes.empty) == (("False", "True"), 1)


def test_no_text_at_all(tmp_path):
    refused(put(tmp_path, "a.csv", 'text,label\n"",a\n  ,b\n,a\n,b\n'), "column 'text'", "no row has any text")


def test_rows_that_are_all_equal_cannot_be_split(tmp_path):
    refused(put(tmp_path, "a.csv", "text,label\n" + "x,a\nx,b\n" * 20), "40 rows, 1 of them different, are too few")


def test_columns_must_differ(tmp_path):
    path = put(tmp_path, "a.csv", GOOD)
    for options in ({"label": "text"}, {"text": ["text", "text"]}, {"text": []}):
        with pytest.raises(SteadytuneError, match="should be different columns"):
            text.load(path, **{"text": "text", "label": "label", **options})
    with pytest.raises(SteadytuneError, match="missing is 'ignore'"):
        text.load(path, text="text", label="label", missing="ignore")
    with pytest.raises(SteadytuneError, match=r"validation fraction is 1\.5"):
        text.load(path, text="text", label="label", validation=1.5)


PIECES = [
    b"text",
    b"label",
    b",",
    b"\t",
    b"\n",
    b"\r",
    b'"',
    b'""',
    b"{",
    b"}",
    b":",
    b"[",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\0",
]
PIECES += [
    b'{"text": "a", "label": ',
    b"1",
    b"nan",
    b"null",
    b"}\n",
    b"text,label\n",
    b"text\tlabel\n",
    b"PAR1",
    b"PK\x03\x04",
]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.csv.gz", "a.zip"]),
    content=st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4)), max_size=12).map(b"".join),
)
def test_no_file_gives_anything_but_rows_or_a_sentence(tmp_path, name, content):
    packed = gzip.compress(content) if name.endswith(".gz") and len(content) % 2 else content
    path = put(tmp_path, name, packed)
    for read in (lambda: load_any(path), lambda: list(text.iter_texts(path, ["text"], chunk=2))):
        with contextlib.suppress(SteadytuneError):
            read()


def load_any(path):
    return text.load(path, text="text", label="label", missing="drop")
