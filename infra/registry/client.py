"""A client of the model registry, over MLflow's REST API.

A model version is an immutable checkpoint in the object store; `champion` and `challenger` are aliases; the running
experiment, the test whose version is on probation and the anchor are tags of the registered model, so that one request reads
all of them. MLflow's own client is not used since importing it takes 4 s.

A project with a champion of its own has aliases and tags of its own in the same model, so the numbers of versions are common:
`champion-web`, `mlflow.tabloop.experiment.web`. What its log of moves says of a version is in tags such as `state.web`, since a
version may be the common champion too.
"""

import base64
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from infra.http import authorization
from infra.records import Decision, ExperimentRecord
from infra.settings import masked
from infra.settings.schema import Registry as RegistrySettings

CHAMPION, CHALLENGER = "champion", "challenger"
EXPERIMENT_TAG = "mlflow.tabloop.experiment"
WATCH_TAG = "mlflow.tabloop.watch"
ANCHOR_TAG = "mlflow.tabloop.anchor"
MOVE_TAG = "mlflow.tabloop.move"
PREVIOUS_TAG = "mlflow.tabloop.previous_champion"
LOOK_TAG = "mlflow.tabloop.look"
"""Tags that machines read. MLflow's pages show no tag whose name begins with "mlflow."."""
VERDICT_TAG = "verdict"
"""Tag of a model version: the verdict of its A/B test. What was decided later, or by hand, is in LAST_MOVE_TAG."""
LAST_MOVE_TAG = "last_move"
"""Tag of a model version: its latest move, who asked for it, and why."""
ACCEPTANCE_TAG = "acceptance"
"""Tag of a model version: both arms of its A/B test at the verdict, with intervals and requests."""
ROLLED_BACK_TAG = "rolled_back"
"""Tag of a model version: who rolled it back, and why."""
STATE_TAG = "state"
"""Tag of a model version: its state after its latest move (tasks/experiments/stages/states.py); an alias wins over it."""
OF_MOVES = (VERDICT_TAG, f"{VERDICT_TAG}.reason", LAST_MOVE_TAG, ACCEPTANCE_TAG, ROLLED_BACK_TAG, STATE_TAG)
"""Tags of a model version that a log of moves sets."""
REMOVED_TAG = "checkpoint_removed"
"""Tag of a model version: when its checkpoint was removed (ISO 8601, UTC); the version cannot be served or trained."""
MISSING = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")
"""MLflow's error codes for a model or version that is not registered; a 404 without one is a proxy's."""
MOST_NAMED = 10
"""Versions that an error lists."""
PAGE = 200
"""Versions per request."""
MOST_DESCRIPTION = MOST_TAG = 5000
"""Characters of a description, and of a tag, that MLflow stores on PostgreSQL."""
PACKED = "zlib:"
"""Begin of a tag whose record is longer: the stages of a test that was paused often, or of many champions beside an anchor."""
DESCRIPTION = Path(__file__).with_name("description.md").read_text()
"""Description of the registered model, where nobody has written another one."""


@dataclass(frozen=True)
class ModelVersion:
    """A frozen record of a version of the policy."""

    version: str
    """MLflow's version number, as text."""
    source: str
    """URI of its checkpoint directory, s3://bucket/checkpoints/NAME."""
    tags: dict[str, str]
    """The version's tags: parent, cycle, metrics."""


@dataclass(frozen=True)
class Aliases:
    """A frozen record of the versions that serve and the running experiment, read in one request."""

    champion: str | None
    challenger: str | None
    experiment: ExperimentRecord | None
    previous_champion: str | None
    watch: ExperimentRecord | None = None
    """The test whose promoted version is on probation; its last stage is `watch`."""
    anchor: ExperimentRecord | None = None
    """The anchor, and the comparison of the champions since with it (tasks/experiments/moves/succession.py)."""
    move: int | None = None
    """Number of the newest move that the registry shows (infra/storage/moves.py); None before the first."""
    common: bool = False
    """Whether the champion is the common one, since a project has none of its own yet."""

    @property
    def routed(self) -> ExperimentRecord | None:
        """The experiment that divides requests: the running one, else that on probation, else the anchor's."""
        return self.experiment or self.beside

    @property
    def beside(self) -> ExperimentRecord | None:
        """The comparison of the champion with an earlier version: the probation, else the anchor while it is another version."""
        anchor = self.anchor
        compared = anchor and anchor.challenger == self.champion and anchor.champion != self.champion
        return self.watch or (anchor if compared else None)


class RegistryError(RuntimeError):
    """The registry returned an error or did not respond."""


class NoAnswer(RegistryError):
    """The registry did not respond."""


class NotRegistered(RegistryError):
    """The registry has no such version."""


class Registry:
    """A client of one registered model on an MLflow server, of the common loop or of a project's."""

    def __init__(self, http: httpx.Client, model: str, project: str = "") -> None:
        """Use a model through an HTTP client; `project`: one with a champion of its own, empty: the common loop."""
        self._http = http
        self.model = model
        self.project = project

    @classmethod
    def connect(cls, settings: RegistrySettings) -> "Registry":
        """Return a registry for the settings, without making a request."""
        http = httpx.Client(base_url=settings.uri, headers=authorization.of_registry(settings), timeout=10.0)
        return cls(http, settings.model)

    def of(self, project: str) -> "Registry":
        """Return a registry of a project's aliases and tags, or of the common ones where no project is given."""
        return Registry(self._http, self.model, project)

    def ensure_model(self) -> None:
        """Create the registered model if it is missing, and describe it."""
        model = self._model()
        if model is None:
            self._call("POST", "registered-models/create", json={"name": self.model, "description": DESCRIPTION})
            return
        if not model.get("description"):
            self._call("PATCH", "registered-models/update", json={"name": self.model, "description": DESCRIPTION})

    def aliases(self) -> Aliases:
        """Return the aliases and the experiment, read in one request and so consistent.

        A project without a champion of its own has that of its running test, else the common one.
        """
        model = self._model() or {}
        versions, tags = _versions_by_alias(model), _tags(model)
        experiment, watch, anchor = (self._record(tags, tag) for tag in (EXPERIMENT_TAG, WATCH_TAG, ANCHOR_TAG))
        own, common = versions.get(self._alias(CHAMPION)), versions.get(CHAMPION)
        move = tags.get(self._tag(MOVE_TAG))
        return Aliases(
            champion=own or (experiment.champion if experiment and self.project else common),
            challenger=versions.get(self._alias(CHALLENGER)),
            experiment=experiment,
            previous_champion=tags.get(self._tag(PREVIOUS_TAG)) or None,
            watch=watch,
            anchor=anchor,
            move=int(move) if move else None,
            common=own is None and bool(self.project),
        )

    def _record(self, tags: dict[str, str], tag: str) -> ExperimentRecord | None:
        text = _unpacked(tags.get(self._tag(tag), ""))
        return ExperimentRecord.model_validate_json(text) if text else None

    def roles(self) -> dict[str, str]:
        """Return "champion", "challenger", "champion of web" and the like, by version; a common role wins."""
        found: dict[str, str] = {}
        for alias, version in sorted(_versions_by_alias(self._model() or {}).items(), key=lambda pair: -len(pair[0])):
            role, _, project = alias.partition("-")
            if role in (CHAMPION, CHALLENGER):
                found[version] = f"{role} of {project}" if project else role
        return found

    def aliased(self) -> frozenset[str]:
        """Return the versions that any alias points to, including those of projects and those set by hand."""
        return frozenset(_versions_by_alias(self._model() or {}).values())

    def last_look(self) -> Decision | None:
        """Return the A/B gate's latest verdict, undecided ones included; none if it never ran."""
        text = _unpacked(_tags(self._model() or {}).get(self._tag(LOOK_TAG), ""))
        return Decision.model_validate_json(text) if text else None

    def version(self, version: str) -> ModelVersion:
        """Return a version. Raises NotRegistered, with the versions that exist, if it does not."""
        try:
            if not version.isdecimal():
                raise NotRegistered(version)
            found = self._call("GET", "model-versions/get", params={"name": self.model, "version": version})
        except NotRegistered:
            known = ", ".join(each.version for each in self.versions()[-MOST_NAMED:]) or "none"
            raise NotRegistered(
                f"model {self.model!r}: no version {version}; the latest are {known}. `tabloop history` lists their moves"
            ) from None
        return self._version(self._part(found, "model_version"))

    def versions(self) -> list[ModelVersion]:
        """Return all versions, oldest first."""
        params: dict[str, Any] = {"filter": f"name='{self.model}'", "max_results": PAGE}
        entries: list[dict[str, Any]] = []
        while True:
            page = self._call("GET", "model-versions/search", params=params)
            entries += page.get("model_versions", [])
            if not (token := page.get("next_page_token")):
                return sorted(map(self._version, entries), key=lambda v: int(v.version))
            params["page_token"] = token

    def create_version(self, source: str, tags: dict[str, str], description: str = "", run_id: str | None = None) -> ModelVersion:
        """Register a checkpoint in the object store as a new version, and return it."""
        body = {
            "name": self.model,
            "source": source,
            "description": description[:MOST_DESCRIPTION],
            "tags": [{"key": k, "value": v} for k, v in tags.items()],
        }
        if run_id:
            body["run_id"] = run_id
        return self._version(self._part(self._call("POST", "model-versions/create", json=body), "model_version"))

    def describe_version(self, version: str, description: str) -> None:
        """Replace a version's description, in Markdown of at most MOST_DESCRIPTION characters."""
        body = {"name": self.model, "version": version, "description": description[:MOST_DESCRIPTION]}
        self._call("PATCH", "model-versions/update", json=body)

    def set_alias(self, alias: str, version: str) -> None:
        self._call("POST", "registered-models/alias", json={"name": self.model, "alias": self._alias(alias), "version": version})

    def delete_alias(self, alias: str) -> None:
        """Remove an alias if it exists."""
        # MLflow reads the body of a DELETE request, not its query.
        body = {"name": self.model, "alias": self._alias(alias)}
        self._call("DELETE", "registered-models/alias", json=body, missing_ok=True)

    def set_experiment(self, experiment: ExperimentRecord | None) -> None:
        """Set the running experiment; none ends it."""
        self._set_record(EXPERIMENT_TAG, experiment)

    def set_watch(self, watched: ExperimentRecord | None) -> None:
        """Set the test whose promoted version is on probation; none ends the probation."""
        self._set_record(WATCH_TAG, watched)

    def set_anchor(self, anchor: ExperimentRecord | None) -> None:
        """Set the anchor with the comparison of the champions with it; none: there is no anchor."""
        self._set_record(ANCHOR_TAG, anchor)

    def set_look(self, look: Decision) -> None:
        """Set the A/B gate's latest verdict."""
        self._set_record(LOOK_TAG, look)

    def _set_record(self, key: str, record: ExperimentRecord | Decision | None) -> None:
        self.set_tag(key, _packed(record.model_dump_json()) if record else "")

    def set_tag(self, key: str, value: str) -> None:
        """Set a tag of the registered model."""
        self._call("POST", "registered-models/set-tag", json={"name": self.model, "key": self._tag(key), "value": value})

    def set_version_tag(self, version: str, key: str, value: str) -> None:
        own = self._tag(key) if key in OF_MOVES else key
        body = {"name": self.model, "version": version, "key": own, "value": value}
        self._call("POST", "model-versions/set-tag", json=body)

    def _alias(self, alias: str) -> str:
        return f"{alias}-{self.project}" if self.project else alias

    def _tag(self, key: str) -> str:
        return f"{key}.{self.project}" if self.project else key

    def _version(self, entry: dict[str, Any]) -> ModelVersion:
        tags = _tags(entry)
        if self.project:
            moved = {key: tags[self._tag(key)] for key in OF_MOVES if self._tag(key) in tags}
            tags = {key: value for key, value in tags.items() if key not in OF_MOVES} | moved
        return ModelVersion(version=str(entry["version"]), source=entry["source"], tags=tags)

    def _model(self) -> dict[str, Any] | None:
        found = self._call("GET", "registered-models/get", params={"name": self.model}, missing_ok=True)
        return self._part(found, "registered_model") if found else None

    def _part(self, found: dict[str, Any], name: str) -> dict[str, Any]:
        """Return a part of an answer. Raises RegistryError if the answer lacks it."""
        if name not in found:
            raise RegistryError(
                f"{self._where}: expected {name} in the answer, got {str(found)[:100]}; another server answers there"
            )
        return found[name]

    @property
    def _where(self) -> str:
        return f"registry.uri = {masked(str(self._http.base_url))!r}"

    def _call(self, method: str, path: str, *, missing_ok: bool = False, **request: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, f"/api/2.0/mlflow/{path}", **request)
        except httpx.HTTPError as error:
            raise NoAnswer(f"{self._where}: no response: {error}; check with `tabloop status` that MLflow runs") from error
        found = _object(response)
        if response.is_success and found is not None:
            return found
        missing = response.status_code == 404 and (found or {}).get("error_code") in MISSING
        if missing_ok and missing:
            return {}
        if response.status_code == 401:
            raise RegistryError(
                f"registry: {method} {path}: HTTP 401: registry.username and registry.password, or registry.token, are not those "
                "of the server; `tabloop up` generates those of the local one"
            )
        if response.status_code == 403:
            raise RegistryError(
                f"registry: {method} {path}: HTTP 403: the account of registry.username or registry.token may not do this (it "
                "may write what it made, and what an administrator of MLflow grants it), or the server does not answer to the "
                "host name of registry.uri"
            )
        if found is None:
            raise RegistryError(
                f"{self._where}: {method} {path}: HTTP {response.status_code} with {response.text[:100]!r}: expected MLflow's "
                "JSON; a proxy or another server answers there"
            )
        failure = NotRegistered if missing else RegistryError
        raise failure(f"registry: {method} {path}: HTTP {response.status_code}: {response.text[:300]}")


def _packed(text: str) -> str:
    """Return the value of a tag that holds a text."""
    return text if len(text) <= MOST_TAG else PACKED + base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def _unpacked(value: str) -> str:
    return zlib.decompress(base64.b85decode(value.removeprefix(PACKED))).decode() if value.startswith(PACKED) else value


def _object(response: httpx.Response) -> dict[str, Any] | None:
    """Return the JSON object of an answer; None if it is something else, such as the page of a proxy."""
    try:
        found = response.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _tags(entry: dict[str, Any]) -> dict[str, str]:
    return {t["key"]: t.get("value", "") for t in entry.get("tags", [])}


def _versions_by_alias(model: dict[str, Any]) -> dict[str, str]:
    return {a["alias"]: str(a["version"]) for a in model.get("aliases", [])}
