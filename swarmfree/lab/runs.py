"""The run configs that come with the package, which are found by name, and what a run of them needs
where nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.manifest import Manifest

if TYPE_CHECKING:
    from swarmfree.protocol.config import RunConfig

RUNS = Path(__file__).parent.parent / "runs"
DEFAULT_RUN = Path("stdlib-small")
CHAOS_RUN = Path("chaos")
BODY_PEERS = 2
"""For each body stage: one may die without a pause."""
STANDBYS = 1


def run_file(run: Path) -> Path:
    """The file that `--run` means: a path, or else the name of a run that comes with the package.

    Raises:
        ConfigError: it is neither; what there is is listed.
    """
    try:
        if run.is_file():
            return run
        known = {file.stem: file for file in sorted(RUNS.glob("*.toml"))}
        if str(run) in known:
            return known[str(run)]
        if run.exists():
            return run
    except OSError:
        return run  # whoever reads it says why it cannot be read
    here = [str(file) for file in sorted(Path().glob("*.toml")) if file.name != "pyproject.toml"]
    listed = f"runs by name: {', '.join(known)}" + (f"; files here: {', '.join(here[:8])}" if here else "")
    raise ConfigError(f"{run}: cannot be read: No such file or directory; {listed}; `swarmfree new NAME` writes a run file")


def load_run(run: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run config.

    Args:
        run: a TOML file, or the name of a run that comes with the package.
        overrides: ``section.key=value`` each, over what the file says.

    Raises:
        ConfigError: one line that names file, key, value and rule.
    """
    from swarmfree.protocol import config  # noqa: PLC0415 - help is fast

    if isinstance(overrides, str):
        raise ConfigError(f"overrides = {overrides!r}: a list is expected, as in [{overrides!r}]")
    return config.load_run(run_file(Path(run)), overrides)


def runs_to_complete(incomplete: str) -> list[str]:
    """What a shell offers behind `--run`: runs by name and files of this folder."""
    names = [file.stem for file in sorted(RUNS.glob("*.toml"))] + [str(file) for file in sorted(Path().glob("*.toml"))]
    return [name for name in names if name.startswith(incomplete) and name != "pyproject.toml"]


def keys_to_complete(incomplete: str) -> list[str]:
    """What a shell offers behind `--set`: the keys of a run config, each with its equals sign."""
    from swarmfree.protocol.config import run_keys  # noqa: PLC0415 - help is fast

    return [f"{key}=" for key in run_keys() if key.startswith(incomplete) and "." in key]


def peers_of(manifest: Manifest) -> int:
    """How many peers a run begins with where nobody says: two for each body stage and one for the
    ends, within the run's own limits.
    """
    ends, *body = range(manifest.stage_count)
    least = min(manifest.stages.replicas_min, manifest.replicas_max(ends))
    return least + sum(min(max(BODY_PEERS, manifest.stages.replicas_min), manifest.replicas_max(stage)) for stage in body)
