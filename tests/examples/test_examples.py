"""The examples, run as their first lines say, and the names that `import swarmfree` gives."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

import swarmfree
from swarmfree.cockpit.observed_events import ObservedEvent
from swarmfree.lab import local_order
from swarmfree.policy.recovery import weights_between
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.manifest import RecoverySection

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


FORKED = """\
import json, runpy, sys
from swarmfree.lab import local_order
local_order.FORK_SERVER_COMMAND = tuple(json.loads(sys.argv.pop(1)))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Plays the example whose arguments follow with this fork server."""


def run(name: str, *arguments: str, fork_server: Sequence[str] = ()) -> str:
    """What an example prints; it must end well."""
    before = ("-c", FORKED, json.dumps(fork_server)) if fork_server else ()
    command = [sys.executable, *before, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def forked_in(folder: Path, fork_server: tuple[str, ...]) -> tuple[str, ...]:
    """How to start it with a folder for temporary files below this one; () = there is none."""
    if not fork_server:
        return ()
    temporary = folder / "tmp"
    temporary.mkdir()
    return "/usr/bin/env", f"TMPDIR={temporary}", *fork_server


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_is_short(example: Path) -> None:
    """At most sixty lines, the first of which says how it is run."""
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert f"``python examples/{example.name}" in " ".join(text.partition("\n\n")[0].split())


def test_a_swarm_from_python_loses_a_stage_and_goes_on(tmp_path: Path, fork_server: tuple[str, ...]) -> None:
    """All replicas of a stage are killed, the stage comes back, all iterations are committed, and
    nothing is left behind but the report.
    """
    said = run("lose_a_stage.py", str(tmp_path / "report"), fork_server=forked_in(tmp_path, fork_server))
    assert "killed: peer-" in said and "stage 2 was lost at iteration" in said
    summary = json.loads((tmp_path / "report" / "summary.json").read_text(encoding="utf-8"))
    assert summary["exit_code"] == 0 and summary["iterations"] == 20
    known = ((p, p.info["cmdline"] or [], p.info["environ"] or {}) for p in psutil.process_iter(["cmdline", "environ"]))
    assert not [p for p, command, environment in known if str(tmp_path) in " ".join([*command, environment.get("TMPDIR", "")])]


def test_a_rehearsal_with_a_fault_of_ones_own() -> None:
    """The script's kill happens at its Seal, somebody takes over, and all invariants hold."""
    assert run("rehearse_a_fault.py", "7").splitlines()[-1] == "all invariants held"


def test_a_llama_is_rebuilt_between_its_neighbours(tmp_path: Path) -> None:
    """The lost block is the weighted mean of the blocks beside it, everything else stays, and
    transformers loads the result.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "in")
    assert "rebuilt" in run("merge_llama.py", str(tmp_path / "in"), "1", "1", "3.0", "1.0", str(tmp_path / "out"))
    rebuilt, before = LlamaForCausalLM.from_pretrained(tmp_path / "out").state_dict(), model.state_dict()
    for name, tensor in rebuilt.items():
        if "layers.1." in name:
            mean = 0.75 * before[name.replace("layers.1.", "layers.0.")] + 0.25 * before[name.replace("layers.1.", "layers.2.")]
            assert torch.equal(tensor, mean), name
        else:
            assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 3), (3, 3), (3, 2), ("x", 2)])
def test_a_block_without_a_neighbour_is_refused_in_one_line(first: int | str, last: int, tmp_path: Path) -> None:
    """The first and the last block cannot be merged; nothing is written."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    weights = {f"model.layers.{block}.input_layernorm.weight": torch.ones(4) for block in range(4)}
    save_file(weights, folder / "model.safetensors")
    command = [sys.executable, str(ROOT / "examples/merge_llama.py"), str(folder), str(first), str(last), "1", "1", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, len(done.stderr.splitlines()), out.exists()) == (1, 1, False), done.stderr


def test_a_recovery_method_of_ones_own_is_compared() -> None:
    """Each strategy is played under the same trace, and one's own is called for each loss."""
    lines = run("own_recovery.py", "12").splitlines()
    assert [line.split()[0] for line in lines] == ["none", "norm2", "random", "own"]
    assert [line.split(", ")[1] for line in lines] == ["0 recoveries", *["3 recoveries"] * 3]
    assert len({line.split()[1] for line in lines}) == 4, "no two strategies end alike"


def test_state_dicts_are_merged_as_the_swarm_merges() -> None:
    """The weights of both sides are those that the swarm's policy gives, and each of its products
    and sums is rounded once.
    """
    generator = torch.Generator().manual_seed(5)
    before, after = ({f"model.layers.{block}.w": torch.randn(7, generator=generator)} for block in (3, 5))
    merged = swarmfree.merge_stages(before, after, 0.3, 1.7)
    weights = weights_between(RecoverySection(merge="norm2"), 2, (1, 3), (0.3, 1.7))
    expected = before["model.layers.3.w"] * torch.tensor(weights.before, dtype=torch.float32)
    expected += after["model.layers.5.w"] * torch.tensor(weights.after, dtype=torch.float32)
    assert list(merged) == ["model.layers.4.w"]
    assert torch.equal(merged["model.layers.4.w"], expected)


def test_a_view_and_a_name_with_two_numbers_are_merged() -> None:
    """What is not contiguous in memory, and a name in which `layers.N` stands twice."""
    wide = torch.arange(8, dtype=torch.float32)
    before, after = {"model.layers.0.layers.5.w": wide[::2]}, {"model.layers.2.layers.5.w": wide[1::2]}
    merged = swarmfree.merge_stages(before, after, 1.0, 1.0)
    assert list(merged) == ["model.layers.1.layers.5.w"]
    assert torch.equal(merged["model.layers.1.layers.5.w"], torch.tensor([0.5, 2.5, 4.5, 6.5]))


@pytest.mark.parametrize(
    ("after", "norms", "words"),
    [
        ({"model.layers.2.w": torch.ones(3)}, (1.0, 1.0), "model.layers.0.w: (2,) before, (3,) after"),
        ({"model.layers.2.v": torch.ones(2)}, (1.0, 1.0), "the neighbours hold other parameters"),
        ({"model.layers.2.w": torch.ones(2)}, (0.0, 0.0), "squared norms and their sum must be finite"),
        ({}, (1.0, 1.0), "no parameters: 1 before, 0 after"),
        ({"model.layers.2.w": torch.ones(2, dtype=torch.int64)}, (1.0, 1.0), "model.layers.2.w is no floating point"),
        ({"model.layers.2.w": torch.ones(2)}, (-1.0, 2.0), "squared norms and their sum must be finite"),
        ({"model.layers.2.w": torch.ones(2)}, (float("nan"), 2.0), "squared norms and their sum must be finite"),
        ({"model.layers.2.w": torch.ones(2), "model.layers.02.w": torch.ones(2)}, (1.0, 1.0), "two names of a neighbour are one"),
    ],
)
def test_what_cannot_be_merged_is_refused(after: dict[str, torch.Tensor], norms: tuple[float, float], words: str) -> None:
    """Other names, other shapes and norms that weigh nothing end in one line."""
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        swarmfree.merge_stages({"model.layers.0.w": torch.ones(2)}, after, *norms)


def test_the_public_face_costs_nothing_before_it_is_used() -> None:
    """`import swarmfree` loads none of its rooms, names exactly what it gives, and says so where
    something else is asked for.
    """
    code = "import sys, swarmfree; print(sorted(m for m in sys.modules if m.startswith('swarmfree')), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "['swarmfree'] False"
    assert dir(swarmfree) == sorted(swarmfree.__all__)
    assert all(getattr(swarmfree, name) is not None for name in swarmfree.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'train'; it has Manifest, Swarm"):
        _ = swarmfree.train


async def test_a_swarm_that_ends_too_soon_says_so(
    tmp_path: Path, fork_server: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for an iteration of a swarm that is stopped hears how far it came; events end with
    it.
    """
    if fork_server:
        monkeypatch.setattr(local_order, "FORK_SERVER_COMMAND", forked_in(tmp_path, fork_server))
    async with swarmfree.Swarm("stdlib-small", peers=4, standbys=0, folder=tmp_path / "r") as swarm:
        stories = [type(event).__name__ async for event in _until_first_process(swarm)]
        for asked, words in (
            (lambda: swarm.kill(stage=-1), "the run has the stages 0 to 3"),
            (lambda: swarm.kill(stage=4), "the run has the stages 0 to 3"),
            (swarm.kill, "takes a stage or a name"),
            (lambda: swarm.kill(stage=1, name="peer-1"), "takes a stage or a name"),
            (lambda: swarm.kill(name="nobody"), "no process nobody; there are bootstrap"),
            (lambda: swarm.send("nobody", signal.SIGTERM), "no process nobody"),
        ):
            with pytest.raises(SwarmfreeError, match=words):
                asked()
        for name, words in (("foo", "a name such as peer-8"), ("bootstrap", "a name such as peer-8")):
            with pytest.raises(SwarmfreeError, match=words):
                await swarm.join(name)
        with pytest.raises(SwarmfreeError, match="was started already"):
            await swarm.__aenter__()
        assert swarm.kill(stage=2) == (), "nobody serves it yet"
        swarm.stop()
        with pytest.raises(swarmfree.SwarmEnded, match="after 0 iterations: stopped"):
            await swarm.wait(iteration=3)
    with pytest.raises(swarmfree.SwarmEnded, match="peer-9 cannot join"):
        await swarm.join("peer-9")
    assert swarm.kill(name="bootstrap") == (), "it has ended"
    assert stories[-1] == "ProcessStarted"
    assert json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))["iterations"] == 0


async def test_a_swarm_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    """Counts that are none, a text that is not there, changes that are no list; and what is asked
    of a swarm that was not started.
    """
    for changed, words in (
        ({"peers": "5"}, "peers = '5': a whole number of 1 or more"),
        ({"peers": 4.5}, "peers = 4.5: a whole number"),
        ({"standbys": -1}, "standbys = -1: a whole number of 0 or more"),
        ({"threads": 0}, "threads = 0: a whole number of 1 or more"),
        ({"data": "/nothing"}, "/nothing"),
        ({"changes": "run.iterations=5"}, "a list is expected, as in changes="),
    ):
        with pytest.raises(SwarmfreeError, match=words):
            swarmfree.Swarm("stdlib-small", folder=tmp_path / "r", **changed)  # type: ignore[arg-type]
        assert not (tmp_path / "r").exists()
    swarm = swarmfree.Swarm("stdlib-small", folder=tmp_path / "r")
    for asked in (lambda: swarm.kill(stage=2), lambda: swarm.send("peer-1", signal.SIGTERM), swarm.events):
        with pytest.raises(SwarmfreeError, match="was not started"):
            asked()
    for waiting in (swarm.wait(), swarm.join("peer-9")):
        with pytest.raises(SwarmfreeError, match="was not started"):
            await waiting


async def _until_first_process(swarm: swarmfree.Swarm) -> AsyncIterator[ObservedEvent]:
    async for event in swarm.events():
        yield event
        if type(event).__name__ == "ProcessStarted":
            return
