"""Translation, summaries and language modelling, on the real corpora and on small ones."""

import gzip
import json

import numpy as np
import pytest

from steadytune.errors import SteadytuneError
from steadytune.tasks import language_model, translation
from steadytune.tasks.baselines import lead, unigram_perplexity


def test_multi30k(real_data):
    data = translation.load(real_data / "multi30k", source="en", target="de", metric="tokenized_bleu")
    assert [len(rows) for rows in data.splits().values()] == [29000, 1014, 1000]
    assert data.test.texts[0] == ("A man in an orange hat starring at something.",)
    assert data.test.targets[0] == "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt."
    assert data.test.source.where(0).endswith("test_2016_flickr.en and test_2016_flickr.de, row 1")
    assert data.baselines[0].name == "the source, copied"
    assert data.baselines[0].test < 1


def test_tatoeba(real_data):
    path = real_data / "tatoeba-de-en" / "deu-eng.zip"
    options = {"columns": ("en", "de"), "validation": 0.01, "test": 0.01, "metric": "tokenized_bleu"}
    data = translation.load(path, source="de", target="en", **options)
    sizes = [len(rows) for rows in data.splits().values()]
    assert (sum(sizes), sizes[1:]) == (169197, [1692, 1692])
    assert set(np.concatenate([rows.source.numbers for rows in data.splits().values()])) == set(range(1, 169198))
    second = data.train.source.numbers.tolist().index(2)
    assert (data.train.texts[second], data.train.targets[second]) == (("Grüß Gott!",), "Hi.")
    assert data.notes.leaks == ()  # equal sources stay together


def test_sacrebleu_baseline(real_data):
    pytest.importorskip("sacrebleu")
    data = translation.load(real_data / "multi30k", source="en", target="de", validation=None)
    assert data.task.metric == "bleu"
    assert data.validation is None
    assert 0 < data.baselines[0].test < 1


def test_summaries_from_jsonl(tmp_path):
    path = tmp_path / "news.jsonl"
    article = "One thing happened. Then another! Did a third? A fourth did."
    rows = [{"article": f"{i}. {article}", "highlights": "One thing happened.\nThen another."} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    data = translation.load(path, source="article", target="highlights", kind="summarization", test=None)
    assert data.task.metric == "rouge_lsum"
    assert data.test is None
    assert 50 < data.baselines[0].validation < 100
    assert lead(article) == "One thing happened.\nThen another!\nDid a third?"
    with pytest.raises(SteadytuneError, match="a translation or a summarization task, not image"):
        translation.load(path, source="article", target="highlights", kind="image")


def test_quoted_and_unquoted_tables(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text('Hi.\t"Hallo!"\nRun!\tLauf!\n')
    data = translation.load(path, source="en", target="de", columns=("en", "de"), validation=None, test=None)
    assert data.train.targets == ['"Hallo!"', "Lauf!"]
    path.write_text('en\tde\n"Hi."\t"Hal\tlo!"\n"Run!"\t"Lauf!"\n')
    data = translation.load(path, source="en", target="de", validation=None, test=None)
    assert data.train.targets == ["Hal\tlo!", "Lauf!"]


def write_pairs(folder, name, lines, other=None):
    (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / f"{name}.de").write_text("".join(f"{line}!\n" for line in (other or lines)), encoding="utf-8")


def test_line_aligned_files(tmp_path):
    write_pairs(tmp_path, "train", ["a", "b\u2028still b", "", "d"])
    data = translation.load(tmp_path, source="en", target="de", validation=None, test=None, metric="tokenized_bleu")
    assert data.train.texts[1] == ("b\u2028still b",)  # one line, whatever splitlines thinks
    assert data.train.targets[2] == "!"
    write_pairs(tmp_path, "test_2016", ["x"])
    write_pairs(tmp_path, "test_2017", ["y"])
    with pytest.raises(SteadytuneError, match=r"several test files \(test_2016, test_2017\); say which"):
        translation.load(tmp_path, source="en", target="de")
    data = translation.load(tmp_path, source="en", target="de", validation=None, test="test_2017", metric="rouge_1")
    assert data.test.texts == [("y",)]


def test_lines_that_do_not_match(tmp_path):
    write_pairs(tmp_path, "train", ["a", "b", "c"], ["a", "b"])
    with pytest.raises(SteadytuneError, match=r"train\.de ends after row 2 but .*train\.en goes on"):
        translation.load(tmp_path, source="en", target="de")
    with pytest.raises(SteadytuneError, match=r"holds no train\.fr with train\.de"):
        translation.load(tmp_path, source="fr", target="de")
    (tmp_path / "train.de").write_bytes(b"ok\nf\xfcr\nx\n")
    with pytest.raises(SteadytuneError, match=r"train\.de, row 2: byte 0xfc at offset 4"):
        translation.load(tmp_path, source="en", target="de")
    (tmp_path / "train.de").unlink()
    with pytest.raises(SteadytuneError, match=r"train\.de does not exist"):
        translation.load(tmp_path, source="en", target="de")


def test_wikitext(real_data):
    data = language_model.load(real_data / "wikitext-2")
    tokens = {name: sum(len(t[0].split()) for t in rows.texts) for name, rows in data.splits().items()}
    assert tokens == {"train": 2051910, "validation": 213886, "test": 241211}
    assert [len(rows) for rows in data.splits().values()] == [36718, 3760, 4358]
    assert data.task.metric == "perplexity"
    assert 800 < data.baselines[0].test < 1100
    assert data.validation.texts[1] == (" = Homarus gammarus = ",)


def test_one_text_file_is_cut_in_order(tmp_path):
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress("".join(f"line {i}\n" for i in range(100)).encode()))
    data = language_model.load(path, validation=0.1, test=0.2)
    assert [rows.texts[0][0] for rows in data.splits().values()] == ["line 0", "line 70", "line 80"]
    assert data.test.source.where(19) == f"{path}, row 100"
    assert data.task.name == "book"


def test_unigram_perplexity(tmp_path):
    (tmp_path / "train.txt").write_text("a a b\n")
    (tmp_path / "test.txt").write_text("a c\n")
    data = language_model.load(tmp_path, validation=None)
    # p(a) = 3/6, p(c) = 1/6: three tokens, two words, one more for the unseen
    assert unigram_perplexity(data.train, data.test) == pytest.approx((1 / 2 * 1 / 6) ** -0.5)


def test_bad_texts(tmp_path):
    with pytest.raises(SteadytuneError, match="does not exist"):
        language_model.load(tmp_path / "none.txt")
    with pytest.raises(SteadytuneError, match=r"holds no train\.txt"):
        language_model.load(tmp_path)
    path = tmp_path / "a.txt"
    path.write_text("\n \n")
    with pytest.raises(SteadytuneError, match=r"a\.txt is empty"):
        language_model.load(path)
    path.write_bytes(b"fine\nna\xefve\n")
    with pytest.raises(SteadytuneError, match=r"a\.txt, row 2: byte 0xef at offset 7"):
        language_model.load(path)
    path.write_text("one line")
    with pytest.raises(SteadytuneError, match="too few to take a test split"):
        language_model.load(path)
