"""The gains that a team's tests can detect, and the plan of its next test: `tabloop plan`.

From recent traffic, by each design and for tests of a day, a week and four weeks: the smallest gain of acceptance that is
promoted with a chance of 80 %, the chance to promote gains of 5, 10 and 20 %, and the chance to ship an equal version in the mode
without inferiority. No version is compared: the traffic is divided at random many times, as a test of equal versions would, and
the gate's own comparison gives the errors of all metrics with their correlations:

    within      random variation of a user's requests: falls with time as 1 / sqrt(t)
    between     variation between users beyond their history: stays, in a test by user; absent in a crossover

The chance to promote is that of the whole rule (rules.py): a sure gain, and every metric within its margin, for estimates drawn
from that joint normal distribution. What a setting leaves open, 0 or "auto", is chosen here when a test opens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.special import bdtr  # scipy.stats' binom.cdf gives the same, and takes a second to import

from infra.pages.experiment_view import duration
from infra.pages.figures import sampled, title
from infra.records import Plan, PlannedMetric
from infra.records.experiments import Design
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from infra.storage.store import ObjectStore
from tasks.experiments.counting.totals import least_credentials
from tasks.experiments.counting.traffic import DAY, MAX_DAYS, Traffic, divide, longest_days, recent
from tasks.experiments.planning.plan import make_plan, unplanned
from tasks.experiments.verdict.decide import NOVELTY_ALPHA, Look, tolerated_users, weights_of
from tasks.experiments.verdict.designs import compare
from tasks.labels import users
from tasks.labels.pipeline import JoinAll
from tasks.statistics.multiple import joint_levels
from tasks.statistics.ratios import deciders, leave_one_out, widen

DURATIONS = {"a day": 1.0, "a week": 7.0, "four weeks": 28.0}
"""Durations of the tests that are shown, in days."""
GAINS = (0.05, 0.1, 0.2)
CHANCE = 0.8
DIVISIONS = 20
"""Random divisions from which errors are estimated."""
DRAWS = 2000
"""Draws of the estimates from which a chance is counted."""
FAST_DAYS = 2
"""Longest test that is chosen in the mode non_inferiority."""
HOPELESS = 0.5
"""Smallest gain, as a share, beyond which no test is worth its time."""
HARMLESS = 0.001
"""Largest gain, as a share, of a version that counts as equal."""
SURE_USERS = 0.95
"""Least chance that a test by user has enough users on both arms."""
SIMPLER = 1.25
"""A test by user is preferred while its smallest gain is at most this many times a crossover's."""
MARGIN_ERRORS = 4.5
"""Standard errors of a margin that an equal version keeps in all but 1 of 150 tests."""
FAST_ERRORS = 3.8
"""The same in the mode without inferiority, which decides by the margins: all but 1 of 30 tests, for each metric."""
MOST_MARGIN = 0.5
"""Widest margin that is chosen in the mode without inferiority, as a share of a metric of which all can be lost, such as accepts:
wider ones prove nothing."""
SLACK = 1.5
"""Requests of a plan over the expected ones, so that the clock ends the test after whole days."""


@dataclass(frozen=True, eq=False)
class Errors:
    """Random errors of the estimates of a test of equal versions. A covariance is [M, M] over the plan's metrics."""

    within: np.ndarray
    """Covariance within users, over the days of the traffic."""
    between: np.ndarray
    """Covariance between users; zero in a crossover."""
    shift: np.ndarray
    """Standard errors by which the possibly invented users who favour a difference most can move it, [M]."""
    days: float
    """Days of the traffic."""

    def covariance(self, days: float) -> np.ndarray:
        """Return the covariance in a test of so many days."""
        return self.between + self.within * self.days / days


@dataclass(frozen=True)
class Prospect:
    """The gains that a test by one design detects."""

    design: Design
    users: int
    obstacle: str
    """Why such a test cannot end with a verdict; empty if it can."""
    smallest: dict[str, float]
    """By duration, the gain promoted with a chance of 80 %, as a share of the acceptance."""
    chances: dict[str, dict[float, float]]
    """By duration, the chance to promote each of GAINS."""
    harmless: dict[str, float]
    """By duration, the chance to ship an equal version in the mode without inferiority, with margins of its size."""


@dataclass(frozen=True)
class Proposal:
    """The settings of the next test, all resolved."""

    settings: Experiment
    reason: str
    """The choices and the gains that the test detects, as sentences."""


def errors_of(traffic: Traffic, plan: Plan, design: Design) -> Errors:
    """Return the errors of every metric of a plan by a design."""
    traffic = traffic.counted(design)
    draw, size = np.random.default_rng(0), len(plan.metrics)
    within, shift = _errors(traffic, plan, "crossover", draw)
    if design == "crossover":
        return Errors(within, np.zeros((size, size)), shift, traffic.days)
    apart, shift = _errors(traffic, plan, "by_user", draw)
    # The second half of the traffic has half of its time, so the variance within users is twice as large there.
    found, vectors = np.linalg.eigh(apart - 2 * within)
    return Errors(within, (vectors * np.maximum(found, 0)) @ vectors.T, shift, traffic.days)


def _errors(traffic: Traffic, plan: Plan, design: Design, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    divided = plan.model_copy(update={"design": design})
    covariance, shift = np.zeros((len(plan.metrics),) * 2), np.zeros(len(plan.metrics))
    for _ in range(DIVISIONS):
        totals = divide(traffic, design, draw)
        rows = [compare(totals, metric, divided) for metric in plan.metrics]
        fits = [leave_one_out(each) for each in rows]
        moved = np.stack([np.zeros(traffic.users) if fit is None else fit[1] for fit in fits]) * _signs(plan.metrics)[:, None]
        covariance += moved @ moved.T / DIVISIONS
        if count := tolerated_users(totals, divided):
            for number, metric in enumerate(plan.metrics):
                if metric.role == "success" and moved[number].any():
                    chosen = deciders(rows[number], count, int(_signs([metric])[0]), totals.named)
                    shift[number] += moved[number][chosen].sum() / np.linalg.norm(moved[number]) / DIVISIONS
    return covariance, shift


def _signs(metrics: Sequence[PlannedMetric]) -> np.ndarray:
    return np.array([1.0 if metric.better == "more" else -1.0 for metric in metrics])


def planned_margins(traffic: Traffic, plan: Plan) -> np.ndarray:
    """Return the plan's margin of every metric in its unit, [M]."""
    bases = [traffic.mean(metric.name, metric.per) if metric.relative else 1.0 for metric in plan.metrics]
    return np.array([metric.margin for metric in plan.metrics]) * bases


def shown_margins(plan: Plan, covariance: np.ndarray) -> np.ndarray:
    """Return the margins that a test with these errors can show, in the unit of each metric, [M]."""
    return (FAST_ERRORS if plan.mode == "non_inferiority" else MARGIN_ERRORS) * np.sqrt(np.diag(covariance))


def widened_margins(traffic: Traffic, plan: Plan, covariance: np.ndarray) -> np.ndarray:
    """Return the plan's margins, at least as wide as a test with these errors can show, [M].

    The mode without inferiority decides by them alone: there they are widened up to MOST_MARGIN.
    """
    shown = shown_margins(plan, covariance)
    if plan.mode == "non_inferiority":
        whole = [traffic.mean(one.name, one.per) if one.relative and one.better == "more" else math.inf for one in plan.metrics]
        shown = np.minimum(shown, MOST_MARGIN * np.array(whole))
    return np.maximum(planned_margins(traffic, plan), shown)


def shown_accepts(traffic: Traffic, plan: Plan, covariance: np.ndarray) -> float:
    """Return the loss of accepts, as a share, below which a test with these errors can show that an equal version stays."""
    accepted = [metric.name for metric in plan.metrics].index("accepted")
    return float(shown_margins(plan, covariance)[accepted] / max(traffic.mean("accepted", "shown"), 1e-9))


def chance(traffic: Traffic, plan: Plan, errors: Errors, days: float, gain: float, margins: np.ndarray) -> float:
    """Return the chance that a test of so many days promotes a version whose completions are accepted more often by a share.

    By chance alone a lasting gain looks as if it fades in a part of the tests, which then do not promote it.
    """
    covariance, look = errors.covariance(days), Look(plan, last=True)
    scale, effect = np.sqrt(np.diag(covariance)), _effects(traffic, plan, gain)
    factor = np.linalg.cholesky(covariance + np.diag(1e-9 * scale**2 + 1e-18))
    drawn = np.random.default_rng(0).standard_normal((DRAWS, len(scale))) @ factor.T + effect - errors.shift * scale
    normal, freedom = NormalDist(), max(traffic.users - 2, 1)
    success = np.array([metric.role == "success" for metric in plan.metrics])
    same = np.array([metric.better == "same" for metric in plan.metrics])
    worst = np.where(same, -np.abs(drawn), drawn) - widen(normal.inv_cdf(1 - look.alpha / 2), freedom) * scale
    passed = (worst > -margins).all(axis=1)
    if plan.mode == "superiority":
        weights = weights_of([metric for metric in plan.metrics if metric.role == "success"])
        levels = joint_levels(factor[success], look.alpha, weights)
        critical = np.array([widen(normal.inv_cdf(1 - level / 2), freedom) for level in levels])
        passed &= (drawn[:, success] > critical * scale[success]).any(axis=1)
        return float(passed.mean()) * (1 - NOVELTY_ALPHA / 2)
    return float(passed.mean())


def _effects(traffic: Traffic, plan: Plan, gain: float) -> np.ndarray:
    """Return the gain of each metric if this share more completions are accepted; an accepted completion does not annoy."""
    accepted = gain * traffic.mean("accepted", "shown")
    of_metric = {"accepted": accepted, "annoyed": accepted, "characters": gain * traffic.mean("characters", "shown")}
    return np.array([of_metric.get(metric.name, 0.0) for metric in plan.metrics])


def smallest(traffic: Traffic, plan: Plan, errors: Errors, days: float, margins: np.ndarray) -> float:
    """Return the smallest gain that is promoted with CHANCE in a test of so many days, as a share; infinity above 2."""
    low, high = 0.0, 2.0
    if chance(traffic, plan, errors, days, high, margins) < CHANCE:
        return math.inf
    for _ in range(12):
        middle = (low + high) / 2
        found = chance(traffic, plan, errors, days, middle, margins) >= CHANCE
        low, high = (low, middle) if found else (middle, high)
    return high


def obstacle_of(users: int, plan: Plan, design: Design) -> str:
    """Return why a test of so many users cannot end with a verdict; empty if it can.

    Each user has a credential at least (Traffic.counted).
    """
    least = max(plan.min_users, least_credentials(plan))
    setting = f"experiment.{'min_users' if least == plan.min_users else 'max_credential_weight'}"
    if users < least * (1 if design == "crossover" else 2):
        return f"{users} users with a history, {setting} asks for {least}{'' if design == 'crossover' else ' an arm'}"
    enough = float(bdtr(users - least, users, 0.5) - bdtr(least - 1, users, 0.5))
    if design == "by_user" and enough < SURE_USERS:
        return f"{users} users come to {least} on each arm ({setting}) in {enough:.0%} of the tests only"
    return ""


def prospects(traffic: Traffic, plan: Plan) -> tuple[Prospect, Prospect]:
    """Return the prospects of a test by user and of a crossover for this team."""
    return _prospect(traffic, plan, "by_user"), _prospect(traffic, plan, "crossover")


def _prospect(traffic: Traffic, plan: Plan, design: Design) -> Prospect:
    traffic = traffic.counted(design)
    if obstacle := obstacle_of(traffic.users, plan, design):
        return Prospect(design, traffic.users, obstacle, {}, {}, {})
    errors = errors_of(traffic, plan, design)
    gain, fast = (plan.model_copy(update={"mode": mode}) for mode in ("superiority", "non_inferiority"))
    found: dict[str, float] = {}
    chances: dict[str, dict[float, float]] = {}
    harmless: dict[str, float] = {}
    for name, days in DURATIONS.items():
        covariance = errors.covariance(days)
        margins = widened_margins(traffic, gain, covariance)
        found[name] = smallest(traffic, gain, errors, days, margins)
        chances[name] = {share: chance(traffic, gain, errors, days, share, margins) for share in GAINS}
        harmless[name] = chance(traffic, fast, errors, days, 0, widened_margins(traffic, fast, covariance))
    return Prospect(design, traffic.users, "", found, chances, harmless)


def propose(traffic: Traffic, settings: Experiment, collect: Collect) -> Proposal:
    """Return the settings of the next test, with open ones chosen from the traffic."""
    plan = make_plan(settings, collect)
    counted, errors, lacks = possible_designs(traffic, settings, plan)
    if not errors:
        reason = f"nothing to plan from: {'; '.join(lacks)}. Let more developers take part (serving.terms.experiments)"
        return Proposal(unplanned(settings), reason)
    # Without inferiority the margins decide: time is better than wider ones, where there is enough of it.
    fast, lengths = plan.mode == "non_inferiority", possible_days(settings)
    for days in lengths:
        gains = {}
        for design, each in errors.items():
            widest = not fast or days == lengths[-1]
            of, covariance = counted[design], each.covariance(days)
            margins = widened_margins(of, plan, covariance) if widest else planned_margins(of, plan)
            gains[design] = smallest(of, plan, each, days, margins)
        best = min(gains, key=lambda design: gains[design])
        if "by_user" in gains and gains["by_user"] <= SIMPLER * gains[best]:
            best = "by_user"  # the simpler design, if it detects nearly as much
        if gains[best] <= (HARMLESS if fast else settings.gain):
            break
    return _chosen(counted[best], settings, plan, best, days, errors[best], gains[best])


def possible_designs(
    traffic: Traffic, settings: Experiment, plan: Plan
) -> tuple[dict[Design, Traffic], dict[Design, Errors], list[str]]:
    """Return what counts by each design that a setting leaves open, and the errors of those that can end with a verdict; without
    any, what is lacking."""
    designs: tuple[Design, ...] = ("by_user", "crossover") if settings.design == "auto" else (settings.design,)
    counted = {design: traffic.counted(design) for design in designs}
    obstacles = {design: obstacle_of(each.users, plan, design) for design, each in counted.items()}
    possible = [design for design in designs if not obstacles[design]]
    if possible and traffic.sums["judged"].sum():
        return counted, {design: errors_of(traffic, plan, design) for design in possible}, []
    return counted, {}, ["no request of these days was judged"] if possible else list(obstacles.values())


def possible_days(settings: Experiment) -> list[float]:
    """Return the possible durations of a test in days, shortest first."""
    if settings.max_seconds:
        return [settings.max_seconds / DAY]
    period = {"days": 1, "weeks": 7}[settings.whole]
    most = FAST_DAYS if settings.mode == "non_inferiority" else MAX_DAYS
    return [float(days) for days in range(period, max(most, period) + 1, period)]


def _chosen(
    traffic: Traffic, settings: Experiment, plan: Plan, design: Design, days: float, errors: Errors, gain: float
) -> Proposal:
    margins = widened_margins(traffic, plan, errors.covariance(days))
    relative = {
        metric.name: float(margin) / (max(traffic.mean(metric.name, metric.per), 1e-9) if metric.relative else 1.0)
        for metric, margin in zip(plan.metrics, margins, strict=True)
    }
    wider = {metric.name: relative[metric.name] for metric in plan.metrics if relative[metric.name] > metric.margin * (1 + 1e-9)}
    expected = traffic.per_day * days / 2
    fewest = min(settings.min_requests, max(int(expected / 4), 1))
    chosen = settings.model_copy(
        update={
            "design": design,
            "max_seconds": settings.max_seconds or days * DAY,
            "planned_requests": settings.planned_requests or max(round(SLACK * expected), 1),
            "min_requests": settings.min_requests if settings.planned_requests else fewest,
            "margins": {**settings.margins, **{name: math.ceil(margin * 1e4) / 1e4 for name, margin in wider.items()}},
        }
    )
    harmless = chance(traffic, plan, errors, days, 0.0, margins)
    finds = f"{design}, {f'{days:g} days' if days >= 1 else duration(days * DAY)}: " + (
        f"ships an equal version in {harmless:.0%}"
        if plan.mode == "non_inferiority"
        else f"finds +{gain:.0%} in {CHANCE:.0%} of the tests"
        if gain <= HOPELESS
        else f'finds no gain below {HOPELESS:.0%}: let more developers take part, or set experiment.mode = "non_inferiority"'
    )
    widened = ", ".join(f"{title(name)} {value:.0%}" for name, value in wider.items())
    finds += f"; margins widened to what this test can show: {widened}" if widened else ""
    if plan.mode == "non_inferiority" and (shown := shown_accepts(traffic, plan, errors.covariance(days))) > MOST_MARGIN:
        finds += f"; it could show that accepts fall by less than {shown:.0%}, and more than {MOST_MARGIN:.0%} proves nothing"
    return Proposal(chosen, finds)


def all_set(settings: Experiment) -> bool:
    """Return whether the settings leave nothing of a test to be chosen from the traffic, its margins included."""
    return settings.design != "auto" and settings.max_seconds > 0 and settings.planned_requests > 0


def plan_test(store: ObjectStore, settings: Settings, now: float, join_all: JoinAll | None = None) -> Plan:
    """Return the plan of a test that opens now, with open settings chosen from the traffic of the last days.

    `join_all` as in read_requests.
    """
    experiment, collect = settings.experiment, settings.collect
    plan = make_plan(experiment, collect)
    if all_set(experiment):
        most = collect.most_requests
        few = 2 * experiment.planned_requests <= most
        longest = longest_days(experiment, plan) * DAY
        # A test of few requests reads those, and the requests made before it, which need no forecast.
        share = users.share_before(store, now, plan.baseline_seconds, most) if few else users.share_for(store, longest, most)
        return plan.model_copy(update={"sample": share})
    traffic = recent(store, settings, plan, now, join_all=join_all)
    proposal = propose(traffic, experiment, collect)
    return make_plan(proposal.settings, collect, proposal.reason, traffic.share)


def page(found: Sequence[Prospect], traffic: Traffic, plan: Plan, proposal: Proposal) -> str:
    """Return the prospects and the proposal as text."""
    lines = [
        f"{traffic.users} users with a history, {traffic.per_day:.0f} requests a day in "
        f"{duration(traffic.days * DAY)}{sampled(traffic.share)}, acceptance {traffic.mean('accepted', 'shown'):.1%}; "
        f"level {plan.alpha:g}, mode {plan.mode}"
    ]
    for prospect in found:
        lines.append(f"\n{prospect.design}{': no verdict: ' + prospect.obstacle if prospect.obstacle else ''}")
        for name in DURATIONS if not prospect.obstacle else ():
            least, chances = prospect.smallest[name], ", ".join(f"+{g:.0%} in {c:.0%}" for g, c in prospect.chances[name].items())
            finds = f"finds +{least:.0%} in {CHANCE:.0%} of the tests" if math.isfinite(least) else "finds no gain"
            lines.append(
                f"    in {name:<10} {finds}; {chances}; non-inferiority ships an equal one in {prospect.harmless[name]:.0%}"
            )
    chosen = proposal.settings
    margins = ", ".join(f"{name} = {margin}" for name, margin in chosen.margins.items())
    return "\n".join(
        [
            *lines,
            "",
            f"The next test: {proposal.reason}.",
            "The same by setting, so that it stays:",
            "    [experiment]",
            f'    design = "{chosen.design}"',
            f"    planned_requests = {chosen.planned_requests}",
            f"    min_requests = {chosen.min_requests}",
            f"    max_seconds = {chosen.max_seconds:.0f}",
            *([f"    margins = {{ {margins} }}"] if margins else []),
        ]
    )
