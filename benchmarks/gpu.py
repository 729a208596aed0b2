"""What would a GPU give, which no peer uses yet? Its bits beside the processor's, and its speed.

``python -m benchmarks.gpu`` needs a GPU that torch can use, and no other package than torch and
numpy; `--only` takes one of its parts, `--rounds` how often each speed is measured (5).

- *bits* (`benchmarks.gpu_bits`): how many results of each operation of the canonical step, of the
  whole step and of what is rounded for the wire and for shadows differ from the processor's.
- *step* (`benchmarks.gpu_step`): the canonical step of 100 million weights, beside torch's own
  AdamW.
- *distance* (`benchmarks.gpu_distance`): how far sums and weights are from a processor's.
- *passes* (`benchmarks.gpu_passes`): tokens/s of the models of CheckFree's Table 4, all stages one
  after the other in one process: in float32, with TF32 and with bfloat16 products; with
  deterministic algorithms and without; with activations that stay on the GPU, or leave it as bytes
  at each hop, as a peer's must. A pass is done twice, and the bits are compared; their sum is for
  the comparison of two machines.

Prints what it finds as it goes and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping

import torch

from benchmarks import gpu_bits, gpu_distance, gpu_passes, gpu_step

PARTS: Mapping[str, Callable[[int], Mapping[str, object]]] = {
    "bits": lambda _rounds: gpu_bits.compare(),
    "step": gpu_step.measure,
    "distance": gpu_distance.measure,
    "passes": gpu_passes.measure,
}


def main() -> int:
    """Measure; the exit code is 0, or 1 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=PARTS, metavar="PART", help=f"one of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each speed (default 5)")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds}: must be at least 1")
    if not torch.cuda.is_available():
        print("benchmarks.gpu: torch finds no GPU here; run it where torch.cuda.is_available() is true", file=sys.stderr)
        return 1
    # cuBLAS reads it when it is first used; without it deterministic algorithms refuse.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    found: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(f"{found['gpu']}, torch {found['torch']}", flush=True)
    for name, measure in PARTS.items():
        if asked.only in {None, name}:
            found |= measure(asked.rounds)
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
