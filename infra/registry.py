"""The model registry: MLflow's REST API for what serving follows and flows decide.

MLflow's own client takes 4 s to import, so the always-on app talks to the server over HTTP. A model version is an
immutable checkpoint in the object store; `champion` and `challenger` are aliases, and the running experiment is a tag
of the registered model.
"""

from dataclasses import dataclass
from typing import Any

import httpx

from infra.records import Decision, ExperimentRecord
from infra.settings.schema import Registry as RegistrySettings

CHAMPION, CHALLENGER = "champion", "challenger"
EXPERIMENT_TAG = "tabloop.experiment"
PREVIOUS_TAG = "tabloop.previous_champion"
LOOK_TAG = "tabloop.look"
VERDICT_TAG = "verdict"
REMOVED_TAG = "checkpoint_removed"
"""Tag of a model version: when its checkpoint was removed, ISO 8601 in UTC; it cannot be served or trained any more."""
PAGE = 200
"""Versions that are asked for at a time."""


@dataclass(frozen=True)
class ModelVersion:
    """An immutable version of the policy."""

    version: str
    """MLflow's version number, as text."""
    source: str
    """URI of its checkpoint directory, s3://bucket/checkpoints/NAME."""
    tags: dict[str, str]
    """Lineage: parent, cycle, metrics."""


@dataclass(frozen=True)
class Aliases:
    """Who serves, at one moment."""

    champion: str | None
    challenger: str | None
    experiment: ExperimentRecord | None
    previous_champion: str | None


class RegistryError(RuntimeError):
    """The registry answered with an error or not at all."""


class Registry:
    """One registered model of an MLflow server."""

    def __init__(self, http: httpx.Client, model: str) -> None:
        self._http = http
        self.model = model

    @classmethod
    def connect(cls, settings: RegistrySettings) -> "Registry":
        """A registry from settings; makes no request yet."""
        return cls(httpx.Client(base_url=settings.uri, timeout=10.0), settings.model)

    def ensure_model(self) -> None:
        """Make the registered model where it is missing."""
        if self._find() is None:
            self._call("POST", "registered-models/create", json={"name": self.model})

    def aliases(self) -> Aliases:
        """Read who serves; one request, so the answer is of one moment."""
        model = self._find() or {}
        named = {a["alias"]: str(a["version"]) for a in model.get("aliases", [])}
        tags = {t["key"]: t.get("value", "") for t in model.get("tags", [])}
        experiment = tags.get(EXPERIMENT_TAG)
        return Aliases(
            champion=named.get(CHAMPION),
            challenger=named.get(CHALLENGER),
            experiment=ExperimentRecord.model_validate_json(experiment) if experiment else None,
            previous_champion=tags.get(PREVIOUS_TAG) or None,
        )

    def named(self) -> frozenset[str]:
        """Versions that any alias points to, one of a person's own included."""
        return frozenset(str(a["version"]) for a in (self._find() or {}).get("aliases", []))

    def last_look(self) -> Decision | None:
        """What the gate said when it last looked at a test, an undecided one too."""
        tags = {t["key"]: t.get("value", "") for t in (self._find() or {}).get("tags", [])}
        return Decision.model_validate_json(tags[LOOK_TAG]) if tags.get(LOOK_TAG) else None

    def version(self, version: str) -> ModelVersion:
        """One version. Raises RegistryError where there is none."""
        found = self._call("GET", "model-versions/get", params={"name": self.model, "version": version})["model_version"]
        return _version(found)

    def versions(self) -> list[ModelVersion]:
        """All versions, oldest first."""
        params: dict[str, Any] = {"filter": f"name='{self.model}'", "max_results": PAGE}
        found: list[dict[str, Any]] = []
        while True:
            page = self._call("GET", "model-versions/search", params=params)
            found += page.get("model_versions", [])
            if not (token := page.get("next_page_token")):
                return sorted(map(_version, found), key=lambda v: int(v.version))
            params["page_token"] = token

    def create_version(self, source: str, tags: dict[str, str], description: str = "", run_id: str | None = None) -> ModelVersion:
        """Register a checkpoint that lies in the object store."""
        body = {
            "name": self.model,
            "source": source,
            "description": description,
            "tags": [{"key": k, "value": v} for k, v in tags.items()],
        }
        if run_id:
            body["run_id"] = run_id
        return _version(self._call("POST", "model-versions/create", json=body)["model_version"])

    def delete_version(self, version: str) -> None:
        """Remove a version that was registered to measure something; its checkpoint stays."""
        self._call("DELETE", "model-versions/delete", json={"name": self.model, "version": version})

    def set_alias(self, alias: str, version: str) -> None:
        """Point an alias at a version."""
        self._call("POST", "registered-models/alias", json={"name": self.model, "alias": alias, "version": version})

    def delete_alias(self, alias: str) -> None:
        """Remove an alias; nothing happens where there is none."""
        # MLflow reads the body of a DELETE, not its query.
        self._call("DELETE", "registered-models/alias", json={"name": self.model, "alias": alias}, absent_is_fine=True)

    def set_experiment(self, experiment: ExperimentRecord | None) -> None:
        """Say which experiment runs; none ends it."""
        self.set_tag(EXPERIMENT_TAG, experiment.model_dump_json() if experiment else "")

    def set_tag(self, key: str, value: str) -> None:
        """Set a tag of the registered model."""
        self._call("POST", "registered-models/set-tag", json={"name": self.model, "key": key, "value": value})

    def set_version_tag(self, version: str, key: str, value: str) -> None:
        """Set a tag of a version."""
        body = {"name": self.model, "version": version, "key": key, "value": value}
        self._call("POST", "model-versions/set-tag", json=body)

    def _find(self) -> dict[str, Any] | None:
        answer = self._call("GET", "registered-models/get", params={"name": self.model}, absent_is_fine=True)
        return answer.get("registered_model")

    def _call(self, method: str, path: str, *, absent_is_fine: bool = False, **request: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, f"/api/2.0/mlflow/{path}", **request)
        except httpx.HTTPError as error:
            raise RegistryError(f"registry {self._http.base_url}: {error}; is it up? `make status`") from error
        if answer.is_success:
            return answer.json()
        if absent_is_fine and answer.status_code == 404:
            return {}
        raise RegistryError(f"registry: {method} {path}: HTTP {answer.status_code}: {answer.text[:300]}")


def _version(found: dict[str, Any]) -> ModelVersion:
    tags = {t["key"]: t.get("value", "") for t in found.get("tags", [])}
    return ModelVersion(version=str(found["version"]), source=found["source"], tags=tags)
