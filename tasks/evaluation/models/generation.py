"""Batched completions by a Hugging Face checkpoint, on CPU or GPU, in this process: for tuning, recipes and benchmarks.

A cycle's evaluation generates with an engine (engine.py).

Shapes: B rows of a batch, T padded prompt length, V vocabulary. The row's number seeds its random draws, so a completion does not
depend on its batch, and two checkpoints get the same draws at the same position.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from infra.model.line_ends import normal
from infra.settings.schema import Model
from tasks.evaluation.models.base import DrawnGroup, SampledCompletion, Text


class Generator:
    """A checkpoint that completes FIM contexts. Raises ValueError: the checkpoint has no tokenizer.json."""

    def __init__(self, checkpoint: Path, model: Model, dtype: str = "float32") -> None:
        # On cores shared with other processes, two threads wait for each other and take 4 times the CPU time of one.
        torch.set_num_threads(1)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        text = Text.of(checkpoint, model)
        self._tokenizer, self._renderer = text.tokenizer, text.renderer
        logging.disable_progress_bar()  # a progress bar would break the progress line of a long command
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
        self._model.to(device=self._device)
        self._end_ids = frozenset(text.ends)
        self._ends = torch.tensor(text.ends, device=self._device)
        size = self._model.config.vocab_size
        self._newlines = torch.tensor(["\n" in normal(self._tokenizer.decode([i])) for i in range(size)], device=self._device)

    def complete(
        self, contexts: Sequence[tuple[str, str]], max_tokens: int, temperature: float, seed: int, batch: int = 64
    ) -> list[str]:
        """Return the completion of each (prefix, suffix), up to a token with a newline; temperature 0 is greedy."""
        return [completion.text for completion in self.sample(contexts, max_tokens, temperature, seed, batch)]

    def sample(
        self,
        contexts: Sequence[tuple[str, str]],
        max_tokens: int,
        temperature: float,
        seed: int,
        batch: int = 64,
        progress: Callable[[int], None] | None = None,
        *,
        whole: bool = False,
    ) -> list[SampledCompletion]:
        """Return the same completions with their tokens and log-probabilities (at temperature 0, those of temperature 1).

        Args:
            progress: called with the number of completions of each batch that is done.
            whole: complete further lines too, up to the end token; else up to a token with a newline.
        """
        prompts = self.prompts(contexts)
        draws = [(seed, row) for row in range(len(prompts))]
        return self.sample_prompts(prompts, draws, max_tokens, temperature, newlines=whole, batch=batch, progress=progress)

    def groups(
        self,
        contexts: Sequence[tuple[str, str]],
        size: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        batch: int = 64,
    ) -> list[DrawnGroup]:
        """Return `size` completions of each (prefix, suffix), whose prompt is computed once, and the chance of silence there."""
        prompts = self.prompts(contexts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        groups: dict[int, DrawnGroup] = {}
        end, places = self._renderer.end, max(1, batch // size)
        for start in range(0, len(order), places):
            numbers = order[start : start + places]
            draws = [(seed, number, copy) for number in numbers for copy in range(size)]
            rows, first = self._sample_batch([prompts[i] for i in numbers], draws, max_tokens, temperature, False, size)
            for index, number in enumerate(numbers):
                made = [self._completion(prompts[number], row) for row in rows[index * size : (index + 1) * size]]
                groups[number] = DrawnGroup(tuple(prompts[number]), tuple(made), end, float(first[index, end]))
        return [groups[number] for number in range(len(prompts))]

    def _completion(self, prompt: Sequence[int], sampled: Sequence[tuple[int, float]]) -> SampledCompletion:
        tokens, logprobs = zip(*sampled, strict=True)
        text = self._tokenizer.decode([token for token in tokens if token not in self._end_ids])
        return SampledCompletion(tuple(prompt), tokens, logprobs, normal(text))

    def sample_prompts(
        self,
        prompts: Sequence[list[int]],
        draws: Sequence[int | tuple[int, ...]],
        max_tokens: int,
        temperature: float,
        *,
        newlines: bool = False,
        batch: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> list[SampledCompletion]:
        """Return the completions of prompts as token ids.

        Args:
            draws: seed of each prompt's draws.
            newlines: continue after a newline, as serving does.
        """
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        completions: dict[int, SampledCompletion] = {}
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            rows_draws = [draws[i] for i in rows]
            sampled_rows, _ = self._sample_batch([prompts[i] for i in rows], rows_draws, max_tokens, temperature, newlines)
            for row, sampled in zip(rows, sampled_rows, strict=True):
                completions[row] = self._completion(prompts[row], sampled)
            if progress:
                progress(len(rows))
        return [completions[row] for row in range(len(prompts))]

    def prompts(self, contexts: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Return the token ids of the prompt of each (prefix, suffix)."""
        return [self._renderer.render(prefix, suffix) for prefix, suffix in contexts]

    @torch.inference_mode()
    def score(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float = 1.0, batch: int = 64
    ) -> list[list[float]]:
        """Return the log-probability of every completion token, for each row of (prompt, completion) token ids."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + len(rows[i][1]))
        logprobs: dict[int, list[float]] = {}
        for start in range(0, len(order), batch):
            numbers = order[start : start + batch]
            sequences = [[*rows[i][0], *rows[i][1]] for i in numbers]
            longest = max(map(len, sequences))
            # Padding on the right is invisible to a causal model.
            ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in sequences], device=self._device)  # B T
            logits = self._model(input_ids=ids, use_cache=False).logits[:, :-1].float() / temperature
            scores = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]  # B T-1, of each next token
            for row_scores, i in zip(scores.tolist(), numbers, strict=True):
                first = len(rows[i][0]) - 1
                logprobs[i] = row_scores[first : first + len(rows[i][1])]
        return [logprobs[i] for i in range(len(rows))]

    @torch.inference_mode()
    def _sample_batch(
        self, prompts: list[list[int]], seeds: Sequence[Any], max_tokens: int, temperature: float, newlines: bool, copies: int = 1
    ) -> tuple[list[list[tuple[int, float]]], torch.Tensor]:
        """Return the sampled tokens of each row with their log-probabilities, and the first token's log-probabilities, P V.

        Args:
            prompts: P prompts, each of them for `copies` rows, B in all.
            seeds: of each row.

        The log-probabilities of the first token are at temperature 1.
        """
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)  # B T, padded on the left
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids[index, longest - len(prompt) :] = torch.tensor(prompt)
            mask[index, longest - len(prompt) :] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        draws = np.stack([np.random.default_rng(seed).random(max_tokens) for seed in seeds])
        uniform = torch.tensor(draws, dtype=torch.float64, device=self._device)  # B max_tokens
        position_ids = (mask.cumsum(1) - 1).clamp(min=0)
        done = torch.zeros(len(seeds), dtype=torch.bool, device=self._device)
        tokens: list[torch.Tensor] = []
        logprobs: list[torch.Tensor] = []
        cache = None
        for step in range(max_tokens):
            out = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, logits = out.past_key_values, out.logits[:, -1]
            if step == 0:
                first = logits.float().log_softmax(-1)
                if copies > 1:
                    cache.batch_repeat_interleave(copies)
                    logits, mask, position_ids = (t.repeat_interleave(copies, 0) for t in (logits, mask, position_ids))
            token = pick_tokens(logits, temperature, uniform[:, step])  # B
            distribution = (logits.float() / (temperature or 1.0)).log_softmax(-1)
            logprobs.append(distribution.gather(1, token[:, None])[:, 0])
            tokens.append(torch.where(done, -1, token))
            done = done | torch.isin(token, self._ends)
            done = done if newlines else done | self._newlines[token]
            if bool(done.all()):
                break
            ids, position_ids = token[:, None], position_ids[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(seeds), 1)], dim=1)
        sampled_rows = zip(torch.stack(tokens, 1).tolist(), torch.stack(logprobs, 1).tolist(), strict=True)
        return [[(t, logprob) for t, logprob in zip(*row, strict=True) if t >= 0] for row in sampled_rows], first


def pick_tokens(logits: torch.Tensor, temperature: float, uniform: torch.Tensor) -> torch.Tensor:
    """Return one token [B] for each row of logits [B, V], by inverting the cumulative distribution at `uniform` [B].

    Temperature 0 takes the likeliest token.
    """
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits.double() / temperature, -1).cumsum(-1)
    tokens = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:]).squeeze(-1)
    return tokens.clamp(max=logits.shape[-1] - 1)
