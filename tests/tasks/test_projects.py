"""Projects with a champion of their own: nobody outside trains or judges it, and what it lacks it has of the common loop."""

import re
from collections.abc import Sequence

import polars as pl
import pytest

from infra.records import CycleOutcome, ExperimentRecord, Manifest, Verdict
from infra.registry.lineage import lineage
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment, Retention, Serving
from infra.storage import cycles, move_requests
from infra.storage import moves as log
from infra.storage.scope import NoOwnChampion, scope_of
from tasks.experiments.controller import probation
from tasks.experiments.counting.totals import ArmTotals, gather
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual, release, requested
from tasks.experiments.planning.report import outlook
from tasks.experiments.reports.history import anchors, history
from tasks.experiments.stages import shares
from tasks.labels.collect import Collected, collect
from tasks.labels.parent import choose_parent
from tasks.steps.context import Context
from tasks.steps.transaction import finish, manifest_fields, seal
from tasks.upkeep import checkpoint_gc
from tasks.upkeep.forget import forget, request
from tasks.validation.quarantine import ValidationEvidence
from tests.tasks import rows
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, asked, completion, decision, feedback, next_name

ADA, BOB = "a" * 32, "b" * 32
OWN = {"web": {"own_champion": True, "experiments": True}, "api": {"own_champion": True, "experiments": True}}
SETTINGS = Settings(
    serving=Serving.model_validate({"adapters": 8, "projects": OWN}),
    collect=Collect(settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1),
    experiment=Experiment(
        **{"min_history_requests": 0, "shadow_requests": 0, "ramp": (), "watch_seconds": 0},
        **{"min_requests": 50, "planned_requests": 50},
    ),
)
PROMOTED = Verdict(verdict="promote", reason="accepted more")
REJECTED = Verdict(verdict="reject", reason="accepted less")
NOTHING = ArmTotals({"champion": {}, "challenger": {}}, {}, {}, {})


class Loops:
    """The loops of a bucket and a registry in memory, whose common champion is version 1."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.store, self.registry = MemoryStore(), MemoryRegistry(v1={})
        self.registry.aliases["champion"] = "1"
        self.now = NOW + 100
        self.common = Context(settings, self.store, self.registry.client, lambda: self.now)

    def of(self, project: str) -> Context:
        return self.common.of(project)

    def ship(self, name: str, served: Sequence[tuple[str, str]], time: float = NOW, **fields: str) -> None:
        """Write an accepted completion of each user in a project."""
        made = [
            completion(f"{name}{i}", user=user, project=project, prefix=f"{name}{i} = ", time=time, **fields)
            for i, (user, project) in enumerate(served)
        ]
        answers = [feedback(c.id, user=c.user, project=c.project, prefix=c.prefix, time=time + 1) for c in made]
        self.store.put_rows(f"events/completions/date=2027-01-15/hour=08/{name}.parquet", made)
        self.store.put_rows(f"events/feedback/date=2027-01-15/hour=08/{name}.parquet", answers)

    def collect(self, project: str) -> Collected:
        context = self.of(project)
        return collect(context.store, context.registry, context.settings, self.now)

    def train(self, project: str) -> tuple[list[str], Manifest, str]:
        """Run a project's cycle up to its version; return the ids of its samples, its manifest and the version."""
        context, collected = self.of(project), self.collect(project)
        name, fields = next_name(context.store), manifest_fields(collected, ValidationEvidence(), self.now)
        manifest = seal(context.store, name, fields, rows.batch(context.store, collected), context.settings)
        tags = {"parent": manifest.parent, "cycle": name, **({"project": project} if project else {})}
        version = context.registry.create_version(f"s3://tabloop/checkpoints/{name}", tags).version
        finish(context.store, CycleOutcome(cycle=name, result="registered", reason="", version=version))
        return collected.accounting.samples["id"].to_list(), manifest, version

    def test(self, project: str, version: str, verdict: Verdict) -> None:
        """Open the test of a project's version, and end it."""
        context, cycle = self.of(project), self.registry.versions[version]["cycle"]
        champion = context.registry.aliases().champion
        assert champion
        proposed = release.propose(context.store, context.settings, cycle, version, champion, self.now)
        running = release.open_experiment(context.store, context.registry, proposed)
        assert running and context.registry.aliases().experiment == running
        release.conclude(context.store, context.registry, decision(running, verdict, self.now))


def projects_of(collected: Collected) -> set[str]:
    return set(collected.accounting.classified["project"])


def test_every_request_is_read_by_one_loop_that_of_its_project() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web"), (ADA, "api"), (ADA, "docs"), (BOB, "web"), (BOB, "")])
    # Planted: somebody of another project answers for a completion of web.
    forged = feedback("forged", user=BOB, project="api", prefix="a0 = ", completion_id="a0", outcome="rejected", time=NOW + 2)
    loops.store.put_rows("events/feedback/date=2027-01-15/hour=08/forged.parquet", [forged])
    read = {project: loops.collect(project) for project in ("", "web", "api")}
    assert [projects_of(read[project]) for project in ("web", "api", "")] == [{"web"}, {"api"}, {"docs", ""}]
    assert sum(each.accounting.requests for each in read.values()) == 5
    assert sorted(id for each in read.values() for id in each.accounting.samples["id"]) == ["a0", "a1", "a2", "a3", "a4"]
    outcomes = read["web"].accounting.samples.select("id", pl.col("outcome").cast(pl.String)).rows()
    assert ("a0", "accepted") in outcomes


def test_shares_count_within_a_project_and_another_project_s_people_do_not_fill_it() -> None:
    shares = {"max_user_share": 0.5, "max_user_weight": 0.5, "max_project_share": 0.4}
    capped = SETTINGS.collect.model_copy(update=shares | {"min_samples": 4})
    loops = Loops(SETTINGS.model_copy(update={"collect": capped}))
    others = [(f"{n:032x}", project) for n in range(8) for project in ("docs", "blog", "wiki")]
    loops.ship("a", [*[(ADA, "web")] * 8, *others])
    alone = loops.collect("web").accounting
    assert alone.waiting and alone.waiting.state == "WaitingForUsers", "one user has all of web, though a quarter of all requests"
    assert loops.collect("").accounting.waiting is None
    loops.ship("b", [(BOB, "web")] * 8, NOW + 1)
    both = loops.collect("web").accounting
    assert both.waiting is None and both.samples.group_by("user").len()["len"].to_list() == [8, 8]


def test_a_project_begins_from_the_common_champion_and_no_request_is_trained_twice_or_lost() -> None:
    before = Loops(SETTINGS.model_copy(update={"serving": Serving()}))
    before.ship("a", [(ADA, "web"), (BOB, "docs")] * 2)
    assert before.train("")[0] == ["a0", "a1", "a2", "a3"]
    before.registry.aliases["champion"] = "2"
    loops = Loops()
    loops.store, loops.registry = before.store, before.registry
    loops.common = Context(SETTINGS, loops.store, loops.registry.client, lambda: loops.now)
    loops.now = NOW + 200
    loops.ship("b", [(ADA, "web"), (BOB, "docs")], NOW + 120)
    ids, common, version = loops.train("")
    assert ids == ["b1"] and common.apart == ("api", "web")
    loops.registry.aliases["champion"] = version
    ids, manifest, version = loops.train("web")
    assert ids == ["b0"], "since the last cycle that read web, though the champion was trained since"
    assert (manifest.cycle, manifest.parent, version) == ("web-cycle-000001", "3", "4")
    assert loops.train("web")[1].cycle == "web-cycle-000002"
    assert loops.train("")[1].cycle == "cycle-000003"


def test_a_project_has_the_common_champion_until_it_promotes_its_own_and_its_moves_are_its_own() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web"), (BOB, "docs")])
    version = loops.train("web")[2]
    web, api = loops.of("web"), loops.of("api")
    assert web.registry.aliases().champion == "1"
    moves.catch_up(loops.store, loops.common.registry, NOW)
    loops.test("web", version, PROMOTED)
    assert [loop.registry.aliases().champion for loop in (loops.common, web, api)] == ["1", version, "1"]
    assert loops.registry.aliases == {"champion": "1", "champion-web": version}
    assert loops.registry.versions["1"]["state"] == "champion" and loops.registry.versions["1"]["state.web"] == "retired"
    assert [move.kind for move in log.backwards(web.store)] == ["promote", "open", "begin"]
    assert [move.kind for move in log.backwards(loops.store)] == ["begin"]
    # Another common champion is not web's, and is api's.
    loops.registry.versions["3"] = {}
    loops.registry.aliases["champion"] = "3"
    assert [loop.registry.aliases().champion for loop in (web, api)] == [version, "3"]
    back = manual.rollback(web.store, web.registry, asked("roll_back", "", "ann", "worse", NOW + 300))
    assert back.experiment.challenger == "1" and loops.registry.aliases == {"champion": "3", "champion-web": "1"}


def test_a_move_asked_for_on_the_page_of_a_project_moves_that_project_alone() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web"), (ADA, "api")])
    version, foreign = loops.train("web")[2], loops.train("api")[2]
    web = loops.of("web")
    for number, asked_for in enumerate((version, foreign)):
        request_ = move_requests.make("promote", asked_for, "1", "it is better", by="ada", now=NOW + number)
        move_requests.ask(web.store, request_)
    for other in (loops.common, loops.of("api")):
        assert not requested.answer_waiting(other.store, other.registry, NOW + 20)
    answered = requested.answer_waiting(web.store, web.registry, NOW + 20)
    assert [(answer.state, answer.message) for _, answer in answered] == [
        ("done", f"version {version} is champion"),
        ("refused", f"the champion is {version} now, not 1 as when it was asked: look at the status page and ask again"),
    ]
    assert loops.registry.aliases == {"champion": "1", "champion-web": version}
    again = move_requests.make("promote", foreign, version, "it is better", by="ada", now=NOW + 30)
    move_requests.ask(web.store, again)
    ((_, answer),) = requested.answer_waiting(web.store, web.registry, NOW + 40)
    assert answer.state == "refused" and "was trained for project api" in answer.message
    assert {key.split("/")[0] for key in loops.store.objects if "requests/" in key} == {"projects"}


def test_the_champion_of_a_running_test_stays_that_of_a_project_without_its_own() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web")])
    version, web = loops.train("web")[2], loops.of("web")
    proposed = release.propose(web.store, web.settings, "web-cycle-000001", version, "1", NOW)
    running = release.open_experiment(web.store, web.registry, proposed)
    loops.registry.versions["3"] = {}
    loops.registry.aliases["champion"] = "3"
    assert running and release.void(running, web.registry.aliases()) is None and not moves.catch_up(web.store, web.registry, NOW)
    release.conclude(web.store, web.registry, decision(running, REJECTED, NOW + 9))
    assert web.registry.aliases().champion == "3"
    (found,) = moves.catch_up(web.store, web.registry, NOW + 10)
    assert (found.by, found.reason) == ("the common loop", "the common champion was replaced")


def test_only_the_people_of_a_project_judge_its_test() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web")])
    version, web = loops.train("web")[2], loops.of("web")
    proposed = release.propose(web.store, web.settings, "web-cycle-000001", version, "1", NOW + 50)
    running = release.open_experiment(web.store, web.registry, proposed)
    assert running and running.plan
    tested = {"experiment": running.id, "assigned": running.id, "assigned_arm": "champion"}
    loops.ship("mine", [(ADA, "web"), (BOB, "web")], NOW + 60, **tested)
    loops.ship("forged", [(f"{n:032x}", "api") for n in range(9)], NOW + 60, **tested)
    totals = gather(web.store, running, running.plan, NOW + 200)
    assert totals.requests == {"champion": 2, "challenger": 0} and totals.counts["champion"] == 2


def test_a_promising_candidate_is_the_parent_in_its_own_loop_alone() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web"), (ADA, "api"), (ADA, "docs")])
    made = {project: loops.train(project)[2] for project in ("web", "api")}
    promising = Verdict(verdict="reject", reason="not surely better", promising=True)
    for project, version in made.items():
        loops.test(project, version, promising)

    def parent(project: str) -> str:
        context = loops.of(project)
        return choose_parent(context.store, lineage(context.registry.versions()), "1", None)

    assert {project: parent(project) for project in ("", "web", "api")} == {"": "1", **made}


def test_a_version_of_a_project_is_no_champion_of_another_loop() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web")])
    version = loops.train("web")[2]
    for loop, expected in (
        (loops.common, "a version of the common loop"),
        (loops.of("api"), "project api or of the common loop"),
    ):
        with pytest.raises(manual.OtherProject, match=re.escape(expected)) as refused:
            manual.promote(loop.store, loop.registry, asked("promote", version, "ann", "", NOW))
        assert f"`tabloop promote {version} --project web`" in str(refused.value)
    assert loops.registry.aliases == {"champion": "1"}
    web = loops.of("web")
    manual.promote(web.store, web.registry, asked("promote", version, "ann", "", NOW))
    assert loops.registry.aliases == {"champion": "1", "champion-web": version}


def test_forgetting_reaches_the_cycles_and_the_versions_of_every_project() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web"), (ADA, "api"), (ADA, "docs"), (BOB, "web")])
    made = {project: loops.train(project)[2] for project in ("", "web", "api")}
    loops.test("web", made["web"], PROMOTED)
    found = forget(loops.store, loops.common.registry, request(ADA, "", NOW + 300, "ann", ""), NOW + 300, dry_run=False)
    assert set(found.cycles) == {"cycle-000001", "web-cycle-000001", "api-cycle-000001"}
    assert {each.version: each.serves for each in found.versions} == {
        **{made[""]: "", made["web"]: "champion of web"},
        made["api"]: "",
    }
    tables = [pl.read_parquet(body) for key, body in loops.store.objects.items() if key.endswith(".parquet")]
    assert {user for table in tables if "user" in table.columns for user in table["user"]} == {BOB}
    assert not projects_of(loops.collect("api"))


def test_the_weights_that_a_project_uses_stay() -> None:
    loops = Loops(SETTINGS.model_copy(update={"retention": Retention(checkpoints_days=1, champions_kept=0)}))
    loops.ship("a", [(ADA, "web"), (ADA, "docs")])
    for project in ("web", "web", "web", ""):
        cycle = next_name(loops.of(project).store)
        loops.store.put_json(f"checkpoints/{cycle}/checksums.json", {})
        loops.train(project)
    loops.test("web", "2", PROMOTED)
    expired = checkpoint_gc.find(loops.store, loops.common.registry, loops.common.settings, NOW + 9 * 86_400)
    assert [(gone.cycle, gone.versions) for gone in expired] == [
        ("cycle-000001", ("5",)),
        ("web-cycle-000002", ("3",)),
        ("web-cycle-000003", ("4",)),
    ]


def watched(loops: Loops, project: str) -> ExperimentRecord:
    """Return the probation of a project's version that won its crossover; that of every project begins with the same block."""
    loops.now += 1
    version, context = loops.train(project)[2], loops.of(project)
    cycle, champion = loops.registry.versions[version]["cycle"], context.registry.aliases().champion or ""
    proposed = release.propose(context.store, context.settings, cycle, version, champion, loops.now)
    crossover = proposed.plan and proposed.plan.model_copy(update={"design": "crossover", "watch_seconds": 3600.0})
    running = release.open_experiment(context.store, context.registry, proposed.model_copy(update={"plan": crossover}))
    assert running and running.plan
    watch = shares.watch(running, running.plan, loops.now, 6.0, "")
    won = decision(running, PROMOTED, loops.now).model_copy(update={"watch": watch})
    release.conclude(context.store, context.registry, won)
    found = context.registry.aliases().watch
    assert found
    return found


def test_versions_whose_probations_begin_at_once_are_rolled_back_each_by_itself() -> None:
    loops = Loops()
    loops.ship("a", [(ADA, "web"), (ADA, "api"), (ADA, "docs")])
    of = {project: watched(loops, project) for project in ("web", "api", "")}
    assert {each.stage.started for each in of.values()} == {of["web"].stage.started}
    assert {each.champion for each in of.values()} == {"1"}
    for project, probation_of in of.items():
        context = loops.of(project)
        assert probation.stored_decision(context.store, probation_of) is None, project
        breach = Verdict(verdict="breach", reason=f"too slow for {project}")
        back = probation.rollback(probation_of, breach, NOTHING, loops.now)
        release.conclude(context.store, context.registry, back)
        aliases = context.registry.aliases()
        assert (aliases.champion, aliases.watch) == ("1", None)
        assert next(log.backwards(context.store)).reason == f"too slow for {project}"


@pytest.mark.parametrize("project", ["auto-rollback", "manual", "anchor", "manual-1"])
def test_a_project_may_have_the_name_of_a_move(project: str) -> None:
    serving = Serving.model_validate({"adapters": 6, "projects": {project: OWN["web"]}})
    loops = Loops(SETTINGS.model_copy(update={"serving": serving}))
    loops.ship("a", [(ADA, project)])
    version, context = loops.train(project)[2], loops.of(project)
    loops.test(project, version, PROMOTED)
    promoted = next(log.backwards(context.store))
    assert promoted.kind == "promote" and loops.registry.versions["1"][f"state.{project}"] == "retired"
    assert not list(anchors(loops.store)), "its tests are no anchors of the common loop"
    back = manual.rollback(context.store, context.registry, asked("roll_back", "", "ann", "worse", NOW + 300))
    assert back.experiment.challenger == "1" and next(log.backwards(context.store)).kind == "roll_back"
    assert cycles.is_by_hand(back.experiment.id) and cycles.project_of_test(back.experiment.id) == project
    assert history(context.store, 5, back.experiment.id)


def test_moves_by_hand_of_a_project_are_no_earlier_champions_of_the_common_loop() -> None:
    loops = Loops()
    loops.registry.versions |= {"2": {}, "3": {}}
    web = loops.of("web")
    for number, version in enumerate(("2", "3")):
        manual.promote(web.store, web.registry, asked("promote", version, "ann", "", NOW + number))
    assert release.champions(web.store, (), ()) == ["3", "2", "1"]
    assert release.champions(loops.common.store, (), ()) == []


def test_a_plan_says_which_projects_are_large_enough() -> None:
    chosen = SETTINGS.collect.model_copy(update={"max_user_share": 0.1, "min_samples": 30})
    experiment = SETTINGS.experiment.model_copy(update={"mode": "non_inferiority", "min_users": 10, "design": "crossover"})
    closed = {**OWN, "api": {"own_champion": True}}
    serving = Serving.model_validate({"adapters": 8, "projects": closed, "terms": {"experiments": True}})
    loops = Loops(SETTINGS.model_copy(update={"collect": chosen, "experiment": experiment, "serving": serving}))
    before = [completion("before", time=NOW - 14 * 86_400)]  # the team is no new one
    loops.store.put_rows("events/completions/date=2027-01-01/hour=08/a.parquet", before)
    people = [(f"{n:032x}", project) for n in range(20) for project in ("web", "web", "docs")]
    loops.ship("a", [*people, *[(ADA, "api")] * 60])
    found = {size.project: size for size in outlook(loops.common.store, loops.common.settings, NOW + 3600, 7.0).projects}
    assert {name: size.large_enough for name, size in found.items()} == {"web": True, "docs": False, "api": False}
    assert "a cycle needs" not in str(found["docs"]) and "cycle: " in str(found["docs"]), "20 users, 20 requests a week of 30"
    assert "test: nobody takes part, since serving.projects.api.experiments = false" in str(found["api"])
    assert str(found["api"]).endswith("cycle: it needs 10 users or more, since collect.max_user_share = 0.1, but has one")


def test_a_project_without_a_champion_of_its_own_is_refused_by_name() -> None:
    with pytest.raises(NoOwnChampion, match=r"project = 'docs', expected api or web; set own_champion = true in \[serving\.proj"):
        scope_of(SETTINGS, "docs")
