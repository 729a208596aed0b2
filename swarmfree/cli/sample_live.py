"""The model that a run has now, for whoever has it write: taken out as for an export, in memory."""

from __future__ import annotations

import asyncio
import os

import typer

from swarmfree.cli.export_live import LiveExport, tokenizer_of
from swarmfree.cli.run_access import asker_folder, open_run
from swarmfree.cli.shutdown import run_until_told
from swarmfree.cli.writer import Writer
from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage.dataset_tokenizer import TextTokenizer, byte_tokenizer
from swarmfree.wire.invite import Invite, decode_invite


def live_writer(invite: str, tokenizer: str, within_s: float, patience_s: float, folder: str) -> Writer:
    """Take the model out of a run, which goes on.

    Args:
        invite: of the run.
        tokenizer: path of the dataset's tokenizer.json; a run of bytes needs none.
        within_s: how long the weights may take.
        patience_s: how long to look for somebody who answers at the invite's addresses.
        folder: of the identity that asks, empty = the usual one.

    Raises:
        SwarmfreeError: as `LiveExport.run`; or the weights did not come in time.
        ConfigError: the tokenizer is needed and not there, or not the run's.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    decoded, taken = decode_invite(invite), list[Writer]()

    async def take() -> int:
        taken.append(await take_writer(decoded, tokenizer, within_s, patience_s, asker_folder(decoded, folder)))
        return 0

    if code := run_until_told(take):
        raise typer.Exit(code)
    return taken[0]


async def take_writer(invite: Invite, tokenizer: str, within_s: float, patience_s: float, identity_folder: str) -> Writer:
    """As `live_writer`, in a loop that runs; without a folder an identity for this alone asks."""
    said = ["nobody has answered yet"]

    def say(line: str) -> None:
        said.append(line)
        typer.echo(line, err=True)

    async with open_run(invite, patience_s, identity_folder) as access:
        manifest, model = access.manifest, access.manifest.model
        reads = _tokenizer(manifest, tokenizer)
        live = LiveExport(access, access.shown_by(invite.ticket), say)
        try:
            async with asyncio.timeout(within_s):
                found = await live.run()
        except TimeoutError:
            raise SwarmfreeError(
                f"run {manifest.run.name}: its weights did not come within {within_s:g} s (--within): {said[-1]}"
            ) from None
    typer.echo(f"{manifest.run.name} at iteration {found.iteration}", err=True)
    from swarmfree.model.sampling import arrays_of, llama_of  # noqa: PLC0415 - torch takes seconds to load

    return Writer(llama_of(model, arrays_of(found.stages)), reads, reads.end_token if manifest.data.end_of_text else None)


def _tokenizer(manifest: Manifest, path: str) -> TextTokenizer:
    """The run's tokenizer.

    Raises:
        ConfigError: it has to be named.
    """
    data = manifest.data
    content = byte_tokenizer() if data.is_bytes else tokenizer_of(manifest, path)
    if not content:
        raise ConfigError(f"the run learns tokens of the dataset {data.name}: name its tokenizer.json with --tokenizer PATH")
    return TextTokenizer(content, path or "bytes", data.end_of_text)
