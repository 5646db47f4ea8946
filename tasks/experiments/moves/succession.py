"""Which version is the anchor, and which champion is compared with it.

The anchor is the champion at the time of the first promotion without a sure gain. It stays while such promotions follow, and
after a rollback to one of them. Another version is the anchor once it is champion by a sure gain, by a person's promotion, by an
alias moved in MLflow, or by a rollback to a version from before the anchor. The log of moves and the decisions say all of this.

One tag of the registry holds the anchor with the comparison; each begins with a record in experiments/, whose id begins with
"anchor-". The anchor needs the slot of a challenger: it serves while no test and no watch runs, and the comparison goes on after
each. A new champion is compared for a day before the next test opens.
"""

from infra.assignment import next_start
from infra.records import ExperimentRecord, Move, Plan, Stage
from infra.registry.client import Aliases, Registry
from infra.settings import Settings
from infra.storage import looks
from infra.storage import moves as log
from infra.storage.cycles import decision_of
from infra.storage.store import ObjectStore
from tasks.experiments.planning.plan import NEW, make_plan
from tasks.experiments.stages.states import GATE
from tasks.experiments.verdict.anchor import ANCHOR
from tasks.labels import users

PREFIX = f"{ANCHOR}-"
"""Prefix of the ids of comparisons; in a project's loop after the project."""
DAY = 86_400.0


def follow(store: ObjectStore, registry: Registry, settings: Settings, now: float, lead: float) -> ExperimentRecord | None:
    """Bring the anchor up to date with the champion; return its record where that changed, else None.

    A run that is killed in between leaves a record of a comparison that never ran, and the next run writes another one.

    `lead`: seconds between the decision and the start, so that every replica of serving knows it by then.
    """
    aliases, chosen = registry.aliases(), settings.experiment
    if not chosen.anchor_share:
        if aliases.anchor:
            registry.set_anchor(None)
        return None
    if aliases.experiment or aliases.watch or (aliases.anchor is None and chosen.mode != "non_inferiority"):
        return None
    last = log.newest(store)
    if last is None or not aliases.champion or last.champion != aliases.champion:  # a move that is not recorded yet
        return None
    following = _following(store, aliases, settings, now, lead)
    if following == aliases.anchor:
        return None
    if aliases.anchor is None or following.id != aliases.anchor.id:
        store.put_once(f"experiments/{following.id}.json", following)
    registry.set_anchor(following)
    return following


def seconds_left(aliases: Aliases, now: float) -> float:
    """Return the seconds for which the newest champion is still compared with the anchor before a test may open."""
    beside = aliases.beside
    if beside is None or beside.stage.name != ANCHOR or beside.plan is None:
        return 0.0
    return max(0.0, beside.stage.started + beside.plan.anchor_seconds - now)


def cautious(store: ObjectStore, anchor: ExperimentRecord | None) -> bool:
    """Return whether the next test needs a gain: at the newest look, the champions beside the anchor lean to a loss, or a
    check fails."""
    last = looks.newest(store, anchor.id) if anchor else None
    return last is not None and last.verdict.leaning


def anchor_of(store: ObjectStore, anchor: str) -> str:
    """Return the anchor after the moves since a version that was the anchor before was made champion."""
    made: list[Move] = []
    for move in log.backwards(store):
        if move.champion and any(change.after == "champion" != change.before for change in move.changes):
            if move.champion == anchor:
                break
            made.append(move)
    champions = [anchor]
    for move in reversed(made):
        back = move.kind == "roll_back" and move.champion in champions
        champions = [*champions, move.champion] if back or without_gain(store, move) else [move.champion]
    return champions[0]


def without_gain(store: ObjectStore, move: Move) -> bool:
    """Return whether a move is the gate's promotion of a version that is surely not worse, and not surely better; or better than
    champions that leaned to a loss, which may be no gain over the anchor."""
    if move.kind != "promote" or move.by != GATE:
        return False
    decision = decision_of(store, move.experiment)
    plan = decision.experiment.plan if decision else None
    return plan is not None and (plan.mode == "non_inferiority" or plan.cautious)


def plan_of_comparison(settings: Settings, sample: float = 1.0) -> Plan:
    """Return the plan of a comparison with an anchor: a crossover, so that nobody is left with an old version."""
    chosen = settings.experiment
    update = {"design": "crossover", "max_seconds": NEW["anchor_days"] * DAY}
    return make_plan(chosen.model_copy(update=update), settings.collect, "the champions since the anchor, beside it", sample)


def _following(store: ObjectStore, aliases: Aliases, settings: Settings, now: float, lead: float) -> ExperimentRecord:
    """Return the record of the anchor that fits the champion."""
    champion, held = aliases.champion or "", aliases.anchor
    anchor = held.champion if held else champion
    if held and held.challenger != champion:
        anchor = anchor_of(store, held.champion)
    if held and (held.champion, held.challenger) == (anchor, champion) and not _is_over(held, now):
        return held
    if anchor == champion:
        return _record(store, anchor, champion, now)
    record = held
    if record is None or record.champion != anchor or not record.stages or _is_over(record, now):
        sample = users.share_for(store, NEW["anchor_days"] * DAY, settings.collect.most_requests)
        record = _record(store, anchor, champion, now, plan_of_comparison(settings, sample))
    start, reason = next_start(record, now, lead), f"version {champion} is champion"
    stage = Stage(name="anchor", share=record.share, started=start, reason=reason)
    return record.model_copy(update={"challenger": champion, "stages": (*record.stages, stage)})


def prefix_of(store: ObjectStore) -> str:
    """Return the prefix of the ids of comparisons in the store's loop."""
    return f"{store.scope.project}-{PREFIX}".removeprefix("-")


def _record(store: ObjectStore, anchor: str, champion: str, now: float, plan: Plan | None = None) -> ExperimentRecord:
    share = 1 - plan.anchor_share if plan else 1.0
    identifier = f"{prefix_of(store)}{now:.3f}-version-{anchor}"
    return ExperimentRecord(id=identifier, champion=anchor, challenger=champion, share=share, started=now, plan=plan)


def _is_over(record: ExperimentRecord, now: float) -> bool:
    """Return whether a comparison has added up its time."""
    return record.plan is not None and now - record.started >= record.plan.max_seconds
