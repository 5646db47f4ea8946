"""Comparing two arms of users while everybody watches: sufficient statistics, then tests over them, then typed results.

The unit is the user, since assignment is by user and a user's requests share a taste. A user's totals are all that is kept, and
totals of one user from several places add up.

    u           a user; T_u = 1 on the challenger's arm, else 0
    n_u, y_u    requests during the experiment, and what was counted in them (accepts, accepted characters)
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

The clock t is the number of requests. The part of the error that lies between users does not shrink with it: it is there from the
start and stays, which a peeker gains less from than from the random walk that the boundary is made for. So the width is right for
users that are alike and too wide for others. test_statistics.py measures both.

A test of a planned size pays for looking early with a small share of its error level and keeps the rest for one look at its end,
with the interval of a fixed sample (Haybittle 1971; Peto et al. 1976): the two add up to the level, however often one looks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from scipy.stats import t as student

from infra.records import Arm, Rate

LEVEL = 0.95
PRIOR_REQUESTS = 20.0
"""Requests that the mean counts for when a user's earlier rate is shrunk to it."""


@dataclass(frozen=True)
class Totals:
    """A user's requests, and the sum of each metric over these requests."""

    requests: float = 0
    sums: Mapping[str, float] = field(default_factory=dict)
    """By the metric's name; a metric that is missing sums to 0."""

    def __getitem__(self, metric: str) -> float:
        return self.sums.get(metric, 0)

    def __add__(self, other: "Totals") -> "Totals":
        names = self.sums.keys() | other.sums.keys()
        return Totals(self.requests + other.requests, {name: self[name] + other[name] for name in names})

    def scaled(self, factor: float) -> "Totals":
        """Return the totals of a part of the requests, at the same rates."""
        return Totals(self.requests * factor, {name: value * factor for name, value in self.sums.items()})


@dataclass(frozen=True)
class User:
    """One user of an experiment."""

    arm: Arm
    during: Totals
    before: Totals = Totals()
    """Before the experiment began."""


@dataclass(frozen=True)
class Difference:
    """Challenger minus champion, per request, with its always-valid interval."""

    estimate: float
    low: float
    high: float
    error: float
    """Standard error, clustered by user."""


@dataclass(frozen=True)
class NoDifference:
    """There is nothing to compare, which is not the same as no difference."""

    reason: str


def merge(parts: Iterable[Mapping[str, Totals]]) -> dict[str, Totals]:
    """Totals by user from several places."""
    merged: dict[str, Totals] = {}
    for part in parts:
        for user, totals in part.items():
            merged[user] = merged.get(user, Totals()) + totals
    return merged


def rate(numerators: Sequence[float], denominators: Sequence[float]) -> Rate:
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
        raise ValueError("no requests were answered; nothing can be compared. `make status` tells whether serving is up")
    value = numerators.sum() / total
    return float(value), (numerators - value * denominators) / total


def margin(influence: np.ndarray) -> float:
    """Half of the interval at LEVEL, by Student's t with users - 1 degrees of freedom."""
    users = len(influence)
    if users < 2:
        raise ValueError(f"an interval needs at least two users, got {users}")
    error = np.sqrt(users / (users - 1) * np.square(influence).sum())
    return float(student.ppf((1 + LEVEL) / 2, users - 1) * error)


def sample_ratio_p(challenger: int, champion: int, share: float) -> float:
    """p-value of a split of users at least this far from the share: Pearson's chi-square with one degree of freedom."""
    expected = share * (challenger + champion)
    other = (1 - share) * (challenger + champion)
    if not expected or not other:
        return 0.0 if challenger + champion else 1.0
    statistic = (challenger - expected) ** 2 / expected + (champion - other) ** 2 / other
    return math.erfc(math.sqrt(statistic / 2))


def difference(
    users: Sequence[User], metric: str, alpha: float, expected_requests: float, *, last_look: bool = False
) -> Difference | NoDifference:
    """Return the difference of a metric per request between the arms.

    expected_requests is when the interval is narrowest for its age: about as many requests as the experiment is planned for.
    `last_look`: the interval of a fixed sample, for one look at a time that was set before.
    """
    users = [user for user in users if user.during.requests]
    treated = sum(user.arm == "challenger" for user in users)
    if len(users) < 5 or min(treated, len(users) - treated) < 2:
        return NoDifference(f"{len(users)} users with requests, {treated} of them on the challenger's arm: too few to compare")
    design, rate, requests = regression(users, metric)
    found = weighted_fit(design, rate, requests)
    if found is None:
        return NoDifference(f"{metric} per request does not vary between users: its error cannot be told")
    estimate, error = found
    freedom = design.shape[0] - design.shape[1]
    errors = NormalDist().inv_cdf(1 - alpha / 2) if last_look else boundary(float(requests.sum()), alpha, expected_requests)
    half = error * widen(errors, freedom)
    return Difference(estimate, estimate - half, estimate + half, error)


def without_deciders(users: Sequence[User], metric: str, count: int, sign: int) -> list[User]:
    """Return the users without so many who move the difference the most, one after another.

    A difference that is sure without them is sure whatever they did: if so many users are made up, the others decide.

    Args:
        sign: 1: who move it towards the challenger; -1: towards the champion.
    """
    remaining = [user for user in users if user.during.requests]
    for _ in range(count):
        design, rate, requests = regression(remaining, metric)
        fitted = leave_one_out(design, rate, requests)
        if fitted is None:
            break
        remaining.pop(int(np.argmax(sign * fitted[1])))
    return remaining


def regression(users: Sequence[User], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the design [U, K], the rates [U] and the weights [U] of the comparison; every user has requests."""
    treated = np.array([user.arm == "challenger" for user in users], dtype=float)
    requests = np.array([user.during.requests for user in users], dtype=float)
    rate = np.array([user.during[metric] for user in users]) / requests
    covariate = earlier_rates([user.before for user in users], metric)
    columns = [np.ones_like(rate), treated]
    if len(users) and np.ptp(covariate) > 1e-12:
        columns.append(covariate - np.average(covariate, weights=requests))
    return np.column_stack(columns), rate, requests


def earlier_rates(before: Sequence[Totals], metric: str) -> np.ndarray:
    """Each user's rate before the experiment, shrunk to the mean by PRIOR_REQUESTS; the mean where there is no history."""
    requests = np.array([totals.requests for totals in before], dtype=float)
    counted = np.array([totals[metric] for totals in before], dtype=float)
    mean = counted.sum() / requests.sum() if requests.sum() else 0.0
    return (counted + PRIOR_REQUESTS * mean) / (requests + PRIOR_REQUESTS)


def weighted_fit(design: np.ndarray, outcome: np.ndarray, weights: np.ndarray) -> tuple[float, float] | None:
    """Weighted least squares: coefficient of the second column and its HC3 error; none where there is no error to tell.

    design [U, K], outcome [U], weights [U].
    """
    fitted = leave_one_out(design, outcome, weights)
    if fitted is None:
        return None
    error = math.sqrt(float(np.square(fitted[1]).sum()))
    return (fitted[0], error) if error > 1e-12 else None


def leave_one_out(design: np.ndarray, outcome: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray] | None:
    """Weighted least squares: coefficient of the second column, and by how much each row moves it; none if undetermined.

    A row moves it by the coefficient with the row less that without it, whose squares add up to the HC3 variance.

    design [U, K], outcome [U], weights [U].
    """
    weighted = design * weights[:, None]
    normal = design.T @ weighted
    if np.linalg.matrix_rank(normal) < normal.shape[0]:
        return None
    inverse = np.linalg.inv(normal)
    coefficients = inverse @ weighted.T @ outcome
    leverage = np.einsum("uk,kl,ul->u", weighted, inverse, design)
    if np.any(leverage > 1 - 1e-9):  # a user who alone decides a coefficient
        return None
    scores = weighted * ((outcome - design @ coefficients) / (1 - leverage))[:, None]
    return float(coefficients[1]), scores @ inverse[1]


def boundary(t: float, alpha: float, expected: float) -> float:
    """Half width of the confidence sequence in standard errors, at time t (see the top of this file).

    rho is where the width at t = expected is least, to a good approximation (the paper's appendix on tuning, eq. 79):
    rho^2 = (-2 log(alpha) + log(-2 log(alpha)) + 1) / expected. The width is flat around it: a quarter or four times the
    expected requests cost less than a tenth.
    """
    aim = -2 * math.log(alpha)
    age = t * (aim + math.log(aim) + 1) / expected
    return math.sqrt(2 * (1 + 1 / age) * math.log(math.sqrt(age + 1) / alpha))


def widen(errors: float, freedom: int) -> float:
    """The multiple of an estimated standard error that leaves the tail that `errors` leaves of a known one (Student's t)."""
    from scipy import stats

    return float(stats.t.isf(stats.norm.sf(errors), freedom))


def power(effect: float, error: float, errors: float) -> float:
    """Chance that an estimate with this standard error lies above zero by `errors` of it, for planning."""
    return 0.5 * math.erfc((errors - effect / error) / math.sqrt(2))
