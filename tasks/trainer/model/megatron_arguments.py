"""Checks of the Megatron-core arguments that a user gives (setting train.megatron_arguments). Importing it imports no Megatron.

The trainer sets the arguments of reserved_arguments.json itself: with another value it would compute something else, or fail in
the middle of an update.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

_LAST_LAYER = "the last layer runs at positions that only the first forward pass knows; train.recompute is for the other layers"
RESERVED: dict[str, str] = {
    name: group["reason"]
    for group in json.loads(Path(__file__).with_name("reserved_arguments.json").read_text())
    for name in group["arguments"]
}
"""Reason by the name of each argument that a user may not set."""
RECOMPUTE = {"recompute_granularity": "selective", "recompute_modules": ["mlp"]}
"""Megatron's arguments of `train.recompute = "selective"`, which users may also give themselves."""


def check_reserved(arguments: Mapping[str, Any]) -> None:
    """Refuse the arguments that the trainer sets itself. Raises ValueError: names the argument, its value and the reason."""
    for name, value in arguments.items():
        if name in RESERVED:
            raise ValueError(
                f"train.megatron_arguments.{name} = {value!r}: the trainer sets it itself ({RESERVED[name]}); remove it"
            )
    if arguments.get("recompute_granularity") and (given := {name: arguments.get(name) for name in RECOMPUTE}) != RECOMPUTE:
        raise ValueError(f"train.megatron_arguments = {given}: expected {RECOMPUTE} or neither: {_LAST_LAYER}")


def check_known(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse names that Megatron does not have.

    Args:
        known: fields of the Megatron configurations that take arguments.

    Raises:
        ValueError: names the argument, its value and what was expected.
    """
    for name, value in arguments.items():
        if name not in known:
            raise ValueError(
                f"train.megatron_arguments.{name} = {value!r}: no such argument, expected a field of Megatron-core's "
                "TransformerConfig or OptimizerConfig; correct the name or remove it"
            )
