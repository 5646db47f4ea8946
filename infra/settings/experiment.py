"""Settings of the A/B test. A test is judged by the settings as they were when it opened (tasks/experiments/planning/plan.py)."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from infra.settings.section import Section


class Margins(Section):
    """The loss of each metric that is tolerated for a gain in another one (tasks/experiments/counting/metrics.py). A
    challenger must
    surely lose less. A margin below three standard errors of its metric at the planned size costs promotions of better models."""

    accepted: float = Field(0.1, ge=0)
    """Accepts per request, as a share of the champion's. Also what a version may lose at most to be trained further."""
    characters: float = Field(0.15, ge=0)
    """Accepted characters per request, as a share of the champion's."""
    annoyed: float = Field(0.1, ge=0)
    """Completions per request that were shown, of which nothing was accepted or reported as kept, as a share of the
    champion's."""
    shown: float = Field(0.5, ge=0)
    """Completions shown per request, as a share of the champion's. Showing less is no loss by itself: accepts and characters
    count."""
    cancelled: float = Field(0.05, ge=0)
    """Completions per request that the developer dismissed, in 1."""
    quick: float = Field(0.05, ge=0)
    """Completions per request that were rejected within 750 ms, in 1."""
    empty: float = Field(0.25, ge=0)
    """Requests that the model answers with nothing, in 1 (0.25: a quarter of all requests more)."""
    failed: float = Field(0.02, ge=0)
    """Requests that the assigned version did not answer to their end, in 1: errors, fallbacks to the other version, and weights
    that changed meanwhile."""
    requests_per_user: float = Field(0.2, ge=0)
    """Requests of a user, in logarithms: 0.2 is 18 % fewer. Of a crossover, in a block of time."""
    ttft_p50: float = Field(0.15, ge=0)
    """Requests whose first token comes later than the median of both arms, in 1."""
    ttft_p95: float = Field(0.05, ge=0)
    """Requests whose first token comes later than the 95th percentile of both arms, in 1."""
    total_p50: float = Field(0.25, ge=0)
    """Requests that end later than the median of both arms, in 1; longer completions take longer."""
    total_p95: float = Field(0.1, ge=0)
    """Requests that end later than the 95th percentile of both arms, in 1."""
    length: float = Field(0.75, ge=0)
    """Characters of a judged completion, longer or shorter, as a share of the champion's."""


class Experiment(Section):
    mode: Literal["superiority", "non_inferiority"] = "superiority"
    """When a challenger is promoted. superiority: accepts, accepted characters or fewer annoyances per request are surely better,
    and no metric is worse than its margin. non_inferiority: no metric is worse than its margin, for a fast cadence of small
    steps. Each step may lose a part of a margin; what many steps lose together shows beside the anchor (`anchor_share`)."""
    design: Literal["auto", "by_user", "crossover"] = "auto"
    """Who meets which version. by_user: a user meets one. crossover: a user meets both, in turns of `block_seconds`, and is
    compared with themselves: for teams below a few hundred. auto: what finds the smaller gain in the traffic of the last week, by
    user where both find nearly as much (`tabloop plan`)."""
    gain: float = Field(0.1, gt=0)
    """Gain of acceptance, as a share, that a test is long enough to find in four of five cases, if `max_days` allow it. Only
    where `max_seconds` is 0."""
    whole: Literal["days", "weeks"] = "days"
    """A test whose length is chosen lasts whole days, or whole weeks."""
    max_days: int = Field(28, ge=1)
    """Longest test that is chosen in the mode superiority."""
    fast_days: int = Field(2, ge=1)
    """Longest test that is chosen in the mode non_inferiority."""
    widen_margins: bool = True
    """Whether a margin that a test of the chosen size cannot show is widened to what it can, which its plan says. Otherwise such
    a margin prevents every promotion. Only where the planner chooses something: `design`, `planned_requests` or `max_seconds`."""
    margins: Margins = Margins()
    """Losses that are tolerated."""
    share: float = Field(0.5, gt=0, lt=1)
    """Share of users on the challenger's arm; of a crossover, of their blocks of time."""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """Two-sided error level of the whole test, interim looks included; the chance of a wrong promotion is half of it. For a gain,
    acceptance has nine tenths of it and the two other success metrics a twentieth each, raised at the planned end to what their
    joint distribution allows; for the margins, each metric has all of it, since all must hold."""
    min_requests: int = Field(500, ge=1)
    """Minimum requests per arm before a verdict."""
    planned_requests: int = Field(0, ge=0)
    """Requests per arm at which the test ends with promotion or rejection; before that, only a large difference ends it. To
    detect a true difference d of acceptance per request near p with a power of 75 %, plan 19 p (1 - p) / d^2. 0: chosen from the
    traffic, so that `max_seconds` ends the test."""
    max_characters: int = Field(80, ge=1)
    """Maximum accepted characters of one completion that the test counts, so that a few very long accepts do not decide it."""
    max_user_weight: float = Field(5.0, gt=0)
    """Maximum requests of a user that the test counts, in multiples of the median user's; a user with more counts with this
    many, at the same rates. So nobody decides a test, or ends it early, by the number of their requests."""
    max_credential_weight: float = Field(1.0, gt=0, le=1)
    """Maximum share of an arm's counted requests from one credential, scaled down to it; with fewer than 1/share credentials
    on an arm, none counts. Below 1, users of one credential count as one user, so that nobody decides a test by invented users;
    0.2 fits a team of 20 with a token each. 1: no limit, for a team that shares a token or comes through one proxy."""
    min_history_requests: int = Field(20, ge=0)
    """Minimum requests of a user before the test, as known from the cycle that made the candidate (collect.max_new_users). Users
    with fewer are served and not counted, so that nobody is invented for a test. 0: everyone counts."""
    tolerated_users: int = Field(5, ge=0)
    """Number of users, at most one in 24 of a test's, who may be made up without deciding it: a promotion or an early rejection
    must also be sure without so many users who favour it most. It costs 0.8 standard errors with 60 users an arm, 0.5 with 300.
    0: all decide."""
    min_users: int = Field(10, ge=2)
    """Minimum users per arm before a verdict; users are the unit of the test. Of a crossover, users who met both versions."""
    baseline_seconds: float = Field(86_400.0, ge=0)
    """Seconds before the experiment from which each user's own rates are read, to adjust for differences between users. 0: no
    adjustment."""
    block_seconds: float = Field(3_600.0, gt=0)
    """Seconds for which a crossover serves a user the same version; long beside the time in which a completion is judged."""
    max_seconds: float = Field(0.0, ge=0)
    """Maximum duration of an experiment in seconds. It is a planned end like `planned_requests`: without a verdict by then, the
    challenger is rejected."""
    shadow_requests: int = Field(200, ge=0)
    """Number of copies of requests that a challenger answers before its first user, unseen, after the champion's answer was sent.
    Its times, failures and texts are compared with the champion's. 0: no shadow stage."""
    shadow_share: float = Field(0.2, gt=0, le=1)
    """Share of the champion's requests of which a copy is made meanwhile; fewer are made under load."""
    shadow_failures: float = Field(0.02, ge=0, le=1)
    """Maximum share of copies that the challenger does not answer to their end."""
    shadow_slowdown: float = Field(2.0, ge=0)
    """Maximum ratio of the challenger's median time to the first token, and in all, to the champion's. 0: no limit."""
    shadow_similarity: float = Field(0.1, ge=0, le=1)
    """Minimum mean similarity of both versions' texts, from 0, nothing in common, to 1, equal. Two equal models that sample
    differ, too: this finds broken weights, not changed ones. 0: no limit."""
    ramp: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.1, 0.25)
    """Shares of users, or of their blocks of time, on the challenger's arm before `share`, growing; those of `share` or more are
    left out. All stages before the test take a quarter of `max_seconds` if each holds; users pass from the champion to the
    challenger as the share grows, never back. Empty: no ramp."""
    ramp_requests: int = Field(50, ge=0)
    """Minimum requests on the challenger's arm in each stage of the ramp. 0: its time is enough."""
    inconclusive: Literal["reject", "pause"] = "reject"
    """What a planned end without proof of a gain or a loss does. reject: the challenger is rejected. pause: the split stays
    until a person promotes (`tabloop promote`) or ends the test (`tabloop rollback`); a sure breach of a guardrail still ends
    it."""
    watch_seconds: float = Field(3_600.0, ge=0)
    """Seconds for which a version that the test promoted is watched beside the champion before; a sure breach or loss takes it
    back. No test opens meanwhile. 0: no watch, and everybody gets the new champion at once."""
    holdout_share: float = Field(0.1, gt=0, lt=1)
    """Share of users, or of their blocks of time, whom the champion before serves during the watch."""
    anchor_share: float = Field(0.2, ge=0, lt=1)
    """Share of each user's blocks of time that the anchor serves while no test and no watch runs: the version from which
    promotions without a sure gain began. It is champion again once the champions since then are surely worse. Only in the mode
    non_inferiority. 0: no anchor, and nothing bounds what many steps lose together."""
    anchor_seconds: float = Field(86_400.0, ge=0)
    """Seconds for which each new champion is compared with the anchor before the next test opens, since a test takes the anchor's
    slot. 0: only as long as no candidate waits."""
    anchor_days: int = Field(28, ge=1)
    """Days of requests that the comparison with one anchor adds up; then it begins anew, with the same anchor. At most as long as
    events are kept."""
    anchor_alpha: float = Field(0.2, gt=0, lt=0.5)
    """Two-sided error level of the comparison with the anchor, for all looks and champions of `anchor_days`; the chance that
    champions that are no worse give way to the anchor is half of it."""
    max_lost_children: int = Field(3, ge=0)
    """Number of candidates in a row, trained from one promising version, that are rejected and not promising, after which
    training goes on from the champion again. 0: no limit."""
    srm_alpha: float = Field(0.001, gt=0, lt=1)
    """Error level of each quality check, for all looks together: the split of users (sample-ratio mismatch), users who drop out,
    requests per user, and judged per shown completion. A test that fails one ends as broken."""
    breach_alpha: float = Field(0.01, gt=0, lt=1)
    """Error level of the search for a breach, for all looks and metrics together: failures, times or empty answers surely beyond
    their margin roll a challenger back at once, before `min_requests` and without labels."""
    max_both_arms: float = Field(0.02, ge=0, lt=1)
    """Maximum share of users, and at least one, who were served by both arms of a test by user; they are set aside. With more,
    the test ends as broken."""
    max_label_gap: float = Field(0.05, ge=0)
    """Maximum difference of judged completions per shown one between the arms, as a share, that does not break a test:
    completions without an answer are left out, which is fair only if both arms have as many. Where only the newer half differs,
    answers are late, and the verdict waits."""
    max_request_gap: float = Field(0.05, ge=0)
    """Maximum difference of requests per user between the arms, in logarithms, that does not break a test: rates per request
    cannot be compared where the requests differ."""

    @field_validator("ramp")
    @classmethod
    def _growing(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError(f"expected shares that grow, such as 0.1, 0.25, got {', '.join(map(str, value))}")
        return value
