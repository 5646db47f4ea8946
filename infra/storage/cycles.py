"""Keys and readers of the objects of cycles and decisions.

A cycle writes these objects under cycles/CYCLE/, in this order (tasks/steps/transaction.py). Two runs may write them at once; the
manifest of the first to end names its own by their checksums:

    docs/NAME-SHA256.html               the pages of validation (tasks/validation/quarantine.py)
    quarantined-SHA256.parquet          the rows that it refused
    showing-SHA256.json                 the keep estimate, or why there is none (tasks/showing/fit.py); this checksum and the
                                        next two are the samples'
    requests-SHA256.parquet             the bucket and the reason of every request (tasks/labels/explain.py)
    users-SHA256.parquet                the users who are known (tasks/labels/users.py)
    held-out-SHA256.parquet             the team's own evaluation set (tasks/evaluation/team_set.py)
    held-out-completions-...parquet     the completions of models there (tasks/evaluation/models/completions.py)
    samples-SHA256.parquet              the samples
    settings-SHA256.json                the resolved settings, secrets masked
    manifest.json                       conditional put: from here on the cycle is sealed, and every later run completes it
    training.json                       the trainer's metrics
    evaluation.json                     the held-out scores and the gate's verdict
    outcome.json                        conditional put: the cycle has ended

decisions/EXPERIMENT.json is the record that ends an experiment, written once.
"""

import re
from typing import Any

from infra.records import Decision, Manifest
from infra.settings import Settings
from infra.storage.store import ObjectStore, sha256

PREFIX = "cycles/"
DIGITS = 6
"""Digits of a cycle's number in its id."""
SEALED_EVALUATION = ("samples", "seed", "gate", "stop")
SEALED_JUDGE = ("rubric", "calibration_places")
"""Settings of the evaluation and its judge that hold from a cycle's sealing on; not the judge itself, since one that
refuses is replaced."""
MANIFEST, OUTCOME = "manifest.json", "outcome.json"
TRAINING, EVALUATION = "training.json", "evaluation.json"
KEY = re.compile(r"^cycles/((?:([a-z0-9-]+)-)?cycle-\d{6})/(.+)$")
TEST = re.compile(r"^([a-z0-9-]+)-(?:cycle-\d{6}|anchor-[\d.]+)-version-")
MANUAL = "manual-"
"""Prefix of the ids of moves by hand; a project may have such a name, too."""
BY_HAND = re.compile(rf"^{MANUAL}[\d.]+-(rollback-)?version-\w+(?:-of-([a-z0-9-]+))?$")
Index = dict[str, set[str]]
"""The names of the objects of cycles, by cycle, the oldest first."""


def name(number: int, project: str = "") -> str:
    """Return the id of the nth cycle of a project's loop; of the common one where no project is given."""
    return f"{project and f'{project}-'}cycle-{number:0{DIGITS}d}"


def project_of(cycle: str) -> str:
    """Return the project whose loop a cycle is of; empty: the common one's."""
    return cycle[: -len(name(0))].removesuffix("-")


def project_of_test(experiment: str) -> str:
    """Return the project whose loop an experiment, or a move by hand, is of; empty: the common one's."""
    if by_hand := BY_HAND.match(experiment):
        return by_hand[2] or ""
    match = TEST.match(experiment)
    return match[1] if match else ""


def key(cycle: str, name: str = "") -> str:
    """Return the key of a cycle's object; of its folder where no name is given."""
    return f"{PREFIX}{cycle}/{name}"


def index(store: ObjectStore) -> Index:
    """Return the names of the objects of every cycle of the store's loop that has a folder, oldest cycle first."""
    return by_loop(store).get(store.scope.project, {})


def every(store: ObjectStore) -> Index:
    """Return the names of the objects of every cycle that has a folder, of all loops, by loop and then oldest cycle first."""
    return {cycle: objects for found in by_loop(store).values() for cycle, objects in found.items()}


def by_loop(store: ObjectStore) -> dict[str, Index]:
    """Return the index of each loop's cycles, by its project; that of the common loop by the empty text."""
    found: dict[str, Index] = {}
    for key in store.keys(PREFIX):
        if match := KEY.match(key):
            found.setdefault(match[2] or "", {}).setdefault(match[1], set()).add(match[3])
    return {project: dict(sorted(objects.items())) for project, objects in sorted(found.items())}


def newest_number(store: ObjectStore) -> int:
    """Return the number of the newest cycle of the store's loop that has a folder, or 0.

    It is found digit by digit, with ten small listings per digit at most: listing every cycle takes too long for the status page.
    """
    project, number = store.scope.project, ""
    prefix = name(0, project)[:-DIGITS]

    def is_own(key: str) -> bool:
        """Return whether a key is of the loop: a project may have a name such as cycle-1."""
        match = KEY.match(key)
        return match is not None and (match[2] or "") == project

    for _ in range(DIGITS):
        digits = (d for d in "9876543210" if any(map(is_own, store.keys(f"{PREFIX}{prefix}{number}{d}"))))
        if (digit := next(digits, None)) is None:
            return 0
        number += digit
    return int(number)


def sealed(cycles: Index) -> list[str]:
    """Return the cycles of an index that have a manifest, oldest first."""
    return [cycle for cycle, objects in cycles.items() if MANIFEST in objects]


def unfinished(cycles: Index) -> str | None:
    """Return the newest cycle of an index that is sealed and has not ended."""
    running = [cycle for cycle in sealed(cycles) if OUTCOME not in cycles[cycle]]
    return running[-1] if running else None


def left(store: ObjectStore) -> tuple[str, ...]:
    """Return the cycles that are sealed and have not ended, of projects without a loop; none for the loop of a project."""
    if store.scope.project:
        return ()
    found = {project: cycles for project, cycles in by_loop(store).items() if project and project not in store.scope.apart}
    return tuple(cycle for cycles in found.values() for cycle in sealed(cycles) if OUTCOME not in cycles[cycle])


def name_after(cycles: Index, project: str) -> str:
    """Return the id after that of the last sealed cycle of an index of a project's loop, or of the common one."""
    return name(max((int(cycle[-DIGITS:]) for cycle in sealed(cycles)), default=0) + 1, project)


def manifest_of(store: ObjectStore, cycle: str) -> Manifest:
    return Manifest.model_validate(store.get_json(key(cycle, MANIFEST)))


def dataset_id(store: ObjectStore, cycle: str) -> str:
    """Return the SHA-256 of the manifest's bytes, which is the data set's id in MLflow, in version tags and in decisions."""
    return sha256([store.get(key(cycle, MANIFEST))])


def settings_key(cycle: str, settings_sha256: str) -> str:
    """Return the key of a cycle's settings."""
    return key(cycle, f"settings-{settings_sha256}.json")


def docs_key(cycle: str, name: str, page_sha256: str) -> str:
    """Return the key of a page of a cycle's validation."""
    return key(cycle, f"docs/{name}-{page_sha256}.html")


def docs_name(key: str) -> str:
    """Return the file name of a page of a validation, without its checksum; the keys of earlier code have none."""
    return re.sub(r"-[0-9a-f]{64}(?=\.html$)", "", key.rsplit("/", 1)[-1])


def sealed_settings(store: ObjectStore, manifest: Manifest) -> Any:
    """Return the settings that a cycle was sealed with, secrets masked; `settings.json` of a cycle of earlier code."""
    named = settings_key(manifest.cycle, manifest.settings_sha256)
    return store.get_json(named if store.exists(named) else key(manifest.cycle, "settings.json"))


def settings_of(store: ObjectStore, manifest: Manifest, settings: Settings) -> Settings:
    """Return the settings with which a cycle continues: `reward`, `train` and those of its evaluation are the sealed ones.

    The others are the current ones, such as addresses, credentials and the sampling of completions.
    """
    saved = sealed_settings(store, manifest)
    sections = {name: type(getattr(settings, name)).of_stored(saved[name]) for name in ("reward", "train")}
    evaluate, live = saved.get("evaluate", {}), settings.evaluate.model_dump(mode="json")
    judge = {name: value for name, value in evaluate.get("judge", {}).items() if name in SEALED_JUDGE}
    sealed = {name: value for name, value in evaluate.items() if name in SEALED_EVALUATION}
    merged = type(settings.evaluate).of_stored(live | sealed | {"judge": live["judge"] | judge})
    secret = {"engine_token": settings.evaluate.engine_token}
    judged = merged.judge.model_copy(update={"api_key": settings.evaluate.judge.api_key})
    return settings.model_copy(update=sections | {"evaluate": merged.model_copy(update=secret | {"judge": judged})})


def experiment_id(cycle: str, version: str) -> str:
    """Return the id of the experiment that tests a cycle's candidate."""
    return f"{cycle}-version-{version}"


def move_id(project: str, time: float, version: str, *, rollback: bool) -> str:
    """Return the id of a move by hand that makes a version champion in a project's loop, or in the common one."""
    return f"{MANUAL}{time:.3f}-{'rollback-' if rollback else ''}version-{version}{project and f'-of-{project}'}"


def is_by_hand(experiment: str) -> bool:
    """Return whether an id is that of a move by hand, and not of a test."""
    return BY_HAND.match(experiment) is not None


def is_rollback(experiment: str) -> bool:
    """Return whether an id is that of a move by hand which brings an earlier champion back."""
    match = BY_HAND.match(experiment)
    return match is not None and match[1] is not None


def is_id(text: str) -> bool:
    """Return whether a text may be an experiment's id; another one, such as ../x, makes a key that stores refuse."""
    return re.fullmatch(r"[\w.-]+", text) is not None


def decision_of(store: ObjectStore, experiment: str) -> Decision | None:
    """Return the decision that ended an experiment, or None while there is none."""
    return store.find(f"decisions/{experiment}.json", Decision) if is_id(experiment) else None
