"""The weights port over a folder that `transformers` can load: one safetensors file per stage,
Hugging Face's names, config, tokenizer and index.

Each stage's file stands for itself and may be written on another machine, with `config.json` and
the tokenizer beside it; whoever finds all of them in one folder adds the index, who writes as well
as `read_weights`, which reads it back. Files of another run are never mixed in. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.manifest import Manifest, ModelSection
from swarmfree.storage.atomic_files import place_whole, told_in_one_line, write_whole
from swarmfree.storage.dataset import TOKENIZER_FILE
from swarmfree.storage.regular_files import open_regular
from swarmfree.storage.tokenizer import tokenizer_files

INDEX_NAME = "model.safetensors.index.json"
CONFIG_NAME = "config.json"
AT = "-at"
"""Behind the name of the folder of weights: where those of single iterations lie."""
_RUN_KEY = "swarmfree_run"
_HEADER_SIZE_BYTES_MAX = 1 << 26


def stage_file_name(stage: int, stage_count: int) -> str:
    """Name of a stage's file among `stage_count`, counted from 1 as Hugging Face does."""
    return f"model-{stage + 1:05d}-of-{stage_count:05d}.safetensors"


def llama_config(manifest: Manifest, end_token: int | None = None) -> dict[str, Any]:
    """`config.json` of the model, as `LlamaForCausalLM` reads it.

    The rotary base stands there twice: transformers 5 reads `rope_parameters`, transformers 4 knows
    `rope_theta` only and would silently take 10000. A model of bytes has no special tokens; others
    may have an `end_token`, which stands before a document as well as behind it, so that it is what
    a text begins with.
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
        "bos_token_id": end_token,
        "eos_token_id": end_token,
        "pad_token_id": None,
        "torch_dtype": "float32",
        "use_cache": True,
    }


class FolderWeights:
    """Implements `ports.Weights`."""

    def __init__(self, folder: Path, manifest: Manifest, tokenizer: bytes = b"") -> None:
        """Write into `folder`, which is made when the first weights come.

        Args:
            folder: of the weights.
            manifest: of the run.
            tokenizer: content of the dataset's tokenizer.json, where this peer has it; whoever
                writes a stage lays it beside. That of bytes is not needed.
        """
        self._folder = folder
        self._manifest = manifest
        self._tokenizer = tokenizer

    def write(self, stage: int, tensors: dict[str, tuple[tuple[int, ...], bytes]], iteration: int | None = None) -> str:
        """Write a stage's weights, and config and index if they were the last that was missing.

        Args:
            stage: whose.
            tensors: Hugging Face name -> (shape, float32 little-endian bytes).
            iteration: of a run that goes on: what they are ready for. Weights of an iteration have
                a folder of their own, beside that of the end.

        Returns:
            Path of the stage's file.

        Raises:
            SwarmfreeError: the disk is full or refuses; no torn file is left.
        """
        arrays = {name: np.frombuffer(data, "<f4").reshape(shape) for name, (shape, data) in tensors.items()}
        metadata = {"format": "pt", _RUN_KEY: self._manifest.fingerprint()}
        if iteration is not None:
            beside = self._folder.with_name(f"{self._folder.name}{AT}") / str(iteration)
            return FolderWeights(beside, self._manifest, self._tokenizer).write(stage, tensors)
        file = self._folder / stage_file_name(stage, self._manifest.stage_count)

        def save(temporary: Path) -> None:
            temporary.touch()
            # As of all files; safetensors makes one that its owner alone may read
            mode = temporary.stat().st_mode
            try:
                save_file(arrays, temporary, metadata)
            except SafetensorError as error:
                raise system_error(error) from error
            temporary.chmod(mode)

        # An index that lies there is of an earlier run, or of the same weights; in both cases it is
        # made again when all files are there.
        with told_in_one_line(self._folder, "removing the index of an earlier run"):
            (self._folder / INDEX_NAME).unlink(missing_ok=True)
        place_whole(file, save, sum(array.nbytes for array in arrays.values()))
        if self._tokenizer:
            write_whole(self._folder / TOKENIZER_FILE, self._tokenizer)
        self.finish()
        return str(file)

    def finish(self) -> bool:
        """Write `config.json` and the tokenizer, and the index if the files of all stages of this
        run lie in the folder; may be called again at any time.

        A tokenizer that is not that of bytes comes from a peer that has the corpus; a file that is
        not the one that the manifest names is removed, and never is another one put in its place.

        Returns:
            Whether the folder is complete.

        Raises:
            SwarmfreeError: the disk is full or refuses.
        """
        end_token = self._end_token()
        self._describe(end_token)
        # Peers that end together write at the same time: what one wrote without a tokenizer may
        # have replaced what another one wrote beside it
        if (found := self._end_token()) != end_token:
            self._describe(found)
        return _write_index(self._folder, self._manifest.stage_count, self._manifest.fingerprint())

    def _describe(self, end_token: int | None) -> None:
        """Write `config.json` and the files about the tokenizer."""
        for name, content in self._tokenizer_files(end_token).items():
            _write_json(self._folder / name, content)
        _write_json(self._folder / CONFIG_NAME, llama_config(self._manifest, end_token))

    def _tokenizer_files(self, end_token: int | None) -> dict[str, dict[str, Any]]:
        """Content of the files about the tokenizer; its own is none of them where it is a
        dataset's.
        """
        data = self._manifest.data
        files = tokenizer_files(self._manifest.model.tokens_per_row)
        if data.is_bytes:
            return files
        del files[TOKENIZER_FILE]
        place = self._folder / TOKENIZER_FILE
        with told_in_one_line(place, "looking for the tokenizer"):
            if place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() != data.tokenizer_hash:
                place.unlink()
        if data.end_of_text:
            # ctranslate2 does not load a model whose tokenizer has one of the two and not the other
            files["tokenizer_config.json"] |= {"bos_token": data.end_of_text, "eos_token": data.end_of_text}
        if end_token is not None:
            files["generation_config.json"] |= {"bos_token_id": end_token, "eos_token_id": end_token}
        return files

    def _end_token(self) -> int | None:
        """Number of the end-of-text token; None where there is none, or no tokenizer to ask."""
        place, data = self._folder / TOKENIZER_FILE, self._manifest.data
        if data.is_bytes or not data.end_of_text or not place.is_file():
            return None
        content = json.loads(place.read_bytes())
        added = {each["content"]: int(each["id"]) for each in content.get("added_tokens", [])}
        found = added | {str(token): int(at) for token, at in _symbols(content).items() if token == data.end_of_text}
        return found.get(data.end_of_text)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def _write_index(folder: Path, stage_count: int, fingerprint: str) -> bool:
    """Write the index if the files of all stages of this run lie in the folder; whether they do."""
    weight_map: dict[str, str] = {}
    total_size_bytes = 0
    for stage in range(stage_count):
        name = stage_file_name(stage, stage_count)
        header = read_header(folder / name)
        if header is None or header.pop("__metadata__", {}).get(_RUN_KEY) != fingerprint:
            return False
        for tensor, entry in header.items():
            weight_map[tensor] = name
            total_size_bytes += entry["data_offsets"][1] - entry["data_offsets"][0]
    _write_json(
        folder / INDEX_NAME,
        {"metadata": {"total_size": total_size_bytes}, "weight_map": dict(sorted(weight_map.items()))},
    )
    return True


def _join(folder: Path) -> None:
    """Write the index of stages that were brought together from several machines, if all are there
    and of one run.
    """
    if (folder / INDEX_NAME).is_file() or not (folder / CONFIG_NAME).is_file():
        return
    if found := next(_stage_files(folder), None):
        header = read_header(folder / found[0]) or {}
        if fingerprint := header.get("__metadata__", {}).get(_RUN_KEY):
            _write_index(folder, int(found[2]), fingerprint)


def _stage_files(folder: Path) -> Iterator[re.Match[str]]:
    """Of each stage's file in a folder: its name, number from 1, and how many belong together."""
    for file in sorted(folder.glob("*.safetensors")):
        if match := re.fullmatch(r"model-(\d+)-of-(\d+)\.safetensors", file.name):
            yield match


def _symbols(content: dict[str, Any]) -> dict[str, int]:
    """The vocabulary in a tokenizer.json where it is a table of numbers by token."""
    found = content.get("model", {}).get("vocab", {})
    return found if isinstance(found, dict) else {}


def read_weights(folder: Path) -> tuple[ModelSection, dict[str, NDArray[np.float32]]]:
    """The model that lies in a folder, and its weights under Hugging Face's names. Where stages of
    several machines were brought together, their index is written.

    Raises:
        ConfigError: there is none, or it is not whole; the line says which stages are missing.
        SwarmfreeError: a file cannot be read.
    """
    _join(folder)
    for name in (CONFIG_NAME, INDEX_NAME):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder}: {_what_is_there(folder)}")
    try:
        with told_in_one_line(folder, "reading"):
            model = _model_of(json.loads((folder / CONFIG_NAME).read_bytes()))
            names = sorted(set(json.loads((folder / INDEX_NAME).read_bytes())["weight_map"].values()))
            for name in names:
                open_regular(folder / name).close()
            return model, {name: array for file in names for name, array in load_file(folder / file).items()}
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise SwarmfreeError(f"{folder}: not the weights of a swarmfree run: {error}") from error


def run_of(folder: Path) -> str:
    """Fingerprint of the run that a whole folder of weights is of.

    Raises:
        ConfigError: its files are of several runs, or of none.
        SwarmfreeError: a file cannot be read.
    """
    try:
        with told_in_one_line(folder, "reading"):
            names = sorted(set(json.loads((folder / INDEX_NAME).read_bytes())["weight_map"].values()))
        found = {str(((read_header(folder / name) or {}).get("__metadata__") or {}).get(_RUN_KEY, "")) for name in names}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{folder}: not the weights of a swarmfree run: {error}") from error
    if len(found) != 1 or "" in found:
        raise ConfigError(f"{folder}: the weights of one swarmfree run are expected, and files of {len(found)} lie here")
    return found.pop()


def _what_is_there(folder: Path) -> str:
    """Why a folder without config or index has no model."""
    found = list(_stage_files(folder))
    if not found:
        return "no weights lie here; name a report whose run came to its end, or its folder of weights"
    there, count = {int(match[1]) - 1 for match in found}, int(found[0][2])
    missing = ", ".join(str(stage) for stage in range(count) if stage not in there)
    if missing:
        return f"not all weights lie here; those of stage {missing} are missing"
    if not (folder / CONFIG_NAME).is_file():
        return f"{CONFIG_NAME} is missing; copy it from the folder of a peer that wrote a stage"
    return "the stages that lie here are not of one run; bring together those of the same"


def _model_of(config: dict[str, Any]) -> ModelSection:
    """The model that a `config.json` of ours describes."""
    return ModelSection(
        width=config["hidden_size"],
        blocks=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        mlp_width=config["intermediate_size"],
        tokens_per_row=config["max_position_embeddings"],
        vocabulary=config["vocab_size"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )


def read_header(file: Path) -> dict[str, Any] | None:
    """The JSON header of a safetensors file; None where there is no such file."""
    with told_in_one_line(file, "reading"):
        try:
            with open_regular(file) as stream:
                (size_bytes,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(min(size_bytes, _HEADER_SIZE_BYTES_MAX)))
        except FileNotFoundError:
            return None
        except (struct.error, ValueError):
            raise SwarmfreeError(f"{file}: not a safetensors file; remove it and write the stage's weights again") from None
    return dict(header)


def system_error(error: SafetensorError) -> OSError:
    """The system's refusal that safetensors put into words of its own, e.g. "I/O error: No space
    left on device (os error 28)".
    """
    found = re.search(r"([^:]*) \(os error (\d+)\)", str(error))
    return OSError(int(found[2]), found[1].strip()) if found else OSError(str(error))
