"""The weights port over a folder that `transformers` can load: one safetensors file per stage, Hugging Face's names, config and index.

Each stage's file stands for itself and may be written on another machine; whoever finds all of them in one folder adds `config.json` and the
index, and it does not matter who or how often. Files of another run are never mixed in. Imports no torch.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from swarmfree.storage.whole import place_whole, told_in_one_line, write_whole
from swarmfree.swarm.errors import SwarmfreeError
from swarmfree.swarm.manifest import Manifest

INDEX_NAME = "model.safetensors.index.json"
_RUN_KEY = "swarmfree_run"
_HEADER_SIZE_BYTES_MAX = 1 << 26


def stage_file_name(stage: int, stage_count: int) -> str:
    """Name of a stage's file among `stage_count`, counted from 1 as Hugging Face does."""
    return f"model-{stage + 1:05d}-of-{stage_count:05d}.safetensors"


def llama_config(manifest: Manifest) -> dict[str, Any]:
    """`config.json` of the model, as `LlamaForCausalLM` reads it.

    The rotary base stands there twice: transformers 5 reads `rope_parameters`, transformers 4 knows `rope_theta` only and would silently take
    10000. A model of bytes has no special tokens.
    """
    model = manifest.model
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.width,
        "intermediate_size": model.mlp_width,
        "num_hidden_layers": model.blocks,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.width // model.heads,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.tokens_per_row,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": model.init_std,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "torch_dtype": "float32",
        "use_cache": True,
    }


class FolderWeights:
    """Implements `ports.Weights`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Write into `folder`, which is made when the first weights come."""
        self._folder = folder
        self._manifest = manifest

    def write(self, stage: int, tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> str:
        """Write a stage's weights, and config and index if they were the last that was missing.

        Args:
            stage: whose.
            tensors: Hugging Face name -> (shape, float32 little-endian bytes).

        Returns:
            Path of the stage's file.

        Raises:
            SwarmfreeError: the disk is full or refuses; no torn file is left.
        """
        arrays = {name: np.frombuffer(data, "<f4").reshape(shape) for name, (shape, data) in tensors.items()}
        metadata = {"format": "pt", _RUN_KEY: self._manifest.fingerprint()}
        file = self._folder / stage_file_name(stage, self._manifest.stage_count)

        def save(temporary: Path) -> None:
            try:
                save_file(arrays, temporary, metadata)
            except SafetensorError as error:
                raise _system_error(error) from error

        # An index that lies there is of an earlier run, or of the same weights; in both cases it is made again when all files are there.
        with told_in_one_line(self._folder, "removing the index of an earlier run"):
            (self._folder / INDEX_NAME).unlink(missing_ok=True)
        place_whole(file, save)
        self.finish()
        return str(file)

    def finish(self) -> bool:
        """Write `config.json` and the index if the files of all stages of this run lie in the folder; may be called again at any time.

        Returns:
            Whether the folder is complete.

        Raises:
            SwarmfreeError: the disk is full or refuses.
        """
        weight_map: dict[str, str] = {}
        total_size_bytes = 0
        for stage in range(self._manifest.stage_count):
            name = stage_file_name(stage, self._manifest.stage_count)
            header = _read_header(self._folder / name)
            if header is None or header.pop("__metadata__", {}).get(_RUN_KEY) != self._manifest.fingerprint():
                return False
            for tensor, entry in header.items():
                weight_map[tensor] = name
                total_size_bytes += entry["data_offsets"][1] - entry["data_offsets"][0]
        index = {"metadata": {"total_size": total_size_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        for name, content in (("config.json", llama_config(self._manifest)), (INDEX_NAME, index)):
            write_whole(self._folder / name, (json.dumps(content, indent=2) + "\n").encode())
        return True


def _read_header(file: Path) -> dict[str, Any] | None:
    """The JSON header of a safetensors file; None where there is no such file."""
    with told_in_one_line(file, "reading"):
        try:
            with file.open("rb") as stream:
                (size_bytes,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(min(size_bytes, _HEADER_SIZE_BYTES_MAX)))
        except FileNotFoundError:
            return None
        except (struct.error, ValueError):
            raise SwarmfreeError(f"{file}: not a safetensors file; remove it and write the stage's weights again") from None
    return dict(header)


def _system_error(error: SafetensorError) -> OSError:
    """The system's refusal that safetensors put into words of its own, e.g. "I/O error: No space left on device (os error 28)"."""
    found = re.search(r"([^:]*) \(os error (\d+)\)", str(error))
    return OSError(int(found[2]), found[1].strip()) if found else OSError(str(error))
