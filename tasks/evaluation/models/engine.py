"""The evaluation's engine: a process with vLLM that completes the held-out places with any checkpoint (infra/model/batches.py).

It is a separate engine, or a slot of the app that does not hold the champion. A slot takes no traffic while it holds weights that
the registry does not name, and gets its previous version back at the end.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from infra.model.batches import Batch, BatchResult
from infra.settings import Settings
from infra.settings.schema import Sampling
from tasks.evaluation.models.base import Progress, Prompt, weights_sha256

ROWS = 512
"""Prompts of one request."""
SWAP_SECONDS = 120.0
AWAY_SECONDS = 120.0
"""Seconds to wait for an engine that does not answer, or whose answers stop; then the candidate has no verdict, and the next
run of the cycle goes on."""
FETCH_SECONDS = 1800.0
"""Longest download of a checkpoint by the engine."""
PAUSE_SECONDS = 1.0


class EngineAway(RuntimeError):
    """The engine does not answer, or ended during a batch. There is no verdict; the evaluation can be run again."""


class EngineRefused(ValueError):
    """The engine refuses a checkpoint or a batch; a retry would fail, too."""


@dataclass
class EngineModels:
    """Completes and scores with any checkpoint that the engine's architecture fits."""

    client: httpx.Client
    seconds: float
    """Time to wait for an engine that is away."""
    idle: bool = False
    """Load weights only while the engine completes nothing, since it is a slot of the app."""
    sources: Mapping[Path, str] | None = None
    """URI of each checkpoint in the object store, from which the engine fetches it; without one it reads the checkpoint's
    path."""
    adapters: Mapping[Path, Path] | None = None
    """Folder of the adapter that a checkpoint has merged, for an engine that holds versions as adapters of its base; a checkpoint
    without one has the base's weights. None: the engine holds one version, with whole weights."""
    name: str = field(default="engine", init=False)

    @property
    def together(self) -> bool:
        """Whether several checkpoints can be used at once."""
        return self.adapters is not None

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def sample(
        self, checkpoint: Path, prompts: Sequence[Prompt], sampling: Sampling, ends: Sequence[int], progress: Progress
    ) -> list[tuple[int, ...]]:
        """See models.Models.

        Raises:
            EngineAway: the engine does not answer.
            EngineRefused: the checkpoint does not fit, or a prompt is too long.
        """
        return [result.tokens for result in self.results(checkpoint, prompts, sampling, ends, progress)]

    def results(
        self,
        checkpoint: Path,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        ends: Sequence[int],
        progress: Progress,
        *,
        with_logprobs: bool = False,
    ) -> list[BatchResult]:
        """Return what `sample` does, or with the log-probability of each token under the distribution that it was drawn from.

        Raises as `sample`.
        """
        version = self.load(checkpoint)
        found: list[BatchResult] = []
        for start in range(0, len(prompts), ROWS):
            rows = prompts[start : start + ROWS]
            batch = Batch(
                version=version,
                prompts=[row.tokens for row in rows],
                draws=[row.draw for row in rows],
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                stop_token_ids=tuple(ends),
                with_logprobs=with_logprobs,
            )
            found += self._run(batch, progress)
        return found

    def score(self, checkpoint: Path, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        """See models.Models. Raises EngineAway and EngineRefused."""
        version = self.load(checkpoint)
        found: list[tuple[float, ...]] = []
        for start in range(0, len(rows), ROWS):
            part = rows[start : start + ROWS]
            prompts, scored = [[*prompt, *tokens] for prompt, tokens in part], [len(tokens) for _, tokens in part]
            batch = Batch(version=version, prompts=prompts, draws=[0] * len(part), scored=scored)
            found += [result.logprobs for result in self._run(batch, lambda _: None)]
        return found

    def load(self, checkpoint: Path) -> str:
        """Load a checkpoint's weights unless the engine holds them; return the version under which it holds them.

        Raises:
            EngineAway: the engine does not answer, or is busy.
            EngineRefused: the checkpoint does not fit.
        """
        version, state = f"evaluation-{weights_sha256(checkpoint)[:16]}", self.health()
        if version not in (state["version"], *state.get("versions", ())):
            self.swap(self._path_of(checkpoint, version), version)
        return version

    def _path_of(self, checkpoint: Path, version: str) -> str:
        """Return the path of a checkpoint on the engine's disk. Raises EngineAway and EngineRefused."""
        if self.sources is None:
            return str((self.adapters or {}).get(checkpoint, checkpoint).resolve())
        body = {"version": version, "source": self.sources[checkpoint]}
        return str(self._change("/fetch", body, FETCH_SECONDS)["path"])

    def swap(self, path: str, version: str) -> None:
        """Load the weights in a directory. Raises EngineAway and EngineRefused."""
        self._change("/swap", {"path": path, "version": version, "idle": self.idle}, SWAP_SECONDS)

    def health(self) -> dict[str, Any]:
        """Return the engine's state, waiting for one that is away. Raises EngineAway."""
        deadline = time.monotonic() + self.seconds
        while True:
            try:
                response = self._request(lambda: self.client.get("/health", timeout=5.0))
                if response.status_code == 200 and response.json():
                    return dict(response.json())
                if response.status_code == 200:
                    raise EngineRefused(f"{self.url}/health: it does not accept the token")
                problem = f"HTTP {response.status_code}"
            except EngineAway as error:
                problem = str(error)
            if time.monotonic() > deadline:
                raise EngineAway(f"{problem}, for {self.seconds:g} s")
            time.sleep(PAUSE_SECONDS)

    def _run(self, batch: Batch, progress: Progress) -> list[BatchResult]:
        """Return the results of a batch in order of its prompts."""
        found: dict[int, BatchResult] = {}
        try:
            with self.client.stream("POST", "/batch", json=batch.body(), timeout=self.seconds) as response:
                if response.status_code != 200:
                    response.read()
                    _fail(response.status_code, f"{self.url}/batch: {_error(response)}")
                for line in response.iter_lines():
                    body = json.loads(line)
                    if "error" in body:
                        _fail(body["status"], f"{self.url}/batch: {body['error']}")
                    result = BatchResult.parse(body)
                    found[result.row] = result
                    progress(1)
        except httpx.HTTPError as error:
            raise EngineAway(f"{self.url}/batch: {type(error).__name__}: {error}") from error
        if len(found) != len(batch.prompts):
            raise EngineAway(f"{self.url}/batch: {len(found)} of {len(batch.prompts)} prompts were answered")
        return [found[row] for row in range(len(batch.prompts))]

    def _change(self, route: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the response of a route that changes the engine. Raises EngineAway and EngineRefused."""
        response = self._request(lambda: self.client.post(route, json=body, timeout=seconds))
        if response.status_code == 409:
            raise EngineRefused(f"{self.url}{route}: {_error(response)}")
        if response.status_code != 200:
            raise EngineAway(f"{self.url}{route}: HTTP {response.status_code}: {_error(response)}")
        return dict(response.json())

    def _request(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        try:
            return send()
        except httpx.HTTPError as error:
            raise EngineAway(f"{self.url}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def engine_models(
    settings: Settings, champion: str, sources: Mapping[Path, str] | None = None, adapters: Mapping[Path, Path] | None = None
) -> Iterator[EngineModels]:
    """Connect to the engine that the settings name.

    Args:
        champion: the version that serves users, whose slot is not used.
        sources: URI of each checkpoint in the object store, for an engine that does not see this machine's disk.
        adapters: folder of the adapter of each checkpoint that has one, which an engine with serving.adapters takes.

    Raises:
        EngineAway: with evaluate.engine = "slot", no slot is free.
    """
    if settings.evaluate.engine == "own":
        beside = (adapters or {}) if settings.serving.adapters else None
        with _client(settings.evaluate.engine_url, settings.evaluate.engine_token) as client:
            yield EngineModels(client, AWAY_SECONDS, sources=sources, adapters=beside)
        return
    with contextlib.ExitStack() as stack:
        slots = [
            EngineModels(stack.enter_context(_client(url, settings.serving.engine_token)), AWAY_SECONDS, True, sources)
            for url in settings.serving.engines
            if isinstance(url, str)
        ]
        slot, held = free_slot(slots, champion)
        try:
            yield slot
        finally:
            if slot.health()["version"] != held["version"]:
                slot.swap(held["path"], held["version"])


def free_slot(slots: Sequence[EngineModels], champion: str) -> tuple[EngineModels, dict[str, Any]]:
    """Return the slot that serves no user, with its state.

    Raises:
        EngineAway: both slots hold the champion, or neither does, so it is unknown which one takes traffic.
    """
    states = [slot.health() for slot in slots]
    others = [(slot, state) for slot, state in zip(slots, states, strict=True) if state["version"] != champion]
    if len(slots) != 2 or len(others) != 1:
        held = ", ".join(state["version"] for state in states)
        raise EngineAway(
            f'evaluate.engine = "slot": the slots hold versions {held}; expected two engines of tabloop, of which one holds the '
            f'champion, version {champion}. Wait until the app has loaded it, or set evaluate.engine = "own"'
        )
    return others[0]


def _client(url: str, token: Any) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    return httpx.Client(base_url=url, headers=headers, trust_env=False)


def _fail(status: int, message: str) -> None:
    raise EngineRefused(message) if status == 400 else EngineAway(message)


def _error(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
