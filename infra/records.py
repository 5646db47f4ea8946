"""The records that pass between processes: events, cycles, experiments, decisions.

Every record is frozen and refuses unknown fields. Times are Unix seconds (UTC), durations milliseconds unless
the name says otherwise. `policy_version` is the MLflow version number of the weights, as text ("1", "2", ...).
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

Arm = Literal["champion", "challenger"]
FinishReason = Literal["stop", "length", "disconnected", "error"]
LabelOutcome = Literal["accepted", "partially_accepted", "rejected"]
Outcome = LabelOutcome | Literal["shown", "retained", "thumbs_down"]
Bucket = Literal[
    "trained",
    "waiting",
    "unlabelled",
    "cache_hit",
    "stale",
    "duplicate",
    "quarantined",
    "opted_out",
    "withheld",
    "pinned",
    "over_share",
    "surplus",
]
"""Every request ends in exactly one of these, and they add up to the requests served (see tasks/README.md)."""
VerdictName = Literal["promote", "reject", "undecided"]


class Record(BaseModel):
    """A frozen row; JSON and Parquet hold the same fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Completion(Record):
    """What the serving app served: one row a request, whether or not the client stayed to the end."""

    id: str
    """The id in the response ("cmpl-...")."""
    time: float
    """When the request arrived."""
    project: str
    """Project of the bearer token or of the X-Project-ID header."""
    user: str
    """Keyed hash of the user's id; the user's name is never stored."""
    client: str
    """Which client: "continue", "rlinf", ..., from the User-Agent or the shape of the request."""
    opted_out: bool = False
    """Served without a trace: all text and token fields are empty."""
    redacted: bool = False
    """A secret stood in it: taken out of the text, and all token fields are empty. Not trained on."""
    prefix: str
    """Text before the cursor, as sent (FIM tokens taken apart)."""
    suffix: str
    """Text after the cursor, as sent."""
    language: str = ""
    """Of the code, as the request tells it (infra/language.py); most tell none."""
    prompt_token_ids: tuple[int, ...]
    """Token ids that the engine was given, FIM frame included."""
    token_ids: tuple[int, ...]
    """Sampled token ids, the end token included where it was sampled."""
    logprobs: tuple[float, ...]
    """Natural-log probability of each sampled token under the sampling distribution; as many as token_ids."""
    token_ends: tuple[int, ...]
    """For each sampled token, the number of characters of the generated text up to and with it; as many as token_ids."""
    behaviour_logprobs: Literal["known", "unknown"] = "known"
    """Whether the sampling distribution's log-probabilities are known; "unknown": a server of somebody else's sampled it and
    does not tell them, all token fields are empty. Not trained on."""
    text: str
    """Generated text as streamed to the client."""
    finish_reason: FinishReason
    """Why generation ended; "disconnected": the client left, the rest holds what had been generated."""
    policy_version: str
    """Version of the weights that sampled the tokens."""
    mixed: bool = False
    """The weights were swapped during this completion: not trained on."""
    withheld: bool = False
    """Generated and not shown."""
    pinned: bool = False
    """Served under an administrator's pin: experiment is empty, it counts in none."""
    arm: Arm
    """Slot that served it."""
    experiment: str = ""
    """Experiment the user was part of, or empty."""
    temperature: float
    """Sampling temperature that was really used."""
    top_p: float
    """Nucleus mass that was really used."""
    max_tokens: int
    """Most tokens that could be sampled."""
    ttft_ms: float | None
    """Time to the first token; none when there was none."""
    total_ms: float
    """Time from the request's arrival to the end of generation."""

    @model_validator(mode="after")
    def _aligned(self) -> "Completion":
        if not len(self.token_ids) == len(self.logprobs) == len(self.token_ends):
            raise ValueError(
                f"completion {self.id}: token_ids, logprobs and token_ends must be as long as each other, "
                f"got {len(self.token_ids)}, {len(self.logprobs)}, {len(self.token_ends)}"
            )
        return self


class Feedback(Record):
    """What a client said of a completion; one row an event, joined to completions by tasks/collect."""

    id: str
    """Id of this event, made by the server; the same body twice gives two events, told apart by client_id."""
    time: float
    """When the event arrived."""
    made_at: float | None
    """When the client says the completion was made."""
    project: str
    """As in Completion."""
    user: str
    """As in Completion."""
    client: str
    """As in Completion."""
    client_id: str
    """The client's own id of the completion (Continue's completionId); the same for a reject and its late accept."""
    completion_id: str = ""
    """The server's completion id where the client knows it, else empty and joined by content."""
    outcome: Outcome
    """What the developer did."""
    prefix: str
    """Text before the cursor where it was shown."""
    suffix: str
    """Text after the cursor where it was shown."""
    shown: str
    """Text that was shown, after the client's post-processing."""
    accepted_characters: int | None = None
    """For a partial accept, the characters kept."""
    retained: str = ""
    """For "retained", what stands in the place of an accepted completion some time later."""
    elapsed_ms: float | None = None
    """From the request to the judgement, as the client measured it."""
    cache_hit: bool = False
    """Shown from the client's own cache: no request was made."""
    language: str = ""
    """Of the code, as the event tells it (infra/language.py)."""


class Sample(Record):
    """One trained completion: the sampled tokens that the developer was shown, and what they were worth."""

    completion_id: str
    """Completion it was cut from."""
    user: str
    """Keyed hash, for shares and clustering."""
    project: str = ""
    """As in Completion; empty in samples older than this field."""
    policy_version: str
    """Version that sampled it."""
    prompt_token_ids: tuple[int, ...]
    """As served."""
    token_ids: tuple[int, ...]
    """As sampled, cut to what was shown; the end token stays where all of it was shown."""
    logprobs: tuple[float, ...]
    """Behaviour log-probability of each of token_ids."""
    temperature: float
    """Sampling temperature."""
    outcome: LabelOutcome | Literal["nothing", "judged"]
    """Label; "nothing": there was nothing to show; "judged": a judge's score is its reward, nobody saw it."""
    shown_characters: int
    """Characters shown."""
    accepted_characters: int
    """Characters accepted."""
    reward: float = 0.0
    """Signed reward, by tasks/reward."""
    advantage: float = 0.0
    """Reward as trained: the Monte-Carlo return minus its baseline, scaled (tasks/reward.py)."""


class ObjectReference(Record):
    """One immutable input object."""

    key: str
    """Key in the bucket."""
    sha256: str
    """Checksum of the object's bytes."""
    rows: int
    """Rows in it."""
    last: float = 0.0
    """Time of its last event; 0 where that was not looked at."""


class Quarantined(Record):
    """A request that was kept from training, with what was wrong with it."""

    completion_id: str
    """Its completion; empty where the row could not be read that far."""
    project: str
    """As in Completion."""
    user: str
    """As in Completion."""
    time: float
    """When the request arrived; 0 where that is not known."""
    reason: str
    """The expectation that it fails, or why it was unfit before there was a sample of it."""
    row: str
    """The row as JSON, as it failed; empty where only the reason may be kept."""


class Profile(Record):
    """Sums over a cycle's samples that later cycles are held against; profiles add up."""

    samples: int = 0
    """Samples."""
    judged: int = 0
    """Samples with something shown."""
    accepted: int = 0
    """Judged samples that were accepted, in part or whole."""
    shown_characters: int = 0
    """Characters shown, in all."""
    shown_characters_squared: int = 0
    """Sum of the squares of each judged sample's characters."""


class Returns(Record):
    """Rewards of a cycle's samples of one language and like length, added up: later cycles' running baseline is made of them."""

    bits: int
    """Bits of their number of tokens: 1 for one token, 2 for 2 to 3, 3 for 4 to 7, ..."""
    samples: int
    """Samples."""
    reward: float
    """Sum of their rewards."""
    language: str = ""
    """As clients tell it; empty where none did, and in manifests older than this field."""


class Manifest(Record):
    """What a cycle trains on, written with a conditional put before training starts; a cycle resumes from it."""

    cycle: str
    """Cycle id, also the name of its folder."""
    created: float
    """When it was written."""
    champion: str
    """Version that the candidate is to beat."""
    parent: str
    """Version that is trained further: the champion, or a promising candidate trained from it (tasks/release.py)."""
    since: float
    """Requests up to here were seen by the parent's own cycle, save those in objects that came late."""
    until: float
    """Requests after this may still get a label: they wait, and the next cycle's window starts here."""
    completions: tuple[ObjectReference, ...]
    """Completion objects that were read."""
    feedback: tuple[ObjectReference, ...]
    """Feedback objects that were read."""
    samples: ObjectReference
    """The cycle's samples, in order."""
    buckets: dict[Bucket, int]
    """Requests in each bucket; they add up to `requests`."""
    requests: int
    """Requests served in the window."""
    quarantined: dict[str, int] = {}
    """Quarantined requests by reason."""
    settings_sha256: str
    """Checksum of the resolved settings kept beside the manifest."""
    quarantine: ObjectReference | None = None
    """The quarantined rows, each with its reason; none where there are none."""
    docs: tuple[str, ...] = ()
    """Keys of the validation's Data Docs."""
    profile: Profile = Profile()
    """What later batches are held against."""
    returns: tuple[Returns, ...] = ()
    """Rewards by language and length, for the baseline of later cycles; empty in manifests older than this field."""
    code: str = ""
    """Version of the code that sealed it (infra/version.py)."""
    run: str = ""
    """Prefect's flow run that sealed it; empty: none is known."""


class CycleOutcome(Record):
    """How a cycle ended, written once."""

    cycle: str
    """Its id."""
    result: Literal["registered", "refused", "abandoned"]
    """registered: the candidate is a version; refused: by the trainer or by held-out evaluation; abandoned: it failed too often,
    or the champion that it was to beat was replaced."""
    reason: str
    """In words."""
    version: str = ""
    """The candidate's version, where there is one."""
    experiment: str = ""
    """The experiment it opened."""


class ExperimentRecord(Record):
    """An A/B test under way."""

    id: str
    """Experiment id; salts the assignment."""
    champion: str
    """Version on the champion's arm."""
    challenger: str
    """Version on the challenger's arm."""
    share: float
    """Share of users on the challenger."""
    started: float
    """When assignment began."""


class Rate(Record):
    """A mean per request with its 95 % interval, clustered by user."""

    rate: float
    """The mean."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    n: int
    """Requests."""


class Verdict(Record):
    """What the gate said, and why."""

    verdict: VerdictName
    """promote, reject or undecided."""
    reason: str
    """In words, with the numbers it rests on."""
    estimate: float | None = None
    """Difference of acceptance per request, challenger minus champion."""
    low: float | None = None
    """Lower end of the always-valid interval."""
    high: float | None = None
    """Upper end."""
    requests: dict[Arm, int] = {}
    """Requests in each arm."""
    users: dict[Arm, int] = {}
    """Users in each arm."""
    acceptance: dict[Arm, Rate] = {}
    """Acceptance per request of each arm by itself; an arm of less than two users has none."""
    promising: bool = False
    """Rejected for want of proof only, having been accepted no less so far: training goes on from it."""


class Decision(Record):
    """A release decision, written once to the object store, with all it was based on."""

    experiment: ExperimentRecord
    """The test it ends."""
    verdict: Verdict
    """The gate's answer."""
    decided: float
    """When."""
    by: str
    """"gate", or who did it by hand."""
    inputs: tuple[ObjectReference, ...] = ()
    """Event objects that the verdict was computed from."""
    dataset: str = ""
    """SHA-256 of the manifest that the challenger was trained from; empty for a version that no cycle made."""


class Forgotten(Record):
    """A user or a project that is to be forgotten: what is there of it is removed, and nothing of it is trained on any more."""

    kind: Literal["user", "project"]
    """What is forgotten."""
    subject: str
    """The user's keyed hash, or the project."""
    time: float
    """When that was asked."""
    by: str
    """Who asked."""
    reason: str
    """Why, in words."""


class Amendment(Record):
    """Kept in a cycle's folder: rows were removed from its objects after its manifest was written, whose checksums they had."""

    cycle: str
    """The cycle."""
    forgotten: str
    """Name of the record under forgotten/; it tells neither user nor project."""
    time: float
    """When."""
    rows: dict[str, int]
    """Rows removed, by the object's key."""
    trained: bool
    """Whether some of them were samples: the cycle's version was trained on them."""


class OfflineExample(Record):
    """A judged completion from an editor's own log: text and label, nothing of how it was sampled."""

    id: str
    """The editor's id of the completion."""
    time: float
    """When it was made; 0 where the log does not tell."""
    project: str
    """As in Completion."""
    user: str
    """As in Completion."""
    model: str
    """Name of the model that the editor asked."""
    prefix: str
    """Text before the cursor."""
    suffix: str
    """Text after the cursor."""
    shown: str
    """Text that was shown."""
    accepted: bool
    """Whether it was accepted in the end."""
    behaviour_logprobs: Literal["unknown"] = "unknown"
    """What the mark says: this is no Sample, and no off-policy correction can be made for it."""
