"""Gradient sums: disjoint, ordered, exact, and refused when a backward pass failed in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from swarmfree.model.layout import Layout, Part, Slot
from swarmfree.model.sums import GradientSums

LAYOUT = Layout(1, (Slot("a", (2,), 0), Slot("b", (1, 3), 16)), (Part(0, 0, 32),), 32)


@pytest.fixture
def parameters() -> list[torch.nn.Parameter]:
    """Two parameters of the layout's shapes."""
    return [torch.nn.Parameter(torch.ones(slot.shape)) for slot in LAYOUT.slots]


@pytest.fixture
def sums(parameters: list[torch.nn.Parameter]) -> GradientSums:
    """No partial sum yet."""
    return GradientSums(LAYOUT, parameters)


@pytest.fixture
def add(sums: GradientSums, parameters: list[torch.nn.Parameter]) -> Callable[[int, float], None]:
    """Run a backward pass whose gradient is `value` in every float, into an partial sum."""

    def run(partial_sum: int, value: float) -> None:
        total: Tensor = sum((p * value).sum() for p in parameters)  # type: ignore[assignment]
        with sums.adding_to(partial_sum):
            torch.autograd.backward(total)

    return run


def test_gradients_land_at_their_parameters_place(sums: GradientSums, add: Callable[[int, float], None]) -> None:
    """Each parameter's gradient is added in its slot, and the gaps stay zero."""
    add(0, 2.0)
    add(0, 3.0)
    expected = torch.zeros(32)
    expected[0:2] = expected[16:19] = 5.0
    assert torch.equal(sums.read([0], 0, 32), expected)
    assert torch.equal(sums.read([0], 16, 18), torch.tensor([5.0, 5.0]))


def test_partial_sums_do_not_mix(sums: GradientSums, add: Callable[[int, float], None]) -> None:
    """Work that alternates between two partial sums is summed in each alone."""
    add(0, 1.0)
    add(7, 10.0)
    add(0, 2.0)
    add(7, 20.0)
    assert sums.read([0], 0, 1).item() == 3.0
    assert sums.read([7], 0, 1).item() == 30.0
    assert sums.read([0, 7], 0, 1).item() == 33.0
    assert sums.read([0], 0, 1).item() == 3.0, "reading several must not add into the first"


def test_partial_sums_are_added_in_the_order_given(sums: GradientSums, add: Callable[[int, float], None]) -> None:
    """Float32 sums depend on order, and the order is the caller's."""
    for partial_sum, value in enumerate((1e8, 1.0, -1e8)):
        add(partial_sum, value)
    assert sums.read([0, 1, 2], 0, 1).item() == 0.0
    assert sums.read([0, 2, 1], 0, 1).item() == 1.0


def test_the_first_gradient_keeps_its_bits(sums: GradientSums, add: Callable[[int, float], None]) -> None:
    """A gradient of minus zero is still minus zero in a sum of one."""
    add(0, -0.0)
    assert torch.signbit(sums.read([0], 0, 2)).all()


def test_a_failed_backward_pass_voids_the_partial_sum(sums: GradientSums, add: Callable[[int, float], None]) -> None:
    """After an exception in the middle, the partial sum can neither be added to nor read until it
    is forgotten; others can.
    """
    add(0, 1.0)
    add(1, 1.0)
    with pytest.raises(ZeroDivisionError), sums.adding_to(0):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="partial sum 0 holds half a gradient"):
        add(0, 1.0)
    with pytest.raises(RuntimeError, match="partial sum 0"):
        sums.read([1, 0], 0, 1)
    add(1, 1.0)
    assert sums.read([1], 0, 1).item() == 2.0
    sums.forget(0)
    add(0, 4.0)
    assert sums.read([0], 0, 1).item() == 4.0


def test_forgotten_sums_leave_nothing_behind(
    sums: GradientSums, add: Callable[[int, float], None], parameters: list[torch.nn.Parameter]
) -> None:
    """After `clear` the next partial sum of the same number starts from nothing, and parameters
    point at no old sum.
    """
    add(0, 1.0)
    add(1, 5.0)
    sums.clear()
    assert all(p.grad is None for p in parameters)
    with pytest.raises(KeyError, match="partial sum 0"):
        sums.read([0], 0, 1)
    add(0, 2.0)
    assert sums.read([0], 0, 1).item() == 2.0
    sums.forget(99)


def test_no_partial_sum_is_a_sum_of_zeros(sums: GradientSums) -> None:
    """A member without an partial sum contributes zeros."""
    assert sums.read([], 3, 5).tolist() == [0.0, 0.0]
