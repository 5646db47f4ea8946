"""Start the engine of one slot: `python -m serving.engine --slot 0`.

Serves `--model DIR --version V` where given, else the version that the slot held last, else the base model.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra import settings as settings_
from infra.settings import Settings
from serving import versions
from serving.protocol import BASE_VERSION

SPECULATION = (
    "vLLM 0.32's engine ended in top_k sampling with n-gram speculation and stood still for seconds without it, and no kind of "
    "speculation was tried with the log-probabilities that training needs"
)
BROKEN = {
    "enable_lora": (
        "vLLM 0.32 gives a request of the base weights that is batched with an adapter's the adapter's output, so that records "
        "would name weights that did not sample them; merge the adapter into a checkpoint and register that"
    ),
    "speculative_config": SPECULATION,
    "spec_method": SPECULATION,
    "spec_model": SPECULATION,
}
"""What is refused at start, with why (the other known defects are kept out by protocol.py and worker.py)."""


def environment(settings: Settings) -> dict[str, str]:
    """What vLLM reads from the environment; caches lie beside the stack's state, not under the home directory."""
    cache = settings_.path(settings.stack.state).parent / "cache"
    found = {
        "OMP_NUM_THREADS": "1",  # two threads stalled for seconds when the cores were shared
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPU: the worker lives in the engine's process, one less of them
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
        found["TORCHDYNAMO_DISABLE"] = "1"  # vLLM compiles a helper of its sampler even then: 4 s, 18 s on the first start
    return found


def check(arguments: Mapping[str, Any]) -> None:
    """Raises SystemExit for arguments of vLLM's that its 0.32 serves wrongly with; nothing of vLLM is imported for it."""
    for name, why in BROKEN.items():
        if arguments.get(name):
            raise SystemExit(f"engine: serving.engine_arguments.{name} = {str(arguments[name])[:80]}: {why}; take it out")


def choose(settings: Settings, slot: int, model: Path | None, version: str | None) -> tuple[Path, str]:
    """Directory and version to start with."""
    if model:
        return model, version or BASE_VERSION
    held = versions.Versions(settings_.path(settings.serving.state)).held(slot)
    return held or (settings_.path(settings.model.base), BASE_VERSION)


def main(arguments: list[str], variables: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m serving.engine", description=__doc__)
    parser.add_argument("--slot", type=int, choices=(0, 1), required=True, help="which of serving.engines to be")
    parser.add_argument("--model", type=Path, help="checkpoint directory (Hugging Face layout)")
    parser.add_argument("--version", help="version to label it with")
    given = parser.parse_args(arguments)
    settings = settings_.load()
    url = settings.serving.engines[given.slot]
    if not isinstance(url, str):
        raise SystemExit(f"engine: serving.engines[{given.slot}] is a server that already runs, {url.url}: nothing to start")
    check(settings.serving.engine_arguments)
    for name, value in environment(settings).items():
        if name not in variables:
            os.environ[name] = value
    model, version = choose(settings, given.slot, given.model, given.version)
    if not (model / "config.json").exists():
        raise SystemExit(f"engine: {model} holds no model (config.json is missing); is model.base right?")
    address = urlsplit(url)

    import uvloop  # after the environment is set: what follows reads it

    from serving.engine import server

    llm = server.build_llm(settings.serving.engine_arguments, str(model))
    token = settings.serving.token.get_secret_value() if settings.serving.token else None
    return uvloop.run(server.serve(llm, version, address.hostname or "127.0.0.1", address.port or 80, token))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
