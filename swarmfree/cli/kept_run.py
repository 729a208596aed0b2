"""What a local run leaves in the folder of its report so that it can go on there: the options that
it was started with, and the folders of its processes.

A run can go on where the snapshots of its peers make a whole set, and none of them has taken part
in it to its end. Who works in the folder holds a lock on the options, which the system lets go of
however that process ends.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swarmfree.cli.finished_run import FINISHED_FILE
from swarmfree.lab.report import CONFIG_FILE, EVENTS_FILE, SUMMARY_FILE, ReportError
from swarmfree.lab.swarm import BOOTSTRAP, PEERS
from swarmfree.policy.resume import SnapshotSet, resume_point
from swarmfree.protocol.config import RunConfig, differences, load_run, manifest_from_bytes
from swarmfree.protocol.config_values import is_url
from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.local_config import MANIFEST_FILE
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage.atomic_files import refusal_words
from swarmfree.storage.regular_files import open_regular, read_regular
from swarmfree.storage.snapshots import SNAPSHOTS, FolderSnapshots

OPTIONS_FILE = "local.json"
NOTHING_LEFT = "why_nothing_is_left"
"""In the summary: why nothing goes on with the run, empty where something may."""
REPORTS = Path("reports")
LISTED_MAX = 4
UNDER_WAY = "this run is under way: another `swarmfree local` works in the folder"
OPTIONS = {field: field for field in ("peers", "standbys", "respawn", "threads", "data", "data_is_bytes", "init_from")} | {
    "kill": "kills"
}
"""Option as the command line calls it -> field of `LocalOptions`."""
LEAST = {"peers": 1, "standbys": 0, "threads": 1}


class NothingLeft(ConfigError):
    """A run has come to its end, or no peer of it has written a snapshot."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What a local run was started with beside its run config, as ``local.json`` keeps it.

    Args:
        peers: that take places at once; None where nobody has said how many yet.
        standbys: that wait for a lost stage.
        respawn: whether a killed peer is started again.
        kills: the script, as it is typed.
        threads: torch threads of each peer.
        data: text to learn from, wherever it is read from; empty = the default.
        data_is_bytes: whether its bytes are learned whatever they are.
        init_from: folder of a model that it begins with; empty = none.
    """

    peers: int | None
    standbys: int
    respawn: bool
    kills: tuple[str, ...]
    threads: int
    data: str
    data_is_bytes: bool
    init_from: str = ""

    def write(self, folder: Path) -> None:
        """Write them down, where nobody has.

        Raises:
            ConfigError: another process has: of two that found the folder empty one goes on.
            ReportError: the disk is full or gone.
        """
        path = folder / OPTIONS_FILE
        try:
            with path.open("xb") as file:
                try:
                    file.write((json.dumps(dataclasses.asdict(self)) + "\n").encode())
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    path.unlink()
                    raise
        except FileExistsError:
            raise ConfigError(f"{folder}: {UNDER_WAY}") from None
        except OSError as error:
            raise ReportError(f"{path} cannot be written: {refusal_words(error, path)}") from error

    @classmethod
    def read(cls, folder: Path) -> LocalOptions:
        """What a folder keeps.

        Raises:
            ConfigError: it cannot be read, or another version wrote it.
        """
        path = folder / OPTIONS_FILE
        try:
            found = json.loads(read_regular(path).decode())
            found["kills"] = tuple(found["kills"])
            options = cls(**found)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}): the version of swarmfree that wrote it goes on") from error
        types = {
            "peers": int,
            "standbys": int,
            "respawn": bool,
            "threads": int,
            "data": str,
            "data_is_bytes": bool,
            "init_from": str,
        }
        wrong = [name for name, kind in types.items() if type(getattr(options, name)) is not kind]
        wrong = wrong or [name for name, least in LEAST.items() if getattr(options, name) < least]
        if wrong or not all(isinstance(kill, str) for kill in options.kills):
            raise ConfigError(f"{path}: {', '.join(wrong) or 'kills'}: not what this version of swarmfree writes")
        return options


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a local run keeps for others that go on with it.

    Args:
        options: that it was started with.
        is_named: whether its folder was named by whoever started it: such a run is kept however it
            ends, others where they are paused.
        point: the set of snapshots from which it goes on; None where it begins.
    """

    options: LocalOptions
    is_named: bool
    point: SnapshotSet | None = None


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A local run that can go on.

    Args:
        folder: of its report.
        options: that it was started with.
        config: what it computes.
        point: the set of snapshots from which it goes on.
    """

    folder: Path
    options: LocalOptions
    config: RunConfig
    point: SnapshotSet

    @property
    def keeping(self) -> Keeping:
        """What is kept of it from now on."""
        return Keeping(self.options, is_named=True, point=self.point)

    @property
    def file(self) -> Path:
        """Its run config."""
        return self.folder / CONFIG_FILE

    def require_same(
        self, typed: LocalOptions, given: frozenset[str], out: Path | None, run: Path, changes: Sequence[str]
    ) -> None:
        """Whether what was typed beside `--resume` is what the run was started with.

        Args:
            typed: values of options.
            given: names of the options that were typed, as the command calls them.
            out: folder of the report.
            run: run config.
            changes: of that.

        Raises:
            ConfigError: one of them is something else.
        """
        other = [
            f"--{name.replace('_', '-')} ({_shown(getattr(self.options, field))} kept, {_shown(getattr(typed, field))} asked for)"
            for name, field in OPTIONS.items()
            if name in given and getattr(typed, field) != getattr(self.options, field)
        ]
        if given & {"run", "changes"}:
            other += differences(self.config.manifest, load_run(run if "run" in given else self.file, changes).manifest)
        if out is not None and out.resolve() != self.folder.resolve():
            other.append(f"--out ({self.folder} kept, {out} asked for)")
        if other:
            raise ConfigError(f"--resume {self.folder}: the run goes on as it began; leave out {', '.join(other)}")


def resume_command(folder: Path) -> str:
    """The command that goes on with the run of a folder."""
    return f"swarmfree local --resume {shlex.quote(str(folder))}"


def hold(folder: Path) -> IO[bytes]:
    """Hold the run of a folder for as long as the file that is returned, its options, is open.

    Raises:
        ConfigError: another process does.
        ReportError: there are none, or they cannot be read.
    """
    try:
        file = open_regular(folder / OPTIONS_FILE)
    except OSError as error:
        raise ReportError(f"{folder / OPTIONS_FILE} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(f"{folder}: {UNDER_WAY}") from error
    return file


def can_go_on(folder: Path) -> bool:
    """Whether a run that has ended can go on in this folder with all that a whole set says."""
    try:
        return not open_kept(str(folder)).point.missing
    except ConfigError:
        return False


def why_not_on(folder: Path) -> str:
    """Why `--resume` would refuse the run of this folder; empty where it would not."""
    try:
        open_kept(str(folder))
    except ConfigError as error:
        return str(error)
    return ""


def is_worth_its_room(folder: Path, *, has_gone_on: bool) -> bool:
    """Whether what the processes of a run that has ended left behind stays: there is a whole set,
    or the run has gone on from some set before, as it can again. What cannot be read now stays,
    too, where the run has gone on before; what is gone is not there.
    """
    if not (folder / PEERS).exists():
        return False
    try:
        point = _point(folder, _manifest(folder))
    except NothingLeft:
        return False
    except ConfigError:
        return has_gone_on
    return has_gone_on or not point.missing


def require_still(folder: Path, point: SnapshotSet) -> None:
    """Whether a run goes on from where it was found to, now that nobody else can work there.

    Raises:
        ConfigError: somebody has gone on with it meanwhile.
    """
    if (found := open_kept(str(folder)).point) != point:
        raise ConfigError(
            f"{folder}: another `swarmfree local` has gone on with this run meanwhile, up to iteration {found.iteration}: "
            "give the same command again"
        )


def newest(parent: Path = REPORTS) -> Path:
    """The folder of the one run among the reports that can go on.

    Raises:
        ConfigError: there is none, or more than one.
    """
    places = (place.parent for place in parent.glob(f"*/{OPTIONS_FILE}"))
    kept = sorted((place for place in places if can_go_on(place) and _is_free(place)), key=_last_said_s)
    if not kept:
        raise ConfigError(f"--resume: none of the local runs in {parent}/ can go on; name the folder of one: --resume FOLDER")
    if len(kept) > 1:
        names = ", ".join(shlex.quote(str(place)) for place in reversed(kept[-LISTED_MAX:]))
        raise ConfigError(f"--resume: {len(kept)} local runs can go on; name one, the newest first: {names}")
    return kept[0]


def open_kept(asked: str) -> KeptRun:
    """Read what is kept of a run; nothing is changed.

    Args:
        asked: the folder of its report, or a file in that; empty = `newest`.

    Raises:
        ConfigError: nothing there can go on, and why.
    """
    place = Path(asked) if asked else newest()
    try:
        folder = place.parent if place.is_file() else place
        if not folder.is_dir():
            raise ConfigError(f"--resume {place}: there is no such folder; that of the report of a `swarmfree local` is expected")
        if not (folder / OPTIONS_FILE).exists():
            raise ConfigError(
                f"--resume {place}: no local run lies there; a folder with a report and {OPTIONS_FILE} in it is expected"
            )
        options, config = LocalOptions.read(folder), _config(folder)
        if not (folder / PEERS).is_dir():
            raise ConfigError(f"--resume {place}: {_why_nothing_is_left(folder)}: nothing is left there to go on from")
        manifest = _manifest(folder)
        _require_own(folder, manifest, config)
        return KeptRun(folder, options, config, _point(folder, manifest))
    except OSError as error:
        raise ConfigError(f"--resume {place!s:.200}: cannot be looked at: {error.strerror}") from error


def _why_nothing_is_left(folder: Path) -> str:
    """As the summary of the run says; where it does not, all that may be."""
    with suppress(OSError, ValueError, TypeError, LookupError):
        return str(json.loads(read_regular(folder / SUMMARY_FILE))[NOTHING_LEFT]) or f"{folder / PEERS} is gone"
    return "the run has come to its end, or had no whole set of snapshots when it was ended, or was not named with --out"


def absolute(data: str) -> str:
    """A path of text, from wherever it is read later; a URL, and what is empty, stay as they
    are.
    """
    return str(Path(data).expanduser().resolve()) if data and not is_url(data) else data


def _shown(value: object) -> str:
    return (" ".join(value) if isinstance(value, tuple) else str(value)) or "none"


def _last_said_s(folder: Path) -> float:
    return (folder / EVENTS_FILE).stat().st_mtime if (folder / EVENTS_FILE).exists() else 0.0


def _is_free(folder: Path) -> bool:
    try:
        hold(folder).close()
    except SwarmfreeError:
        return False
    return True


def _config(folder: Path) -> RunConfig:
    path = folder / CONFIG_FILE
    try:
        open_regular(path).close()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; it keeps what the run computes, and without it nothing goes on"
        ) from error
    return load_run(path)


def _require_own(folder: Path, manifest: Manifest, config: RunConfig) -> None:
    """Whether the run config in the folder still is the run's: else the report would be told of
    another one before the bootstrap node refuses it.

    Raises:
        ConfigError: it has been changed.
    """
    known = dataclasses.replace(config.manifest.model, init_digests=manifest.model.init_digests)
    if other := differences(manifest, dataclasses.replace(config.manifest, model=known)):
        raise ConfigError(
            f"{folder / CONFIG_FILE}: is not as the run began: {', '.join(other)}; put back what was kept: a run goes on as it began"
        )


def _manifest(folder: Path) -> Manifest:
    path = folder / PEERS / BOOTSTRAP / MANIFEST_FILE
    try:
        return manifest_from_bytes(read_regular(path))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; it keeps who the run is, and without it nothing goes on"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _point(folder: Path, manifest: Manifest) -> SnapshotSet:
    """Where the run goes on.

    Raises:
        ConfigError: nowhere.
    """
    run = manifest.fingerprint()
    try:
        places = sorted(place for place in (folder / PEERS).iterdir() if place.name != BOOTSTRAP and place.is_dir())
    except OSError as error:
        raise ConfigError(f"{folder / PEERS}: cannot be looked at: {error.strerror}") from error
    for place in places:
        if (place / FINISHED_FILE).exists():
            raise NothingLeft(
                f"{folder}: the run has come to its end, as {place / FINISHED_FILE} says; nothing is left to go on with"
            )
    point = resume_point({place.name: FolderSnapshots.lying_in(place / SNAPSHOTS, run) for place in places}, manifest.stage_count)
    if point is None:
        raise NothingLeft(
            f"{folder}: none of its peers had written a snapshot, as each does every {manifest.recovery.snapshot_every} iterations "
            "(recovery.snapshot_every): nothing is left to go on from"
        )
    return point
