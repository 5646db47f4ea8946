"""The contract of the flow and the pods of a Job: objects of the bucket, each verified by its checksum.

training/CYCLE-DIGEST/order.json                 what is trained, from what; DIGEST is a part of its checksum
training/CYCLE-DIGEST/ATTEMPT/checkpoint/...     and optimizer/, adapter/: what an attempt trained
training/CYCLE-DIGEST/ATTEMPT/result.json        written last: the metrics, and the checksums of these folders
training/CYCLE-DIGEST/ATTEMPT/refused.txt        in their place: the reason why the update is refused
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.settings.training import Train
from infra.storage.store import Corrupt, ObjectStore, sha256
from tasks.trainer.job import Metrics

PREFIX = "training/"
ORDER, RESULT, REFUSED = "order.json", "result.json", "refused.txt"
DIGITS = 10
"""Digits of a checksum in a name."""


class Stored(BaseModel):
    """A folder of the bucket."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    version: str
    """Model version that it belongs to."""
    prefix: str
    """Prefix of its keys."""
    sha256: str
    """SHA-256 of its checksums.json."""


class Order(BaseModel):
    """An update that pods make."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    cycle: str
    """Cycle whose update it is."""
    samples: str
    """Key of the samples."""
    samples_sha256: str
    """SHA-256 of the samples."""
    parent: Stored
    """Checkpoint to train."""
    reference: Stored | None = None
    """Checkpoint of the KL term's reference policy; none: the parent's."""
    optimizer: Stored | None = None
    """Optimizer's state at the parent; none: the optimizer starts new."""
    continues_adapter: bool = False
    """Whether the update trains on the parent's adapter, which its folder names the base of."""
    weight_shares: dict[Literal["user", "credential", "project"], float] = Field(default={})
    """Largest shares of the settled text's weight, as in the trainer's job."""
    train: Train
    """The cycle's sealed settings of training."""


class Result(BaseModel):
    """The end of an update that was made."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    metrics: Metrics
    """The update's metrics."""
    folders: dict[str, str]
    """SHA-256 of the checksums.json of each folder that it wrote, by the folder's name."""


def write(store: ObjectStore, order: Order) -> tuple[str, str]:
    """Write an order; return its key and its SHA-256."""
    body = order.model_dump_json(indent=2).encode()
    digest = sha256([body])
    key = f"{PREFIX}{order.cycle}-{digest[:DIGITS]}/{ORDER}"
    store.put(key, body)
    return key, digest


def read(store: ObjectStore, key: str, digest: str) -> Order:
    """Return an order. Raises Corrupt if it is another than the flow wrote."""
    return Order.model_validate_json(verified(store, key, digest))


def verified(store: ObjectStore, key: str, digest: str) -> bytes:
    """Return an object's bytes. Raises Corrupt if their SHA-256 is another."""
    body = store.get(key)
    if (found := sha256([body])) != digest:
        raise Corrupt(f"{store.uri(key)}: SHA-256 {found}, the flow says {digest}")
    return body


def folder_of(key: str) -> str:
    """Return the prefix of an order's attempts."""
    return key.removesuffix(ORDER)


def finished(store: ObjectStore, key: str) -> str | None:
    """Return the prefix of an attempt at an order that has ended as made or refused; None without one."""
    ends = (found for found in store.keys(folder_of(key)) if found.endswith((f"/{RESULT}", f"/{REFUSED}")))
    return next((found.rpartition("/")[0] for found in ends), None)


def templates(store: ObjectStore, cycle: str) -> set[Path]:
    """Return the templates by which Jobs of a cycle were made, as `train.job` named them."""
    keys = [key for key in store.keys(f"{PREFIX}{cycle}-") if key.endswith(f"/{ORDER}")]
    named = [store.get_json(key)["train"].get("job") for key in keys]
    return {Path(file) for file in named if file}


def others(store: ObjectStore, cycle: str) -> list[str]:
    """Return the other cycles that left something: one update runs at a time, and their end met a store or a cluster that was
    away."""
    found = {key.removeprefix(PREFIX).partition("/")[0][: -DIGITS - 1] for key in store.keys(PREFIX)}
    return sorted(found - {cycle})


def remove(store: ObjectStore, cycle: str, *, trained_alone: bool = False) -> None:
    """Remove what was trained by the orders of a cycle, which is registered or which nobody wants, and the orders too."""
    for key in list(store.keys(f"{PREFIX}{cycle}-")):
        if not (trained_alone and key.endswith(f"/{ORDER}")):
            store.delete(key)
