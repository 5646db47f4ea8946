"""Every setting of tabloop: frozen, typed, documented; an unknown key is refused. One module per part of the loop."""

# ruff: noqa: F401, other modules import from here

from typing import Self

from pydantic import model_validator

from infra.settings.collect import Collect, Hindsight
from infra.settings.evaluation import Evaluate, Gate, HeldOut, Judge
from infra.settings.experiment import Experiment
from infra.settings.model import Model
from infra.settings.retention import Retention
from infra.settings.reward import Reward
from infra.settings.section import Section
from infra.settings.services import Orchestration, Registry, Stack, Store
from infra.settings.serving import (
    MAX_LORA_RANK,
    AccessToken,
    Drain,
    EngineSetting,
    External,
    Limits,
    OpenIDConnect,
    PersonalData,
    ProjectTerms,
    Role,
    Sampling,
    Serving,
    Showing,
    Terms,
    UserTerms,
)
from infra.settings.training import Groups, Train


class Settings(Section):
    """All settings of tabloop."""

    store: Store = Store()
    """Object store."""
    registry: Registry = Registry()
    """Model registry."""
    orchestration: Orchestration = Orchestration()
    """Prefect and Dask."""
    model: Model = Model()
    """Base model and prompt format."""
    serving: Serving = Serving()
    """Serving app and engines."""
    collect: Collect = Collect()
    """Collecting and validating a cycle's data."""
    reward: Reward = Reward()
    """Rewards and advantages."""
    train: Train = Train()
    """The trainer."""
    evaluate: Evaluate = Evaluate()
    """Held-out evaluation."""
    experiment: Experiment = Experiment()
    """A/B tests."""
    retention: Retention = Retention()
    """Retention."""
    stack: Stack = Stack()
    """The local stack."""

    @model_validator(mode="after")
    def _flows_of_a_cluster_train_by_job(self) -> Self:
        if self.orchestration.work_pool_type == "kubernetes" and self.train.job is None:
            raise ValueError(
                'train.job is not set, expected the template of a Job with orchestration.work_pool_type = "kubernetes": no run '
                "of its flows has GPUs; copy infra/settings/train_job.json and name the copy"
            )
        return self

    @model_validator(mode="after")
    def _evaluation_has_an_engine(self) -> Self:
        if self.serving.adapters and self.evaluate.engine == "slot":
            raise ValueError(
                f'evaluate.engine = "slot", expected "own" with serving.adapters = {self.serving.adapters}: both slots may be '
                "one engine, which always serves the champion"
            )
        return self

    @model_validator(mode="after")
    def _engines_take_what_is_trained(self) -> Self:
        """Refuse a rank whose versions no engine takes: a cycle would find out after its update."""
        adapters, rank = self.serving.adapters, self.train.adapter_rank
        most = self.serving.engine_arguments.get("max_lora_rank", MAX_LORA_RANK)
        # Settings made without a section `train` are of something that trains nothing.
        trains = "train" in self.model_fields_set
        if adapters and trains and isinstance(most, int) and not 1 <= rank <= most:
            raise ValueError(
                f"train.adapter_rank = {rank}, expected 1 to {most} (serving.engine_arguments.max_lora_rank) with "
                f"serving.adapters = {adapters}: its engines take no other version; set one of the three, or serving.adapters = 0"
            )
        return self
