"""``swarmfree export``: take the model out of a run, or out of a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmfree.cli.options import INVITE_BEGINS, AskerFolderOption, PatienceOption, TokenizerOption
from swarmfree.cli.sample import weights_folder

if TYPE_CHECKING:
    from swarmfree.wire.invite import Invite

SPARE_BYTES = 1 << 20
"""For config, tokenizer, index and card."""


def export(
    source: Annotated[
        str,
        typer.Argument(metavar="INVITE|REPORT", help="Invite of a run that goes on, or folder of a report.", show_default=False),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the model, new or empty.", show_default=False)],
    tokenizer: TokenizerOption = "",
    patience: PatienceOption = 20.0,
    folder: AskerFolderOption = "",
) -> None:
    """Write a model as a folder that Hugging Face's transformers load: config, weights, tokenizer
    and a model card.

    With an invite, the model of a run that goes on, which it does not stop: all stages are of one
    committed iteration, and each has the digest that the swarm's record names. That takes an
    iteration that lasts as long as its weights travel. With a report, the model of its end.
    """
    from swarmfree.cli.early_checks import require_folder  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast
    from swarmfree.storage.dataset import TOKENIZER_FILE  # noqa: PLC0415 - help is fast
    from swarmfree.storage.model_folder import require_new  # noqa: PLC0415 - help is fast

    require_folder("--out", out)
    require_new(out)
    if not source.strip().startswith(INVITE_BEGINS):
        if not os.path.isdir(source):  # noqa: PTH112 - whatever a person gives, also what no path can be
            raise ConfigError(f"{source[:80]}: no such folder; an invite, or the folder of a report, is expected")
        if tokenizer:
            raise ConfigError(
                f"--tokenizer goes with an invite; the model of a report has the {TOKENIZER_FILE} that lies beside its weights"
            )
        raise typer.Exit(_export_report(Path(source), out))
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from swarmfree.cli.run_access import asker_folder  # noqa: PLC0415 - help is fast
    from swarmfree.cli.shutdown import run_until_told  # noqa: PLC0415 - help is fast
    from swarmfree.wire.invite import decode_invite  # noqa: PLC0415 - help is fast

    invite = decode_invite(source)
    raise typer.Exit(run_until_told(lambda: _export_live(invite, out, tokenizer, patience, asker_folder(invite, folder))))


async def _export_live(invite: Invite, out: Path, tokenizer: str, patience_s: float, identity_folder: str) -> int:
    from swarmfree.cli.export_live import LiveExport, tokenizer_of  # noqa: PLC0415 - help is fast
    from swarmfree.cli.run_access import open_run  # noqa: PLC0415 - help is fast
    from swarmfree.storage.model_folder import ModelOrigin, made_whole, require_room, write_card  # noqa: PLC0415 - help is fast
    from swarmfree.storage.weights import FolderWeights  # noqa: PLC0415 - help is fast

    async with open_run(invite, patience_s, identity_folder) as access:
        manifest = access.manifest
        tokens = tokenizer_of(manifest, tokenizer)
        live = LiveExport(access, access.shown_by(invite.ticket), _say)
        require_room(out, live.size_bytes + SPARE_BYTES)
        found = await live.run()
    with made_whole(out) as place:
        weights = FolderWeights(place, manifest, tokens)
        for stage, tensors in enumerate(found.stages):
            weights.write(stage, tensors)
        origin = ModelOrigin(
            run=manifest.run.name,
            fingerprint=manifest.fingerprint(),
            iteration=found.iteration,
            data=manifest.data.name,
            data_hash=manifest.data.corpus_hash,
            loss=found.record.loss,
            digests=tuple(entry.state_digest for entry in found.record.stages),
        )
        write_card(place, origin, manifest.model)
    typer.echo(f"{out}: {manifest.run.name} at iteration {found.iteration}, {live.size_bytes / 1e6:,.1f} MB")
    if manifest.data.tokenizer_hash and not tokens:
        _say(
            f"without a tokenizer: copy tokenizer.json of the dataset {manifest.data.name} to {out}, or name it with --tokenizer"
        )
    return 0


def _export_report(report: Path, out: Path) -> int:
    import shutil  # noqa: PLC0415 - help is fast

    from swarmfree.protocol.errors import SwarmfreeError  # noqa: PLC0415 - help is fast
    from swarmfree.protocol.weight_shapes import weight_shapes  # noqa: PLC0415 - help is fast
    from swarmfree.storage.atomic_files import flush_to_disk, told_in_one_line  # noqa: PLC0415 - help is fast
    from swarmfree.storage.model_folder import (  # noqa: PLC0415 - help is fast
        CARD_NAME,
        ModelOrigin,
        made_whole,
        note_of,
        require_room,
        write_card,
    )
    from swarmfree.storage.weights import read_weights, run_of  # noqa: PLC0415 - help is fast

    weights = weights_folder(report)
    model, tensors = read_weights(weights)
    expected, found = weight_shapes(model), {name: array.shape for name, array in tensors.items()}
    if found != expected:
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        raise SwarmfreeError(
            f"{weights}: not the weights that {weights / 'config.json'} describes: of {wrong[0]} {expected.get(wrong[0], 'none')} "
            f"expected, {found.get(wrong[0], 'none')} found{f', and so of {len(wrong) - 1} more' if len(wrong) > 1 else ''}"
        )
    fingerprint, summary = run_of(weights), note_of(report, "summary.json")
    files = sorted(
        path for path in weights.iterdir() if path.is_file() and not path.name.startswith(".") and path.name != CARD_NAME
    )
    require_room(out, sum(path.stat().st_size for path in files) + SPARE_BYTES)
    with made_whole(out) as place:
        for path in files:
            with told_in_one_line(out, f"copying {path.name}"):
                shutil.copyfile(path, place / path.name)
                flush_to_disk(place / path.name)
        name, iterations = summary.get("name"), summary.get("iterations")
        is_end = weights != report
        origin = ModelOrigin(
            run=str(name) if isinstance(name, str) else "",
            fingerprint=fingerprint,
            iteration=iterations if isinstance(iterations, int) and is_end else None,
        )
        write_card(place, origin, model)
    typer.echo(f"{out}: the weights of run {fingerprint[:12]}, {sum(array.nbytes for array in tensors.values()) / 1e6:,.1f} MB")
    return 0


def _say(line: str) -> None:
    typer.echo(line, err=True)
