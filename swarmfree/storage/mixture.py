"""A mixture: several prepared datasets that one run learns from, each with its weight.

It is a file whose name ends in ``mixture.toml``, a machine's own: it says where the datasets lie
here. The manifest names them by their hashes, so the order in which a file lists them is of no
account. `policy.data_order` says what an epoch of a mixture is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmfree.protocol.config_values import is_url, read_text
from swarmfree.protocol.errors import ConfigError, DataError
from swarmfree.protocol.mixture import AS_LARGE, DATASET_DIGITS, DATASETS_MAX, WEIGHT_MAX, MixturePart
from swarmfree.storage.dataset import Dataset

MIXTURE_SUFFIX = "mixture.toml"
_FORMAT = "swarmfree-mixture-1"
_EXAMPLE = '[[dataset]] with path = "..." and weight = 1 for each'


@dataclass(frozen=True, slots=True)
class Mixture:
    """Datasets of one tokenizer, in the order of their hashes.

    Args:
        path: the file that names them.
        datasets: 2 or more.
        weights: how often each is drawn, beside the others; all `AS_LARGE` where none was given.
    """

    path: Path
    datasets: tuple[Dataset, ...]
    weights: tuple[float, ...]

    @property
    def name(self) -> str:
        """For people: the file's name, without the suffix where there is more to it."""
        return self.path.name.removesuffix(MIXTURE_SUFFIX).rstrip(".-_") or self.path.resolve().parent.name

    @property
    def mixture_hash(self) -> str:
        """SHA-256, hex, over what is learned from it: hashes and weights."""
        pairs = [[dataset.dataset_hash, repr(weight)] for dataset, weight in zip(self.datasets, self.weights, strict=True)]
        return hashlib.sha256(json.dumps([_FORMAT, pairs], separators=(",", ":")).encode()).hexdigest()

    @property
    def proportions(self) -> tuple[float, ...]:
        """Which part of what is drawn comes from each; 1 in all."""
        weights = [weight or dataset.train.tokens for dataset, weight in zip(self.datasets, self.weights, strict=True)]
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)

    @property
    def train_tokens(self) -> int:
        """Of all datasets."""
        return sum(dataset.train.tokens for dataset in self.datasets)

    @property
    def held_out_tokens(self) -> int:
        """Of all datasets."""
        return sum(dataset.held_out.tokens for dataset in self.datasets)

    @property
    def vocabulary(self) -> int:
        """The largest."""
        return max(dataset.vocabulary for dataset in self.datasets)

    @property
    def bytes_per_token(self) -> float:
        """Mean over the datasets, each by its weight; 0 where one of them does not know it."""
        each = [dataset.bytes_per_token for dataset in self.datasets]
        mean = math.fsum(part * size for part, size in zip(self.proportions, each, strict=True))
        return mean if all(each) else 0.0

    def parts(self) -> tuple[MixturePart, ...]:
        """As the manifest names them."""
        return tuple(
            MixturePart(dataset.dataset_hash[:DATASET_DIGITS], dataset.train.tokens, weight)
            for dataset, weight in zip(self.datasets, self.weights, strict=True)
        )


def is_mixture(path: str) -> bool:
    """Whether a path is that of a mixture's file, by its name."""
    return not is_url(path) and Path(path).name.endswith(MIXTURE_SUFFIX)


def read_mixture(path: Path, find: Callable[[str], Dataset | None]) -> Mixture:
    """Read a mixture's file, and find its datasets.

    Where no dataset has a weight, each is drawn as often as it is large: an epoch shows every
    sequence of every dataset once.

    Args:
        path: the file; paths in it are relative to its folder.
        find: the dataset at a path or URL, None where none is there.

    Raises:
        DataError: one line with the file, the entry, and what is wrong with it.
    """
    entries = _entries(path)
    found: list[tuple[Dataset, float]] = []
    weighted = [entry for entry in entries if "weight" in entry]
    for number, entry in enumerate(entries, start=1):
        where = f"{path}, dataset {number}"
        if set(entry) - {"path", "weight"} or not isinstance(entry.get("path"), str) or not entry["path"]:
            raise DataError(f"{where}: has the keys {', '.join(map(str, entry))[:60] or 'none'}; {_EXAMPLE} expected")
        if weighted and "weight" not in entry:
            raise DataError(f"{where}: has no weight, and others have; give each one, or none")
        place = entry["path"] if is_url(entry["path"]) else str(path.parent / Path(entry["path"]).expanduser())
        if is_mixture(place):
            raise DataError(f"{where}: {place} is a mixture; name the datasets themselves")
        dataset = find(place)
        if dataset is None:
            what = "no dataset" if Path(place).exists() else "no such folder"
            raise DataError(f"{where}: {place}: {what}; `swarmfree data prepare` makes one of text")
        if not dataset.train.tokens:
            raise DataError(f"{where}: {place}: no token to train on")
        found.append((dataset, _weight(entry["weight"], where) if weighted else AS_LARGE))
    _require_alike(path, [dataset for dataset, _ in found])
    return sorted_mixture(path, found)


def sorted_mixture(path: Path, found: list[tuple[Dataset, float]]) -> Mixture:
    """The mixture of datasets whose hashes are known, in the order of these.

    Raises:
        DataError: two of them are the same.
    """
    found = sorted(found, key=lambda pair: pair[0].dataset_hash)
    for (before, _), (after, _) in itertools.pairwise(found):
        if before.dataset_hash == after.dataset_hash and before.is_hashed:
            raise DataError(f"{path}: {before.place} and {after.place} are the same dataset; name it once, with a larger weight")
    return Mixture(path, tuple(dataset for dataset, _ in found), tuple(weight for _, weight in found))


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        content = tomllib.loads(read_text(path))
    except ConfigError as error:
        raise DataError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not TOML ({str(error)[:80]}); {_EXAMPLE} expected") from error
    entries = content.get("dataset")
    is_list = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if set(content) != {"dataset"} or not is_list:
        raise DataError(
            f"{path}: has {', '.join(content)[:60] or 'nothing'} in it; {_EXAMPLE} dataset expected, and nothing else"
        )
    assert isinstance(entries, list), "looked at above"
    if not 2 <= len(entries) <= DATASETS_MAX:
        raise DataError(f"{path}: {len(entries):,} dataset{'s' * (len(entries) != 1)}; a mixture has 2 to {DATASETS_MAX}")
    return entries


def _weight(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: weight = {value!r:.40}: a number above 0 expected")
    if not 0 < value <= WEIGHT_MAX:  # nan is not either
        raise DataError(
            f"{where}: weight = {value!r:.40}: must be above 0 and at most {WEIGHT_MAX:g}; leave out what is not to be drawn"
        )
    return float(value)


def _require_alike(path: Path, datasets: list[Dataset]) -> None:
    """Tokens of all datasets mean the same."""
    first = datasets[0]
    for dataset in datasets[1:]:
        if dataset.is_indexed != first.is_indexed and not (dataset.tokenizer_hash and first.tokenizer_hash):
            bare = first if dataset.is_indexed else dataset
            raise DataError(f"{path}: {bare.place} does not say its tokenizer; lay its tokenizer.json there")
        for what, own, other in (
            ("tokenizer", first.tokenizer_hash[:12] or "bytes", dataset.tokenizer_hash[:12] or "bytes"),
            ("end of text", first.end_of_text, dataset.end_of_text),
        ):
            if own != other and (what == "tokenizer" or (dataset.is_indexed and first.is_indexed)):
                raise DataError(
                    f"{path}: {first.place} has the {what} {own!r}, {dataset.place} {other!r}; a model learns tokens of one tokenizer: "
                    f"prepare both with the same, as --tokenizer {first.place} takes that of the first"
                )
