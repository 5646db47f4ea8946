"""Runs inside vLLM's worker: checks a checkpoint while the engine goes on, then puts it in place while the engine stands still.

Written around two defects of vLLM 0.32: a failed `reload_weights` leaves parameters on the meta device and ends the engine at the
next request, so everything that can be wrong is found before; and on CPU a tied output head keeps its old, prepacked weights.
"""

import ctypes
import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.v1.outputs import LogprobsTensors

Gather = Callable[[torch.Tensor, int, torch.Tensor], LogprobsTensors]

TIED_HEAD = "lm_head.weight"
PR_SET_PDEATHSIG = 1
FREE = ("transformers_version", "torch_dtype", "dtype", "_name_or_path", "use_cache")
"""Keys of config.json in which two checkpoints of one architecture may differ."""


@dataclass
class Staged:
    """A checkpoint on its way in."""

    path: str
    thread: threading.Thread | None = None
    weights: dict[str, torch.Tensor] | None = None
    error: str | None = None


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a Hugging Face checkpoint."""
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                weights[name] = tensors.get_tensor(name)
    if not weights:
        raise ValueError(f"{path}: no *.safetensors")
    return weights


def read_config(path: Path) -> dict[str, Any]:
    """What of config.json two versions must have in common."""
    try:
        config = json.loads((path / "config.json").read_text())
    except FileNotFoundError:
        raise ValueError(f"{path}: no config.json") from None
    return {key: value for key, value in config.items() if key not in FREE}


def read_tokenizer(path: Path) -> Any:
    """The whole tokenizer; none where the checkpoint leaves it to the base model."""
    file = path / "tokenizer.json"
    return json.loads(file.read_text()) if file.exists() else None


def check(weights: dict[str, torch.Tensor], shapes: dict[str, torch.Size]) -> None:
    """Raises ValueError naming the first tensors that are missing, unknown, of another shape or not finite."""
    found = {name: weight.shape for name, weight in weights.items()}
    wrong = sorted(name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name))
    if wrong:
        shown = ", ".join(f"{n} is {_size(found.get(n))}, served is {_size(shapes.get(n))}" for n in wrong[:3])
        raise ValueError(f"checkpoint does not fit the served model in {len(wrong)} tensors: {shown}")
    if broken := sorted(name for name, weight in weights.items() if not torch.isfinite(weight).all()):
        raise ValueError(f"not finite: {', '.join(broken[:3])} ({len(broken)} of {len(weights)} tensors)")


def _size(shape: torch.Size | None) -> str:
    return "missing" if shape is None else str(tuple(shape))


def unranked(gather: Gather) -> Gather:
    """vLLM's Sampler.gather_logprobs, without the rank where the sampled token's log-probability is all that is asked for.

    Nobody reads that rank, and on a CPU finding it takes longer than the rest of the function.
    """

    def found(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        if num_logprobs:
            return gather(logprobs, num_logprobs, token_ids)
        column = token_ids.unsqueeze(-1)
        return LogprobsTensors(column.to(torch.int32), logprobs.gather(-1, column), token_ids.new_zeros(len(token_ids)))

    return found


class SwapWorker:
    """Mixed into vLLM's worker (worker_extension_cls); every method is called by name from the engine's app."""

    model_config: Any
    model_runner: Any
    device: torch.device
    tabloop_staged: Staged | None = None
    tabloop_served: tuple[dict[str, Any], dict[str, torch.Size]] | None = None

    def tabloop_prepare(self) -> None:
        """Remember the shapes of what is served, and end with the parent however it ends, so that no worker is orphaned."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if self.device.type == "cpu":
            sampler = self.model_runner.sampler
            sampler.gather_logprobs = unranked(sampler.gather_logprobs)
        self._remember_served()

    def tabloop_stage(self, path: str) -> None:
        """Start reading and checking; the engine keeps generating."""
        staged = Staged(path)
        staged.thread = threading.Thread(target=self._stage, args=(staged,), daemon=True)
        self.tabloop_staged = staged
        staged.thread.start()

    def tabloop_stage_status(self) -> dict[str, Any]:
        """Whether it is still reading (`busy`), and what was wrong (`error`)."""
        staged = self.tabloop_staged
        assert staged is not None and staged.thread is not None
        return {"busy": staged.thread.is_alive(), "error": staged.error}

    def tabloop_commit(self, path: str) -> float:
        """Put the staged weights in place; the scheduler must stand still. Gives back milliseconds."""
        staged, self.tabloop_staged = self.tabloop_staged, None
        if staged is None or staged.path != path or staged.weights is None:
            raise ValueError(f"{path} is not staged")
        started = time.perf_counter()
        self.model_runner.reload_weights(weights_iterator=iter(staged.weights.items()))
        self._refresh_tied_head()
        return (time.perf_counter() - started) * 1e3

    def _remember_served(self) -> tuple[dict[str, Any], dict[str, torch.Size]]:
        path = Path(self.model_config.model)
        shapes = {name: weight.shape for name, weight in self._read(path).items()}
        self.tabloop_served = (read_config(path), shapes)
        return self.tabloop_served

    def _stage(self, staged: Staged) -> None:
        try:
            config, shapes = self.tabloop_served or self._remember_served()  # nobody prepared a server of somebody else's
            path = Path(staged.path)
            other = read_config(path)
            if differs := sorted(key for key in config.keys() | other.keys() if config.get(key) != other.get(key)):
                raise ValueError(
                    f"config.json differs from the served model's in {', '.join(differs)}; start an engine with it instead"
                )
            if (tokenizer := read_tokenizer(path)) and tokenizer != read_tokenizer(Path(self.model_config.model)):
                raise ValueError("tokenizer.json differs from the served model's; its token ids would mean other text")
            weights = self._read(path)
            check(weights, shapes)
            staged.weights = weights
        except Exception as error:  # whatever is wrong with the files is the answer of the swap
            staged.error = f"{type(error).__name__}: {error}"

    def _read(self, path: Path) -> dict[str, torch.Tensor]:
        weights = read_weights(path)
        if self.model_config.hf_config.tie_word_embeddings:
            weights.pop(TIED_HEAD, None)
        return weights

    def _refresh_tied_head(self) -> None:
        model = self.model_runner.get_model()
        if self.device.type == "cpu" and self.model_config.hf_config.tie_word_embeddings:
            model.lm_head.weight = model.model.embed_tokens.weight
            model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
