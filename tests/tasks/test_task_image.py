"""Images: real MNIST, USPS and CIFAR-10 files, and hostile archives."""

import contextlib
import gzip
import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadytune.errors import SteadytuneError
from steadytune.tasks import image

PIL = pytest.importorskip("PIL.Image")


def png(value=0, size=(4, 4)):
    out = io.BytesIO()
    PIL.new("L", size, value).save(out, "PNG")
    return out.getvalue()


def test_mnist(real_data):
    data = image.load(real_data / "mnist")
    assert [rows.images.shape for rows in data.splits().values()] == [(54000, 28, 28), (6000, 28, 28), (10000, 28, 28)]
    assert data.task.labels == tuple("0123456789")
    assert data.train.images.dtype == np.uint8
    assert np.bincount(data.test.labels)[:2].tolist() == [980, 1135]
    assert data.baselines[0].test == 0.1135  # always "1"
    assert data.baselines[1].test == pytest.approx(0.1)


def test_usps(real_data):
    data = image.load(real_data / "usps" / "usps.npz", validation=None)
    assert [rows.images.shape for rows in data.splits().values()] == [(7291, 16, 16), (2007, 16, 16)]


def test_cifar_zip(real_data):
    data = image.load(real_data / "cifar10-subset" / "images.zip", validation=None)
    assert [rows.images.shape for rows in data.splits().values()] == [(5000, 32, 32, 3), (1000, 32, 32, 3)]
    assert len(data.task.labels) == 10
    assert np.bincount(data.train.labels).tolist() == [500] * 10
    assert data.test.source.where(0).endswith("images.zip [test], test/airplane/0000.jpg")
    assert data.notes.leaks == ()


def make(folder, names, size=(4, 4)):
    for i, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(i * 3, size))


NAMES = [f"{c}/{i}.png" for c in ("cat", "dog") for i in range(10)]


def test_folder_and_zip_give_the_same_rows(tmp_path):
    make(tmp_path / "pets", [*NAMES, "cat/.hidden.png", "__MACOSX/cat/1.png"])
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("x")
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for name in reversed(NAMES):
            archive.writestr("pets/" + name, (tmp_path / "pets" / name).read_bytes())
    folder, packed = (image.load(tmp_path / name, test=0.2) for name in ("pets", "pets.zip"))
    assert folder.task.labels == ("cat", "dog")
    assert [len(rows) for rows in folder.splits().values()] == [14, 2, 4]
    assert folder.fingerprint == packed.fingerprint


def test_duplicate_images_are_counted(tmp_path):
    make(tmp_path, ["train/cat/1.png", "train/dog/2.png"])
    (tmp_path / "test" / "cat").mkdir(parents=True)
    (tmp_path / "test" / "cat" / "9.png").write_bytes(png(0))
    (tmp_path / "train" / "dog" / "3.png").write_bytes(png(0))
    notes = image.load(tmp_path, validation=None).notes
    assert (notes.duplicates, notes.conflicts, notes.leaks[0].rows) == (1, 1, 1)


def test_sizes(tmp_path):
    make(tmp_path, NAMES)
    (tmp_path / "dog" / "big.png").write_bytes(png(1, (8, 6)))
    with pytest.raises(SteadytuneError, match=r"dog/big\.png is \(6, 8\) pixels and .* is \(4, 4\); give a size"):
        image.load(tmp_path)
    assert image.load(tmp_path, size=(5, 7)).train.images.shape[1:] == (5, 7, 3)


@pytest.mark.parametrize("name", ["../cat/1.png", "/cat/1.png", "a/../../cat/1.png", "cat\\..\\1.png", "C:/cat/1.png"])
def test_names_that_point_outside_are_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), png())
    with pytest.raises(SteadytuneError, match=r"a\.zip holds the name .* outside"):
        image.load(tmp_path / "a.zip")
    assert [path.name for path in tmp_path.rglob("*")] == ["a.zip"]


def test_a_zip_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(image, "MAX_FILE", 1000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/1.png", bytes(10_000_000))
    with pytest.raises(SteadytuneError, match=r"cat/1\.png has 10,000,000 bytes"):
        image.load(tmp_path / "a.zip")


def test_a_pixel_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(image, "MAX_PIXELS", 10)
    with pytest.raises(SteadytuneError, match=r"here\.png has 4 x 4 pixels"):
        image.decode(png(), "here.png")


@pytest.mark.parametrize("content", [b"", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n", png()[:40]])
def test_what_is_not_an_image_is_named(content):
    with pytest.raises(SteadytuneError, match=r"cat/1\.png is not an image"):
        image.decode(content, "cat/1.png")


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


def test_pickles_in_npz_do_not_run(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x_train=np.array([Bomb()], dtype=object), y_train=np.array([1]))
    with pytest.raises(SteadytuneError, match="plain arrays"):
        image.load(path)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(SteadytuneError, match=r"a\.npz is not a whole zip"):
        image.load(path)


def idx(dims, values, kind=8):
    return bytes([0, 0, kind, len(dims)]) + b"".join(d.to_bytes(4, "big") for d in dims) + bytes(values)


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_idx(tmp_path, pack):
    (tmp_path / "a").write_bytes(pack(idx((2, 1, 2), [1, 2, 3, 4])))
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a")
    (tmp_path / "a").rename(path)
    assert image.read_idx(path).tolist() == [[[1, 2]], [[3, 4]]]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an idx file"),
        (b"\x00\x00\x07\x01", "not an idx file"),
        (idx((3,), [1, 2]), r"promises 3 bytes.*holds 2"),
        (idx((2**31, 2**31, 0), []), "promises 0 bytes"),
        (idx((1,), [1, 2]), r"promises 1 bytes.*holds 2"),
        (idx((2**32 - 1,) * 3, [1]), r"promises [\d,]+ bytes.*holds 1"),  # a lie about size reserves no memory
    ],
)
def test_broken_idx(tmp_path, content, why):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(SteadytuneError, match=why):
        image.read_idx(tmp_path / "a")


@pytest.mark.parametrize("left", ["both", "images only", "labels only"])
def test_idx_files_may_be_unpacked_beside_the_packed_ones(tmp_path, left):
    """Two forms of one file were taken for two sets, and labels that were still packed for none."""
    files = {"images-idx3": idx((20, 1, 1), range(20)), "labels-idx1": idx((20,), [0, 1] * 10)}
    for name, content in files.items():
        (tmp_path / f"emnist-digits-train-{name}-ubyte.gz").write_bytes(gzip.compress(content))
        if left in ("both", f"{name.partition('-')[0]} only"):
            (tmp_path / f"emnist-digits-train-{name}-ubyte").write_bytes(content)
    assert len(image.load(tmp_path).train) == 18


def test_idx_folder_mistakes(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx((2, 1, 1), [1, 2]))
    with pytest.raises(SteadytuneError, match="has no train-labels-idx1-ubyte beside it"):
        image.load(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx((3,), [1, 2, 1]))
    with pytest.raises(SteadytuneError, match="2 images but labels"):
        image.load(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx((2,), [1, 1]))
    with pytest.raises(SteadytuneError, match="class '1'; two classes"):
        image.load(tmp_path)
    (tmp_path / "emnist-train-images-idx3-ubyte").write_bytes(idx((2, 1, 1), [1, 2]))
    (tmp_path / "emnist-train-labels-idx1-ubyte").write_bytes(idx((2,), [0, 1]))
    with pytest.raises(SteadytuneError, match="more than one set of train images"):
        image.load(tmp_path)


def test_other_mistakes(tmp_path):
    with pytest.raises(SteadytuneError, match="does not exist"):
        image.load(tmp_path / "none")
    with pytest.raises(SteadytuneError, match="holds no images"):
        image.load(tmp_path)
    make(tmp_path, ["train/cat/1.png", "train/dog/1.png", "test/cow/1.png"])
    with pytest.raises(SteadytuneError, match=r"test/cow/1\.png: no training image has the class 'cow'"):
        image.load(tmp_path)
    make(tmp_path, ["loose.png"])
    with pytest.raises(SteadytuneError, match=r"loose\.png: an image should stand in a folder"):
        image.load(tmp_path)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["a.npz", "a.zip", "train-images-idx3-ubyte"]),
    start=st.sampled_from([b"", b"PK\x03\x04", b"\0\0\x08\x03", b"\x93NUMPY"]),
    rest=st.binary(max_size=40),
)
def test_no_file_gives_anything_but_images_or_a_sentence(tmp_path, name, start, rest):
    folder = tmp_path / "only"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / name).write_bytes(start + rest)
    with pytest.raises(SteadytuneError):
        image.load(folder if name.startswith("train") else folder / name)
    with contextlib.suppress(SteadytuneError):
        image.read_idx(folder / name)
    with pytest.raises(SteadytuneError):
        image.decode(start + rest, "x")
