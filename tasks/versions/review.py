"""The review of a version, in Markdown: verdicts, metrics, data, links, examples.

The page is computed from the objects of the cycle and its test alone, so that it is the same at any time and on any machine.
MLflow stores 5,000 characters of a version's description; the whole page is the artifact review.md of the version's run. Examples
are of public code alone: the team's code stays in its set, where `forget` finds it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.pages import figures
from infra.pages.experiment_view import metric_rows, words
from infra.pages.markdown import table
from infra.records import Decision, Manifest
from infra.registry.client import MOST_DESCRIPTION, ModelVersion
from infra.registry.lineage import CYCLE_TAG
from infra.settings import Settings, masked
from infra.storage import cycles
from infra.storage.store import ObjectStore
from tasks.labels.accounting import account_rows

ARTIFACT = "review.md"
EXAMPLES = 10
"""Half of them gains, half of them losses, where there are so many."""
MOST_TEXT = 60
"""Characters of a completion in an example."""
HEADINGS = {
    "promote": "promoted",
    "reject": "rejected",
    "breach": "taken back, since a guardrail was surely broken",
    "broken": "ended without a verdict on the version",
}
SEPARATOR = "\n\n"
MEASURES = ("judged", "exact", "edit_similarity", "matching_characters", "empty", "length")


@dataclass(frozen=True)
class Base:
    """The base model's means on held-out code."""

    cycle: str
    """The cycle that measured them."""
    means: Mapping[str, float]
    same_places: bool
    """Whether they are of the places of the reviewed cycle."""


@dataclass(frozen=True)
class Facts:
    """What a review stands on."""

    manifest: Manifest
    evaluation: Mapping[str, Any]
    """evaluation.json; empty where there is none."""
    training: Mapping[str, Any]
    """training.json."""
    base: Base | None
    decision: Decision | None
    """Of the A/B test; none while it runs, or where there was none."""
    links: Sequence[tuple[str, str]]
    """Names and addresses."""
    run: str = ""
    """MLflow's id of the cycle's run; empty: it has none."""
    last_move: str = ""
    """The version's latest move in words; empty: none is known."""


def facts(
    store: ObjectStore,
    settings: Settings,
    versions: Iterable[ModelVersion],
    cycle: str,
    run: str,
    decision: Decision | None,
    last_move: str = "",
) -> Facts:
    """Read what a review of a cycle's version stands on; `run`: MLflow's id of the cycle's run; empty: it has none."""
    manifest, evaluation = cycles.manifest_of(store, cycle), object_of(store, cycle, "evaluation.json")
    bases = {version.version for version in versions if not version.tags.get(CYCLE_TAG)}
    return Facts(
        manifest,
        evaluation,
        object_of(store, cycle, "training.json"),
        _base(store, manifest, evaluation, bases),
        decision,
        _links(store, settings, manifest, run),
        run,
        last_move,
    )


def page(found: Facts) -> str:
    """Return the whole review: the verdicts, the examples, then the evidence."""
    return "\n\n".join([*_verdicts(found), *_examples(found.evaluation, EXAMPLES), *_evidence(found, every=True)])


def description(found: Facts) -> str:
    """Return the review as a version's description: the verdicts and the examples, then as many whole parts as MLflow stores, and
    the links at the end."""
    texts = [*_verdicts(found), *_examples(found.evaluation, EXAMPLES)]
    links, left_out = _linked(found), "More: in the artifact " + ARTIFACT + " of the run."
    room = MOST_DESCRIPTION - len(links) - len(left_out) - 4 * len(SEPARATOR)
    head = cut(SEPARATOR.join(texts), room)
    parts, size, missing = [head], len(head), False
    for part in _evidence(found, every=False)[:-1]:
        if size + len(SEPARATOR) + len(part) > room:
            missing = True
            continue
        parts.append(part)
        size += len(SEPARATOR) + len(part)
    return SEPARATOR.join([*parts, *([left_out] if missing else []), links])


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters; whole lines where it is cut."""
    return text if len(text) <= most else text[: max(text.rfind("\n", 0, most), 0)] or text[:most]


def _verdicts(found: Facts) -> list[str]:
    """Return the first lines: the verdicts of the offline gate and of the A/B test, with its reason."""
    manifest = found.manifest
    verdict = found.evaluation.get("verdict", "unknown")
    tested = HEADINGS[found.decision.verdict.verdict] if found.decision else "no verdict yet" if verdict == "passed" else "none"
    return [
        f"**Offline gate: {verdict}. A/B test: {tested}.** Candidate of {manifest.cycle}, trained from version {manifest.parent} "
        f"to beat version {manifest.champion}.",
        *(_test(found.decision) if found.decision else []),
        *([f"Last move: {found.last_move}"] if found.last_move else []),
    ]


def _evidence(found: Facts, every: bool) -> list[str]:
    """Return the parts after the examples, the links last; `every`: also the findings of a slice that passed."""
    metrics = _metrics(found.decision) if found.decision else []
    return [*metrics, *_gate(found.evaluation, every), *_means(found), _data(found), _linked(found)]


def _linked(found: Facts) -> str:
    links = (f"[{name}]({address})" if "//" in address else f"{name} {address}" for name, address in found.links)
    return f"Links: {', '.join(links)}"


def _test(decision: Decision) -> list[str]:
    """Return the verdict's reason, and both arms with their intervals and requests."""
    verdict, test = decision.verdict, decision.experiment
    arms = [row.line() for row in figures.arm_rows(verdict, test.champion, test.challenger)]
    sampled = figures.sampled(test.plan.sample) if test.plan else ""
    return [f"A/B test, by {decision.by}{sampled}: {verdict.reason}", *(["\n".join(f"- {arm}" for arm in arms)] if arms else [])]


def _metrics(decision: Decision) -> list[str]:
    rows = [
        (r.name, r.role, r.champion, r.challenger, f"{r.difference} at {r.level}", r.margin, r.state)
        for r in metric_rows(decision.verdict, decision.experiment.plan)
    ]
    names = ("A/B test", "role", "champion", "this", "difference", "margin", "state")
    return [table(names, rows)] if rows else []


def _gate(evaluation: Mapping[str, Any], every: bool) -> list[str]:
    if not evaluation:
        return []
    shown = [f for f in evaluation.get("findings", ()) if every or not f["slice"] or f["verdict"] != "passed"]
    rows = [
        (
            f"{words(f['guardrail'])}{f' ({one})' if (one := f['slice']) else ''}",
            *map(_number, (f["champion"], f["candidate"])),
            f"{_signed(f['difference'])} [{_signed(f['low'])}, {_signed(f['high'])}]",
            f"at most {_number(f['margin'])} {f['worse']}",
            f["verdict"],
        )
        for f in shown
    ]
    reasons = list(evaluation.get("left_out", ()))
    left_out = [f"Not checked: {'; '.join(reasons)}."] if reasons else []
    names = ("offline gate", "champion", "this", "difference", "margin", "verdict")
    return [f"Offline gate: {evaluation['reason']}", *([table(names, rows)] if rows else []), *left_out]


def _means(found: Facts) -> list[str]:
    ours, theirs, base = found.evaluation.get("candidate", {}), found.evaluation.get("champion", {}), found.base
    if not ours:
        return []
    names = ["held-out code, mean", "this", f"champion (version {found.manifest.champion})"]
    names += [f"base, of {base.cycle}{'' if base.same_places else ' at other places'}"] if base else []
    rows = [
        (words(name), _number(ours[name]), _number(theirs.get(name)), *([_number(base.means.get(name))] if base else []))
        for name in MEASURES
        if name in ours
    ]
    return [table(names, rows)]


def _data(found: Facts) -> str:
    manifest, training = found.manifest, found.training
    rows = account_rows(manifest.buckets, manifest.quarantined, manifest.requests)
    counts = ", ".join(f"{row['requests']} {row['bucket']} ({row['share']})" for row in rows[:-1])
    requests = f"{manifest.requests} requests, each once{figures.sampled(manifest.share)}"
    text = f"Data: {requests}: {counts}. {manifest.samples.rows} rows of training data."
    if manifest.learned:
        read = ", ".join(f"{each.name}{f' at {each.revision[:12]}' if each.revision else ''}" for each in manifest.learned)
        text = f"Data: own code of {read}. {manifest.samples.rows} positions of training data."
    if steps := training.get("steps"):
        text += f" {len(steps)} steps{_of_actions(training, steps)}."
    if fitted := manifest.acceptance:
        text += (
            f" Drawn texts are rewarded by an acceptance fitted on {fitted.verdicts} verdicts: log loss {fitted.log_loss:.3f} on "
            f"others, {fitted.base_log_loss:.3f} of their mean."
        )
    return " ".join([text, *(f"Not done: {note}." for note in (*manifest.notes, *training.get("notes", ())))])


def _of_actions(training: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the reward, and drift, KL and clipped share of served and drawn actions in the last step that they teach."""
    number = max((n for n, step in enumerate(steps, 1) if step.get("kl") is not None), default=0)
    if not number:
        return ""
    last = steps[number - 1]
    kinds = [
        f"{kind} KL {last[f'{kind}_kl']:.5f}, {last[f'{kind}_clip_fraction']:.2%} clipped, effective samples "
        f"{last[f'{kind}_effective_samples']:.2f}"
        for kind in ("served", "drawn")
        if last.get(f"{kind}_kl") is not None
    ] or [f"KL {last['kl']:.5f}, {last['clip_fraction']:.2%} clipped"]
    kinds = [f"drift {drift:.5f}", *kinds] if (drift := last.get("drift")) is not None else kinds  # of earlier code: none
    where = "last step" if number == len(steps) else f"step {number}, the last one with them"
    return f"; mean reward {training['mean_reward']:.4f}; {where}: {'; '.join(kinds)}"


def _examples(evaluation: Mapping[str, Any], count: int) -> list[str]:
    """Return the places of public code with the largest gains, then those with the largest losses, of the edit similarity."""
    pairs = zip(evaluation.get("positions", ()), evaluation.get("champion_positions", ()), strict=True)
    compared = [(ours["edit_similarity"] - theirs["edit_similarity"], ours, theirs) for ours, theirs in pairs if ours["truth"]]
    gains = sorted((one for one in compared if one[0] > 0), key=lambda one: -one[0])[: (count + 1) // 2]
    losses = sorted((one for one in compared if one[0] < 0), key=lambda one: one[0])[: count // 2]
    if not gains and not losses:
        return []
    rows = [
        (f"{change:+.2f}", *map(_code, (theirs["completion"], ours["completion"], ours["truth"])))
        for change, ours, theirs in [*gains, *losses]
    ]
    names = (f"{len(gains)} largest gains, {len(losses)} largest losses (similarity)", "champion", "this", "what stands there")
    return [table(names, rows)]


def _base(store: ObjectStore, manifest: Manifest, evaluation: Mapping[str, Any], bases: set[str]) -> Base | None:
    """Return the base's means of this cycle, else of the newest one before it whose champion was a base."""
    known = [cycle for cycle in cycles.sealed(cycles.index(store)) if cycle <= manifest.cycle]
    for cycle in reversed(known):
        measured = evaluation if cycle == manifest.cycle else object_of(store, cycle, "evaluation.json")
        if measured and cycles.manifest_of(store, cycle).champion in bases:
            return Base(cycle, measured["champion"], _places(measured) == _places(evaluation))
    return None


def _places(evaluation: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    return [(one["name"], one["sha256"], one.get("trained", [])) for one in evaluation.get("held_out", ())]


def _links(store: ObjectStore, settings: Settings, manifest: Manifest, run: str) -> list[tuple[str, str]]:
    prefect = settings.orchestration.page or masked(settings.orchestration.api).removesuffix("/api")
    mlflow = settings.registry.page or masked(settings.registry.uri)
    found = [("run in Prefect", f"{prefect}/runs/flow-run/{manifest.run}")] if manifest.run else []
    if run:
        found.append((f"run in MLflow, whose artifact {ARTIFACT} is this report in full", f"{mlflow}/#/runs/{run}"))
    data = (("data set", f"`{cycles.dataset_id(store, manifest.cycle)}`"), ("samples", f"`{store.uri(manifest.samples.key)}`"))
    return [*found, *data]


def object_of(store: ObjectStore, cycle: str, name: str) -> dict[str, Any]:
    """Return an object of a cycle; empty where it was not written."""
    try:
        return dict(store.get_json(cycles.key(cycle, name)))
    except KeyError:
        return {}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3g}"


def _code(text: str) -> str:
    """Return the first line of a text as code in a table's cell."""
    line = next((line for line in text.split("\n") if line.strip()), "").strip()
    cut = line if len(line) <= MOST_TEXT else f"{line[: MOST_TEXT - 1]}…"
    # A backtick would end the code, and a bar the cell.
    return f"`{cut.replace('`', 'ˋ').replace('|', '∣')}`" if cut else "(nothing)"
