"""Events and metrics for tests, and an in-memory store and registry that behave like the real ones."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from infra.records import (
    Completion,
    Decision,
    ExperimentRecord,
    Feedback,
    HeldOutSet,
    Manifest,
    MoveRequest,
    ObjectReference,
    Sample,
    Verdict,
)
from infra.registry.client import Registry
from infra.storage import cycles, move_requests
from infra.storage.store import AlreadyExists, ObjectStore, sha256
from tasks.trainer.job import Metrics

NOW = 1_800_000_000.0


def next_name(store: ObjectStore) -> str:
    """Return the id of the cycle after the last sealed one of the store's loop."""
    return cycles.name_after(cycles.index(store), store.scope.project)


def completion(id: str = "c", **fields: Any) -> Completion:
    """Return a completion with one token per character, and an end token if its finish reason is "stop"."""
    values = {"text": "foo(bar)", "finish_reason": "stop", **fields}
    text = values["text"]
    ends = [*range(1, len(text) + 1), *([len(text)] if values["finish_reason"] == "stop" else [])]
    return Completion.model_validate(
        {
            "id": id,
            "time": NOW,
            "project": "p",
            "user": "u",
            "client": "continue",
            "prefix": "x = ",
            "suffix": "\n",
            "prompt_token_ids": [1, 2, 3],
            "token_ids": range(10, 10 + len(ends)),
            "logprobs": [-0.5] * len(ends),
            "token_ends": ends,
            "policy_version": "1",
            "arm": "champion",
            "temperature": 0.8,
            "top_p": 1.0,
            "max_tokens": 24,
            "ttft_ms": 5.0,
            "total_ms": 9.0,
            **values,
        }
    )


def feedback(id: str = "f", **fields: Any) -> Feedback:
    """Return feedback that accepts the default completion."""
    return Feedback.model_validate(
        {
            "id": id,
            "time": NOW + 1,
            "made_at": None,
            "project": "p",
            "user": "u",
            "client": "continue",
            "client_id": f"client {id}",
            "outcome": "accepted",
            "prefix": "x = ",
            "suffix": "\n",
            "shown": "foo(bar)",
            **fields,
        }
    )


def sample(id: str = "c", **fields: Any) -> Sample:
    """Return an accepted sample."""
    return Sample.model_validate(
        {
            "completion_id": id,
            "user": "u",
            "policy_version": "1",
            "prompt_token_ids": [1, 2, 3],
            "token_ids": [4, 5],
            "logprobs": [-0.5, -0.1],
            "temperature": 0.8,
            "outcome": "accepted",
            "shown_characters": 8,
            "accepted_characters": 8,
            **fields,
        }
    )


def metrics(**fields: Any) -> Metrics:
    """Return the metrics of an update with four samples."""
    return Metrics.model_validate(
        {
            "samples": 4,
            "tokens": 8,
            "mean_reward": 0.1,
            "entropy": 1.0,
            "importance_clipped": 0.0,
            "logprob_difference_mean": None,
            "logprob_difference_max": None,
            "steps": (),
            "seconds": {"train": 1.0},
            **fields,
        }
    )


def manifest(cycle: str, samples: str = "", held_out: Sequence[HeldOutSet] = ()) -> Manifest:
    """Return a cycle's manifest; `samples` is their key."""
    reference = ObjectReference(key=samples or f"cycles/{cycle}/samples.parquet", sha256="0", rows=1)
    return Manifest.model_validate(
        {
            **{"cycle": cycle, "created": NOW, "champion": "1", "parent": "1", "since": NOW, "until": NOW, "completions": ()},
            **{"feedback": (), "samples": reference, "buckets": {}, "requests": 0, "settings_sha256": "0"},
            "held_out": tuple(held_out),
        }
    )


def decision(experiment: ExperimentRecord, verdict: Verdict, decided: float, by: str = "gate") -> Decision:
    """Return the decision that ends an experiment."""
    return Decision(experiment=experiment, verdict=verdict, decided=decided, by=by)


class MemoryStore(ObjectStore):
    """A bucket in a dictionary, with working conditional puts."""

    def __init__(self) -> None:
        self.bucket = "tabloop"
        self.objects: dict[str, bytes] = {}
        self.now = NOW
        """Unix time of the next write."""
        self.times: dict[str, float] = {}

    def check_conditional_puts(self) -> None:
        pass

    def written(self, prefix: str) -> Iterator[tuple[str, float]]:
        yield from ((key, self.times.get(key, self.now)) for key in self.keys(prefix))

    def put(self, key: str, body: bytes) -> str:
        self.objects[key] = body
        self.times[key] = self.now
        return sha256([body])

    def put_new(self, key: str, body: bytes) -> str:
        if key in self.objects:
            raise AlreadyExists(key)
        return self.put(key, body)

    def get(self, key: str) -> bytes:
        return self.objects[key]

    def get_file(self, key: str, file: Path) -> str:
        file.write_bytes(body := self.get(key))
        return sha256([body])

    def exists(self, key: str) -> bool:
        return key in self.objects

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def keys(self, prefix: str) -> Iterator[str]:
        yield from sorted(key for key in self.objects if key.startswith(prefix))


def asked(kind: move_requests.Kind, version: str, by: str, reason: str, now: float) -> MoveRequest:
    """Return a request for a move by command."""
    return move_requests.make(kind, version, "", reason, by=by, now=now, source="command")


class Killed(BaseException):
    """Stands for the death of the process."""


class MemoryRegistry:
    """The part of MLflow's registry API that infra.registry.client uses; raises Killed when `writes_left` is 0."""

    def __init__(self, **versions: dict[str, str]) -> None:
        """Create versions from their tags, by the keywords "v1", "v2", ..."""
        self.versions = {name[1:]: tags for name, tags in versions.items()}
        self.aliases: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.descriptions: dict[str, str] = {}
        self.writes_left = 10**9
        self.bucket = "tabloop"
        """Of the versions' sources."""
        self.client = Registry(httpx.Client(transport=httpx.MockTransport(self._answer), base_url="http://registry"), "tabloop")

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/2.0/mlflow/")
        parameters: dict[str, Any] = json.loads(request.content) if request.content else dict(request.url.params)
        if request.method != "GET":
            if not self.writes_left:
                raise Killed
            self.writes_left -= 1
        match request.method, path:
            case "GET", "registered-models/get":
                aliases = [{"alias": k, "version": v} for k, v in self.aliases.items()]
                tags = [{"key": k, "value": v} for k, v in self.tags.items()]
                return httpx.Response(200, json={"registered_model": {"aliases": aliases, "tags": tags}})
            case "GET", "model-versions/search":
                return httpx.Response(200, json={"model_versions": [self._version(v) for v in self.versions]})
            case "GET", "model-versions/get":
                exists = parameters["version"] in self.versions
                return (
                    httpx.Response(200, json={"model_version": self._version(parameters["version"])})
                    if exists
                    else httpx.Response(404, json={"error_code": "RESOURCE_DOES_NOT_EXIST"})
                )
            case "POST", "model-versions/create":
                version = str(len(self.versions) + 1)
                self.versions[version] = {t["key"]: t["value"] for t in parameters["tags"]}
                self.descriptions[version] = parameters["description"]
                return httpx.Response(200, json={"model_version": self._version(version)})
            case "POST", "registered-models/alias":
                self.aliases[parameters["alias"]] = parameters["version"]
            case "DELETE", "registered-models/alias":
                self.aliases.pop(parameters["alias"], None)
            case "PATCH", "model-versions/update":
                self.descriptions[parameters["version"]] = parameters["description"]
            case "POST", "registered-models/set-tag":
                if len(parameters["value"]) > 5000:  # SqlRegisteredModelTag in mlflow/store/model_registry/dbmodels/models.py
                    return httpx.Response(400, text="value too long for type character varying(5000)")
                self.tags[parameters["key"]] = parameters["value"]
            case "POST", "model-versions/set-tag":
                self.versions[parameters["version"]][parameters["key"]] = parameters["value"]
            case _:
                return httpx.Response(501, text=f"{request.method} {path}")
        return httpx.Response(200, json={})

    def _version(self, version: str) -> dict[str, Any]:
        tags = [{"key": k, "value": v} for k, v in self.versions[version].items()]
        name = self.versions[version].get("cycle", "base")
        return {"version": version, "source": f"s3://{self.bucket}/checkpoints/{name}", "tags": tags}
