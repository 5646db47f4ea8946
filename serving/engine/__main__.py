"""Start the engine of one slot: `python -m serving.engine --slot 0`; with `--evaluation`, the evaluation's, which serves nobody.

It holds `--model DIR --version V` if given, else the version that the slot held last, else the base model; with serving.adapters
the base model, and versions as adapters of it.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra import settings as settings_
from infra.model import architectures
from infra.model.architectures import UnsupportedCheckpoint
from infra.settings import Settings
from infra.stack import files
from infra.stack.imports import uncollected
from infra.stack.priority import lower_priority
from infra.storage.store import ObjectStore
from serving.engine.checkpoints import Checkpoints
from serving.engine.protocol import BASE_VERSION
from serving.engine.scraped import Scrapers
from serving.engine.version_cache import origin_of
from serving.engine.where import evaluation_address, slot_address

SPECULATION = (
    "vLLM 0.32 crashes in top_k sampling with n-gram speculation and stalls for seconds without top_k, and no "
    "speculation was tried with the log-probabilities that training needs"
)
EVALUATED = 2
"""Versions that the evaluation's engine holds as adapters: candidate and champion."""
UNSUPPORTED_ARGUMENTS = {
    "enable_lora": "set serving.adapters, the number of versions that an engine holds as adapters",
    "speculative_config": SPECULATION,
    "spec_method": SPECULATION,
    "spec_model": SPECULATION,
}
"""vLLM arguments refused at start, with the reason. protocol.py, worker.py and adapters.py avoid the other known defects."""


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables for vLLM; its caches lie beside the stack's state, not in the home directory."""
    cache = settings_.path(settings.stack.state).parent / "cache"
    variables = {
        "OMP_NUM_THREADS": "1",  # two threads stall for seconds on shared cores
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPU the worker then runs in the engine's process
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "VLLM_CONFIG_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "HF_HOME": str(cache / "huggingface"),
    }
    if settings.serving.engine_arguments.get("enforce_eager"):
        variables["TORCHDYNAMO_DISABLE"] = "1"  # vLLM compiles a sampler helper even with enforce_eager
    return variables


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise SystemExit for an argument that another setting sets, or with which vLLM 0.32 serves wrong results. Imports no
    vLLM."""
    for name, reason in UNSUPPORTED_ARGUMENTS.items():
        if arguments.get(name):
            raise SystemExit(f"engine: serving.engine_arguments.{name} = {str(arguments[name])[:80]}: {reason}; remove it")


def choose_model(
    settings: Settings, last: tuple[Path, str] | None, model: Path | None = None, version: str | None = None
) -> tuple[Path, str]:
    """Return the checkpoint directory and the version to start with: those given, else the last, else the base model."""
    if model:
        return model, version or BASE_VERSION
    return last or (settings_.path(settings.model.base), BASE_VERSION)


def checkpoints_of(settings: Settings, slot: int | None, member: int = 0) -> Checkpoints:
    """Return the checkpoints of a slot's engine, or of the evaluation's engine; None if that one reads the paths that the flow
    names."""
    state, most = settings_.path(settings.serving.state), settings.serving.most_deltas
    as_adapters = settings.serving.adapters
    if slot is None:
        return Checkpoints.of_evaluation(state, lambda: ObjectStore.connect(settings.store), most, as_adapters)
    return Checkpoints.of_slot(state, slot, lambda: ObjectStore.connect(settings.store), most, member, as_adapters)


def main(arguments: list[str], variables: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m serving.engine", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--slot", type=int, choices=(0, 1), help="index in serving.engines")
    parser.add_argument("--member", type=int, default=0, help="index in the slot's list of engines (default 0)")
    which.add_argument("--evaluation", action="store_true", help="the engine at evaluate.engine_url")
    parser.add_argument("--model", type=Path, help="checkpoint directory (Hugging Face layout)")
    parser.add_argument("--version", help="version label of --model")
    options = parser.parse_args(arguments)
    settings = settings_.load_for("engine")
    check_arguments(settings.serving.engine_arguments)
    where = evaluation_address(settings) if options.evaluation else slot_address(settings, options.slot, options.member)
    where.check()
    for name, value in environment(settings).items():
        if name not in variables:
            os.environ[name] = value
    os.umask(files.PRIVATE)
    if options.evaluation:
        lower_priority()
    checkpoints = checkpoints_of(settings, options.slot, options.member)
    adapters = EVALUATED if options.evaluation and settings.serving.adapters else settings.serving.adapters
    last = None if options.evaluation or adapters else checkpoints.last(options.slot)
    model, version = choose_model(settings, last, options.model, options.version)
    try:
        architectures.check(model)
    except UnsupportedCheckpoint as error:
        raise SystemExit(f"engine: {error}; check --model or model.base") from None

    with uncollected():
        import uvloop  # after the environment is set: the imports below read it

        from serving.engine import server

    origin = origin_of(model)  # before the weights, which the app may replace meanwhile
    llm = server.build_llm(settings.serving.engine_arguments, str(model), adapters)
    return uvloop.run(server.serve(llm, version, origin, where, checkpoints, Scrapers(settings.serving), adapters))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
