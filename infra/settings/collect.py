"""Settings of collecting and validating a cycle's data."""

from pydantic import Field

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
    anchor_characters: int = Field(60, ge=1)
    """Characters at the end of a prefix by which its place is found again, where they occur once. A shorter prefix counts only
    where both requests name the same file."""
    lines: int = Field(1, ge=0)
    """Lines of a settled text that are trained on, with the end token after them; 0: all of it. A completion that ends with the
    line is what most people take."""
    dirty_characters: int = Field(512, ge=1)
    """Maximum characters by which a place may grow beyond the completion's limit between two requests; beyond it a paste or an
    agent wrote the text, and it is no label. Nor is a reported text whose length differs by more from what was shown. Longer
    settled text is cut to as many characters, at the end of a line."""


class Collect(Section):
    settle_seconds: float = Field(30.0, ge=0)
    """Seconds to wait for feedback and settled text before using a completion. Settled text that becomes known later reaches a
    later cycle, but not the reward of a completion that was judged before; a loop that is not in a hurry waits for
    `hindsight.most_seconds`."""
    hindsight: Hindsight = Hindsight()
    """Settled text from later requests and reports."""
    standing_lines: int = Field(3, ge=0)
    """Maximum lines of a sample's own prefix that are trained on as further places (tasks/labels/standing.py), without lines that
    a paste or an agent wrote."""
    join_seconds: float = Field(600.0, gt=0)
    """Maximum seconds between a completion and its feedback."""
    window_seconds: float = Field(7 * 86_400.0, gt=0)
    """Maximum age of requests in a window, in seconds; older ones are ignored."""
    max_staleness: int = Field(2, ge=0)
    """Maximum updates between the policy that sampled a completion and the version to train, counted along parents; a completion
    beyond it is not trained on. 0: only completions of that version itself."""
    min_samples: int = Field(256, ge=1)
    """Minimum samples of a cycle; with fewer, no cycle starts."""
    max_samples: int = Field(4096, ge=1)
    """Maximum samples of a cycle. Users take turns, each with their newest sample, so that no flood displaces others."""
    max_user_share: float = Field(0.2, gt=0, le=1)
    """Maximum share of a cycle's samples from one user, after every other cut. It asks for 1/share users or more: with fewer, the
    cycle waits. A team of three sets 0.5; 1 lets a single person teach the model."""
    max_credential_share: float = Field(1.0, gt=0, le=1)
    """Maximum share of a cycle's samples, and of its weight, from one credential; as strict as max_user_share. 1: no limit, for a
    team that shares a token or comes through one proxy. With a token per developer, set it as max_user_share."""
    max_new_users: int = Field(50, ge=0)
    """Maximum users a credential and day (UTC) who become known, the first to send a request. Others' requests train nothing and
    count in no A/B test until a later day admits them, so that one credential cannot invent users at will. 0: no limit."""
    known_user_days: float = Field(90.0, gt=0)
    """Days without a request after which a user is new again."""
    max_quarantined: float = Field(0.2, ge=0, le=1)
    """Maximum share of labelled samples that may fail validation; beyond it the cycle stops."""
    max_project_share: float = Field(1.0, gt=0, le=1)
    """Maximum share of a cycle's samples, and of its weight, from one project; as strict as max_user_share. 1: no limit, for a
    team with one project."""
    max_user_weight: float = Field(0.2, gt=0, le=1)
    """Maximum share of a cycle's weight (the sum of absolute advantages; apart from it, settled tokens, also as the trainer
    weighs them) from one user, who is scaled down to it. With fewer than 1/share users of some weight, the cycle waits."""
    max_duplicates: float = Field(0.1, ge=0, le=1)
    """Maximum share of a window's requests that were delivered or trained on before; beyond it the cycle stops, since events are
    probably shipped twice."""
    max_unknown_versions: float = Field(0.05, ge=0, le=1)
    """Maximum share of a window's requests from versions the registry does not know; beyond it the cycle stops. These requests
    are never trained on."""
    max_clock_skew_seconds: float = Field(60.0, ge=0)
    """Maximum seconds by which an event's time may be ahead of the collector's clock; beyond it the cycle stops, since windows
    are cut by time."""
    history_cycles: int = Field(10, ge=0)
    """Number of earlier cycles to compare a batch's acceptance rate and shown length with; 0: no comparison."""
    max_history_factor: float = Field(4.0, gt=1)
    """Maximum factor between a batch's acceptance rate or shown length and that of earlier cycles, in either direction. Beyond it
    the cycle stops if the difference is also more than five standard errors."""
