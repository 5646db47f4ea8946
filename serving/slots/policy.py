"""How prompts are rendered and completions sampled, independent of the client's request."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from infra.model.fim import FRAME_TOKENS, Renderer
from infra.records import Arm
from infra.settings.schema import Sampling
from serving.engine.protocol import EngineRequest

EXPLORING_TEMPERATURE = 0.8
"""Temperature of requests that explore (serving.sampling.exploring_share)."""
TOP_P = 1.0
"""Nucleus mass. Below 1 the recorded log-probabilities would belong to the truncated distribution, and training refuses them."""
CHARACTERS_PER_TOKEN = 8
"""Upper bound of the average characters of a token of code (usually 3 to 4): text farther from the cursor is not tokenized."""


@dataclass(frozen=True)
class Policy:
    """The tokenizer, the prompt's format and the sampling settings of each arm."""

    tokenizer: Tokenizer
    renderer: Renderer
    sampling: Mapping[Arm, Sampling]
    stop_token_ids: Sequence[int]

    @property
    def max_context(self) -> int:
        """Tokens of the longest prompt and its longest completion together."""
        max_tokens = max(sampling.max_tokens for sampling in self.sampling.values())
        return self.renderer.max_code_tokens + FRAME_TOKENS + max_tokens

    def prompt(self, prefix: str, suffix: str, max_prompt_tokens: int | None = None) -> list[int]:
        """Return the prompt's token ids in the model's own order, cut to `max_prompt_tokens` where it is given."""
        renderer = self.renderer if max_prompt_tokens is None else self.renderer.within(max_prompt_tokens)
        near_prefix = prefix[-renderer.max_prefix_tokens * CHARACTERS_PER_TOKEN :]
        near_suffix = suffix[: renderer.max_suffix_tokens * CHARACTERS_PER_TOKEN]
        return renderer.render(near_prefix, near_suffix)

    def explores(self, arm: Arm, request_id: str) -> bool:
        """Return whether a request is sampled at the exploring temperature: a share of the requests, by a hash of their ids."""
        share = self.sampling[arm].exploring_share
        return share > 0 and zlib.crc32(request_id.encode()) < share * 2**32

    def request(
        self, prompt: list[int], arm: Arm, version: str, max_tokens: int | None = None, *, exploring: bool = False
    ) -> EngineRequest:
        """Return the engine's request with the arm's sampling settings; `max_tokens`, the client's limit, can only lower
        theirs."""
        sampling = self.sampling[arm]
        return EngineRequest(
            prompt_token_ids=prompt,
            max_tokens=sampling.max_tokens if max_tokens is None else min(max_tokens, sampling.max_tokens),
            temperature=EXPLORING_TEMPERATURE if exploring else sampling.temperature,
            top_p=TOP_P,
            stop_token_ids=list(self.stop_token_ids),
            version=version,
        )
