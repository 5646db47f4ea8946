"""Events: what serving records of completions and feedback, and labels imported from an editor's own log."""

from typing import Literal

from pydantic import model_validator

from infra.records.base import Arm, LabelOutcome, Record, ShowLevel

NotTaken = Literal["", "cancelled", "typed_through", "typed_away", "replaced", "empty", "rejected"]
"""Why a completion was not taken, as the editor reports it."""
FinishReason = Literal["stop", "length", "disconnected", "error"]
Outcome = LabelOutcome | Literal["shown", "retained", "thumbs_down"]


class Completion(Record):
    """A request that serving answered: one row per request, also if the client disconnected early."""

    id: str
    """The id in the response ("cmpl-...")."""
    time: float
    """When the request arrived."""
    project: str
    """Project of the bearer token or of the X-Project-ID header."""
    user: str
    """Keyed hash of the user's id; the user's name is never stored."""
    credential: str = ""
    """Keyed hash of the name of the token that the request came with; empty in events written before this field existed."""
    client: str
    """The client ("continue", "rlinf", ...), from the User-Agent or the shape of the request."""
    opted_out: bool = False
    """Whether the user opted out of logging: all text and token fields are empty."""
    redacted: bool = False
    """Whether a secret was removed from the text: all token fields are empty, and the completion is not trained on."""
    prefix: str
    """Text before the cursor, as sent, without FIM tokens."""
    suffix: str
    """Text after the cursor, as sent."""
    language: str = ""
    """Language of the code, as named by the request (infra/model/language.py); empty if the request does not name it."""
    file: str = ""
    """Keyed hash of the file's path within the project, where the client sends a path, and of its repository, where it sends one
    (Tabby); the path itself is never stored."""
    prompt_token_ids: tuple[int, ...]
    """Token ids of the prompt sent to the engine, FIM tokens included."""
    token_ids: tuple[int, ...]
    """Sampled token ids, including the end token if it was sampled."""
    logprobs: tuple[float, ...]
    """Natural-log probability of each sampled token under the sampling distribution; same length as token_ids."""
    token_ends: tuple[int, ...]
    """For each sampled token, the length in characters of the generated text up to and including it; same length as token_ids."""
    behaviour_logprobs: Literal["known", "unknown"] = "known"
    """Whether the log-probabilities of the sampling distribution are known. "unknown": an external server sampled the
    completion without reporting them; all token fields are empty, and the completion is not trained on."""
    text: str
    """Generated text as streamed to the client."""
    held_back: str = ""
    """Generated text after `text` that was not shown, since it was not worth an interruption; token_ends count it too."""
    finish_reason: FinishReason
    """Why generation ended. "disconnected": the client left; the other fields hold what was generated until then."""
    policy_version: str
    """Version of the weights that sampled the tokens."""
    mixed: bool = False
    """Whether the weights were swapped during this completion; if so, it is not trained on."""
    withheld: bool = False
    """Whether the completion was generated but not shown."""
    level: ShowLevel | Literal[""] = ""
    """Level at which the version's estimate decided what to show (infra/model/showing.py); empty: none took part, and all was
    shown."""
    chance: float | None = None
    """Estimated chance that the shown beginning, or the best one if none was worth showing, is kept; none without an estimate."""
    audited: bool = False
    """Whether all was shown although the estimate holds some back, so that the estimate can be checked."""
    user_acceptance: float | None = None
    """Share of the user's earlier completions that were accepted, as the replica counted them; none if it knows too few."""
    project_acceptance: float | None = None
    """Likewise, of the project's."""
    pinned: bool = False
    """Whether an administrator pinned the version; experiment is then empty, and no experiment counts the request."""
    exploring: bool = False
    """Whether the request was sampled at the exploring temperature; no experiment counts it."""
    arm: Arm
    """Arm that served the request."""
    experiment: str = ""
    """Experiment the user took part in; empty if none, and where another version answered than the arm's."""
    assigned: str = ""
    """Experiment that assigned the request to an arm, also where another version answered; empty if none, and in events written
    before this field existed."""
    assigned_arm: Arm | Literal[""] = ""
    """Arm that the experiment assigned; empty if none did, and in events written before this field existed. In the watch over a
    promoted version, its arm is still the challenger's."""
    temperature: float
    """Sampling temperature the server used."""
    top_p: float
    """Nucleus mass the server used."""
    max_tokens: int
    """Upper limit of sampled tokens."""
    ttft_ms: float | None
    """Milliseconds to the first token; none if no token was sampled."""
    total_ms: float
    """Milliseconds from the request's arrival to the end of generation."""

    @model_validator(mode="after")
    def _aligned(self) -> "Completion":
        if not len(self.token_ids) == len(self.logprobs) == len(self.token_ends):
            raise ValueError(
                f"completion {self.id}: token_ids, logprobs and token_ends must have the same length, "
                f"got {len(self.token_ids)}, {len(self.logprobs)}, {len(self.token_ends)}"
            )
        return self


class Feedback(Record):
    """A client's report on a completion: one row per event; tasks/labels attributes it to a completion."""

    id: str
    """Id of this event, assigned by the server. The same body sent twice gives two events with the same client_id."""
    time: float
    """When the event arrived."""
    made_at: float | None
    """When the completion was made, according to the client."""
    project: str
    """As in Completion."""
    user: str
    """As in Completion."""
    credential: str = ""
    """As in Completion; an editor may report with another token than it completes with."""
    client: str
    """As in Completion."""
    client_id: str
    """The client's own id of the impression (Continue's completionId); a reject and a later accept of it share the id."""
    completion_id: str = ""
    """The server's completion id, if the client knows it; empty: the event is matched by content."""
    outcome: Outcome
    """What the developer did."""
    prefix: str
    """Text before the cursor at the impression."""
    suffix: str
    """Text after the cursor at the impression."""
    shown: str
    """Text shown, after the client's post-processing."""
    accepted_characters: int | None = None
    """For a partial accept, the number of characters accepted."""
    retained: str = ""
    """For "retained", the text in the place of an accepted completion some time later."""
    settled: str | None = None
    """Text that stands where the completion was offered after 10 s without a keystroke there, at most 5 min later; none if the
    editor does not report it."""
    settled_kept: int | None = None
    """Characters of the completion that stand in the settled text, from an editor that may send no text; None: not reported."""
    settled_total: int | None = None
    """Characters of the settled text, from the same editors."""
    reason: NotTaken = ""
    """Why the completion was not taken: cancelled (before it was shown), typed_through (the developer typed the same text),
    typed_away (other text), replaced (by a newer completion), empty (nothing to show), rejected (dismissed); "" if unknown."""
    elapsed_ms: float | None = None
    """Milliseconds from the request to the developer's action, as measured by the client (Continue: to the completion)."""
    seen_ms: float | None = None
    """Milliseconds from showing the completion to the developer's action, as measured by the client; None if not reported."""
    cache_hit: bool = False
    """Whether the client showed it from its own cache, without a request."""
    language: str = ""
    """Language of the code, as named by the event (infra/model/language.py); empty if the event does not name it."""


class ShadowCopy(Record):
    """A request that the challenger answered too, after the champion's answer was sent. Nobody sees its text, and no text, user
    or project is recorded: it is no label, and nobody's data."""

    id: str
    """Id of this event ("shd-...")."""
    time: float
    """When the request arrived."""
    experiment: str
    """Experiment in its shadow stage."""
    champion: str
    """Version that answered the developer."""
    challenger: str
    """Version that answered the copy."""
    failed: bool
    """Whether the copy was not answered to its end."""
    champion_empty: bool
    """Whether the champion's text is blank."""
    challenger_empty: bool
    """Whether the challenger's text is blank."""
    champion_first_ms: float
    """Milliseconds to the champion's first token."""
    challenger_first_ms: float | None
    """Milliseconds to the challenger's first token; none if it gave no token."""
    champion_ms: float
    """Milliseconds to the end of the champion's generation."""
    challenger_ms: float
    """Milliseconds to the end of the challenger's generation, or to its failure."""
    same_line: bool
    """Whether both texts have the same first line."""
    similarity: float
    """Similarity of both texts, from 0, nothing in common, to 1, equal (Ratcliff and Obershelp); 0 for a failed copy."""
