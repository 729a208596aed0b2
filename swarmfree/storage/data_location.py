"""What `--data` names: a dataset in a folder or behind a URL, or a mixture of them; anything else
is text, which `corpus` reads.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from swarmfree.protocol.config_values import is_url
from swarmfree.protocol.errors import DataError
from swarmfree.storage.atomic_files import write_whole
from swarmfree.storage.dataset import FORMAT, INDEX_FILE, TOKENIZER_FILE, Dataset, checked, dataset_of, find_dataset
from swarmfree.storage.mixture import Mixture, is_mixture, read_mixture, sorted_mixture

INDEX_BYTES_MAX = TOKENIZER_BYTES_MAX = 1 << 26
Say = Callable[[str], object]


def say_on_stderr(line: str) -> None:
    """Tell a person that data is waited for."""
    sys.stderr.write(f"swarmfree: {line}\n")
    sys.stderr.flush()


def find_data(data_path: str, cache_folder: Path | None = None, say: Say = say_on_stderr) -> Dataset | Mixture | None:
    """The dataset or mixture that is named; None where it is text, or nothing is there.

    Args:
        data_path: a path or a URL.
        cache_folder: where the tokenizer of a dataset behind a URL is kept; None = it is not
            fetched.
        say: told in one line, from any thread, that a server is waited for.

    Raises:
        DataError: it is one, and it is not whole, or it does not answer.
        SwarmfreeError: what it takes is not installed.
    """

    def find(place: str) -> Dataset | None:
        return _remote_dataset(place, cache_folder, say) if is_url(place) else find_dataset(Path(place).expanduser())

    path = Path(data_path).expanduser()
    if not is_mixture(data_path) or not path.exists():
        return find(data_path)
    mixture = read_mixture(path, find)
    readers = [dataset.reader for dataset in mixture.datasets if dataset.reader is not None]
    for reader in readers:
        reader.share_with(len(readers))
    return mixture


def checked_data(found: Dataset | Mixture, cache_folder: Path | None = None) -> Dataset | Mixture:
    """The same once every shard on this machine has the hash that its index names; see `checked`.

    Raises:
        DataError: one has not.
    """
    if isinstance(found, Dataset):
        return checked(found, cache_folder)
    pairs = [(checked(dataset, cache_folder), weight) for dataset, weight in zip(found.datasets, found.weights, strict=True)]
    return sorted_mixture(found.path, pairs)


def _remote_dataset(url: str, cache_folder: Path | None, say: Say) -> Dataset:
    from swarmfree.storage.remote_folder import RemoteFolder  # noqa: PLC0415 - only where data lies elsewhere
    from swarmfree.storage.remote_shards import BlockReader  # noqa: PLC0415 - as above

    remote = RemoteFolder(url)
    where = f"{remote.url}/{INDEX_FILE}"
    try:
        index = json.loads(remote.read(INDEX_FILE, INDEX_BYTES_MAX))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON; the folder of a dataset of `swarmfree data prepare` expected") from error
    if not isinstance(index, dict):
        raise DataError(f"{where}: not the index of a dataset; the folder of one of `swarmfree data prepare` expected")
    dataset = dataset_of(index, Path(), where, BlockReader(remote, say))
    if dataset.format != FORMAT or not all(shard.blocks_sha256 for shard in (*dataset.train.shards, *dataset.held_out.shards)):
        raise DataError(f"{where}: without hashes of blocks, as an earlier swarmfree wrote it; prepare it again, or copy it here")
    if cache_folder is None:
        return dataset
    content = remote.read(TOKENIZER_FILE, TOKENIZER_BYTES_MAX)
    found = hashlib.sha256(content).hexdigest()
    if dataset.tokenizer_hash and found != dataset.tokenizer_hash:
        raise DataError(
            f"{remote.url}/{TOKENIZER_FILE}: SHA-256 {found[:12]}, but {INDEX_FILE} says {dataset.tokenizer_hash[:12]}"
        )
    folder = cache_folder / f"remote-{dataset.dataset_hash[:16]}"
    write_whole(folder / TOKENIZER_FILE, content)
    return replace(dataset, folder=folder)
