"""The settings by which an A/B test is judged, for the section `experiment` of the settings and the plan of a test."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from infra.records.base import Record

Inconclusive = Literal["reject", "pause"]
"""What the end of a test without proof either way does."""


class GateSettings(Record):
    """The settings by which a test is judged. The section `experiment` of the settings has them; a plan freezes them."""

    alpha: float = Field(0.05, gt=0, lt=0.5)
    """Two-sided error level of the whole test, interim looks included; the chance of a wrong promotion is half of it. For a gain,
    acceptance has nine tenths of it and the two other success metrics a twentieth each, raised at the planned end to what their
    joint distribution allows; for the margins, each metric has all of it, since all must hold."""
    min_requests: int = Field(500, ge=1)
    """Minimum requests per arm before a verdict. Where `planned_requests` is 0, the plan lowers it to a quarter of the requests
    that it expects on an arm."""
    planned_requests: int = Field(0, ge=0)
    """Requests per arm at which the test ends with promotion or rejection; before that, only a large difference ends it. To
    detect a true difference d of acceptance per request near p with a power of 75 %, plan 19 p (1 - p) / d^2. 0: chosen from the
    traffic, so that `max_seconds` ends the test."""
    min_users: int = Field(10, ge=2)
    """Minimum users per arm before a verdict; users are the unit of the test. Of a crossover, users who met both versions."""
    max_seconds: float = Field(0.0, ge=0)
    """Maximum duration of an experiment in seconds. It is a planned end like `planned_requests`: without a verdict by then, the
    challenger is rejected. 0: chosen from the traffic, up to 28 days; in the mode non_inferiority up to 2, or 7 where `whole` is
    weeks."""
    block_seconds: float = Field(3_600.0, gt=0)
    """Seconds for which a crossover serves a user the same version; long beside the time in which a completion is judged."""
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
    shadow_requests: int = Field(200, ge=0)
    """Number of copies of requests that a challenger answers before its first user, unseen, after the champion's answer was sent.
    Its times, failures and texts are compared with the champion's. A fifth of the requests is copied, and fewer copies in the
    stage's time, with the default ramp a twelfth of `max_seconds`, end the test as broken. 0: no shadow stage."""
    ramp: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.1, 0.25)
    """Shares of users, or of their blocks of time, on the challenger's arm before `share`, growing; those of `share` or more are
    left out. All stages before the test take a quarter of `max_seconds` if each holds; users pass from the champion to the
    challenger as the share grows, never back. Empty: no ramp."""
    inconclusive: Inconclusive = "reject"
    """What a planned end without proof of a gain or a loss does. reject: the challenger is rejected. pause: the split stays
    until a person promotes (`tabloop promote`) or ends the test (`tabloop rollback`); a sure breach of a guardrail still ends
    it."""
    watch_seconds: float = Field(3_600.0, ge=0)
    """Seconds for which a version that the test promoted is watched beside the champion before; a sure breach or loss takes it
    back. No test opens meanwhile. 0: no watch, and everybody gets the new champion at once."""
    anchor_share: float = Field(0.2, ge=0, lt=1)
    """Share of each user's blocks of time that the anchor serves while no test and no watch runs: the version from which
    promotions without a sure gain began. It is champion again once the champions since then are surely worse. Only in the mode
    non_inferiority. 0: no anchor, and nothing bounds what many steps lose together."""

    @field_validator("ramp")
    @classmethod
    def _growing(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError(f"expected shares that grow, such as 0.1, 0.25, got {', '.join(map(str, value))}")
        return value
