"""Settings of collecting and validating a cycle's data."""

from typing import Self

from pydantic import Field, model_validator

from infra.settings.section import Section


class Hindsight(Section):
    """Settled text: what stands, a while later, where a completion would have stood (tasks/labels/hindsight.py)."""

    on: bool = True
    """Whether settled text is a label. False: only feedback is."""
    quiet_seconds: float = Field(10.0, ge=0)
    """Seconds without a change at the place, after which its text has settled."""
    most_seconds: float = Field(300.0, gt=0)
    """Maximum seconds between a request and the later request that shows its settled text. A request that its cycle left without
    a label is looked at again by the next cycle for as long."""
    lines: int = Field(1, ge=0)
    """Lines of a settled text that are trained on, with the end token after them; 0: all of it. A completion that ends with the
    line is what most people take."""

    @model_validator(mode="after")
    def _settles_in_time(self) -> Self:
        if self.on and self.quiet_seconds >= self.most_seconds:
            raise ValueError(
                f"quiet_seconds = {self.quiet_seconds:g}: expected less than most_seconds = {self.most_seconds:g}, else no later "
                "request shows a text that has settled; lower it, or set on = false"
            )
        return self


class Collect(Section):
    settle_seconds: float = Field(30.0, ge=0)
    """Seconds to wait for feedback and settled text before using a completion. Settled text that becomes known later reaches a
    later cycle, but not the reward of a completion that was judged before; a loop that is not in a hurry waits for
    `hindsight.most_seconds`."""
    hindsight: Hindsight = Hindsight()
    """Settled text from later requests and reports."""
    join_seconds: float = Field(600.0, gt=0)
    """Maximum seconds between a completion and its feedback."""
    max_staleness: int = Field(2, ge=0)
    """Maximum updates between the policy that sampled a completion and the version to train, counted along parents; a completion
    beyond it is not trained on, but for the settled text of one without feedback. 0: only completions of that version itself."""
    min_samples: int = Field(256, ge=1)
    """Minimum samples of a cycle; with fewer, no cycle starts."""
    max_samples: int = Field(4096, ge=1)
    """Maximum samples of a cycle. Users take turns, each with their newest sample, so that no flood displaces others."""
    most_requests: int = Field(1_000_000, ge=1)
    """Maximum requests that a cycle's window, a test or `tabloop plan` reads. Where there are more, all three read those of a
    sample of users by keyed hash, a power of one half of all; everything counts and holds within it."""
    max_user_share: float = Field(0.2, gt=0, le=1)
    """Maximum share of a cycle's samples from one user, after every other cut. It asks for 1/share users or more: with fewer, the
    cycle waits. A team of three sets 0.5; 1 lets a single person teach the model."""
    max_credential_share: float = Field(1.0, gt=0, le=1)
    """Maximum share of a cycle's samples, and of its weight, from one credential; as strict as max_user_share. 1: no limit, for a
    team that shares a token or comes through one proxy. With a token per developer, set it as max_user_share."""
    max_new_users: int = Field(50, ge=0)
    """Maximum users a credential and day (UTC) who become known, the first to send a request. Others' requests train nothing and
    count in no A/B test until a later day admits them, so that one credential cannot invent users at will. 0: no limit."""
    max_project_share: float = Field(1.0, gt=0, le=1)
    """Maximum share of a cycle's samples, and of its weight, from one project; as strict as max_user_share. 1: no limit, for a
    team with one project."""
    max_user_weight: float = Field(0.2, gt=0, le=1)
    """Maximum share of a cycle's weight (absolute advantages times tokens, summed; apart from them settled tokens, also as the
    trainer weighs them) from one user, who is scaled down to it. With fewer than 1/share users of some weight, a cycle waits."""

    @model_validator(mode="after")
    def _fills_a_cycle(self) -> Self:
        if self.max_samples < self.min_samples:
            raise ValueError(
                f"max_samples = {self.max_samples}: expected at least min_samples = {self.min_samples}, else no cycle ever starts"
            )
        if self.most_requests < 2 * self.min_samples:
            raise ValueError(
                f"most_requests = {self.most_requests}: expected at least twice min_samples = {self.min_samples}, since a window "
                "holds between half of it and all of it"
            )
        return self
