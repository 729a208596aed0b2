"""CheckFree's merge on a LLaMA in Hugging Face's form: ``python examples/merge_llama.py FOLDER
FIRST LAST NORM_BEFORE NORM_AFTER OUT``.

Blocks FIRST to LAST are taken for lost and rebuilt from as many blocks before and after them,
weighted by the squared gradient norms of these two stages. OUT is a copy of the folder with the
rebuilt weights.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from swarmfree import merge_stages


def blocks(weights: dict[str, torch.Tensor], first: int, last: int) -> dict[str, torch.Tensor]:
    """The weights of some blocks, by name."""
    prefixes = tuple(f"model.layers.{block}." for block in range(first, last + 1))
    return {name: tensor for name, tensor in weights.items() if name.startswith(prefixes)}


def main(folder: Path, first: int, last: int, norms: tuple[float, float], out: Path) -> None:
    """Merge, and write the folder anew."""
    files = {path.name: load_file(path) for path in sorted(folder.glob("*.safetensors"))}
    if not files or out.exists():
        sys.exit(f"{folder} has to hold *.safetensors, and {out} must not exist")
    weights = {name: tensor for held in files.values() for name, tensor in held.items()}
    count = last - first + 1
    neighbours = blocks(weights, first - count, first - 1), blocks(weights, last + 1, last + count)
    try:
        rebuilt = merge_stages(*neighbours, *norms, first_block=first)
    except ValueError as error:
        sys.exit(f"{folder}: blocks {first} to {last}, of as many before and after them: {error}")
    shutil.copytree(folder, out)
    for name, held in files.items():
        changed = {key: rebuilt[key].to(tensor.dtype) for key, tensor in held.items() if key in rebuilt}
        save_file({**held, **changed}, out / name, metadata={"format": "pt"})
    print(f"{len(rebuilt)} parameters of blocks {first} to {last} rebuilt in {out}")


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    source, target = Path(sys.argv[1]), Path(sys.argv[6])
    try:
        begin, end, *norms = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
    except ValueError as error:
        sys.exit(f"numbers are expected for FIRST, LAST and both norms: {error}")
    main(source, begin, end, (norms[0], norms[1]), target)
