"""Fit the keep estimate: a logistic regression on the beginnings of a cycle's completions.

A label is a share (tasks/showing/labels.py), so the loss is the cross-entropy with it: each beginning is a row that was kept,
weighed by its label, and one that was not, weighed by the rest.

The reliability is measured on the later completions, with an estimate that was fitted on the earlier ones alone. scikit-learn
takes a second to import, so it is imported inside the function.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType

import numpy as np
from pydantic import TypeAdapter
from scipy.optimize import brentq

from infra.model.showing import FEATURES, FILE, Estimate, place_features, token_features, worth
from infra.records import Manifest, Record
from infra.storage import cycles
from infra.storage.store import ObjectStore
from tasks.showing.labels import LabelledCompletion, weighed
from tasks.showing.reliability import Reliability, reliability

LEAST_COMPLETIONS = 200
"""Minimum completions to fit and check an estimate."""
LEAST_EACH = 50
"""Minimum beginnings that were kept, and that were not."""
LEAST_LANGUAGE = 200
"""Minimum completions of a language with a weight of its own."""
MOST_SELECTION = 2.0
"""Largest correction, in log-odds, for choosing the beginning that looks best."""
LATER = 0.25
"""Share of the completions, the latest, that the estimate is checked on."""
FOLDS = 5
"""Parts of the completions, in order of time; in each, cutting is tried by an estimate fitted on the others."""
SURE = 3.0
"""Standard errors by which cutting must keep more characters."""


class FittedEstimate(Record):
    """An estimate with its reliability on later completions."""

    estimate: Estimate
    """Fitted on all completions."""
    reliability: Reliability
    """Of an estimate fitted on the earlier completions, on all beginnings of the later ones."""
    chosen: Reliability | None
    """The same on the beginning of each completion that looks best; None where the outcome of all is unknown."""
    served: Reliability | None = None
    """Of the chances by which serving decided, on the text it showed; None where no version had an estimate."""
    cut_gain: tuple[float, float] = (0.0, 0.0)
    """Characters a completion that are kept more where texts are cut, and the standard error of this."""
    completions: int
    """Number of completions it was fitted on."""


class Unfitted(Record):
    """Why a cycle has no estimate."""

    reason: str
    """The reason, as a sentence."""


def key(cycle: str, samples_sha256: str) -> str:
    """Return the key of a cycle's estimate; the samples' checksum ties it to the manifest that names these samples."""
    return cycles.key(cycle, f"showing-{samples_sha256}.json")


def write(store: ObjectStore, cycle: str, samples_sha256: str, fitted: FittedEstimate | Unfitted) -> None:
    """Write a cycle's estimate, or why it has none."""
    store.put_json(key(cycle, samples_sha256), fitted)


def read(store: ObjectStore, manifest: Manifest) -> FittedEstimate | Unfitted:
    """Return a sealed cycle's estimate, or why it has none."""
    names = key(manifest.cycle, manifest.samples.sha256), cycles.key(manifest.cycle, FILE)  # the latter of earlier code
    found = next((name for name in names if store.exists(name)), None)
    if found is None:
        return Unfitted(reason="the cycle was sealed by code that fits none")
    body = store.get(found)
    return TypeAdapter[FittedEstimate | Unfitted](FittedEstimate | Unfitted).validate_json(body)


def fit(
    completions: Sequence[LabelledCompletion], shares: Mapping[str, float] = MappingProxyType({})
) -> FittedEstimate | Unfitted:
    """Return the estimate fitted on completions, earliest first, or why there is none.

    Completions of another temperature than most are left out: their log-probabilities mean something else. `shares` are those of
    the verdicts (acceptance.capped).
    """
    if not completions:
        return Unfitted(reason="no completion has a label")
    temperature = Counter(c.temperature for c in completions).most_common(1)[0][0]
    usable = weighed([c for c in completions if c.temperature == temperature], shares)
    if len(usable) < LEAST_COMPLETIONS:
        found = f"{len(usable)} completions at temperature {temperature:g} have a label"
        return Unfitted(reason=f"{found}, {LEAST_COMPLETIONS} are needed")
    cut = round((1 - LATER) * len(usable))
    parts = [_fitted(part, temperature) for part in (usable[:cut], usable)]
    early, estimate = parts
    if early is None or estimate is None:
        return Unfitted(reason=f"fewer than {LEAST_EACH} beginnings were kept, or fewer were not")
    later, (gain, error) = usable[cut:], cut_gain(usable, temperature)
    return FittedEstimate(
        estimate=estimate.model_copy(update={"cuts": gain > SURE * error}),
        reliability=checked(early, later),
        chosen=_reliability(*chosen(early, later)),
        served=_served(usable),
        completions=len(usable),
        cut_gain=(gain, error),
    )


def cut_gain(completions: Sequence[LabelledCompletion], temperature: float) -> tuple[float, float]:
    """Return the characters a completion that are kept more where texts are cut, and its standard error; (0, 0) without a fit.

    A text is cut behind the beginning that looks best. That is often one whose chance is estimated too high, so cutting may lose:
    it is tried on completions that the estimate was not fitted on.
    """
    gains = []
    for part in np.array_split(np.arange(len(completions)), FOLDS):
        first, after = int(part[0]), int(part[-1]) + 1
        estimate = _fitted([*completions[:first], *completions[after:]], temperature)
        if estimate is None:
            return 0.0, 0.0
        for c in completions[first:after]:
            kept = worth(c.kept, c.ends, c.text)
            gains.append(kept[_best(estimate, c)[0]] - kept[-1])
    known = np.array(gains)[~np.isnan(gains)]
    return (float(known.mean()), float(known.std() / len(known) ** 0.5)) if len(known) else (0.0, 0.0)


def checked(estimate: Estimate, completions: Sequence[LabelledCompletion]) -> Reliability:
    """Return the reliability of an estimate on the labelled beginnings of completions."""
    chances = [estimate.at(c.place, chosen=False).chances(c.logprobs, c.ends) for c in completions]
    kept = np.concatenate([c.kept for c in completions])
    known = ~np.isnan(kept)
    return reliability(np.concatenate(chances)[known], kept[known])


def chosen(estimate: Estimate, completions: Sequence[LabelledCompletion]) -> tuple[np.ndarray, np.ndarray]:
    """Return the chance of the beginning that looks best of each completion, and whether it was kept, where that is known."""
    pairs = []
    for c in completions:
        best, chance = _best(estimate, c)
        pairs.append((chance, c.kept[best]))
    chances, kept = np.array(pairs, float).reshape(-1, 2).T
    known = ~np.isnan(kept)
    return chances[known], kept[known]


def _best(estimate: Estimate, completion: LabelledCompletion) -> tuple[int, float]:
    """Return the token up to which a completion looks best, and the chance of that beginning."""
    chances = estimate.at(completion.place).chances(completion.logprobs, completion.ends)
    best = int(np.argmax(worth(chances, completion.ends, completion.text)))
    return best, float(chances[best])


def with_selection(estimate: Estimate, completions: Sequence[LabelledCompletion]) -> Estimate:
    """Return the estimate with the shift of log-odds by which as many of the beginnings that look best are kept as it expects."""
    chances, kept = chosen(estimate, completions)
    if not len(kept):
        return estimate
    odds = np.log(chances / (1.0 - chances))

    def excess(shift: float) -> float:
        return float(np.mean(1.0 / (1.0 + np.exp(-odds - shift))) - np.mean(kept))

    low, high = -MOST_SELECTION, MOST_SELECTION
    shift = low if excess(low) > 0 else high if excess(high) < 0 else float(brentq(excess, low, high))
    return estimate.model_copy(update={"selection": shift})


def _served(completions: Sequence[LabelledCompletion]) -> Reliability | None:
    pairs = np.array([(c.decided[0], c.kept[c.decided[1] - 1]) for c in completions if c.decided], float).reshape(-1, 2)
    known = pairs[~np.isnan(pairs[:, 1])]
    return _reliability(*known.T)


def _reliability(chances: np.ndarray, kept: np.ndarray) -> Reliability | None:
    return reliability(chances, kept) if len(kept) else None


def _fitted(completions: Sequence[LabelledCompletion], temperature: float) -> Estimate | None:
    """Return the estimate; None where there are too few kept beginnings, or too few others."""
    from sklearn.linear_model import LogisticRegression

    judged = [c.accepted for c in completions if c.accepted is not None]
    acceptance = sum(judged) / len(judged) if judged else 0.5
    kept = np.concatenate([c.kept for c in completions])
    known = ~np.isnan(kept)
    if min(np.sum(kept[known]), np.sum(1 - kept[known])) < LEAST_EACH:
        return None
    rows = np.concatenate([_features(c, acceptance) for c in completions])[known]
    means, scales = rows.mean(0), rows.std(0)
    scales[scales < 1e-9] = 1.0  # a feature that is the same for all carries no information
    counts = Counter(c.place.language for c in completions)
    languages = sorted(name for name, count in counts.items() if name and count >= LEAST_LANGUAGE)
    of_row = np.array(list(chain.from_iterable([c.place.language] * len(c.ends) for c in completions)))[known]
    columns = [(rows - means) / scales, *((of_row == name)[:, None] for name in languages)]
    values, labels = np.hstack(columns), kept[known]
    some, others = labels > 0, labels < 1
    model = LogisticRegression(max_iter=1000).fit(
        np.vstack([values[some], values[others]]),
        np.repeat([1, 0], [some.sum(), others.sum()]),
        sample_weight=np.concatenate([labels[some], 1 - labels[others]]),
    )
    weights = model.coef_[0].tolist()
    estimate = Estimate(
        features=FEATURES,
        means=tuple(means.tolist()),
        scales=tuple(scales.tolist()),
        weights=tuple(weights[: len(FEATURES)]),
        bias=float(model.intercept_[0]),
        languages=dict(zip(languages, weights[len(FEATURES) :], strict=True)),
        temperature=temperature,
        acceptance=acceptance,
    )
    return with_selection(estimate, completions)


def _features(completion: LabelledCompletion, acceptance: float) -> np.ndarray:
    """Return the features of each token of a completion [T, FEATURES]."""
    tokens = token_features(completion.logprobs, completion.ends)
    place = np.array(place_features(completion.place, acceptance))
    return np.hstack([tokens, np.broadcast_to(place, (len(tokens), len(place)))])
