"""Settings of rewards."""

from infra.settings.section import Section


class Reward(Section):
    accepted: float = 0.75
    """Reward of a completion that is accepted and stays, and of the text that the developer wrote. Of a completion of which a
    share stays it earns that share, and the rest of reward.rejected."""
    rejected: float = -0.25
    """Reward of a completion that was shown and not accepted: the price of an interruption. Where the settled text is known, the
    share of the completion that the developer then wrote costs nothing."""
    silence: bool = True
    """Whether silence, an empty text with the reward 0, is an action of every place. False: neither blank completions
    nor lines that were complete teach anything."""
