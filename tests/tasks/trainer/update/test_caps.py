"""No user has more than the cap of the settled text's weight, whatever the probabilities do during the update."""

import math
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra.records import Sample
from tasks.trainer.job import Job
from tasks.trainer.update import caps
from tasks.trainer.update.caps import MARGIN, log_powers, needed, some_rows, within_reach
from tasks.trainer.update.losses import settled_loss
from tasks.trainer.update.safety import HarmfulUpdate
from tests.tasks.made import sample

JOB = Job(checkpoint=Path(), samples=Path(), output=Path(), current_version="1", settled_exponent=0.3)


def job(exponent: float = 0.3, beginnings: float = 0.0, **shares: float) -> Job:
    return JOB.model_copy(update={"settled_exponent": exponent, "settled_beginnings": beginnings, "weight_shares": shares})


def row(name: str, user: str, tokens: int, weight: float = 1.0) -> Sample:
    ids = [7] * tokens
    return sample(name, user=user, project=name[-1], token_ids=[], logprobs=[], settled_token_ids=ids, settled_weight=weight)


def settled_ceilings(rows: list[Sample], logprobs: dict[int, list[float]], options: Job) -> dict[int, float]:
    """Return the ceilings where every row's log-probabilities are known."""
    return caps.settled_ceilings(rows, log_powers(rows, logprobs, 1.0, options), options)


def weight_of(rows: list[Sample], logprobs: dict[int, list[float]], ceilings: dict[int, float], options: Job) -> dict[int, float]:
    """Return the factor of each row's tokens in the loss, times their number, by the gradient of the loss."""
    losses = [torch.tensor(logprobs[i], dtype=torch.float64).neg().requires_grad_() for i in logprobs]
    weights = torch.tensor([rows[i].settled_weight for i in logprobs for _ in logprobs[i]], dtype=torch.float64)
    bounds = torch.tensor([ceilings[i] for i in logprobs], dtype=torch.float64)
    settled_loss(torch.cat(losses), weights, [len(part) for part in losses], options, bounds).loss.backward()
    return {i: gradient_of(part).sum().item() for i, part in zip(logprobs, losses, strict=True)}


def gradient_of(part: torch.Tensor) -> torch.Tensor:
    assert part.grad is not None
    return part.grad


def by(rows: list[Sample], weights: dict[int, float], name: str) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for i, weight in weights.items():
        totals[getattr(rows[i], name)] += weight
    return totals


ROWS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 9), st.floats(0.01, 8.0), st.floats(0.1, 1.0), st.floats(-3.0, 3.0)),
    min_size=6,
    max_size=30,
)


BEGINNINGS = st.sampled_from([0.0, 0.5, 1.0])


@given(ROWS, st.sampled_from([0.1, 0.3, 1.0]), BEGINNINGS, st.floats(0.2, 0.7), st.sampled_from([0.4, 0.8, 1.0]))
def test_nobody_exceeds_the_cap_at_the_start_nor_that_cap_later(
    made: list[tuple[str, int, float, float, float]], exponent: float, beginnings: float, of_user: float, of_project: float
) -> None:
    rows = [row(f"c{n % 3}", user, tokens, weight) for n, (user, tokens, _, weight, _) in enumerate(made)]
    start = {n: [-loss] * tokens for n, (_, tokens, loss, _, _) in enumerate(made)}
    options = job(exponent, beginnings, user=of_user, project=of_project)
    try:
        ceilings = settled_ceilings(rows, start, options)
    except HarmfulUpdate:
        # too few users or projects
        return
    weights = weight_of(rows, start, ceilings, options)
    later = {n: [min(logprob + made[n][4], 0.0) for logprob in values] for n, values in start.items()}
    whole = sum(weights.values())
    assert whole > 0
    for name, share in (("user", of_user), ("project", of_project)):
        assert max(by(rows, weights, name).values()) <= share * whole * (1 + 1e-6)
        if share < 1:
            assert max(by(rows, weight_of(rows, later, ceilings, options), name).values()) <= share * whole * (1 + 1e-6)


def test_a_user_with_likely_text_is_scaled_to_the_cap_and_the_others_are_left_alone() -> None:
    # q = 1: sizes 2 * 1/4 for a, b and c, 2 * 1 for d: at a share of 0.4 d has 0.4 * 1.5 / 0.6 = 1, and S = 2.5.
    rows = [row("c", user, 2) for user in "abcd"]
    start = {0: [math.log(0.5)] * 2, 1: [math.log(0.5)] * 2, 2: [math.log(0.5)] * 2, 3: [0.0, 0.0]}
    ceilings = settled_ceilings(rows, start, job(1.0, user=0.4))
    weights = weight_of(rows, start, ceilings, job(1.0))
    assert weights == pytest.approx({0: 0.5, 1: 0.5, 2: 0.5, 3: 1.0})
    assert {i: math.exp(c) for i, c in ceilings.items()} == pytest.approx({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5})


@given(ROWS, st.sampled_from([0.1, 0.3, 1.0]), BEGINNINGS, st.floats(0.2, 0.9))
def test_who_is_out_of_reach_of_a_share_stays_below_it_whatever_their_text_becomes(
    made: list[tuple[str, int, float, float, float]], exponent: float, beginnings: float, share: float
) -> None:
    rows = [row("c", user, tokens, weight) for user, tokens, _, weight, _ in made]
    start = {n: [-loss] * tokens for n, (_, tokens, loss, _, _) in enumerate(made)}
    options, free = job(exponent, beginnings, user=share), dict.fromkeys(start, math.inf)
    reach = {rows[i].user for i in within_reach(rows, start, options)[0]}
    whole = by(rows, weight_of(rows, start, free, options), "user")
    others = sum(weight for user, weight in whole.items() if user not in reach)
    certain = {n: [0.0] * len(values) for n, values in start.items()}
    later = by(rows, weight_of(rows, certain, free, options), "user")
    assert all(weight <= share * others for user, weight in later.items() if user not in reach)


def test_of_a_large_team_only_the_rows_of_who_could_reach_a_share_are_computed() -> None:
    rows = [row("c", f"user-{n % 200}", 4) for n in range(2000)]
    some = some_rows(rows)
    assert len(some) == 512 and some == some_rows(rows)
    known = {i: [-1.0] * 4 for i in some}
    options = job(user=0.2, project=1.0)  # one project may have all: that share limits nobody
    reach, typical = within_reach(rows, known, options)
    assert reach == [] and typical == pytest.approx(MARGIN * math.exp(-1.2))
    heavy = [*rows, *(row("c", "user-0", 400) for _ in range(5))]
    reach, _ = within_reach(heavy, known, options)
    assert {heavy[i].user for i in reach} == {"user-0"} and len(reach) == 15
    assert len(within_reach(rows, known, options.model_copy(update={"settled_max_loss": 3.0}))[0]) == 2000


@pytest.mark.parametrize(
    ("share", "losses"),
    [
        # One of four has half of the tokens, of likelier text than the others'; one of forty-one a fifth.
        (0.5, {"heavy": (1500, 0.02), **{user: (500, 1.0) for user in "bcd"}}),
        (0.2, {"heavy": (600, 0.02), **{f"user-{n}": (60, 1.5) for n in range(40)}}),
        # The sum is far smaller without the heavy one, so that somebody with few rows could reach a share of it.
        (0.2, {"heavy": (100, 0.02), "b": (14, 1.5), **{f"user-{n}": (12, 1.5) for n in range(32)}}),
    ],
)
def test_one_with_much_likely_text_lifts_neither_their_own_ceiling_nor_others_beyond_reach(
    share: float, losses: dict[str, tuple[int, float]]
) -> None:
    rows = [row("c", user, 8) for user, (count, _) in losses.items() for _ in range(count)]
    start = {i: [-losses[one.user][1]] * 8 for i, one in enumerate(rows)}
    options, some = job(0.3, 0.5, user=share, project=1.0), some_rows(rows)
    reach, typical = within_reach(rows, {i: start[i] for i in some}, options)
    known = {i: start[i] for i in {*some, *reach}}
    ceilings = caps.settled_ceilings(rows, log_powers(rows, known, typical, options), options)
    bounds = {i: ceilings[i] if i in set(reach) else math.inf for i in start}
    at_start = by(rows, weight_of(rows, start, bounds, options), "user")
    whole = sum(at_start.values())
    assert max(at_start.values()) <= share * whole * (1 + 1e-6)
    certain = by(rows, weight_of(rows, dict.fromkeys(start, [0.0] * 8), bounds, options), "user")
    assert max(certain.values()) <= share * whole * (1 + 1e-6)


def test_the_ceilings_with_a_typical_weight_of_the_others_hold_the_cap() -> None:
    rows = [*(row("c", f"user-{n % 50}", 4) for n in range(500)), *(row("c", "heavy", 40) for _ in range(50))]
    options, known = job(user=0.2), {i: [-0.5] * 40 for i in range(500, 550)}
    typical = MARGIN * math.exp(0.3 * -4)
    ceilings = caps.settled_ceilings(rows, log_powers(rows, known, typical, options), options)
    start = {i: [-1.0] * 4 for i in range(500)} | known
    certain = {i: [0.0] * len(values) for i, values in start.items()}
    bounded = {i: ceilings[i] if rows[i].user == "heavy" else math.inf for i in start}
    whole = sum(weight_of(rows, start, bounded, options).values())
    assert by(rows, weight_of(rows, certain, bounded, options), "user")["heavy"] <= 0.2 * whole


def test_without_a_limit_or_a_weight_by_probability_nothing_is_computed() -> None:
    assert needed(job(user=0.2)) and needed(job(project=0.5, user=1.0))
    assert not needed(job(user=1.0, credential=1.0)) and not needed(job())
    assert not needed(job(0.0, user=0.2)), "the cycle has capped the tokens"
    assert not needed(job(user=0.2).model_copy(update={"settled_weight": 0.0}))
    assert needed(job(0.0, user=0.2).model_copy(update={"settled_min_loss": 0.1})), "a band leaves rows of some users out"


def test_a_row_outside_the_band_at_the_start_has_no_weight_and_is_no_part_of_the_whole() -> None:
    rows = [row("c", user, 2) for user in "abc"]
    start = {0: [-9.0, -9.0], 1: [-1.0, -1.0], 2: [-1.0, -1.0]}
    banded = job(0.0, user=0.5).model_copy(update={"settled_max_loss": 5.0})
    ceilings = settled_ceilings(rows, start, banded)
    assert ceilings[0] == -math.inf and ceilings[1] == ceilings[2] == pytest.approx(0.0)


def test_too_few_users_are_refused_with_what_to_do() -> None:
    rows = [row("c", "a", 2), row("c", "b", 2)]
    with pytest.raises(
        HarmfulUpdate, match=r"weight_shares = \{'user': 0.3\}: 2 users have a settled text .* at least 1 / share"
    ):
        settled_ceilings(rows, {0: [-1.0, -1.0], 1: [-1.0, -1.0]}, job(user=0.3))


def test_texts_of_no_measurable_probability_do_not_divide_by_zero() -> None:
    rows = [row("c", user, 3) for user in "abc"]
    ceilings = settled_ceilings(rows, {n: [-5_000.0] * 3 for n in range(3)}, job(1.0, user=0.4))
    assert all(math.isfinite(ceiling) for ceiling in ceilings.values())
