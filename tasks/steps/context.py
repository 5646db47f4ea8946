"""The context of a flow's steps: its settings, clients and clock, made once for a run and handed to each step."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from infra import settings as settings_
from infra.model import adapters
from infra.model.fim import Renderer
from infra.registry import checkpoints
from infra.registry.client import NotRegistered, Registry
from infra.settings import Settings
from infra.storage.scope import scope_of
from infra.storage.store import Incomplete, ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Context:
    """Settings, object store, registry and clock of a run, and the files of its machine."""

    settings: Settings
    store: ObjectStore
    registry: Registry
    now: Callable[[], float]
    """Returns the Unix time in seconds."""

    def of(self, project: str) -> "Context":
        """Return the context of a project's loop, or of the common one where no project is given.

        A cycle of a project reads its requests alone, so no share of a cycle from one project bounds it.

        Raises:
            NoOwnChampion: the settings give the project no champion of its own.
        """
        scope, settings = scope_of(self.settings, project), self.settings
        if project:
            collect = settings.collect.model_copy(update={"max_project_share": 1.0})
            settings = settings.model_copy(update={"collect": collect})
        return replace(self, settings=settings, store=scope.view(self.store), registry=self.registry.of(project))

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects with a loop of their own beside the common one; none in the context of a project."""
        return tuple(sorted(self.store.scope.apart))

    @property
    def takes_turns(self) -> bool:
        """Whether several loops run one after another in a run of a flow, so that none may wait within its turn."""
        return bool(self.settings.serving.own_champions)

    def folder(self, cycle: str) -> Path:
        """Return the folder of a cycle's working files on this machine."""
        return settings_.path(self.settings.train.folder) / cycle

    def checkpoint(self, version: str) -> Path:
        """Return the directory of a version's checkpoint, downloaded where it is missing."""
        return checkpoints.fetch(self.store, self.registry, version, self._versions())

    def adapter(self, version: str) -> tuple[Path, Path] | None:
        """Return the directories of a version's base and of its adapter; None if it has weights of its own."""
        adapter = self.checkpoint(version) / adapters.FOLDER
        if not adapters.is_adapter(adapter):
            return None
        return checkpoints.fetch_base(self.store, adapter, self._versions()), adapter

    def remaining_checkpoint(self, version: str) -> Path | None:
        """Return the directory of a version's checkpoint; None if the checkpoint or the version was removed."""
        try:
            return self.checkpoint(version)
        except (Incomplete, NotRegistered) as error:
            log.warning("the checkpoint of version %s is missing: %s", version, error)
            return None

    def optimizer(self, version: str) -> Path | None:
        """Return the directory of the optimizer's state at a version, or None where none was kept."""
        return checkpoints.fetch_optimizer(self.store, self.registry, version, self._versions())

    def tokenizer(self, version: str) -> Tokenizer:
        return Tokenizer.from_file(str(self.checkpoint(version) / "tokenizer.json"))

    def renderer(self, tokenizer: Tokenizer) -> Renderer:
        """Return the renderer of prompts for the model of this tokenizer."""
        model = self.settings.model
        return Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)

    def _versions(self) -> Path:
        return settings_.path(self.settings.train.folder) / "versions"


def connect(settings: Settings) -> Context:
    """Return the context of a run with these settings, without making a request."""
    return Context(settings, ObjectStore.connect(settings.store), Registry.connect(settings.registry), time.time)


def load(project: str = "") -> Context:
    """Return the context of a run of a project's loop, or of the common one, with the settings of this machine.

    Raises:
        NoOwnChampion: the settings give the project no champion of its own.
    """
    return connect(settings_.load()).of(project)
