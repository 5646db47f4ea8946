"""Settings of the A/B test."""

from pydantic import Field

from infra.settings.section import Section


class Experiment(Section):
    share: float = Field(0.5, gt=0, lt=1)
    """Share of users on the challenger's arm."""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """Two-sided error level of the whole test, interim looks included; the chance of a wrong promotion is half of it."""
    min_requests: int = Field(500, ge=1)
    """Minimum requests per arm before a verdict."""
    planned_requests: int = Field(20_000, ge=1)
    """Requests per arm at which the test ends with promotion or rejection; before that, only a large difference ends it. To
    detect a true difference d of acceptance per request near p with a power of 75 %, plan 14 p (1 - p) / d^2."""
    max_characters: int = Field(80, ge=1)
    """Maximum accepted characters of one completion that the test counts, so that a few very long accepts do not decide it."""
    max_user_weight: float = Field(5.0, gt=0)
    """Maximum requests of a user that the test counts, in multiples of the median user's; a user with more counts with this
    many, at the same rates. So nobody decides a test, or ends it early, by the number of their requests."""
    max_credential_weight: float = Field(1.0, gt=0, le=1)
    """Maximum share of an arm's counted requests from one credential, scaled down to it; with fewer than 1/share credentials
    on an arm, none counts. 1: no limit, for a team that shares a token or comes through one proxy."""
    min_history_requests: int = Field(20, ge=0)
    """Minimum requests of a user before the test, as known from the cycle that made the candidate (collect.max_new_users). Users
    with fewer are served and not counted, so that nobody is invented for a test. 0: everyone counts."""
    tolerated_users: int = Field(5, ge=0)
    """Number of users, at most one in 24 of a test's, who may be made up without deciding it: a promotion or an early rejection
    must also be sure without so many users who favour it most. It costs 0.8 standard errors with 60 users an arm, 0.5 with 300.
    0: all decide."""
    min_users: int = Field(10, ge=2)
    """Minimum users per arm before a verdict; users are the unit of the test."""
    baseline_seconds: float = Field(86_400.0, ge=0)
    """Seconds before the experiment from which each user's own acceptance is read, to adjust for differences between users. 0: no
    adjustment."""
    max_seconds: float = Field(86_400.0, gt=0)
    """Maximum duration of an experiment in seconds; without a verdict by then, the challenger is rejected."""
    srm_alpha: float = Field(0.001, gt=0, lt=1)
    """Error level of the sample-ratio-mismatch test; while the split of users fails it, there is no verdict."""
