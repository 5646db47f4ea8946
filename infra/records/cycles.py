"""Cycles: what a cycle trains on, what it quarantines, and how it ends."""

from typing import Literal

from pydantic import Field

from infra.records.base import LabelOutcome, ObjectReference, Record
from infra.records.heldout import HeldOutSet
from infra.records.measures import MeasuredGroup, ServedVersion
from infra.records.own_code import LearnedRepository

Bucket = Literal[
    "trained",
    "waiting",
    "unlabelled",
    "cache_hit",
    "stale",
    "duplicate",
    "quarantined",
    "opted_out",
    "held_out",
    "withheld",
    "pinned",
    "new_user",
    "over_share",
    "surplus",
    "unsampled",
]
"""Every request is in exactly one bucket; the counts sum to the requests served (see infra/docs/how/labels.md)."""


class Sample(Record):
    """A completion to train on: the sampled tokens the developer was shown, their reward, and what was really written there."""

    completion_id: str
    """Id of the completion; of a context line, with the line's number after a slash, and of a drawn one with "drawn-" and its
    number in the group."""
    user: str
    """Keyed hash of the user, for shares and clustering."""
    project: str = ""
    """As in Completion; empty in samples written before this field existed."""
    credential: str = ""
    """As in Completion, for shares."""
    policy_version: str
    """Version that sampled the tokens."""
    prompt_token_ids: tuple[int, ...]
    """Token ids of the prompt, as served."""
    token_ids: tuple[int, ...]
    """Sampled token ids, cut to the text shown; the end token stays if all of the text was shown. Empty where nobody judged the
    completion and only its settled text is trained on."""
    logprobs: tuple[float, ...]
    """Log-probability of each of token_ids under the behaviour policy, in nats."""
    temperature: float
    """Sampling temperature."""
    outcome: LabelOutcome | Literal["nothing", "judged", "unjudged", "standing"]
    """The label. "nothing": there was no text to show; "judged": drawn for training,
    scored by a judge or an estimate, and seen by no developer; "unjudged": nobody judged it, and its settled text is known;
    "standing": a line that stood in the request's prefix, as a place of its own."""
    shown_characters: int
    """Number of characters shown."""
    accepted_characters: int
    """Number of characters accepted."""
    kept_characters: int | None = None
    """Characters of the shown text, of its accepted part after a partial accept, or of all generated text where nobody judged it,
    that stand in the settled text; none if unknown."""
    reward: float = 0.0
    """Signed reward (tasks/rewards/reward.py)."""
    advantage: float = 0.0
    """Advantage: the reward less the baseline of its place, times its share, capped (tasks/rewards/actions.py, weights.py)."""
    settled_token_ids: tuple[int, ...] = ()
    """Token ids of the settled text, which was really written at the place; ends with the end token if the text is whole. Empty
    if unknown, and in samples written before this field existed."""
    settled_weight: float = 1.0
    """Weight of the settled text's cross-entropy: 1, or less where a user's share is capped. The loss multiplies it by the
    setting of the same name (tasks/trainer/options.py)."""


class Quarantined(Record):
    """A request excluded from training, and the reason."""

    completion_id: str
    """Id of the completion; empty if the row could not be read that far."""
    project: str
    """As in Completion."""
    user: str
    """As in Completion."""
    time: float
    """When the request arrived; 0 if unknown."""
    reason: str
    """The failed expectation, or the quarantine reason of a request that never became a sample."""
    row: str
    """The row as JSON, as it failed; empty if only the reason may be stored."""


class Profile(Record):
    """Sums over a cycle's samples, for comparison with later cycles; profiles can be added."""

    samples: int = 0
    """Number of samples."""
    judged: int = 0
    """Number of samples with text shown."""
    accepted: int = 0
    """Number of shown samples accepted in part or whole."""
    shown_characters: int = 0
    """Total number of characters shown."""
    shown_characters_squared: int = 0
    """Sum over shown samples of the squared number of characters."""


class AcceptanceFit(Record):
    """How well the acceptance that rewards drawn texts predicts verdicts that it was not fitted on (by cross-validation)."""

    verdicts: int
    """Accepts and rejections, all of them with a known settled text."""
    accepted: int
    """Accepts among them."""
    predicted: float
    """Accepts that it predicts: the sum of the chances."""
    brier: float
    """Mean squared error of the chances (Brier 1950)."""
    base_brier: float
    """The same of their mean as the chance of each."""
    log_loss: float
    """Mean of minus the logarithm of the chance that was given to the verdict, in nats."""
    base_log_loss: float
    """The same of their mean as the chance of each."""


class RewardTotals(Record):
    """Reward totals of a cycle's samples of one language and similar length."""

    bits: int
    """Bit length of the number of tokens: 1 for one token, 2 for 2 to 3, 3 for 4 to 7, ..."""
    samples: int
    """Number of samples."""
    reward: float
    """Sum of the rewards."""
    language: str = ""
    """Language as named by clients; empty if none named it, and in manifests written before this field existed."""


class Manifest(Record):
    """What a cycle trains on. Written by a conditional put before training starts; a resumed cycle reads it."""

    cycle: str
    """Cycle id, also the name of its folder."""
    created: float
    """When the manifest was written."""
    champion: str
    """Version the candidate has to beat."""
    parent: str
    """Version to train from: the champion, or a promising candidate trained from it."""
    since: float
    """Start of the window: the parent's cycle accounted for earlier requests, except those in objects that arrived late."""
    until: float
    """End of the window. Later requests may still get a label, so they wait for the next cycle, whose window starts here."""
    completions: tuple[ObjectReference, ...]
    """Completion objects read."""
    feedback: tuple[ObjectReference, ...]
    """Feedback objects read."""
    samples: ObjectReference
    """The cycle's samples, in training order."""
    buckets: dict[Bucket, int]
    """Number of requests in each bucket; they sum to `requests`."""
    requests: int
    """Number of requests served in the window."""
    share: float = 1.0
    """Share of the users whose requests were read; the others' are in the bucket `unsampled` (collect.most_requests)."""
    apart: tuple[str, ...] = ()
    """Projects with a champion of their own, whose requests a cycle of the common loop does not read."""
    quarantined: dict[str, int] = Field(default={})
    """Number of quarantined requests by reason."""
    settings_sha256: str
    """SHA-256 of the resolved settings stored beside the manifest, in hex."""
    quarantine: ObjectReference | None = None
    """The quarantined rows, each with its reason; none if no request was quarantined."""
    docs: tuple[str, ...] = ()
    """Keys of the pages of its validation."""
    profile: Profile = Profile()
    """Sums that later cycles are compared with."""
    returns: tuple[RewardTotals, ...] = ()
    """Reward totals of the served completions, by language and length; empty in manifests written before this field existed."""
    acceptance: AcceptanceFit | None = None
    """Of the acceptance that rewards the drawn texts; none where nothing was drawn, and in older manifests."""
    notes: tuple[str, ...] = ()
    """Parts of the update that these samples leave out, each with its reason, such as drawn texts for want of verdicts."""
    measures: tuple[MeasuredGroup, ...] = ()
    """What the window's completions were worth, for all and by group; empty in manifests written before this field existed."""
    served: tuple[ServedVersion, ...] = ()
    """How often each version was accepted in the window, over all projects and in the largest; empty in manifests written before
    this field existed."""
    held_out: tuple[HeldOutSet, ...] = ()
    """The sets that the candidate is scored on; empty in manifests written before this field existed."""
    learned: tuple[LearnedRepository, ...] = ()
    """The repositories that the cycle learnt from in place of requests; empty in all other cycles."""
    code: str = ""
    """Version of the code that sealed the cycle (tasks/steps/version.py)."""
    run: str = ""
    """Id of the Prefect flow run that sealed the cycle; empty if unknown."""


class CycleOutcome(Record):
    """How a cycle ended; written once."""

    cycle: str
    """Cycle id."""
    result: Literal["registered", "refused", "abandoned"]
    """registered: the candidate passed the held-out gate. refused: the trainer refused the update, or the candidate did not pass.
    abandoned: the cycle failed too often, or its champion was replaced meanwhile."""
    reason: str
    """The reason, as a sentence."""
    version: str = ""
    """The candidate's version, also if it did not pass; empty if there is none."""
    experiment: str = ""
    """The experiment the candidate entered; empty if none."""
    ended: float = 0.0
    """When it was written; 0 in outcomes written before this field existed."""
