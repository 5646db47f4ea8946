"""The extension of vLLM's worker that swaps weights: it checks a checkpoint while the engine generates, and loads it in a pause.

It works around two defects of vLLM 0.32: a failed `reload_weights` leaves parameters on the meta device and crashes the engine at
the next request, so every check runs first; and on CPU a tied output head keeps its old, prepacked weights.
"""

import ctypes
import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors

from infra.model.stored_tensors import StoredTensors, weights_of

Gather = Callable[[torch.Tensor, int, torch.Tensor], LogprobsTensors]
Forward = Callable[..., Any]

DRAW = "tabloop_draw"
"""Name of the extra argument of a request that seeds its draws on a CPU."""
FORCED = "tabloop_forced"
"""Name of the extra argument of a request with the tokens that it gets on a CPU, instead of sampled ones."""
TIED_HEAD = "lm_head.weight"
PR_SET_PDEATHSIG = 1
IGNORED_CONFIG_KEYS = ("transformers_version", "torch_dtype", "dtype", "_name_or_path", "use_cache")
"""Keys of config.json in which two checkpoints of one architecture may differ."""


@dataclass
class StagedCheckpoint:
    """A checkpoint that is being read and checked before a swap."""

    path: str
    thread: threading.Thread | None = None
    weights: dict[str, torch.Tensor] | None = None
    error: str | None = None


def read_config(path: Path) -> dict[str, Any]:
    """Return the keys of config.json that must agree between two versions."""
    try:
        config = json.loads((path / "config.json").read_text())
    except FileNotFoundError:
        raise ValueError(f"{path}: no config.json") from None
    return {key: value for key, value in config.items() if key not in IGNORED_CONFIG_KEYS}


def read_tokenizer(path: Path) -> Any:
    """Return the parsed tokenizer.json, or None if the checkpoint has none and uses the base model's."""
    file = path / "tokenizer.json"
    return json.loads(file.read_text()) if file.exists() else None


def check_weights(weights: dict[str, torch.Tensor], shapes: dict[str, torch.Size]) -> None:
    """Raise ValueError naming the first tensors that are missing, unknown, not finite or of another shape."""
    actual = {name: weight.shape for name, weight in weights.items()}
    mismatched = sorted(name for name in actual.keys() | shapes.keys() if actual.get(name) != shapes.get(name))
    if mismatched:
        examples = ", ".join(f"{n} is {_size(actual.get(n))}, expected {_size(shapes.get(n))}" for n in mismatched[:3])
        raise ValueError(f"checkpoint does not fit the served model in {len(mismatched)} tensors: {examples}")
    if broken := sorted(name for name, weight in weights.items() if not torch.isfinite(weight).all()):
        raise ValueError(f"not finite: {', '.join(broken[:3])} ({len(broken)} of {len(weights)} tensors)")


def _size(shape: torch.Size | None) -> str:
    return "missing" if shape is None else str(tuple(shape))


def without_ranks(gather: Gather) -> Gather:
    """Return vLLM's Sampler.gather_logprobs without the rank computation for requests that want the sampled token only.

    The rank is not used, and on a CPU it takes longer to compute than the rest of the function.
    """

    def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        if num_logprobs:
            return gather(logprobs, num_logprobs, token_ids)
        column = token_ids.unsqueeze(-1)
        return LogprobsTensors(column.to(torch.int32), logprobs.gather(-1, column), token_ids.new_zeros(len(token_ids)))

    return gather_logprobs


def draw_of(seed: int, token: int) -> int:
    """Return the seed of a request's token, from 0 to 2^62."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{token}".encode(), digest_size=8).digest(), "big") >> 2


def with_draws(forward: Forward, draws: Callable[[], dict[int, int]], forced: Callable[[], dict[int, int]]) -> Forward:
    """Return a sampler's forward that draws the rows of `draws` by their seeds, and gives the rows of `forced` their tokens.

    Each token has a generator of its own: one that lives as long as the request crashes vLLM 0.32 on a CPU when the prompt is
    read in chunks, and would count the discarded draws of a chunk.
    """

    def forward_with_draws(
        logits: torch.Tensor, generators: dict[int, torch.Generator], k: torch.Tensor | None, p: torch.Tensor | None
    ) -> Any:
        seeded = {row: torch.Generator().manual_seed(seed) for row, seed in draws().items()}
        sampled, logprobs = forward(logits, generators | seeded, k, p)
        for row, token in forced().items():
            sampled[row] = token
        return sampled, logprobs

    return forward_with_draws


class SwapWorker:
    """A mixin for vLLM's worker (worker_extension_cls). The app calls its methods by name, through collective_rpc."""

    model_config: Any
    model_runner: Any
    device: torch.device
    tabloop_staged: StagedCheckpoint | None = None
    tabloop_served: tuple[dict[str, Any], dict[str, torch.Size]] | None = None

    def tabloop_prepare(self) -> None:
        """Record the shapes of the served weights, and let the kernel kill this process when its parent ends."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if self.device.type == "cpu":
            sampler = self.model_runner.sampler
            sampler.gather_logprobs = without_ranks(sampler.gather_logprobs)
            sampler.topk_topp_sampler.forward = with_draws(sampler.topk_topp_sampler.forward, self._draws, self._forced)
        self._remember_served()

    def tabloop_stage(self, path: str) -> None:
        """Start reading and checking a checkpoint in a thread; the engine keeps generating."""
        staged = StagedCheckpoint(path)
        staged.thread = threading.Thread(target=self._stage, args=(staged,), daemon=True)
        self.tabloop_staged = staged
        staged.thread.start()

    def tabloop_stage_status(self) -> dict[str, Any]:
        """Return whether the staging still runs (`busy`) and why it failed (`error`)."""
        staged = self.tabloop_staged
        assert staged is not None and staged.thread is not None
        return {"busy": staged.thread.is_alive(), "error": staged.error}

    def tabloop_commit(self, path: str) -> float:
        """Load the staged weights and return the milliseconds it took. The scheduler must be paused."""
        staged, self.tabloop_staged = self.tabloop_staged, None
        if staged is None or staged.path != path or staged.weights is None:
            raise ValueError(f"{path} is not staged")
        started = time.perf_counter()
        self.model_runner.reload_weights(weights_iterator=iter(staged.weights.items()))
        self._refresh_tied_head()
        return (time.perf_counter() - started) * 1e3

    def _draws(self) -> dict[int, int]:
        """Return the seed of the next token of each row of the batch whose request has a seed."""
        return {row: draw_of(int(draw), token) for row, draw, token in self._arguments(DRAW)}

    def _forced(self) -> dict[int, int]:
        """Return the next token of each row of the batch whose request names its tokens."""
        return {row: tokens[token] for row, tokens, token in self._arguments(FORCED) if token < len(tokens)}

    def _arguments(self, name: str) -> Iterator[tuple[int, Any, int]]:
        """Yield each row whose request has an extra argument, with the argument and the number of the row's next token."""
        for row, request_id in enumerate(self.model_runner.input_batch.req_ids):
            request = self.model_runner.requests[request_id]
            if argument := (request.sampling_params.extra_args or {}).get(name):
                yield row, argument, len(request.output_token_ids)

    def _remember_served(self) -> tuple[dict[str, Any], dict[str, torch.Size]]:
        path = Path(self.model_config.model)
        shapes = {name: weight.shape for name, weight in self._read(path).items()}
        self.tabloop_served = (read_config(path), shapes)
        return self.tabloop_served

    def _stage(self, staged: StagedCheckpoint) -> None:
        try:
            config, shapes = self.tabloop_served or self._remember_served()  # an external server is never prepared
            path = Path(staged.path)
            other = read_config(path)
            if differing := sorted(key for key in config.keys() | other.keys() if config.get(key) != other.get(key)):
                raise ValueError(
                    f"config.json differs from the served model's in {', '.join(differing)}; start an engine with it instead"
                )
            if (tokenizer := read_tokenizer(path)) and tokenizer != read_tokenizer(Path(self.model_config.model)):
                raise ValueError("tokenizer.json differs from the served model's; its token ids stand for other text")
            weights = self._read(path)
            check_weights(weights, shapes)
            staged.weights = weights
        except Exception as error:  # any defect of the files becomes the swap's error
            staged.error = f"{type(error).__name__}: {error}"

    def _read(self, path: Path) -> dict[str, torch.Tensor]:
        weights = dict(StoredTensors(weights_of(path)))
        if self.model_config.hf_config.tie_word_embeddings:
            weights.pop(TIED_HEAD, None)
        return weights

    def _refresh_tied_head(self) -> None:
        model = self.model_runner.get_model()
        if self.device.type == "cpu" and self.model_config.hf_config.tie_word_embeddings:
            model.lm_head.weight = model.model.embed_tokens.weight
            model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
