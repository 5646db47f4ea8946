"""Attacks on training and on the A/B gate, through the code of a cycle and of the gate.

    flood      one user sends many newer requests than everybody together, and accepts all of them
    invented   one credential sends requests of ten thousand users
    poisoner   a known user accepts a planted pattern, cycle after cycle
    test       five users of an arm of 60 know their arm, and accept all of it or none; so does a known user with many requests
    crowd      ten thousand invented users build a history before a test, and accept all of the challenger's arm

No server is needed: events are the frames that the join returns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from evals.bench.experiments.simulate import chance_bound
from evals.bench.figures import Bench, Figure, Size, figure
from infra.assignment import assigned_arm
from infra.records import ExperimentRecord, VerdictName
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment, Reward
from tasks.experiments.counting.totals import total
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.verdict.decide import decide
from tasks.labels import users
from tasks.labels.accounting import WindowCounts, classify
from tasks.labels.context_lines import without_context_lines
from tasks.labels.samples import with_settled_tokens
from tasks.labels.shares import weight_shares
from tasks.rewards.reward import reward_samples

DAY = users.DAY
BEGIN = 20_000 * DAY
HONEST = 100
LIMITS = Collect(max_samples=3600, max_user_share=0.05, max_user_weight=0.05, max_credential_share=0.05)
"""Settings of a team of 100 with a token for each developer."""
SHARED = LIMITS.model_copy(update={"max_credential_share": 1.0})  # the same team with one token for all
TEST = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=BEGIN + DAY)
GATE = Experiment(min_requests=500, planned_requests=1500)
OPEN = Experiment.model_validate(
    {**GATE.model_dump(), "tolerated_users": 0, "max_user_weight": 1e9, "margins": {"requests_per_user": 1e9}}
)
"""The gate without its caps, and blind to how many requests a user makes (`BLIND`)."""
BLIND = {"max_request_gap": 1e9}
ARM = 60
TESTS = Size(full=200, quick=10)  # simulated tests of each kind
CROWDS = Size(full=20, quick=1)  # tests with a crowd, each of some 200,000 requests before it
RATE = 0.3  # acceptance of the team
TOKENS_EACH = GATE.model_copy(update={"max_credential_weight": 0.05})
"""The gate of a team with a token for each developer."""


@dataclass(frozen=True)
class Batch:
    """What an attacker has of a cycle's batch."""

    samples: int
    sample_share: float
    weight_share: float
    users: int  # users of the attacker with samples


def requests(names: Sequence[str], credentials: Sequence[str], times: np.ndarray, accepted: np.ndarray) -> pl.DataFrame:
    """Return labelled requests as the join returns them, one for each name."""
    ids = [f"{name}-{i}" for i, name in enumerate(names)]
    constant = {
        **dict.fromkeys(("opted_out", "redacted", "mixed", "withheld", "pinned", "exploring", "late"), False),
        **dict.fromkeys(("blank", "unreported", "rules", "cache_hit"), False),
        **{"project": "p", "policy_version": "1", "arm": "champion", "experiment": "", "behaviour_logprobs": "known"},
        **{"language": "py", "top_p": 1.0, "finish_reason": "stop", "tokens": 5, "shown_characters": 20, "prompt": 0},
        **{"client": "continue", "file": "", "assigned": "", "assigned_arm": "", "ttft_ms": 20.0, "total_ms": 60.0},
        **{"logprobs": 5, "logprob_lowest": -2.0, "logprob_highest": -0.1, "prompt_tokens": 20},
    }
    empty = {"settled": pl.String, "settled_whole": pl.Boolean, "typed_over": pl.Int64, "not_taken": pl.String}
    return pl.DataFrame({"id": ids, "user": names, "credential": credentials, "time": times}).with_columns(
        outcome=pl.Series(np.where(accepted, "accepted", "rejected").astype(str), dtype=pl.String),
        **dict.fromkeys(("accepted_characters", "taken_characters", "taken_keys"), pl.Series(np.where(accepted, 20, 0))),
        **{name: pl.lit(None, kind) for name, kind in {**empty, "kept_characters": pl.Int64, "seen_ms": pl.Float64}.items()},
        **{name: pl.lit(value) for name, value in constant.items()},
    )


def honest(draw: np.random.Generator, each: int, day: int, tokens: bool) -> pl.DataFrame:
    """Return a day's requests of the team."""
    names = [f"u{i % HONEST}" for i in range(HONEST * each)]
    credentials = [f"token {name}" if tokens else "token" for name in names]
    return requests(names, credentials, BEGIN + day * DAY + draw.random(len(names)) * DAY, draw.random(len(names)) < RATE)


def attack(names: Sequence[str], credential: str, day: float) -> pl.DataFrame:
    """Return an attacker's requests from a time of a day on, all accepted."""
    times = BEGIN + day * DAY + np.arange(len(names)) * 0.1
    return requests(names, [credential] * len(names), times, np.ones(len(names), dtype=bool))


def batch(window: pl.DataFrame, known: pl.DataFrame, limits: Collect, mark: str) -> Batch:
    """Return what users whose names begin with `mark` have of the batch that a cycle makes of a window."""
    register = users.admit(window.select("user", "credential", "time"), known, limits.max_new_users)
    labelled = users.with_admission(window.sample(fraction=1, shuffle=True, seed=0), register)
    accounting = classify(labelled, {"1": 0}, np.inf, limits, WindowCounts(window.height))
    assert sum(accounting.buckets.values()) == window.height
    made = reward_samples(
        with_settled_tokens(without_context_lines(accounting.samples), None), Reward(), weight_shares(limits)
    ).samples
    theirs = made.filter(pl.col("user").str.starts_with(mark))
    weight = float(made["advantage"].abs().sum())
    weight_share = float(theirs["advantage"].abs().sum()) / (weight or 1.0)
    return Batch(made.height, theirs.height / max(made.height, 1), weight_share, theirs["user"].n_unique())


def register_of(tokens: bool) -> pl.DataFrame:
    """Return a register that knows the team."""
    draw = np.random.default_rng(1)
    return users.admit(honest(draw, 30, -1, tokens).select("user", "credential", "time"), users.NOBODY, 0)


def flood() -> Batch:
    """40,000 requests of the team, then 20,000 of one user."""
    window = pl.concat([honest(np.random.default_rng(0), 400, 0, True), attack(["mallory"] * 20_000, "token m", 1)])
    return batch(window, register_of(True), LIMITS, "mallory")


def invented(tokens: bool, count: int = 10_000, each: int = 4) -> Batch:
    """The team's day, then requests of invented users with one credential, all newer."""
    names = [f"made up {i % count}" for i in range(count * each)]
    window = pl.concat([honest(np.random.default_rng(0), 100, 0, tokens), attack(names, "token m" if tokens else "token", 1)])
    return batch(window, register_of(tokens), LIMITS if tokens else SHARED, "made up")


def poisoner(cycles: int) -> list[Batch]:
    """A user who was known all along, and accepts 300 requests a cycle where the others judge 60 each."""
    draw, known, found = np.random.default_rng(0), register_of(True), []
    for day in range(cycles):
        window = pl.concat([honest(draw, 60, day, True), attack(["mallory"] * 300, "token m", day + 0.5)])
        found.append(batch(window, known, LIMITS, "mallory"))
        known = users.admit(window.select("user", "credential", "time"), known, LIMITS.max_new_users)
    return found


@dataclass(frozen=True)
class SimulatedTest:
    """A simulated A/B test."""

    effect: float = 0.0  # true difference of the acceptance, as a share of the champion's
    liars: int = 0  # users who accept all on the challenger's arm, in place of as many others
    each: int = 30  # requests of an honest user, on average
    lies: int = 30  # requests of a liar
    whale: float = 0.0  # share of an arm's traffic from one honest user of each arm


def run_test(test: SimulatedTest, settings: Experiment, seed: int) -> VerdictName:
    """Return the gate's verdict on a simulated test at its planned end."""
    draw = np.random.default_rng(seed)
    taste = np.clip(draw.normal(RATE, 0.08, 2 * ARM), 0.02, 0.9)
    treated = draw.permutation(2 * ARM) % 2 == 1
    activity = draw.gamma(2, 0.5, 2 * ARM)
    counts, early = (np.maximum(draw.poisson(each * activity), 1) for each in (test.each, 40))
    for arm in (True, False) if test.whale else ():
        (members,) = np.nonzero(treated == arm)
        counts[members[0]] = round(test.whale / (1 - test.whale) * counts[members[1:]].sum())
    rate = np.clip(taste * (1 + test.effect * treated), 0, 1)
    (liars,) = np.nonzero(treated)
    counts[liars[: test.liars]], rate[liars[: test.liars]] = test.lies, 1.0
    frames = [
        requests_of(draw, early, np.minimum(taste, 1), treated, "", TEST.started - DAY / 2),
        requests_of(draw, counts, rate, treated, TEST.id, TEST.started + 1),
    ]
    return verdict_of(pl.concat(frames), settings, TEST.started + 60)


def verdict_of(labelled: pl.DataFrame, settings: Experiment, now: float) -> VerdictName:
    """Return the gate's verdict on labelled requests, as many as were planned."""
    plan = make_plan(settings, Collect()).model_copy(update=BLIND if settings is OPEN else {})
    totals = total(labelled, TEST, plan, now)
    ended = plan.model_copy(update={"planned_requests": max(min(totals.requests.values()), 1)})
    return decide(TEST, ended, totals, now).verdict


def run_crowd(tokens: bool, settings: Experiment, seed: int, count: int = 10_000) -> VerdictName:
    """Return the gate's verdict on equal models where invented users of one credential built a history the day before.

    As the gate does, it counts users with a history alone; of the invented ones these are as many as become known on a day.
    """
    draw, each = np.random.default_rng(seed), settings.min_history_requests
    crowd = [f"made up {number % count}" for number in range(count * each)]
    made = attack(crowd, "token m" if tokens else "token", 0.2).select("user", "credential", "time")
    register = users.admit(made, register_of(tokens), Collect().max_new_users)
    known = sorted(users.with_history(register, TEST.started, each))
    names = [name for name in known for _ in range(40)]
    made_up = np.array([name.startswith("made up") for name in names])
    arms = [assigned_arm(TEST, name, TEST.started) for name in names]
    accepted = np.where(made_up, np.array(arms) == "challenger", draw.random(len(names)) < RATE)
    own = ("token m" if false else f"token {name}" for name, false in zip(names, made_up, strict=True))
    credentials = list(own) if tokens else ["token"] * len(names)
    during = requests(names, credentials, TEST.started + 1 + np.arange(len(names)) * 1e-3, accepted)
    labelled = during.with_columns(arm=pl.Series(arms, dtype=pl.String), experiment=pl.lit(TEST.id))
    return verdict_of(labelled, settings, TEST.started + 600)


def requests_of(
    draw: np.random.Generator, counts: np.ndarray, rate: np.ndarray, treated: np.ndarray, experiment: str, time: float
) -> pl.DataFrame:
    """Return labelled requests of users who accept at these rates."""
    user = np.repeat(np.arange(len(counts)), counts)
    accepted = draw.random(len(user)) < rate[user]
    made = requests([f"u{u}" for u in user], ["token"] * len(user), time + np.arange(len(user)) * 1e-3, accepted)
    arms = pl.Series(np.where(treated[user], "challenger", "champion").astype(str), dtype=pl.String)
    return made.with_columns(arm=arms, experiment=pl.lit(experiment))


def promoted(run_one: Callable[[int], VerdictName], tests: int) -> float:
    """Return the share of simulated tests, each by its seed, that end with a promotion."""
    return sum(run_one(seed) == "promote" for seed in range(tests)) / tests


def bound_of(tests: int) -> float:
    """Return the share of false promotions that chance seldom exceeds."""
    return chance_bound(GATE.alpha / 2, tests)


def shared_bounds(each: int) -> tuple[float, float]:
    """Return the most of the samples and of the weight that invented users of a shared token can have of a full batch.

    Known become `max_new_users`, with `each` requests. Silence, whose reward is 0, is the only other action of their places: the
    absolute advantage is the absolute reward.
    """
    share, settings = SHARED.max_new_users * each / SHARED.max_samples, Reward()
    mean = RATE * settings.accepted + (1 - RATE) * abs(settings.rejected)
    return share, share * settings.accepted / mean


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Run every attack: on training, then simulated tests of each kind, some with a crowd."""
    with bench.part("attacks on training", share=0.3):
        yield from on_training()
    yield from on_tests(TESTS.of(bench.quick), CROWDS.of(bench.quick), bench)


def on_training() -> Iterator[Figure]:
    """Run the attacks on a cycle's batch."""
    share, weight = LIMITS.max_user_share + 1e-6, LIMITS.max_user_weight + 1e-6
    slow = poisoner(20)
    cases: list[tuple[str, Callable[[], Batch], float, float]] = [
        ("flood", flood, share, weight),
        ("invented_with_a_token_each", lambda: invented(True), LIMITS.max_credential_share + 1e-6, weight),
        ("invented_with_a_shared_token", lambda: invented(False), *shared_bounds(4)),
    ]
    for name, made, most, most_weight in cases:
        found = made()
        yield figure(f"caps.{name}.samples", found.samples, "samples of the batch")
        yield figure(f"caps.{name}.users", found.users, "of the attacker's users", most=SHARED.max_new_users)
        yield figure(f"caps.{name}.share", found.sample_share, "of the samples", most=most)
        yield figure(f"caps.{name}.weight", found.weight_share, "of the weight", most=most_weight)
    heaviest = max(made.weight_share for made in slow)
    yield figure("caps.poisoner.weight", heaviest, "of the weight, most of 20 cycles", most=weight)


def on_tests(tests: int, crowds: int, bench: Bench) -> Iterator[Figure]:
    """Run the attacks on A/B tests."""
    bound, five, better = bound_of(tests), SimulatedTest(liars=5), SimulatedTest(effect=0.2, each=100)
    flooding = SimulatedTest(liars=5, lies=3000)
    rows: list[tuple[str, Callable[[int], VerdictName], int, float | None]] = [
        ("equal", partial(run_test, SimulatedTest(), GATE), tests, bound),
        ("equal_with_a_whale", partial(run_test, SimulatedTest(whale=0.4), GATE), tests, bound),
        ("five_liars", partial(run_test, five, GATE), tests, bound),
        ("a_known_poisoner", partial(run_test, SimulatedTest(liars=1, lies=3000), GATE), tests, bound),
        ("five_liars_uncapped", partial(run_test, five, OPEN), tests, None),
        ("five_flooding_liars", partial(run_test, flooding, GATE), tests, bound),
        ("five_flooding_liars_uncapped", partial(run_test, flooding, OPEN), tests, None),
        ("five_liars_for_a_worse_model", partial(run_test, SimulatedTest(effect=-0.1, liars=5), GATE), tests, bound),
        ("better_by_20", partial(run_test, better, GATE), tests, None),
        ("better_by_20_uncapped", partial(run_test, better, OPEN), tests, None),
        ("crowd_with_a_token_each", partial(run_crowd, True, TOKENS_EACH), crowds, bound_of(crowds)),
        ("crowd_with_a_shared_token", partial(run_crowd, False, GATE), crowds, None),
    ]
    with bench.part("kinds of A/B tests", len(rows), share=0.7) as part:
        for name, run_one, count, most in rows:
            yield figure(f"caps.gate.{name}", promoted(run_one, count), f"of {count} tests promoted", most=most)
            part.advance()
