"""Weights of a run that still goes on: whole models of one iteration, and nothing else."""

from __future__ import annotations

from pathlib import Path

from swarmfree.lab.kept_weights import AFTER, BEFORE, INDEX, KEPT, drop_kept, keep_as, kept_models, models_beside
from swarmfree.storage.weights import AT, INDEX_NAME


def lay(report: Path, iteration: int, *, is_whole: bool) -> None:
    """What peers write when they are asked."""
    folder = report / KEPT / str(iteration)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model-00001-of-00004.safetensors").touch()
    if is_whole:
        (folder / INDEX).touch()


def test_both_sides_agree_where_weights_are_kept() -> None:
    """What the lab looks for is what the storage writes."""
    assert (INDEX, f"weights{AT}") == (INDEX_NAME, KEPT)


async def test_it_is_asked_again_until_all_stages_are_of_one_iteration(tmp_path: Path) -> None:
    """A stage that has stepped on meanwhile leaves two torn models; the next question finds a whole
    one, and that is taken.
    """
    asked: list[int] = []

    def ask() -> None:
        asked.append(len(asked))
        lay(tmp_path, 10 + len(asked), is_whole=len(asked) == 2)

    assert await keep_as(tmp_path, BEFORE, ask, 5.0) == 12
    assert len(asked) == 2
    assert models_beside(tmp_path) == [(BEFORE, 12, tmp_path / f"{BEFORE}12")]
    assert kept_models(tmp_path) == [], "it was moved"


async def test_weights_of_the_end_have_the_place_of_the_weights(tmp_path: Path) -> None:
    """A run that is interrupted has its model where a finished one has it; old leavings are not
    taken for it.
    """
    lay(tmp_path, 10, is_whole=True)  # of a state that was lost since
    assert await keep_as(tmp_path, "weights", lambda: lay(tmp_path, 9, is_whole=True), 5.0) == 9
    assert (tmp_path / "weights" / INDEX).exists()
    lay(tmp_path, 11, is_whole=True)
    await keep_as(tmp_path, AFTER, lambda: lay(tmp_path, 11, is_whole=True), 5.0)
    drop_kept(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


async def test_who_does_not_answer_is_not_waited_for_long(tmp_path: Path) -> None:
    """Without a whole model within the time there is none, and nobody fails."""
    assert await keep_as(tmp_path, "weights", lambda: lay(tmp_path, 3, is_whole=False), 0.2) is None
    assert not (tmp_path / "weights").exists()
