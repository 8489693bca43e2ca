"""Step functions: their values by hand, their derivatives, and which of them bound the Heaviside step."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.ranking import Sigmoid, Step, SupStep, heaviside
from tests import reference
from tests.ranking.random_rankings import PLENTY

PAPER = SupStep()
SOP = SupStep(value_at_delta=1.44)
INATURALIST = SupStep(jump=0.0, value_at_delta=1.0)
SMOOTH_STEPS = [
    Sigmoid(),
    Sigmoid(0.3),
    PAPER,
    SOP,
    INATURALIST,
    SupStep(tau=0.2, rho=3.0, delta=0.0, jump=0.7),
    SupStep.saturating(0.05, 0.1),
]


def at(step: Step, t: float) -> float:
    return step(torch.tensor([t], dtype=torch.float64)).item()


def test_heaviside_counts_a_tie_as_an_error():
    assert heaviside(torch.tensor([-0.1, -0.0, 0.0, 1e-30, 2.0])).tolist() == [0, 1, 1, 1, 1]


def test_sigmoid_is_one_half_at_a_tie_and_so_below_heaviside():
    assert at(Sigmoid(), 0.0) == 0.5
    assert at(Sigmoid(0.5), 0.5) == pytest.approx(0.7310585786)  # σ(1)


@pytest.mark.parametrize(
    ("gap", "value"),
    [
        (-0.05, 0.0066928509),  # σ(−5)
        (-0.01, 0.2689414214),  # σ(−1): a correct order still pays inside the margin
        (0.0, 1.0),  # σ(0) + ½: a tie is one whole error
        (0.01, 1.2310585786),  # σ(1) + ½
        (0.05, 1.4933071491),  # σ(5) + ½
        (0.06, 2.4933071491),  # + 100 · 0.01
        (1.05, 101.4933071491),  # + 100 · 1
    ],
)
def test_the_papers_step_has_the_values_of_its_equation(gap, value):
    assert at(PAPER, gap) == pytest.approx(value, rel=1e-7)


def test_the_sop_step_drops_at_delta_but_stays_above_one():
    assert at(SOP, 0.05) == pytest.approx(1.4933071491)
    assert at(SOP, 0.05 + 1e-9) == pytest.approx(1.44, abs=1e-6)


def test_the_inaturalist_step_is_below_one_between_zero_and_delta():
    assert [at(INATURALIST, t) for t in (0.0, 0.05)] == pytest.approx([0.5, 0.9933071491])
    assert at(INATURALIST, 0.05 + 1e-9) == pytest.approx(1.0, abs=1e-6)


def test_the_papers_delta_is_where_the_sigmoid_comes_within_a_hundredth_of_one():
    step = SupStep.saturating(tau=0.01, epsilon=1e-2)
    assert step.delta == pytest.approx(0.04595, abs=1e-5)
    assert round(step.delta, 2) == PAPER.delta == 0.05
    assert 1 - reference.sigmoid(step.delta / step.tau) == pytest.approx(0.01)
    assert step == SupStep(delta=step.delta)


def test_a_half_epsilon_leaves_no_sigmoid_above_zero():
    step = SupStep.saturating(tau=0.2, epsilon=0.5, rho=2.0, jump=0.6)
    assert (step.delta, step.rho, step.jump, step.height) == (0.0, 2.0, 0.6, 1.1)


@PLENTY
@given(
    gap=st.floats(-2, 2),
    tau=st.floats(1e-3, 2),
    rho=st.floats(0, 200),
    delta=st.floats(0, 1),
    jump=st.floats(0, 2),
    value_at_delta=st.none() | st.floats(0, 2),
)
def test_the_smooth_steps_equal_the_reference(gap, tau, rho, delta, jump, value_at_delta):
    step = SupStep(tau, rho, delta, jump, value_at_delta)
    assert at(step, gap) == pytest.approx(reference.h_minus(tau, rho, delta, jump, value_at_delta)(gap), rel=1e-12, abs=1e-300)
    assert at(Sigmoid(tau), gap) == pytest.approx(reference.smooth(tau)(gap), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("step", "bounds"),
    [
        (PAPER, True),
        (SOP, True),
        (INATURALIST, False),
        (SupStep.saturating(0.05, 0.2), True),
        (SupStep(rho=0.0), True),
        (SupStep(delta=0.0), True),
        (SupStep(jump=0.499), False),
        (SupStep(jump=2.0, value_at_delta=0.999), False),
        (SupStep(jump=0.0, delta=10.0), False),
        (SupStep(jump=0.5, value_at_delta=1.0), True),
    ],
    ids=str,
)
def test_which_steps_bound_heaviside(step, bounds):
    assert step.bounds_heaviside is bounds


@PLENTY
@given(
    tau=st.sampled_from([0.01, 0.1, 1.0]),
    rho=st.sampled_from([0.0, 1.0, 100.0]),
    delta=st.sampled_from([0.0, 0.05, 0.5]),
    jump=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    value_at_delta=st.sampled_from([None, 0.0, 0.9, 1.0, 1.44]),
)
def test_the_bound_property_agrees_with_a_dense_grid(tau, rho, delta, jump, value_at_delta):
    step = SupStep(tau, rho, delta, jump, value_at_delta)
    corners = torch.tensor([0.0, delta, delta + 1e-12], dtype=torch.float64)
    grid = torch.cat([torch.linspace(-1, 1, 2001, dtype=torch.float64), corners])
    above = step(grid) - heaviside(grid)
    assert step.bounds_heaviside == bool((above >= -1e-12).all())


@pytest.mark.parametrize("step", SMOOTH_STEPS, ids=str)
def test_the_derivative_is_what_autograd_finds(step):
    corners = torch.tensor([0.0, 0.05, getattr(step, "delta", 0.3)], dtype=torch.float64)
    gap = torch.cat([torch.linspace(-0.7, 0.7, 57, dtype=torch.float64), corners])
    gap.requires_grad_()
    (expected,) = torch.autograd.grad(step(gap).sum(), gap)
    torch.testing.assert_close(step.derivative(gap.detach()), expected, rtol=1e-9, atol=1e-12)
    assert not step.flat


def test_the_derivative_at_delta_is_that_of_the_sigmoid_and_above_it_rho():
    slopes = PAPER.derivative(torch.tensor([0.0, 0.05, 0.0500001, 1.0], dtype=torch.float64))
    assert slopes.tolist() == pytest.approx([25.0, 0.6648056670, 100.0, 100.0])  # 1/(4τ), σ'(5)/τ, ρ, ρ


def test_without_a_slope_the_step_ends_in_a_flat_line_even_at_infinity():
    gap = torch.tensor([0.1, torch.inf], requires_grad=True)
    value = SupStep(rho=0.0)(gap)
    assert value.tolist() == pytest.approx([SupStep().height] * 2)
    value.sum().backward()
    assert gap.grad is not None
    assert gap.grad.tolist() == [0, 0]


def test_heaviside_is_flat():
    assert heaviside.flat
    assert heaviside.derivative(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("step", SMOOTH_STEPS, ids=str)
def test_far_gaps_neither_overflow_nor_lose_their_slope(step):
    gap = torch.tensor([-1e4, 1e4], dtype=torch.float32, requires_grad=True)
    value = step(gap)
    value.sum().backward()
    assert value.isfinite().all()
    assert gap.grad is not None
    assert torch.equal(gap.grad, step.derivative(gap.detach()))
    assert gap.grad.tolist() == [0.0, getattr(step, "rho", 0.0)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("step", [heaviside, *SMOOTH_STEPS], ids=str)
def test_a_step_keeps_the_dtype_of_its_gap(step, dtype):
    gap = torch.tensor([-0.1, 0.0, 0.02, 0.3], dtype=dtype)
    assert step(gap).dtype == dtype
    assert step.derivative(gap).dtype == dtype


def test_a_jump_that_float32_cannot_hold_is_exact_in_float64():
    assert at(SupStep(jump=0.3), 0.0) == pytest.approx(0.8, rel=1e-15)


@pytest.mark.parametrize("shape", [(), (0,), (3, 1, 2)], ids=str)
def test_a_step_keeps_the_shape_of_its_gap(shape):
    for step in (heaviside, Sigmoid(), PAPER):
        assert step(torch.zeros(shape)).shape == step.derivative(torch.zeros(shape)).shape == shape


@pytest.mark.parametrize(
    ("make", "fragments"),
    [
        (lambda: Sigmoid(0.0), ["tau=0.0", "above 0", "0.01"]),
        (lambda: Sigmoid(-1.0), ["tau=-1.0", "above 0"]),
        (lambda: Sigmoid(math.nan), ["tau=nan", "finite"]),
        (lambda: SupStep(tau=math.inf), ["tau=inf", "finite"]),
        (lambda: SupStep(rho=-3.0), ["rho=-3.0", "0 or more", "rho=100"]),
        (lambda: SupStep(delta=-0.1), ["delta=-0.1", "0 or more", "delta=0.05"]),
        (lambda: SupStep(jump=math.nan), ["jump=nan", "finite"]),
        (lambda: SupStep(value_at_delta=-0.5), ["value_at_delta=-0.5", "0 or more"]),
        (lambda: SupStep.saturating(0.01, 0.0), ["epsilon=0.0", "above 0", "try 0.01"]),
        (lambda: SupStep.saturating(0.01, 0.6), ["epsilon=0.6", "at most 0.5", "negative"]),
        (lambda: SupStep.saturating(0.01, math.nan), ["epsilon=nan"]),
        (lambda: SupStep.saturating(-0.01, 0.1), ["tau=-0.01"]),
    ],
)
def test_a_bad_parameter_is_refused_by_name_and_value(make, fragments):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the fragments are the match)
        make()
    assert all(fragment in str(error.value) for fragment in fragments), str(error.value)
