"""A planted better and a planted worse challenger: console, report, status page, MLflow, Prefect and export show the same
numbers, which are those counted by hand."""

import io
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tokenizers import Tokenizer

from evals.demo import history, page
from evals.demo.loop import Loop
from evals.demo.view import View
from infra.assignment import assigned_arm
from infra.pages import figures
from infra.records import CycleOutcome, ExperimentRecord, Stage, Verdict
from infra.registry.client import ACCEPTANCE_TAG, LAST_MOVE_TAG, VERDICT_TAG
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from infra.storage import cycles, move_requests
from infra.storage.store import to_parquet
from tasks.experiments.controller import look as looking
from tasks.experiments.controller.look import ObservedTest
from tasks.experiments.counting.totals import ARMS
from tasks.experiments.moves import manual, release
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.reports.export import export
from tasks.experiments.reports.page import experiment_page
from tasks.experiments.stages import looks
from tasks.experiments.verdict import decide
from tasks.steps import transaction
from tasks.versions import register, review
from tests.evals.made_report import report
from tests.serving import fakes
from tests.serving.fakes import ADMIN, House
from tests.serving.status.test_routes import basic_auth
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback, sample
from tests.tasks.steps.test_transaction import FIELDS

CYCLE, USERS, REQUESTS, LENGTH = "cycle-000001", 60, 20, 8
LIMITS = Settings(collect=Collect(settle_seconds=5))
RATE = re.compile(r"\d+\.\d % \[-?\d+\.\d, \d+\.\d\]")


@dataclass
class Seen:
    """The texts of each place in which people see a test."""

    texts: dict[str, str]
    verdict: Verdict
    accepted: dict[str, int]
    """By arm, accepts that were planted."""
    requests: dict[str, int]
    registry: MemoryRegistry
    store: MemoryStore


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return fakes.tokenizer()


def planted(challenger: float) -> tuple[MemoryStore, ExperimentRecord, dict[str, int], dict[str, int]]:
    """Return a store with a test of which every request is answered, the accepts and the requests by arm. The champion's requests
    of before the test have another acceptance."""
    values = {"min_history_requests": 0, "min_requests": 100, "planned_requests": 400, "tolerated_users": 0, "design": "by_user"}
    settings = {name: value for name, value in values.items() if name in Experiment.model_fields and name != "design"}
    plan = make_plan(Experiment.model_validate(settings), LIMITS.collect).model_copy(update=values)
    name = cycles.experiment_id(CYCLE, "2")
    stages = (Stage(name="test", share=0.5, started=NOW),)
    test = ExperimentRecord(id=name, champion="1", challenger="2", share=0.5, started=NOW, plan=plan, stages=stages)
    store, draw, served, events = MemoryStore(), random.Random(3), [], []
    accepted, requests = {"champion": 0, "challenger": 0}, {"champion": 0, "challenger": 0}
    for number in range(USERS):
        user = f"{number:032x}"
        for i in range(2 * REQUESTS):
            of_test, key = i >= REQUESTS, f"{number}-{i}"
            time = NOW + 20 * draw.random() if of_test else NOW - 40 * draw.random() - 1
            arm = assigned_arm(test, user, time) if of_test else "champion"
            fields = {"arm": arm, "experiment": name, "assigned": name} if of_test else {}
            version = "2" if arm == "challenger" else "1"
            served.append(completion(key, user=user, prefix=key, time=time, policy_version=version, credential=user, **fields))
            taken = draw.random() < (challenger if arm == "challenger" else 0.4 if of_test else 0.9)
            outcome = "accepted" if taken else "rejected"
            events.append(feedback(key, user=user, prefix=key, completion_id=key, time=time + 1, outcome=outcome))
            accepted[arm] += taken and of_test
            requests[arm] += of_test
    store.put_rows("events/completions/date=2027-01-15/hour=08/a.parquet", served)
    store.put_rows("events/feedback/date=2027-01-15/hour=08/a.parquet", events)
    store.put_json(f"experiments/{name}.json", test)
    transaction.seal(store, CYCLE, FIELDS | {"created": NOW, "until": NOW}, to_parquet([sample()]), Settings())
    transaction.finish(store, CycleOutcome(cycle=CYCLE, result="registered", reason="", version="2", experiment=name))
    return store, test, accepted, requests


async def seen(challenger: float, tokenizer: Tokenizer, folder: Path) -> Seen:
    """Run the controller on a planted test as the flow does, and read every place."""
    store, test, accepted, requests = planted(challenger)
    registry = MemoryRegistry(v1={}, v2={"cycle": CYCLE, "run": "r", "state": "challenger"})
    registry.aliases = {"champion": "1", "challenger": "2"}
    registry.client.set_experiment(test)
    now = NOW + 60
    assert test.plan
    found = looking.look(ObservedTest(store, test, test.plan, now, 2.0), registry.client.aliases())
    look = looks.record(store, test, found.verdict, now)
    assert look and found.decision
    release.show_look(registry.client, test.model_copy(update={"plan": None}), decide.brief(found.verdict), now)
    decision = release.conclude(store, registry.client, found.decision)
    facts = register.describe_again(store, registry.client, LIMITS, decision)
    assert facts
    out = io.StringIO()
    view = View(Console(file=out, width=200))
    unused: Any = None
    loop = Loop(1, 1, LIMITS.experiment, 0.0, store, registry.client, unused, unused, view, folder, unused)
    await loop._show_look(test)
    view.verdict(decision.verdict.reason)
    with view.part("test"):
        console = f"{out.getvalue()}{view.line()}"
    state = history.read_state(store, registry.client)
    demo = report().model_copy(update={"experiments": history.experiment_rows(store, state)})
    written = export(store, test.id, folder, now)
    texts = {
        "console": console,
        "report": page.page(demo),
        "page": await status_page(store, registry, tokenizer, folder),
        "MLflow": "\n".join([registry.descriptions["2"], *registry.versions["2"].values(), review.page(facts)]),
        "Prefect": experiment_page(store, test, look),
        "export": "\n".join(f"{arm} {figures.share(rate)} of {rate.n}" for arm, rate in written.acceptance.items()),
    }
    return Seen(texts, decision.verdict, accepted, requests, registry, store)


async def status_page(store: MemoryStore, registry: MemoryRegistry, tokenizer: Tokenizer, folder: Path) -> str:
    """Return the status page of an app with these objects and this registry."""
    async with House(folder, tokenizer) as house:
        house.store.objects.update(store.objects)
        for version, tags in registry.versions.items():
            house.add_version(version)
            house.registry.tags[version] = tags
        house.registry.aliases = registry.aliases
        house.registry.decision = registry.client.last_look()
        await house.follow()
        answer = await house.client.get(house.urls[0] + "/", headers=basic_auth(ADMIN))
        assert answer.status_code == 200
        return answer.text


@pytest.mark.parametrize(("challenger", "verdict"), [(0.6, "promote"), (0.2, "reject")], ids=["better", "worse"])
async def test_every_place_shows_the_same_numbers(challenger: float, verdict: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = await seen(challenger, tokenizer, tmp_path)
    assert found.verdict.verdict == verdict, found.verdict.reason
    arms = [figures.share(found.verdict.acceptance[arm]) for arm in ARMS]
    for arm, words in zip(ARMS, arms, strict=True):
        by_hand = 100 * found.accepted[arm] / found.requests[arm]
        assert words.startswith(f"{by_hand:.1f} % ["), "requests from before the test do not count"
        assert found.verdict.kept[arm].rate == pytest.approx(LENGTH * by_hand / 100)
        for place, text in found.texts.items():
            assert words in text, (place, arm)
            assert str(found.requests[arm]) in text, f"{place}: a figure without its number of requests"
    estimate, low, high = found.verdict.estimate, found.verdict.low, found.verdict.high
    assert estimate is not None and low is not None and high is not None
    change = figures.change("accepted", estimate, low, high)
    for place in ("console", "report", "page", "MLflow", "Prefect"):
        assert change in found.texts[place], place
        assert set(RATE.findall(found.texts[place])) == set(arms), f"{place}: another acceptance"


async def test_a_move_by_hand_and_later_looks_leave_the_verdict(tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = await seen(0.6, tokenizer, tmp_path / "before")
    store, registry = found.store, found.registry
    tags = dict(registry.versions["2"])
    assert tags[VERDICT_TAG] == "promote, by gate" and found.verdict.reason.startswith(tags[f"{VERDICT_TAG}.reason"][:100])
    request = move_requests.make("roll_back", "1", "2", "it is slow", by="ada", now=NOW + 100, source="command")
    decision = manual.decided(request, "1", "2", Verdict(verdict="promote", reason="it is slow"), "")
    release.conclude(store, registry.client, decision)
    watched = found.verdict.model_copy(update={"verdict": "undecided", "reason": "16 and 3 users, 10 an arm are asked"})
    test = ExperimentRecord.model_validate(store.get_json(f"experiments/{cycles.experiment_id(CYCLE, '2')}.json"))
    release.show_look(registry.client, test.model_copy(update={"plan": None}), watched, NOW + 200)
    after = registry.versions["2"]
    assert {name: after[name] for name in (VERDICT_TAG, f"{VERDICT_TAG}.reason", ACCEPTANCE_TAG)} == {
        name: tags[name] for name in (VERDICT_TAG, f"{VERDICT_TAG}.reason", ACCEPTANCE_TAG)
    }
    assert after[LAST_MOVE_TAG] == "roll back, by ada: it is slow" and VERDICT_TAG not in registry.versions["1"]
    text = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", await status_page(store, registry, tokenizer, tmp_path / "after")))
    assert "Last test: version 2 against 1, promote , as of" in text
    assert "Since then, version 2 beside version 1" in text and "16 and 3 users" in text
    assert "promote, by gate" in text and "roll back, by ada: it is slow" in text
