"""The life of a version on real servers: shadow, ramp, test, promotion, watch; rejection; rollback by a guardrail.

Before each look of the watch that counts, another one is killed by SIGKILL at a random moment. The registry is killed in the
ramp, and the serving app in the test and during the watch.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.pages import figures
from infra.records import ExperimentRecord
from infra.registry.client import ROLLED_BACK_TAG
from infra.storage import moves as log
from infra.storage.cycles import decision_of
from tasks.experiments.reports.explain import explain
from tasks.versions import review, tracking
from tests.releases import Answers, World, world
from tests.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timing(reason="a killed release has a time limit for its answers")]
SLOW_SECONDS = 0.3


def kinds(made: World) -> Sequence[tuple[str, str | None]]:
    """Return kind and stage of every move, oldest first."""
    return [(move.kind, move.stage) for move in log.backwards(made.store)][::-1]


def ended(made: World, experiment: ExperimentRecord, verdict: str) -> str:
    """Check how a test ended; return why."""
    decision = decision_of(made.store, experiment.id)
    assert decision and decision.verdict.verdict == verdict
    return decision.verdict.reason


def check_arms(made: World, experiment: ExperimentRecord) -> None:
    """Check that a user met one version in each stage before the watch, and after the challenger never the champion again."""
    decision = decision_of(made.store, experiment.id)
    assert decision
    begins = decision.watch.started if decision.watch else float("inf")
    met: dict[str, dict[float, set[str]]] = {}
    for row in made.completions():
        if row.experiment == experiment.id and row.time < begins:
            stage = decision.experiment.stage_at(row.time)
            met.setdefault(row.user, {}).setdefault(stage.started, set()).add(row.policy_version)
    assert met and all(len(versions) == 1 for stages in met.values() for versions in stages.values())
    for stages in met.values():
        order = [experiment.challenger in versions for _, versions in sorted(stages.items())]
        assert order == sorted(order)


async def check_screens(made: World, experiment: ExperimentRecord) -> None:
    """Check that console, status page, report, MLflow and Prefect show the figures of the verdict, to the digit."""
    decision = decision_of(made.store, experiment.id)
    assert decision
    verdict, version = decision.verdict, made.registry.version(experiment.challenger)
    rows = figures.arm_rows(verdict, experiment.champion, experiment.challenger)
    assert [row.arm for row in rows] == ["champion", "challenger"] and all(row.acceptance and row.saved for row in rows)
    shown = [text for row in rows for text in (row.acceptance, row.kept, row.saved, str(row.requests)) if text]

    client, run = tracking.connect(made.settings.registry), version.tags["run"]
    logged = {name: value for name, value in client.get_run(run).data.metrics.items() if name.startswith("test.")}
    assert logged == dict(figures.metrics_of(verdict))
    screens = {
        "console": "\n".join(line for _, lines in explain(made.store, version.version) for line in lines),
        "report": Path(client.download_artifacts(run, review.ARTIFACT, str(made.folder))).read_text(),
        "MLflow": version.tags["acceptance"],
        "Prefect": (made.folder / "experiment.md").read_text(),
        "status page": await made.page(shown),
    }
    missing = {(screen, text) for screen, page in screens.items() for text in shown if text not in page}
    assert not missing


@pytest.mark.timeout(900)
async def test_a_better_version_is_promoted_through_its_stages_and_taken_back_when_it_turns_bad(
    storage: Stack, tmp_path: Path
) -> None:
    async with world(tmp_path / "better") as made:
        version = made.add(Answers(0.8, text="value + 2"))
        experiment = made.open(version, "1")
        await made.serves(version)
        await made.until("Advanced")
        await made.kill_registry()
        state, _ = await made.until("Advanced", "Undecided", "Promoted")
        await made.kill_serving()
        if state != "Promoted":
            await made.until("Promoted")
        check_arms(made, experiment)
        await check_screens(made, experiment)
        before = [("begin", ""), ("open", "shadow"), ("advance", "ramp"), ("advance", "test"), ("promote", "watch")]
        assert kinds(made) == before
        await made.type(96)
        await made.kill_serving()
        made.versions[version].fails = True
        await made.until("RolledBack", looks=6)
        aliases = made.registry.aliases()
        assert (aliases.champion, aliases.previous_champion, aliases.routed) == ("1", version, None)
        last = log.newest(made.store)
        assert kinds(made) == [*before, ("roll_back", "")] and last and last.by == "watch"
        assert (
            last.reason.startswith("failures per request") and last.reason in made.registry.version(version).tags[ROLLED_BACK_TAG]
        )
        assert made.kills


@pytest.mark.long(reason="two minutes; the test above has the servers, tests/tasks/experiments/test_stages.py these ends")
@pytest.mark.timeout(400)
async def test_worse_slow_and_failing_versions_end_where_they_should(storage: Stack, tmp_path: Path) -> None:
    async with world(tmp_path / "worse") as made:
        late = made.add(Answers(0.9, seconds=SLOW_SECONDS))
        experiment = made.open(late, "1")
        await made.serves(late)
        await made.until("Rejected")
        assert "shadow, before any user saw it: median times" in ended(made, experiment, "reject")
        assert not [row for row in made.completions() if row.policy_version == late], "nobody saw it"

        for change, why in (({"seconds": SLOW_SECONDS}, "later"), ({"fails": True}, "failures per request")):
            broken = made.add(Answers(0.9))
            experiment = made.open(broken, "1")
            await made.serves(broken)
            await made.until("Advanced", "Ramp")
            for name, value in change.items():
                setattr(made.versions[broken], name, value)
            await made.until("RolledBack", looks=12)
            assert why in ended(made, experiment, "breach")
            check_arms(made, experiment)

        worse = made.add(Answers(0.02))
        experiment = made.open(worse, "1")
        await made.serves(worse)
        await made.until("Rejected")
        assert "worse" in ended(made, experiment, "reject")
        check_arms(made, experiment)
        await check_screens(made, experiment)
        states = {version: made.registry.version(version).tags["state"] for version in (late, worse)}
        assert set(states.values()) == {"failed"} and made.registry.aliases().champion == "1"
        assert made.kills
