"""Image classification: folders or a zip of images, idx files (MNIST, EMNIST), or an npz of arrays (M14, R12).

    data = image.load("mnist")                    # train-images-idx3-ubyte.gz and so on
    data = image.load("cifar10-subset/images.zip")  # train/<class>/*.jpg, test/<class>/*.jpg; or just <class>/*.jpg
    data = image.load("usps/usps.npz")            # x_train, y_train, x_test, y_test

Pixels are uint8 arrays, [rows, height, width] for idx and npz, [rows, height, width, 3] for image files; scaling and
normalising are the model's business. Classes are the folder names, or the digits. A zip is read in place, never
extracted; no file here can run code (npz without pickles, a fixed list of image formats).
"""

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks.base import PART_NAMES, Data, Rows, Source, Task
from steadytune.tasks.labels import order
from steadytune.tasks.lines import hidden, open_bytes, open_zip
from steadytune.tasks.text import cut, finish

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MAX_FILE = 64 * 2**20  # bytes of one image file
MAX_PIXELS = 50_000_000  # of one image
MAX_ARRAY = 8 * 2**30  # bytes of one array file, unpacked
Arrays = tuple[np.ndarray, list[str], tuple[str, ...] | None]  # images, class names, file names
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def load(
    path: str | Path,
    *,
    validation: float | None = 0.1,
    test: float | None = None,
    size: tuple[int, int] | None = None,
    metric: str = "accuracy",
    split: int = 0,
    name: str | None = None,
) -> Data:
    """A task from a folder, zip, idx folder or npz. Splits the files lack are taken from train as fractions
    (stratified; 0.1 of MNIST gives the mixout paper's 54k/6k). size: (height, width) to resize image files to;
    needed if they differ."""
    path = Path(path)
    if not path.exists():
        raise SteadytuneError(f"{path} does not exist.")
    found: Mapping[str, Arrays]
    if path.suffix.lower() == ".npz":
        found = _read_npz(path)
    elif path.is_dir() and any(path.glob("*-idx?-*")):
        found = _read_idx_folder(path)
    else:
        found = _read_images(path, size)
    if "train" not in found:
        raise SteadytuneError(f"{path} has {', '.join(found)} images but no training images.")
    classes = order(set(found["train"][1]))
    if len(classes) < 2:
        raise SteadytuneError(f"{path}: all training images are of the class {classes[0]!r}; two classes are needed.")
    task = Task(name or path.stem, "image", metric, classes)
    parts = {part: _rows(path, part, classes, *arrays) for part, arrays in found.items()}
    return finish(task, cut(parts, {"train": path, "validation": validation, "test": test}, split))


def _rows(
    path: Path, part: str, classes: tuple[str, ...], images: np.ndarray, names: list[str], files: tuple[str, ...] | None
) -> Rows:
    source = Source(f"{path} [{part}]", np.arange(1, len(names) + 1), files)
    index = {label: i for i, label in enumerate(classes)}
    for i, label in enumerate(names):
        if label not in index:
            raise SteadytuneError(f"{source.where(i)}: no training image has the class {label!r}.")
    return Rows(source, images=images, labels=np.array([index[label] for label in names], dtype=np.int64))


def read_idx(path: str | Path) -> np.ndarray:
    """An idx file, gzipped or not: two zero bytes, a type, the number of dimensions, the dimensions, the values."""
    with open_bytes(path) as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES or not head[3]:
            raise SteadytuneError(f"{path} is not an idx file: it begins with {head.hex() or 'nothing'}.")
        shape = tuple(int.from_bytes(file.read(4), "big") for _ in range(head[3]))
        dtype = np.dtype(_IDX_TYPES[head[2]])
        expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
        raw = _read_at_most(file, min(expected, MAX_ARRAY) + 1)
    if not expected or len(raw) != expected:
        raise SteadytuneError(
            f"{path} promises {expected:,} bytes of values {shape} and holds {len(raw):,}; copy it again."
        )
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_at_most(file: IO[bytes], limit: int) -> bytes:
    """In pieces: a header that lies about its size must not reserve that much memory."""
    pieces: list[bytes] = []
    while limit and (piece := file.read(min(limit, 2**20))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def _read_idx_folder(path: Path) -> dict[str, Arrays]:
    found: dict[str, Arrays] = {}
    for part, stem in (("train", "train"), ("test", "t10k"), ("test", "test")):
        for images in sorted(path.glob(f"*{stem}-images-idx3-*")):
            if images.suffix == ".gz" and images.with_suffix("").exists():
                continue  # the same, left there when it was unpacked
            if part in found:
                raise SteadytuneError(
                    f"{path} holds more than one set of {part} images; put each set in its own folder."
                )
            name = images.name.replace("-images-idx3-", "-labels-idx1-").removesuffix(".gz")
            labels = next((path / each for each in (name, f"{name}.gz") if (path / each).exists()), None)
            if labels is None:
                raise SteadytuneError(f"{images} has no {name} beside it, nor {name}.gz.")
            found[part] = _checked(path, part, read_idx(images), read_idx(labels))
    return found


def _read_npz(path: Path) -> dict[str, Arrays]:
    with open_zip(path) as archive:
        if sum(info.file_size for info in archive.infolist()) > MAX_ARRAY:
            raise SteadytuneError(f"{path} unpacks to more than {MAX_ARRAY:,} bytes.")
    found: dict[str, Arrays] = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for part, names in PART_NAMES.items():
                for name in names:
                    if f"x_{name}" in arrays and f"y_{name}" in arrays:
                        found[part] = _checked(path, part, arrays[f"x_{name}"], arrays[f"y_{name}"])
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, SteadytuneError):
            raise
        raise SteadytuneError(f"{path} cannot be read as plain arrays: {error}") from error
    if not found:
        raise SteadytuneError(f"{path} should hold x_train and y_train (and x_test, y_test); it does not.")
    return found


def _checked(path: Path, part: str, images: np.ndarray, labels: np.ndarray) -> Arrays:
    if images.ndim not in (3, 4) or images.dtype != np.uint8 or not len(images):
        raise SteadytuneError(
            f"{path}: {part} images are {images.dtype} {images.shape}; uint8 [rows, height, width] is needed."
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise SteadytuneError(f"{path}: {part} has {len(images)} images but labels {labels.dtype} {labels.shape}.")
    return images, [str(label) for label in labels.tolist()], None


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the image files of a folder or zip, sorted by name, so that both give the same rows."""
    if path.is_dir():
        for file in sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix()):
            name = file.relative_to(path).as_posix()
            if _wanted(path, name) and file.is_file():
                _small_enough(path, name, file.stat().st_size)
                yield name, file.read_bytes()
        return
    with open_zip(path) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            if not info.is_dir() and _wanted(path, info.filename):
                _small_enough(path, info.filename, info.file_size)
                with archive.open(info) as member:
                    yield info.filename, _read_at_most(member, MAX_FILE)


def _wanted(path: Path, name: str) -> bool:
    if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts or ":" in name:
        raise SteadytuneError(f"{path} holds the name {name!r}, which points outside it; it is refused.")
    return not hidden(name) and name.lower().endswith(SUFFIXES)


def _small_enough(path: Path, name: str, size: int) -> None:
    if size > MAX_FILE:
        raise SteadytuneError(f"{path}, {name} has {size:,} bytes; an image of at most {MAX_FILE:,} is expected.")


def _read_images(path: Path, size: tuple[int, int] | None) -> dict[str, Arrays]:
    found: dict[str, tuple[list[np.ndarray], list[str], list[str]]] = {}
    alias = {name: part for part, names in PART_NAMES.items() for name in names}
    for name, content in _members(path):
        folders = PurePosixPath(name).parts[:-1]
        # the last folder is the class; the one above it may be a split; what is above that does not matter
        part = alias.get(folders[-2].lower(), "train") if len(folders) > 1 else "train"
        if not folders or (len(folders) == 1 and folders[0].lower() in alias):
            raise SteadytuneError(f"{path}, {name}: an image should stand in a folder named after its class.")
        images, labels, names = found.setdefault(part, ([], [], []))
        images.append(decode(content, f"{path}, {name}", size))
        if images[-1].shape != images[0].shape:
            raise SteadytuneError(
                f"{path}: {name} is {images[-1].shape[:2]} pixels and {names[0]} is {images[0].shape[:2]}; give a size "
                "to resize all of them to."
            )
        labels.append(folders[-1])
        names.append(name)
    if not found:
        raise SteadytuneError(f"{path} holds no images ({', '.join(SUFFIXES)}).")
    return {part: (np.stack(images), labels, tuple(names)) for part, (images, labels, names) in found.items()}


def decode(content: bytes, where: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """One image file as uint8 [height, width, 3]."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise SteadytuneError(f"{where}: reading images needs Pillow: pip install steadytune[data].") from error
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise SteadytuneError(f"{where} has {image.width} x {image.height} pixels, more than {MAX_PIXELS:,}.")
            pixels: Any = image.convert("RGB")
            if size is not None:
                pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return cast(np.ndarray, np.asarray(pixels, dtype=np.uint8))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise SteadytuneError(f"{where} is not an image that can be read: {error}") from error
