"""The status page's data of a loop, from registry and store: the A/B test with its looks, the newest versions, cycles, moves."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from infra.records import CycleProgress, Decision, ExperimentRecord, Look, LoopRun, Move
from infra.records.few import Few
from infra.registry.client import REMOVED_TAG, STATE_TAG, ModelVersion, Registry
from infra.registry.lineage import PROJECT_TAG
from infra.storage import backups, cycle_progress, few, loop_runs
from infra.storage.scope import Scope
from infra.storage.store import ObjectStore
from serving.recording.left_spools import LeftSpools
from serving.status.history import Asked, Cycle, CycleHistory, LookHistory, MoveHistory, RequestHistory, Watched

REFRESH_SECONDS = 5.0
"""Shortest interval between two reads."""
MAX_VERSIONS = 12
MAX_CYCLES = 8
"""Cycles in the table."""
MAX_DRAWN = 24
"""Cycles in the charts."""
MAX_MOVES = 8
"""Moves in the table."""
MAX_READ_MOVES = 60
"""Moves that are read, to find since when the champion serves."""
MAX_REQUESTS = 3
MOMENT_SECONDS = 0.25
"""Longest wait of a scrape, which then gets the answers before."""
WAIT_SECONDS = 3.0
"""Longest wait of the page for a registry or store that does not answer."""


@dataclass(frozen=True)
class Links:
    """The addresses of other pages, as a browser reaches them."""

    mlflow: str
    prefect: str
    model: str
    """Name of the registered model."""


@dataclass
class StatusData:
    """The last answers of registry and store, kept while they are unavailable."""

    registry: Registry
    store: ObjectStore
    analysis: Decision | None = None
    versions: list[ModelVersion] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    runs: dict[str, LoopRun] = field(default_factory=dict)
    """The newest run of the cycle and of the controller, by flow."""
    progress: CycleProgress | None = None
    """The stage of the newest cycle's run."""
    too_little: list[Few] = field(default_factory=list)
    """What the traffic is too little for, as the loop's runs found today, else yesterday."""
    watched: Watched | None = None
    """The running experiment, else the last one, with its looks."""
    problems: dict[str, str] = field(default_factory=dict)
    certificates: dict[str, float] = field(default_factory=dict)
    """When the certificates of other servers expire, by the server's name (certificates.py)."""
    tokens: Mapping[str, float] = field(default_factory=dict)
    """When the tokens expire that the app sends to other servers, by the server's name (certificates.py)."""
    backup: float | None = None
    """When the last backup began, in Unix seconds; None where none was marked."""
    spools: LeftSpools | None = None
    """The spools of replicas that are gone; None: they are not read."""
    clock: Callable[[], float] = time.monotonic
    common: "StatusData | None" = None
    """Those of the common loop, whose runs start this project's; None: this is the common loop."""
    champion: str = ""
    """The champion that the registry names; a slot may hold another one still, or none."""
    previous: str = ""
    """The champion that was retired last and can be served again; empty if there is none."""
    is_on_common: bool = False
    """Whether the project is served by the common champion, since no version of its own was promoted yet."""
    _kept: frozenset[str] = frozenset()
    """Champions that were retired and have their weights, by the tags of the registry; `tabloop rollback` lets an alias win."""
    _projects: dict[str, "StatusData"] = field(default_factory=dict)
    _refreshed: float = -math.inf
    _reading: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _refreshing: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.requests = RequestHistory(self.store)
        self._cycles, self._moves, self._looks = CycleHistory(self.store), MoveHistory(self.store), LookHistory(self.store)

    @property
    def project(self) -> str:
        """The project whose loop it is; empty: the common one."""
        return self.store.scope.project

    def of(self, project: str) -> "StatusData":
        """Return the data of a project's loop, read of the same servers."""
        if project not in self._projects:
            registry, store = self.registry.of(project), Scope(project).view(self.store)
            self._projects[project] = StatusData(registry, store, clock=self.clock, common=self)
        return self._projects[project]

    async def refresh(self, running: ExperimentRecord | None) -> None:
        """Read everything again if the last read is older than REFRESH_SECONDS; a failure goes into `problems`."""
        now = self.clock()
        if now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now
        parts = {"versions": self._read_registry, "cycles": self._read_cycles, "backup": self._read_backup}
        await asyncio.gather(*(self._read(part, read) for part, read in parts.items()))
        await self._read("previous champion", self._read_previous)
        await self._read("looks", lambda: self._read_looks(running))

    async def glance(self, running: ExperimentRecord | None) -> None:
        """Refresh in the background, and wait for it a moment: the answers may be those of the refresh before."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self.refresh(running))
        await asyncio.wait({self._refreshing}, timeout=MOMENT_SECONDS)

    async def _read(self, part: str, read: Callable[[], None]) -> None:
        task = self._reading.get(part)
        if task is None or task.done():  # a read that hangs occupies one thread, not one more per refresh
            task = self._reading[part] = asyncio.create_task(asyncio.to_thread(read))
        try:
            await asyncio.wait_for(asyncio.shield(task), WAIT_SECONDS)
            self.problems.pop(part, None)
        except TimeoutError:
            self.problems[part] = f"no answer in {WAIT_SECONDS:.0f} s"
        except Exception as error:  # of either part: the page shows the other one
            self.problems[part] = f"{error}"

    def _read_registry(self) -> None:
        self.analysis = self.registry.last_look()
        known = [each for each in self.registry.versions()[::-1] if each.tags.get(PROJECT_TAG, "") in ("", self.project)]
        self.versions = known[:MAX_VERSIONS]
        retired = (each for each in known if each.tags.get(STATE_TAG) == "retired" and not each.tags.get(REMOVED_TAG))
        self._kept = frozenset(each.version for each in retired)
        aliases = self.registry.aliases()
        self.champion, self.is_on_common = aliases.champion or "", aliases.common

    def _read_cycles(self) -> None:
        self.cycles = self._cycles.last(MAX_DRAWN)
        self.moves = self._moves.last(MAX_READ_MOVES)
        self.asked = self.requests.last(MAX_REQUESTS)
        self.runs, self.progress = loop_runs.read(self.store), cycle_progress.read(self.store)
        self.too_little = few.newest(self.store, time.time())

    def _read_previous(self) -> None:
        """Find the last one as `tabloop rollback` does, however many candidates were rejected since."""
        kept = self._kept
        self.previous = next((version for version in self._moves.retired() if version in kept), "") if kept else ""

    def _read_backup(self) -> None:
        if self.common is None:
            self.backup = backups.last(self.store, time.time())

    def _read_looks(self, running: ExperimentRecord | None) -> None:
        shown, _ = shown_looks(self, running)
        last = running or (shown.experiment if shown else None)
        self.watched = self._looks.of(last.id, running) if last else None


def shown_looks(data: StatusData, running: ExperimentRecord | None) -> tuple[Decision | None, Decision | None]:
    """Return the newest look at the running test, else the verdict on the last one; and the newest look at a probation, or beside
    an anchor, which follows that verdict and leaves it as it is."""
    newest = data.analysis
    if running:  # the analysis of an earlier test says nothing about the running one
        return (newest if newest and newest.experiment.id == running.id else None), None
    if newest is None:
        return None, None
    decided = decision_of(data, newest.experiment.id)
    if decided is None:
        others = (cycle.decision for cycle in data.cycles if cycle.decision)
        decided = next((each for each in others if each.decided < newest.decided), None)
    if decided is None:
        return newest, None
    return decided, newest if newest.decided > decided.decided else None


def newest_looks(data: StatusData, analysis: Decision | None, running: ExperimentRecord | None) -> tuple[Look, ...]:
    """Return the looks at the shown test, the newest last: also the one that is not in the log, since little had changed."""
    watched = data.watched
    looks = watched.looks if watched and (not analysis or watched.experiment.id == analysis.experiment.id) else ()
    if not analysis or not running or (looks and looks[-1].time >= analysis.decided):
        return looks
    stage = running.stage_at(analysis.decided)
    newest = Look(
        experiment=running.id,
        number=len(looks) + 1,
        time=analysis.decided,
        stage=stage.name,
        share=stage.share,
        verdict=analysis.verdict,
    )
    return (*looks, newest)


def decision_of(data: StatusData, experiment: str) -> Decision | None:
    """Return the decision that ended an experiment of one of the newest cycles."""
    decisions = (cycle.decision for cycle in data.cycles if cycle.decision)
    return next((decision for decision in decisions if decision.experiment.id == experiment), None)
