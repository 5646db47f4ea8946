"""Settings of the base model and its prompt format."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from infra.settings.section import Section


class Model(Section):
    base: Path = Path("infra/base_model")
    """Directory of the base model in Hugging Face layout; relative paths start at the repository. Each model has its own
    `fim_order`, sizes of prompts and `train.learning_rate` (infra/docs/operations.md, "A base model of your own")."""
    name: str = "qwen-coder-tabloop"
    """Model name reported to editors; Continue chooses Qwen's FIM tokens if it contains "qwen" and "coder"."""
    fim_order: Literal["psm", "spm"] = "psm"
    """Prompt order the model was trained on: psm (prefix-suffix-middle, as Qwen) or spm (suffix-prefix-middle)."""
    max_prefix_tokens: int = Field(240, ge=8)
    """Maximum tokens before the cursor in a prompt; the farthest are cut first."""
    max_suffix_tokens: int = Field(80, ge=0)
    """Maximum tokens after the cursor in a prompt; the farthest are cut first. 0: no suffix."""
