"""Every request of the window in exactly one bucket: pure, deterministic, and checked to add up."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from infra.records import Bucket, Completion, Sample
from infra.settings.schema import Collect
from tasks.join import Join, Joined, cut
from tasks.lineage import Lineage
from tasks.window import MALFORMED

BUCKETS: tuple[Bucket, ...] = get_args(Bucket)


class Unaccounted(AssertionError):
    """The buckets do not add up to the requests served: data were lost or counted twice."""


@dataclass(frozen=True)
class Placed:
    """Where a request ended, with its sample where it can be trained on."""

    completion_id: str
    user: str
    time: float
    bucket: Bucket
    reason: str = ""
    """Of a quarantined request."""
    sample: Sample | None = None
    project: str = ""


@dataclass(frozen=True)
class Accounts:
    """All requests of a window."""

    placed: tuple[Placed, ...]
    """By time, then id."""
    duplicates: int
    malformed: int
    requests: int
    """Rows served in the window, however often one was delivered."""

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What is trained."""
        return tuple(p.sample for p in self.placed if p.bucket == "trained" and p.sample)

    @property
    def buckets(self) -> dict[Bucket, int]:
        """Requests by bucket.

        Raises:
            Unaccounted: they do not add up.
        """
        counts: Counter[Bucket] = Counter(p.bucket for p in self.placed)
        counts["duplicate"] += self.duplicates
        counts["quarantined"] += self.malformed
        if sum(counts.values()) != self.requests:
            raise Unaccounted(
                f"buckets {dict(counts)} add up to {sum(counts.values())}, but {self.requests} requests were served"
            )
        return {bucket: counts[bucket] for bucket in BUCKETS}

    @property
    def quarantined(self) -> dict[str, int]:
        """Quarantined requests by reason."""
        counts = Counter(p.reason for p in self.placed if p.bucket == "quarantined")
        return dict(sorted((counts + Counter({MALFORMED: self.malformed})).items()))

    @property
    def reasons(self) -> dict[str, str]:
        """Quarantined requests with their reason, by completion id."""
        return {p.completion_id: p.reason for p in self.placed if p.bucket == "quarantined"}

    def quarantine(self, reasons: Mapping[str, str]) -> "Accounts":
        """Move samples out, each with its reason, by completion id."""
        return replace(
            self,
            placed=tuple(
                _move(p, "quarantined", reasons[p.completion_id]) if p.completion_id in reasons else p for p in self.placed
            ),
        )


def account(
    found: Join,
    *,
    parent: str,
    lineage: Lineage,
    until: float,
    settings: Collect,
    seen: Collection[str] = frozenset(),
    malformed: int = 0,
) -> Accounts:
    """Put every request in its bucket; `seen` are the ids that the parent's ancestry was trained on."""
    distances = {
        version: lineage.distance(version, parent) for version in {joined.completion.policy_version for joined in found.joined}
    }
    placed = [place(joined, distances, until, settings.max_staleness, seen) for joined in found.joined]
    placed = cap_users(placed, settings.max_user_share)
    placed = cap_total(placed, settings.max_samples)
    placed = cap_users(placed, settings.max_user_share)
    requests = len(found.joined) + found.duplicates + malformed
    return Accounts(tuple(placed), found.duplicates, malformed, requests)


def place(joined: Joined, distances: Mapping[str, int | None], until: float, max_staleness: int, seen: Collection[str]) -> Placed:
    """The bucket of one request, before shares and totals are capped."""
    served = joined.completion

    def into(bucket: Bucket, reason: str = "", sample: Sample | None = None) -> Placed:
        return Placed(served.id, served.user, served.time, bucket, reason, sample, served.project)

    distance = distances[served.policy_version]
    if served.id in seen:
        return into("duplicate")
    if served.opted_out:
        return into("opted_out")
    if served.time > until:
        return into("waiting")
    if served.pinned:
        return into("pinned")
    if served.withheld:
        return into("withheld")
    if reason := unfit(served, distance):
        return into("quarantined", reason)
    if distance is None or distance > max_staleness:
        return into("stale")
    if sample := to_sample(joined):
        return into("trained", sample=sample)
    return into("cache_hit" if joined.cache_hit else "unlabelled")


def unfit(served: Completion, distance: int | None) -> str:
    """Why what was served cannot be trained on, or the empty text."""
    if served.redacted:
        return "secret"
    if served.mixed:
        return "mixed_weights"
    if served.behaviour_logprobs == "unknown":
        return "no_logprobs"
    if served.top_p < 1:
        return "cut_distribution"
    if served.finish_reason == "error":
        return "engine_error"
    if distance is None:
        return "unknown_policy_version"
    return ""


def to_sample(joined: Joined) -> Sample | None:
    """What is trained of a completion; none where nobody judged it."""
    served, label = joined.completion, joined.label
    nothing = label is None and served.finish_reason == "stop" and not served.text.strip() and bool(served.token_ids)
    if label is None and not nothing:
        return None
    kept = cut(served, label.extent) if label else len(served.token_ids)
    return Sample(
        completion_id=served.id,
        user=served.user,
        project=served.project,
        policy_version=served.policy_version,
        prompt_token_ids=served.prompt_token_ids,
        token_ids=served.token_ids[:kept],
        logprobs=served.logprobs[:kept],
        temperature=served.temperature,
        outcome=label.outcome if label else "nothing",
        shown_characters=label.shown_characters if label else 0,
        accepted_characters=label.accepted_characters if label else 0,
    )


def cap_users(placed: Sequence[Placed], share: float) -> list[Placed]:
    """Keep each user's newest samples, so that nobody has more than a share of what is kept."""
    by_user: dict[str, list[Placed]] = defaultdict(list)
    for p in placed:
        if p.bucket == "trained":
            by_user[p.user].append(p)
    cap = user_cap([len(samples) for samples in by_user.values()], share)
    over = {p.completion_id for samples in by_user.values() for p in _newest_first(samples)[cap:]}
    return [_move(p, "over_share") if p.completion_id in over else p for p in placed]


def user_cap(counts: Sequence[int], share: float) -> int:
    """The largest cap c with c <= share * sum(min(count, c)); with fewer users than 1 / share, equal shares for all."""
    if not counts:
        return 0
    allowed = max(share, 1 / len(counts))
    low, high = 1, max(counts)
    while low < high:
        middle = (low + high + 1) // 2
        # Rounding must not make an equal share look too large.
        if middle <= allowed * sum(min(n, middle) for n in counts) + 1e-9:
            low = middle
        else:
            high = middle - 1
    return low


def cap_total(placed: Sequence[Placed], most: int) -> list[Placed]:
    """Keep the newest samples."""
    surplus = {p.completion_id for p in _newest_first(p for p in placed if p.bucket == "trained")[most:]}
    return [_move(p, "surplus") if p.completion_id in surplus else p for p in placed]


def _newest_first(placed: Iterable[Placed]) -> list[Placed]:
    return sorted(placed, key=lambda p: (p.time, p.completion_id), reverse=True)


def _move(placed: Placed, bucket: Bucket, reason: str = "") -> Placed:
    return replace(placed, bucket=bucket, reason=reason, sample=None)
