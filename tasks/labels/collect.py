"""The first step of a cycle: read the window after the parent version, and put each of its requests in a bucket."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import polars as pl
import pyarrow.parquet as pq

from infra.records import CycleOutcome, Manifest, Quarantined
from infra.registry.client import Registry
from infra.registry.lineage import Lineage, lineage
from infra.settings import Settings
from infra.storage import cycles
from infra.storage.cycles import manifest_of
from infra.storage.store import ObjectStore
from tasks.labels import users
from tasks.labels.accounting import RequestAccounting, WindowCounts, classify
from tasks.labels.explain import undecided, unsettled
from tasks.labels.parent import choose_parent
from tasks.labels.partitions import WindowPlan, plan_window
from tasks.labels.pipeline import JoinAll, label_window
from tasks.labels.sampled import Sample
from tasks.labels.scored import is_scored
from tasks.labels.window import WINDOW_SECONDS, Window, window_after


class NoChampion(RuntimeError):
    """The registry names no champion."""


@dataclass(frozen=True, eq=False)
class Collected:
    """A window of which every request is in a bucket."""

    apart: frozenset[str]
    """Projects with a champion of their own, whose requests are not read."""
    champion: str
    """Version that the candidate has to beat."""
    parent: str
    """Version to train further; the window holds what this version has not seen."""
    window: Window
    plan: WindowPlan
    """The objects of the window; the tokens of samples are read from them when the batch is written."""
    accounting: RequestAccounting
    register: pl.DataFrame
    """The known users after this window (tasks/labels/users.py)."""
    orphans: int
    """Impressions that match no completion of the window."""
    malformed: tuple[Quarantined, ...]
    """Rows of the window that are not valid completions."""
    skew: float
    """Seconds by which the newest event is ahead of the collector's clock; negative where it is behind."""

    def quarantine(self, reasons: Mapping[str, str]) -> "Collected":
        """Return the window with these samples moved to the quarantine; `reasons` are by completion id."""
        return replace(self, accounting=self.accounting.quarantine(reasons))


def collect(store: ObjectStore, registry: Registry, settings: Settings, now: float, join_all: JoinAll | None = None) -> Collected:
    """Read the window after the parent's own cycle and put each of its requests in a bucket.

    Args:
        join_all: as in label_window.

    Raises:
        NoChampion: the registry names no champion.
    """
    aliases = registry.aliases()
    champion = aliases.champion
    if champion is None:
        raise NoChampion(f"registry: model {registry.model!r} has no alias champion; `tabloop up` registers the base model")
    versions = lineage(registry.versions())
    parent = choose_parent(store, versions, champion, aliases.previous_champion)
    # A project begins from a common version, whose cycles read the project's requests until it had a loop of its own.
    manifests = [m for m in ancestry(store, versions, parent, now - WINDOW_SECONDS) if store.scope.project not in m.apart]
    window = window_after(manifests, now, settings.collect.settle_seconds)
    plan = plan_window(
        store,
        window,
        now,
        settings.collect.join_seconds,
        hindsight=settings.collect.hindsight,
        sample=Sample(settings.collect.most_requests),
    )
    read = label_window(store, plan, join_all=join_all)
    labelled = without_decided(store, read.requests, manifests)
    # Only an object that arrived late can hold a completion that was trained before, under another key.
    trained = trained_ids(store, [m for m in manifests if m.until >= window.oldest]) if plan.late else frozenset()
    trained -= frozenset(labelled.filter("settled_late")["id"])
    distances = versions.distances(labelled["policy_version"].unique(), parent)
    # An older cycle read nothing of the window, and retention may have removed its samples.
    seen = trained_ids(store, others_since(store, manifests, max(window.since, window.oldest)))
    counts = WindowCounts(plan.requests, read.duplicates, len(read.malformed), plan.unsampled, plan.share)
    register = register_after(store, labelled, window.until, settings, now)
    labelled = users.with_admission(labelled, register)
    return Collected(
        apart=store.scope.apart,
        champion=champion,
        parent=parent,
        window=window,
        plan=plan,
        register=register,
        accounting=replace(
            classify(labelled, distances, window.until, settings.collect, counts, trained, held_out_files(labelled, settings)),
            seen=seen,
        ),
        orphans=read.orphans,
        malformed=read.malformed,
        skew=(plan.newest or now) - now,
    )


def without_decided(store: ObjectStore, labelled: pl.DataFrame, manifests: Sequence[Manifest]) -> pl.DataFrame:
    """Return labelled completions; of those from before the window, only the ones that the ancestry waits for.

    Where it trained on a completion before its text had settled (`settled_late`), the settled text alone counts: the completion
    comes as one without an answer and without kept characters.
    """
    labelled = labelled.with_columns(settled_late=pl.lit(False))
    late = labelled.filter("late")["time"].min()
    if late is None:
        return labelled
    read = [m for m in manifests if m.until >= cast(float, late)]
    waiting, open_ = (pl.Series(list(ids), dtype=pl.String).implode() for ids in (undecided(store, read), unsettled(store, read)))
    labelled = labelled.with_columns(settled_late=pl.col("late") & pl.col("id").is_in(open_) & pl.col("settled").is_not_null())
    labelled = labelled.with_columns(
        outcome=pl.when("settled_late").then(pl.lit("unjudged", labelled.schema["outcome"])).otherwise("outcome"),
        kept_characters=pl.when(~pl.col("settled_late")).then("kept_characters"),
    )
    return labelled.filter(~pl.col("late") | pl.col("settled_late") | pl.col("id").is_in(waiting))


def held_out_files(labelled: pl.DataFrame, settings: Settings) -> frozenset[str]:
    """Return the files of some requests that training never touches, where models are scored on the team's own set.

    A request that names no file is in none of them.
    """
    files = [file for file in labelled["file"].unique() if file]
    teams = [wanted for wanted in settings.evaluate.sets if wanted.kind == "team"]
    return frozenset(file for wanted in teams for file in files if is_scored(file, wanted.key, wanted.share))


def register_after(store: ObjectStore, labelled: pl.DataFrame, until: float, settings: Settings, now: float) -> pl.DataFrame:
    """Return the known users with those of a window; users who opted out stay unknown."""
    known = users.read(store, now - users.KNOWN_DAYS * users.DAY)
    counted = labelled.filter(~pl.col("opted_out"), pl.col("time") <= until).select("user", "credential", "time")
    return users.admit(counted, known, settings.collect.max_new_users)


def ancestry(store: ObjectStore, versions: Lineage, parent: str, oldest: float) -> list[Manifest]:
    """Return the manifests of the cycles that made a version and its ancestors, newest first, back to the window's start."""
    manifests: list[Manifest] = []
    for version in versions.ancestry(parent):
        if cycle := versions.cycles.get(version):
            manifest = manifest_of(store, cycle)
            manifests.append(manifest)
            if manifest.until < oldest:
                break
    return manifests


def others_since(store: ObjectStore, manifests: Sequence[Manifest], since: float) -> list[Manifest]:
    """Return the manifests of the sealed cycles that read requests after a time and are not of the ancestry, newest first.

    Without those that were abandoned: their labels taught nothing; nor those of own code, which read no requests.
    """
    own, found = {manifest.cycle for manifest in manifests}, list[Manifest]()
    for cycle in reversed(cycles.sealed(cycles.index(store))):
        manifest = manifest_of(store, cycle)
        if manifest.learned:
            continue
        if manifest.until <= since:
            break
        outcome = store.find(cycles.key(cycle, cycles.OUTCOME), CycleOutcome)
        if cycle not in own and not (outcome and outcome.result == "abandoned"):
            found.append(manifest)
    return found


def trained_ids(store: ObjectStore, manifests: Sequence[Manifest]) -> frozenset[str]:
    """Return the ids of the completions that these cycles trained on."""
    bodies = (store.get(m.samples.key) for m in manifests)
    return frozenset(i for body in bodies for i in pq.read_table(io.BytesIO(body), columns=["completion_id"])[0].to_pylist())
