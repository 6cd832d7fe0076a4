"""Results and predictions as bytes in a ledger: compressed JSON, and a zip of npy files. Both carry checksums, so a
damaged one is refused and never becomes other numbers. No pickle."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from steadytune.errors import SteadytuneError

if TYPE_CHECKING:
    import numpy as np

_LEVEL = 6


def to_json(data: Mapping[str, Any]) -> str:
    """JSON that every reader accepts: NaN and infinities become null, numpy's numbers become numbers."""
    try:
        try:
            return json.dumps(data, separators=(",", ":"), allow_nan=False, default=_plain)
        except ValueError:  # there is a NaN somewhere; looking for it is slow, so only now
            return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SteadytuneError(f"A trial's record must be plain data, to be written as JSON: {error}.") from error


def pack(data: Mapping[str, Any]) -> bytes:
    return zlib.compress(to_json(data).encode(), _LEVEL)


def unpack(blob: bytes) -> dict[str, Any]:
    """Raises ValueError where these are not the bytes that were written."""
    try:
        return dict(json.loads(zlib.decompress(blob)))
    except (zlib.error, TypeError) as error:
        raise ValueError(str(error)) from error


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes | None:
    """As numpy's npz, but with any names; None where there are none."""
    if not arrays:
        return None
    import numpy as np

    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            array = np.asarray(values)
            if array.dtype.hasobject:
                raise SteadytuneError(f"The array {name!r} of a trial holds objects; only numbers can be recorded.")
            file = BytesIO()
            np.lib.format.write_array(file, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")  # without the time of day: equal arrays are equal bytes
            archive.writestr(entry, file.getvalue(), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def unpack_arrays(blob: bytes | None) -> dict[str, np.ndarray]:
    """Raises ValueError where these are not the bytes that were written."""
    if blob is None:
        return {}
    import numpy as np

    try:
        with zipfile.ZipFile(BytesIO(blob)) as archive:
            files = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
        return {name: np.lib.format.read_array(BytesIO(file), allow_pickle=False) for name, file in files.items()}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error


def score(result: Mapping[str, Any], which: str, split: str) -> float | None:
    """result["best"]["validation"], where it is there and a finite number."""
    found = result.get(which)
    return finite(found.get(split)) if isinstance(found, Mapping) else None


def finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays, and other mappings."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r:.80} is not plain")


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, (str, int, bool)) or data is None:
        return data
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return _finite(_plain(data))
