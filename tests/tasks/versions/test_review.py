"""A version's description decides a review: verdicts with intervals, metrics beside champion and base, data, examples, links."""

import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from infra.records import Decision, ExperimentRecord, MetricResult, Verdict
from infra.registry.client import MOST_DESCRIPTION
from infra.settings import Settings
from infra.settings.schema import Gate
from infra.storage import cycles
from infra.storage.store import to_parquet
from tasks.evaluation.gate.verdict import gate_candidate
from tasks.evaluation.scores import PositionScore
from tasks.steps import transaction
from tasks.versions import review
from tasks.versions.register import describe_again
from tests.tasks.evaluation.made_scores import PLACES, scores
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, sample
from tests.tasks.steps.test_transaction import FIELDS

MEANS = {"judged": 6.5, "exact": 0.2, "edit_similarity": 0.5, "matching_characters": 4.0, "empty": 0.1, "length": 12.0}
RATES = {"champion": 1000, "challenger": 1001}
METRIC = MetricResult(
    name="accepted", role="success", champion=0.2, challenger=0.23, estimate=0.03, low=0.01, high=0.05, level=0.95, margin=0.02,
    state="better",
)  # fmt: skip
WON = Verdict(verdict="promote", reason="accepted is surely better", requests=RATES, users=RATES, metrics=(METRIC,))


def changed(score: PositionScore, number: int) -> PositionScore:
    """Return a completion that is better at every third place, worse at every other third."""
    similarity = {0: 1.0, 1: 0.0}.get(number % 3, score.edit_similarity)
    return replace(score, edit_similarity=similarity, completion=f"ours {number} | `x`")


def evaluation_of(candidate: list[PositionScore], champion: list[PositionScore]) -> dict[str, Any]:
    gate = gate_candidate(candidate, champion, Gate(min_places=PLACES))
    return {
        "verdict": gate.verdict,
        "reason": gate.reason,
        "findings": [asdict(finding) for finding in gate.findings],
        "left_out": ["judge: there is none"],
        "candidate": MEANS | {"judged": 7.25},
        "champion": MEANS,
        "held_out": [{"name": "packages", "sha256": "a" * 64, "trained": []}],
        "positions": [asdict(score) for score in candidate],
        "champion_positions": [asdict(score) for score in champion],
    }


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    for number, champion in ((1, "1"), (2, "2")):
        fields = {"buckets": {"trained": 1, "stale": 3}, "requests": 4, "created": NOW, "champion": champion, "parent": champion}
        transaction.seal(
            made, cycles.name(number), FIELDS | fields | {"run": "run-of-prefect"}, to_parquet([sample()]), Settings()
        )
        ours = [changed(score, place) for place, score in enumerate(scores())]
        made.put_json(cycles.key(cycles.name(number), "evaluation.json"), evaluation_of(ours, scores()))
    return made


@pytest.fixture
def registry() -> MemoryRegistry:
    made = {"cycle": "cycle-000001", "run": "r1", "manifest_sha256": ""}
    return MemoryRegistry(v1={"cycle": ""}, v2=made, v3=made | {"cycle": "cycle-000002", "run": "r2"})


def facts_of(store: MemoryStore, registry: MemoryRegistry, decision: Decision | None = None) -> review.Facts:
    return review.facts(store, Settings(), registry.client.versions(), "cycle-000002", "r2", decision)


def decision(**fields: Any) -> Decision:
    test = ExperimentRecord(id="cycle-000002-version-3", champion="2", challenger="3", share=0.5, started=NOW)
    return Decision(experiment=test, verdict=WON, decided=NOW + 60, by="gate", **fields)


def test_a_review_has_verdicts_metrics_data_links_and_examples(store: MemoryStore, registry: MemoryRegistry) -> None:
    text = review.page(facts_of(store, registry))
    lines = text.split("\n")
    verdict = store.get_json("cycles/cycle-000002/evaluation.json")["verdict"]
    assert lines[0].startswith(f"**Offline gate: {verdict}. A/B test: ")
    assert "| judged | 7.25 | 6.5 | 6.5 |" in lines, "this, champion, and the base as cycle 1 measured it"
    assert any("base, of cycle-000001 |" in line for line in lines)
    assert "4 requests, each once: 1 trained (25.0%), 3 stale (75.0%)" in text
    assert "http://127.0.0.1:4200/runs/flow-run/run-of-prefect" in text
    assert "http://127.0.0.1:5000/#/runs/r2" in text and "artifact review.md" in text
    assert cycles.dataset_id(store, "cycle-000002") in text and "Not checked: judge: there is none." in text
    examples = [line for line in lines if line.startswith(("| +", "| -0", "| -1"))]
    assert len(examples) == review.EXAMPLES
    changes = [float(line.split("|")[1]) for line in examples]
    assert changes == [*sorted(changes[:5], reverse=True), *sorted(changes[5:])] and changes[4] > 0 > changes[5]
    assert all(line.count("|") == 5 for line in examples), "a bar in a completion ends no cell"


def test_the_teams_text_is_in_no_example(store: MemoryStore, registry: MemoryRegistry) -> None:
    key = "cycles/cycle-000002/evaluation.json"
    record = store.get_json(key)
    for name in ("positions", "champion_positions"):
        record[name] = [
            row | {"truth": "", "completion": ""} for row in record[name]
        ]  # as evaluation.json holds the team's places
    store.put_json(key, record)
    assert "largest gains" not in review.page(facts_of(store, registry))


def test_a_description_fits_into_what_mlflow_stores(store: MemoryStore, registry: MemoryRegistry) -> None:
    key = "cycles/cycle-000002/evaluation.json"
    record = store.get_json(key)
    for row in record["positions"]:
        row["completion"] = row["truth"] = "a long line of code " * 20
    store.put_json(key, record | {"reason": "because " * 200})
    found = facts_of(store, registry, decision())
    text = review.description(found)
    assert len(review.page(found)) > MOST_DESCRIPTION >= len(text)
    lines = text.split("\n")
    assert lines[0].startswith("**Offline gate: ") and "A/B test: promoted" in lines[0]
    examples = [number for number, line in enumerate(lines) if re.match(r"\| [+-]\d\.\d\d \| ", line)]
    assert len(examples) == review.EXAMPLES and examples[0] < 10, "the examples stand before the evidence"
    assert lines[-1].startswith("Links: ") and "More: in the artifact review.md of the run." in lines
    assert text.count("Not checked: ") <= 1


def test_what_was_not_checked_is_one_line(store: MemoryStore, registry: MemoryRegistry) -> None:
    key = "cycles/cycle-000002/evaluation.json"
    record = store.get_json(key)
    store.put_json(key, record | {"left_out": ["judge: there is none", "drift: too few", "slice go: 3 places"]})
    lines = review.page(facts_of(store, registry)).split("\n")
    assert [line for line in lines if "Not checked" in line] == [
        "Not checked: judge: there is none; drift: too few; slice go: 3 places."
    ]


def test_a_later_move_by_hand_leaves_the_verdict_and_is_a_line_of_its_own(store: MemoryStore, registry: MemoryRegistry) -> None:
    store.put_json(f"decisions/{decision().experiment.id}.json", decision())
    registry.versions["3"]["last_move"] = "promote, by ada: again"
    moved = decision().experiment.model_copy(update={"id": "manual-1-version-3"})
    by_hand = Verdict(verdict="promote", reason="again")
    again = decision().model_copy(update={"experiment": moved, "verdict": by_hand, "by": "ada"})
    found = describe_again(store, registry.client, Settings(), again)
    text = registry.descriptions["3"]
    assert found and "A/B test: promoted." in text and "A/B test, by gate: accepted is surely better" in text
    assert "Last move: promote, by ada: again" in text.split("\n")


def test_the_verdict_of_the_test_is_added_to_the_description(store: MemoryStore, registry: MemoryRegistry) -> None:
    describe_again(store, registry.client, Settings(), decision())
    text = registry.descriptions["3"]
    assert "A/B test: promoted." in text and "A/B test, by gate: accepted is surely better" in text
    assert "- champion v2: 1000 requests of 1000 users" in text
    row = next(line for line in text.split("\n") if line.startswith("| acceptance per request |"))
    assert "| 0.2000 | 0.2300 | +0.0300 [+0.0100, +0.0500] at 95 % |" in row and row.endswith("| better |")


def test_a_version_that_no_cycle_made_keeps_its_description(store: MemoryStore, registry: MemoryRegistry) -> None:
    by_hand = decision().experiment.model_copy(update={"challenger": "1"})
    describe_again(store, registry.client, Settings(), decision().model_copy(update={"experiment": by_hand}))
    assert registry.descriptions == {}


def test_the_figures_of_rewarded_actions_are_those_of_the_last_step_that_they_teach(
    store: MemoryStore, registry: MemoryRegistry
) -> None:
    drawn = {f"drawn_{name}": value for name, value in {"kl": 0.25, "clip_fraction": 0.125, "effective_samples": 0.75}.items()}
    rewarded, written = {"kl": 0.25, "drift": 0.5, "clip_fraction": 0.125, **drawn}, {"kl": None, "settled_loss": 2.0}
    figures = "drift 0.50000; drawn KL 0.25000, 12.50% clipped, effective samples 0.75."
    for steps, expected in (
        ([written, rewarded], f" 2 steps; mean reward 0.1000; last step: {figures}"),
        ([rewarded, written, written], f" 3 steps; mean reward 0.1000; step 1, the last one with them: {figures}"),
        ([written], " 1 steps."),
    ):
        store.put_json(cycles.key("cycle-000002", "training.json"), {"mean_reward": 0.1, "steps": steps})
        assert expected in review.page(facts_of(store, registry))
