"""Settings of rewards and advantages."""

from typing import Literal

from pydantic import Field

from infra.settings.section import Section


class Reward(Section):
    accepted: float = 0.75
    """Reward of an accepted completion. A partial accept of share s earns s times this and
    (1 - s) times reward.rejected."""
    rejected: float = -0.25
    """Reward of a completion that was shown and not accepted. Where the settled text is known, the share of the completion that
    the developer then wrote costs nothing."""
    estimator: Literal["return", "group"] = "return"
    """Advantage estimator. return: compares with all of a cycle's samples. group (GRPO): compares the completions of one prompt
    and needs several of each (`tabloop study judged` makes them); live traffic has one completion per prompt."""
    baseline: Literal["none", "mean", "running"] = "mean"
    """Baseline of the return estimator. none: zero, so that rejections alone still teach. mean: the batch's mean reward. running:
    the mean of the last ten cycles with the same reward settings, or the batch's mean if there are none; it
    pushes down a batch that is worse than usual."""
    normalise: bool = True
    """Whether to divide advantages by the standard deviation of the batch's rewards, unless it is 0."""
    baseline_by_length: float = Field(0.0, ge=0, le=1)
    """Weight of the mean over completions of similar length (tokens, in powers of two) in the baseline; the rest is the overall
    mean. Short completions are accepted more often: at 0 a model may gain by showing less, at 1 length itself is not learnt."""
    baseline_by_language: bool = False
    """Whether to take the baseline's means per language, as named by clients. Languages with fewer than 50 samples and unnamed
    ones form one group. Without it, completions in an easy language are pushed up and the others down."""
    length_exponent: float = Field(0.0, ge=0, le=1)
    """A completion's weight is proportional to its number of tokens to the power of minus this. 0: every token weighs the same;
    1: every completion weighs the same."""
