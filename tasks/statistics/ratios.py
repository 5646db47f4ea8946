"""Comparison of two arms of users with repeated looks: rows of a regression, then tests over them, then typed results.

The unit is the user, since a user's requests are correlated; each user is a row. With assignment by user:

    u           a user; T_u = 1 on the challenger's arm, else 0
    n_u, y_u    requests during the experiment, and the count over them (accepts, accepted characters)
    x_u         the same rate before the experiment, shrunk to the mean: the covariate (CUPED)

The estimate is the difference of y per request between the arms, by least squares of y_u / n_u on (1, T_u, x_u) weighted by n_u:
without the covariate that is sum(y) / sum(n) on each arm, the ratio metric of Deng et al. 2018. Its error is clustered by user,
by the sandwich with jackknifed residuals (MacKinnon and White 1985, "HC3", which for one row a user is the cluster jackknife) and
errs on the wide side. The covariate is older than the assignment, so that it takes variance and adds no bias (Deng et al. 2013,
"Improving the sensitivity of online controlled experiments by utilizing pre-experiment data", section 3; Lin 2013).

The interval may be looked at after every request: an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and
Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", theorem 2.2, eq. 7), whose width is

    sigma * sqrt(2 (t rho^2 + 1) / (t^2 rho^2) * log(sqrt(t rho^2 + 1) / alpha))
        = standard error * sqrt(2 (1 + 1 / (t rho^2)) * log(sqrt(t rho^2 + 1) / alpha))

In a crossover a user meets both arms, and a row is the difference of their two rates, d_u = y_u1 / n_u1 - y_u0 / n_u0. The
estimate is the mean of d_u weighted by n_u0 n_u1 / (n_u0 + n_u1), which is least squares with an intercept for each user. The
common level of a user's rates cancels out in d_u, and the error is that of the d_u over users, whatever the correlation of a
user's requests.

The clock t is the number of requests. The part of the error that lies between users does not shrink with it: it is there from the
start and stays, so repeated looks gain less from it than from the random walk for which the boundary is made. So the width is
right for equal users and too wide for different ones. test_statistics.py measures both.

A test of a planned size spends a small share of its error level on early looks and the rest on one look at its end,
with the interval of a fixed sample (Haybittle 1971; Peto et al. 1976): the two add up to the level, however often one looks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from scipy.special import betaln, ndtr, stdtrit, xlog1py, xlogy

from infra.records import Rate

LEVEL = 0.95
PRIOR_REQUESTS = 20.0
"""Requests that the mean counts for when a user's earlier rate is shrunk to it."""
PRIOR_USERS = 100.0
"""Weight of the planned split in the test of the split, in users: it looks for shares about 0.05 away."""
LEAST_ROWS = 5
MOST_ERRORS = 30.0
"""Standard errors beyond which the tail is too small to be computed: an interval has no bounds there."""


@dataclass(frozen=True, eq=False)
class Regression:
    """A comparison of two arms as weighted least squares. A row is a user; one with weight 0 does not count."""

    design: np.ndarray
    """[U, K], the last column is 1 on the challenger's arm."""
    outcome: np.ndarray
    """[U], the user's rate, or difference of rates."""
    weights: np.ndarray
    """[U], the user's requests."""
    requests: float
    """Requests of all users: the clock of the interval."""
    fewer: float = 0.0
    """Requests of the arm that has fewer; 0: unknown."""

    def without(self, rows: np.ndarray) -> "Regression":
        """Return the comparison without some users; `rows` is a mask [U]."""
        return replace(self, weights=np.where(rows, 0.0, self.weights))


@dataclass(frozen=True)
class Difference:
    """Challenger minus champion, with its interval."""

    estimate: float
    low: float
    high: float
    error: float
    """Standard error, clustered by user."""


@dataclass(frozen=True)
class NoDifference:
    """The arms cannot be compared, which is not the same as no difference."""

    reason: str


def rate(numerators: Sequence[float] | np.ndarray, denominators: Sequence[float] | np.ndarray) -> Rate:
    """A ratio of sums over users with its interval; each user gives a numerator and a denominator.

    Raises:
        ValueError: fewer than two users, or nothing in the denominators.
    """
    value, influence = ratio(np.asarray(numerators, float), np.asarray(denominators, float))
    width = margin(influence)
    return Rate(rate=value, low=value - width, high=value + width, n=round(sum(denominators)))


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float, np.ndarray]:
    """sum(y_u) / sum(n_u) over users u, and the users' influences on it, (y_u - ratio n_u) / sum(n): the delta method for ratios
    under clustering (Deng, Knoblich & Lu 2018, "Applying the Delta Method in Metric Analytics", section 3)."""
    total = denominators.sum()
    if total == 0:
        raise ValueError("no requests were answered; nothing can be compared. `tabloop status` shows whether serving is up")
    value = numerators.sum() / total
    return float(value), (numerators - value * denominators) / total


def margin(influence: np.ndarray) -> float:
    """Half of the interval at LEVEL, by Student's t with users - 1 degrees of freedom."""
    users = len(influence)
    if users < 2:
        raise ValueError(f"an interval needs at least two users, got {users}")
    error = np.sqrt(users / (users - 1) * np.square(influence).sum())
    return float(stdtrit(users - 1, (1 + LEVEL) / 2) * error)


def sample_ratio_p(challenger: float, champion: float, share: float) -> float:
    """p-value of a split of users this far from the share, valid at every look.

    It is the inverse of the Bayes factor of a beta mixture around the share against the share (Lindon and Malek 2022,
    "Anytime-valid inference for multinomial count data").
    """
    prior = PRIOR_USERS * share, PRIOR_USERS * (1 - share)
    mixture = betaln(prior[0] + challenger, prior[1] + champion) - betaln(*prior)
    return float(min(1.0, np.exp(challenger * math.log(share) + champion * math.log(1 - share) - mixture)))


def bernoulli_bounds(count: float, trials: float, alpha: float) -> tuple[float, float]:
    """Return bounds of the chance of an event after `count` of `trials`, valid at every look.

    They hold every chance at which the mixture of all chances by a Beta(1/2, 1/2) is not 1 / alpha times as likely (Robbins 1970,
    "Statistical methods related to the law of the iterated logarithm"; Howard, Ramdas, McAuliffe & Sekhon 2021, "Time-uniform,
    nonparametric, nonasymptotic confidence sequences", proposition 7). If requests are correlated, they are too narrow.
    """
    if trials <= 0:
        return 0.0, 1.0
    mixture = betaln(count + 0.5, trials - count + 0.5) - betaln(0.5, 0.5)

    def outside(chance: float) -> bool:
        return mixture - xlogy(count, chance) - xlog1py(trials - count, -chance) > -math.log(alpha)

    return _edge(outside, 0.0, count / trials), _edge(outside, 1.0, count / trials)


def _edge(outside: Callable[[float], bool], far: float, near: float) -> float:
    """Return the last point outside on the way from `far` to `near`, to 1e-9; `far` if all are inside."""
    if not outside(far):
        return far
    for _ in range(30):
        middle = (far + near) / 2
        far, near = (middle, near) if outside(middle) else (far, middle)
    return far


def difference(rows: Regression, alpha: float, expected_requests: float, *, last_look: bool = False) -> Difference | NoDifference:
    """Return the difference between the arms with its interval.

    expected_requests: number of requests at which the interval is narrowest for its age, about the planned number.
    `last_look`: the interval of a fixed sample, for one look at a time that was set before.
    """
    met = rows.weights > 0
    counted, crossed = int(np.count_nonzero(met)), rows.design.shape[1] == 1
    treated = counted if crossed else int(np.count_nonzero(rows.design[:, -1][met]))
    if counted < LEAST_ROWS or (not crossed and min(treated, counted - treated) < 2):
        return NoDifference(f"{counted} users with requests, {treated} of them on the challenger's arm: too few to compare")
    found = weighted_fit(rows)
    if found is None:
        return NoDifference("the rate does not vary between users: its error cannot be estimated")
    estimate, error = found
    low, high = interval(rows, estimate, error, alpha, expected_requests, last_look)
    if not math.isfinite(low):
        return NoDifference(f"{rows.requests:.0f} requests: too few for an interval of a test of {expected_requests:.0f}")
    return Difference(estimate, low, high, error)


def interval(
    rows: Regression, estimate: float, error: float, alpha: float, expected_requests: float, last_look: bool
) -> tuple[float, float]:
    """Return the interval of an estimate at another level; without bounds after too few requests."""
    freedom = int(np.count_nonzero(rows.weights)) - rows.design.shape[1]
    errors = NormalDist().inv_cdf(1 - alpha / 2) if last_look else boundary(rows.requests, alpha, expected_requests)
    half = error * widen(errors, freedom)
    return estimate - half, estimate + half


def least_users(rows: Regression) -> int:
    """Return the users of the smaller arm; of a crossover, those who met both."""
    met = rows.weights > 0
    if rows.design.shape[1] == 1:
        return int(met.sum())
    treated = rows.design[met, -1] > 0
    return int(min(treated.sum(), (~treated).sum()))


def constant_difference(rows: Regression) -> float | None:
    """Return the difference of two arms in each of which all users have the same rate, which has no error; None for other
    arms."""
    met = rows.weights > 0
    if rows.design.shape[1] == 1:
        arms = [rows.outcome[met]]
    else:
        treated = rows.design[:, -1] > 0
        arms = [rows.outcome[met & ~treated], rows.outcome[met & treated]]
    if any(not rates.size or np.ptp(rates) > 1e-12 for rates in arms):
        return None
    return float(arms[-1][0] - (arms[0][0] if len(arms) > 1 else 0.0))


def deciders(rows: Regression, count: int, sign: int, among: np.ndarray | None = None) -> np.ndarray:
    """Return a mask [U] of the users who move the difference the most, chosen one after another.

    A difference that is sure without them does not depend on them: if this many users are invented, the others decide.

    Args:
        sign: 1: users who move it upwards; -1: downwards.
        among: users to choose from, [U]; None: all.
    """
    chosen = np.zeros(len(rows.outcome), dtype=bool)
    others = np.zeros_like(chosen) if among is None else ~among
    for _ in range(count):
        fitted = leave_one_out(rows.without(chosen))
        if fitted is None:
            break
        chosen[int(np.argmax(np.where(chosen | others, -np.inf, sign * fitted[1])))] = True
    return chosen


def by_user(
    treated: np.ndarray, counted: np.ndarray, requests: np.ndarray, counted_before: np.ndarray, requests_before: np.ndarray
) -> Regression:
    """Return the comparison of users who each met one arm. All arguments [U]; a user without requests does not count."""
    rate = np.divide(counted, requests, out=np.zeros_like(requests), where=requests > 0)
    covariate = earlier_rates(counted_before, requests_before)
    columns = [np.ones_like(rate)]
    if requests.sum() and np.ptp(covariate) > 1e-12:
        columns.append(covariate - np.average(covariate, weights=requests))
    on_challenger, total = float(requests[treated > 0].sum()), float(requests.sum())
    fewer = min(on_challenger, total - on_challenger)
    return Regression(np.column_stack([*columns, treated.astype(float)]), rate, requests, total, fewer)


def within_user(counted: tuple[np.ndarray, np.ndarray], requests: tuple[np.ndarray, np.ndarray]) -> Regression:
    """Return the comparison of users with themselves.

    Args:
        counted: each user's sum on the champion's and on the challenger's arm, [U] each.
        requests: the same of requests.
    """
    both = requests[0] + requests[1]
    weights = requests[0] * requests[1] / np.maximum(both, 1e-300)
    met = weights > 0
    rates = [np.divide(y, n, out=np.zeros_like(n), where=met) for y, n in zip(counted, requests, strict=True)]
    fewer = min(float(n[met].sum()) for n in requests)
    return Regression(np.ones((len(weights), 1)), rates[1] - rates[0], weights, float(both[met].sum()), fewer)


def earlier_rates(counted: np.ndarray, requests: np.ndarray) -> np.ndarray:
    """Return each user's rate before the experiment, shrunk to the mean by PRIOR_REQUESTS; the mean where there is no history."""
    mean = counted.sum() / requests.sum() if requests.sum() else 0.0
    return (counted + PRIOR_REQUESTS * mean) / (requests + PRIOR_REQUESTS)


def weighted_fit(rows: Regression) -> tuple[float, float] | None:
    """Weighted least squares: coefficient of the last column and its HC3 error; None if the error is undetermined."""
    fitted = leave_one_out(rows)
    if fitted is None:
        return None
    error = math.sqrt(float(np.square(fitted[1]).sum()))
    return (fitted[0], error) if error > 1e-9 else None


def leave_one_out(rows: Regression) -> tuple[float, np.ndarray] | None:
    """Weighted least squares: coefficient of the last column, and by how much each row moves it [U]; None if undetermined.

    A row moves it by the coefficient with the row less that without it, whose squares add up to the HC3 variance. A covariate
    that one user alone decides, as where nobody else has a history, is left out.
    """
    if rows.design.shape[1] == 1:
        return _leave_one_out_of_mean(rows.outcome, rows.weights)
    found = _leave_one_out(rows)
    if found is None and rows.design.shape[1] > 2:
        return _leave_one_out(replace(rows, design=rows.design[:, [0, -1]]))
    return found


def _leave_one_out(rows: Regression) -> tuple[float, np.ndarray] | None:
    """Return the result of `leave_one_out` with every column of a design."""
    design, outcome = rows.design, rows.outcome
    weighted = design * rows.weights[:, None]
    normal = design.T @ weighted
    if not np.linalg.det(normal) > 1e-12 * np.prod(np.diag(normal)):
        return None
    inverse = np.linalg.inv(normal)
    coefficients = inverse @ weighted.T @ outcome
    leverage = ((weighted @ inverse) * design).sum(axis=1)
    if leverage.max() > 1 - 1e-9:  # a user who alone decides a coefficient
        return None
    scores = weighted * ((outcome - design @ coefficients) / (1 - leverage))[:, None]
    return float(coefficients[-1]), scores @ inverse[-1]


def _leave_one_out_of_mean(outcome: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray] | None:
    """Return the result of `leave_one_out` for a design of one column of ones: the weighted mean."""
    total = float(weights.sum())
    if not total > 0:
        return None
    leverage = weights / total
    if leverage.max() > 1 - 1e-9:
        return None
    mean = float(leverage @ outcome)
    return mean, leverage * (outcome - mean) / (1 - leverage)


@lru_cache(maxsize=1024)  # cached, since the metrics of a look share it
def boundary(t: float, alpha: float, expected: float) -> float:
    """Half width of the confidence sequence in standard errors, at time t (see the top of this file).

    rho is where the width at t = expected is least, to a good approximation (the paper's appendix on tuning, eq. 79):
    rho^2 = (-2 log(alpha) + log(-2 log(alpha)) + 1) / expected. The width is flat around it: a quarter or four times the
    expected requests cost less than a tenth.
    """
    aim = -2 * math.log(alpha)
    age = t * (aim + math.log(aim) + 1) / expected
    return math.sqrt(2 * (1 + 1 / age) * math.log(math.sqrt(age + 1) / alpha))


@lru_cache(maxsize=1024)
def widen(errors: float, freedom: int) -> float:
    """The multiple of an estimated standard error that leaves the tail that `errors` leaves of a known one (Student's t).

    Infinite above MOST_ERRORS.
    """
    if errors > MOST_ERRORS:
        return math.inf
    return float(-stdtrit(freedom, ndtr(-errors)))
