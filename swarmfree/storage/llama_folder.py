"""A LLaMA that lies in a folder as Hugging Face's transformers write it, for a run that begins with
its weights: `config.json`, and safetensors in one file or in several with an index.

What our model does not have is refused by name before anything is read: another architecture,
biases, a scaled rotary embedding, quantised weights. Of weights no more is read than is asked for;
float16 and bfloat16 become float32, which is exact. Nothing is downloaded, no pickle is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarmfree.protocol.errors import ConfigError, DataError, SwarmfreeError
from swarmfree.protocol.manifest import DataSection, Manifest, ModelSection
from swarmfree.protocol.remote_text import shown
from swarmfree.protocol.weight_shapes import EMBEDDING, HEAD, weight_shapes
from swarmfree.storage.atomic_files import told_in_one_line
from swarmfree.storage.dataset import TOKENIZER_FILE
from swarmfree.storage.regular_files import read_regular
from swarmfree.storage.tokenizer import tokenizer_files
from swarmfree.storage.weights import CONFIG_NAME, INDEX_NAME, read_header

SINGLE_NAME = "model.safetensors"
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_NUMBER_MAX = 1e300
"""What is more is no float, or infinite; it may be an int of hundreds of digits."""
_BUFFER = ".rotary_emb.inv_freq"
"""Behind the name of what old files hold beside the weights: it follows from the config."""
_SHAPES = {
    "width": "hidden_size",
    "blocks": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp_width": "intermediate_size",
    "vocabulary": "vocab_size",
}
"""What every config says. What it may leave out has the default of `LlamaConfig`."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies: its file, its numbers' type, its first byte there, its shape."""

    file: Path
    dtype: str
    start_bytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LlamaFolder:
    """A whole LLaMA on a disk.

    Args:
        folder: where.
        model: its shapes; `tokens_per_row` is how many positions it takes at most.
        places: Hugging Face name -> where that weight lies; a head that is tied to the embedding
            lies where that does.
    """

    folder: Path
    model: ModelSection
    places: dict[str, TensorPlace]

    def read(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Floats `start` to `stop` of a weight, in the order of its rows.

        Raises:
            SwarmfreeError: the disk refuses, the file is shorter than it was, or a number is none.
        """
        place = self.places[name]
        dtype, count = np.dtype(_DTYPES[place.dtype]), stop - start
        with told_in_one_line(place.file, "reading"):
            # A map of a file that somebody cuts meanwhile would end the process
            found = np.fromfile(place.file, dtype, count, offset=place.start_bytes + start * dtype.itemsize)
        if len(found) < count:
            raise SwarmfreeError(f"{place.file}: ends within {name}; it was whole before: put it there again")
        # BF16 is the upper half of a float32
        floats = (found.astype("<u4") << 16).view("<f4") if place.dtype == "BF16" else found.astype("<f4")
        if not np.isfinite(floats).all():
            raise SwarmfreeError(f"{place.file}: {name} has infinite numbers, or some that are none: no run learns from there")
        return floats

    def tokenizer(self) -> bytes:
        """Content of its tokenizer.json; empty where it has none.

        Raises:
            SwarmfreeError: the disk refuses.
        """
        file = self.folder / TOKENIZER_FILE
        with told_in_one_line(file, "reading"), contextlib.suppress(FileNotFoundError):
            return read_regular(file)
        return b""


def open_llama(path: str) -> LlamaFolder:
    """Look at a folder: its config, and which weights its files hold; no weight is read.

    Raises:
        ConfigError: there is no such folder, or no LLaMA in it that a run can begin with; the line
            says what was found.
        SwarmfreeError: a file cannot be read.
    """
    folder = Path(path).expanduser()
    with _named(folder):
        if not folder.is_dir():
            raise ConfigError("no such folder; one with config.json and safetensors is expected")
        config = _json_of(folder / CONFIG_NAME)
        model, is_tied = _model_of(config), config.get("tie_word_embeddings") or False
        if not isinstance(is_tied, bool):
            raise ConfigError(f"{CONFIG_NAME}: tie_word_embeddings = {is_tied!r:.40}; true or false expected")
        places = _places(folder)
        if is_tied and EMBEDDING in places:
            # A head of its own that lies there counts, as for transformers 5; 4 took the embedding
            places.setdefault(HEAD, places[EMBEDDING])
        _require_weights(places, model)
    return LlamaFolder(folder, model, places)


def with_first_model(manifest: Manifest, path: str) -> Manifest:
    """A run config's manifest with the shapes of the model that lies in a folder; how long a row is
    stays the run's. Without a folder, as it is.

    Raises:
        ConfigError: the folder has no model, or not one for this run.
        DataError: the run's data has another tokenizer.
    """
    if not path:
        if manifest.model.init_digests:
            raise ConfigError("model.init_digests: the run begins with given weights; name their folder with --init-from")
        return manifest
    found, rows = open_llama(path), manifest.model.tokens_per_row
    if rows > found.model.tokens_per_row:
        raise ConfigError(
            f"model.tokens_per_row = {rows}: the model in {path} takes {found.model.tokens_per_row} positions at most"
        )
    require_its_tokenizer(manifest.data, found)
    own = manifest.model
    model = replace(found.model, tokens_per_row=rows, init_std=own.init_std, init_digests=own.init_digests)
    return replace(manifest, model=model)


def require_its_tokenizer(data: DataSection, found: LlamaFolder) -> None:
    """Whether a model reads the tokens of the data, as far as both are known.

    Raises:
        DataError: they were made with another tokenizer, and how to make others.
    """
    content = found.tokenizer()
    if not content:
        return
    if data.is_bytes:
        with contextlib.suppress(ValueError):
            if json.loads(content) == tokenizer_files(1)[TOKENIZER_FILE]:
                return
    if data.is_bytes or (data.tokenizer_hash and hashlib.sha256(content).hexdigest() != data.tokenizer_hash):
        has = "bytes" if data.is_bytes else f"made with another tokenizer ({data.tokenizer_hash[:12]})"
        raise DataError(
            f"{data.name}: the data is {has}, but the model in {found.folder} has its own: "
            f"swarmfree data prepare SOURCE --tokenizer {found.folder} --out DIR, then --data DIR"
        )


# ---- the config ----------------------------------------------------------------------------------


def _model_of(config: dict[str, Any]) -> ModelSection:
    """The shapes that a config of a LLaMA says.

    Raises:
        ConfigError: it is of another model, or of one that does what ours does not.
    """
    named = config.get("architectures") or ["LlamaForCausalLM"]
    if config.get("model_type") != "llama" or named != ["LlamaForCausalLM"]:
        raise ConfigError(f"{CONFIG_NAME}: {config.get('model_type')!r:.40}, {named!r:.60}; 'llama', LlamaForCausalLM expected")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise ConfigError(f"{CONFIG_NAME}: rotary embedding {rope!r:.60}; an object of numbers and texts expected")
    shapes = {ours: config.get(theirs) for ours, theirs in _SHAPES.items()}
    shapes |= {"kv_heads": config.get("num_key_value_heads") or shapes["heads"]}
    shapes |= {"tokens_per_row": config.get("max_position_embeddings", 2048)}
    for name, value in shapes.items():
        if type(value) is not int or not 0 < value < 1 << 31:
            raise ConfigError(f"{CONFIG_NAME}: {_SHAPES.get(name, name)} = {value!r:.40}; a whole number above 0 expected")
    head_width = shapes["width"] // shapes["heads"]  # type: ignore[operator]
    for key, found, expected in (
        ("rotary embedding of type", rope.get("rope_type", rope.get("type", "default")), "default"),
        ("partial_rotary_factor", config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)), 1.0),
        ("head_dim", config.get("head_dim") or head_width, head_width),
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
        ("attention_bias", config.get("attention_bias") or False, False),
        ("mlp_bias", config.get("mlp_bias") or False, False),
        ("quantization_config", config.get("quantization_config"), None),
    ):
        if found != expected:
            raise ConfigError(f"{CONFIG_NAME}: {key} {found!r:.60}; this model has {expected!r} only")
    theta, eps = rope.get("rope_theta", config.get("rope_theta", 10000.0)), config.get("rms_norm_eps", 1e-6)
    if not all(type(value) in {int, float} and abs(value) < _NUMBER_MAX for value in (theta, eps)):
        raise ConfigError(f"{CONFIG_NAME}: rope_theta = {theta!r:.40}, rms_norm_eps = {eps!r:.40}; numbers expected")
    return ModelSection(**shapes, rope_theta=float(theta), norm_eps=float(eps))  # type: ignore[arg-type]


def _json_of(file: Path) -> dict[str, Any]:
    with told_in_one_line(file, "reading"):
        try:
            content = json.loads(read_regular(file))
        except FileNotFoundError:
            raise ConfigError(f"no {file.name}; a folder that transformers have written is expected") from None
        except (ValueError, RecursionError):
            raise ConfigError(f"{file.name} is no JSON") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file.name} is no JSON object")
    return content


# ---- the weights ---------------------------------------------------------------------------------


def _places(folder: Path) -> dict[str, TensorPlace]:
    """Where each tensor lies."""
    if (folder / INDEX_NAME).is_file():
        weight_map = _json_of(folder / INDEX_NAME).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise ConfigError(f"{INDEX_NAME} has no weight_map")
        names = sorted(set(weight_map.values()))
    else:
        names = [SINGLE_NAME]
    found: dict[str, TensorPlace] = {}
    for name in names:
        file = folder / name
        # Also where no disk takes such a name
        if Path(name).name != name or not os.path.isfile(file):  # noqa: PTH113 - the other one raises
            pickled = next(folder.glob("pytorch_model*.bin"), None)
            said = f"; {pickled.name} is not opened: save it as safetensors" if pickled is not None else ""
            raise ConfigError(f"no {name:.120}{said}")
        found |= dict(_tensors_of(file))
    return found


def _tensors_of(file: Path) -> Iterator[tuple[str, TensorPlace]]:
    """Each tensor that a safetensors file holds; the library checks what the header says."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - help is fast

    with told_in_one_line(file, "reading"):
        try:
            with safe_open(file, "np"):
                pass
        except SafetensorError as error:
            raise ConfigError(f"{file.name} is no whole safetensors file: {error}") from error
        header = read_header(file)
        assert header is not None, "it has just been opened"
        with file.open("rb") as stream:
            data_bytes = 8 + int.from_bytes(stream.read(8), "little")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if name.endswith(_BUFFER):
            continue
        if entry["dtype"] not in _DTYPES:
            raise ConfigError(f"{file.name}: {name} is {entry['dtype']}; {', '.join(_DTYPES)} expected")
        yield name, TensorPlace(file, entry["dtype"], data_bytes + entry["data_offsets"][0], tuple(entry["shape"]))


def _require_weights(places: dict[str, TensorPlace], model: ModelSection) -> None:
    """Whether these are the weights of a model with these shapes, all of them and no others."""
    if bias := next((name for name in places if name.endswith(".bias")), ""):
        raise ConfigError(f"{bias} is there; this model has no biases")
    if model.blocks > len(places):  # else as many names as it says would be made
        raise ConfigError(f"{CONFIG_NAME}: num_hidden_layers = {model.blocks}, but the files hold {len(places)} weights")
    expected = weight_shapes(model)
    for what, names in (("missing", expected.keys() - places.keys()), ("no weight of a LLaMA", places.keys() - expected.keys())):
        if names:
            more = f", and {len(names) - 1} more" if len(names) > 1 else ""
            raise ConfigError(f"{min(names):.120}{more}: {what}")
    for name, shape in expected.items():
        if places[name].shape != shape:
            raise ConfigError(f"{name}: shape {places[name].shape}; {CONFIG_NAME} describes {shape}")


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Put the folder before what is wrong with it, and let names of others be what they may: it is
    one line.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{folder}: {shown(str(error))}") from error
