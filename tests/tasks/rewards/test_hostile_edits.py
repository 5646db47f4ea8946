"""A user whose edits are noise, and one who pastes, have no more of a batch than their caps allow: by the code of a cycle.

Their requests, and later ones that show what they wrote, are joined, settled, counted, tokenised, rewarded and capped beside
those of a team.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import pytest
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.records import Completion, Feedback
from infra.settings import ROOT
from infra.settings.schema import Collect, Reward
from tasks.labels.context_lines import without_context_lines
from tasks.labels.samples import SettledTokens, with_settled_tokens
from tasks.labels.shares import weight_shares
from tasks.rewards.reward import reward_samples
from tests.tasks.labels.test_accounting import account
from tests.tasks.labels.test_hindsight import TEXT, asked, behind
from tests.tasks.made import NOW, feedback

SHARE = 0.06
TEAM, EACH, HOSTILE_EACH = 24, 6, 60
SETTINGS = Collect(max_user_share=0.1, max_user_weight=SHARE, max_new_users=0, max_staleness=1)
Write = Callable[[random.Random], str]


def code(draw: random.Random) -> str:
    return draw.choice([TEXT, "float(bar) / total", "items[0].value", "sum(one for one in bar)"])


def method(draw: random.Random) -> str:
    """A body of some lines, of which the first is trained on."""
    return f"{code(draw)}\n" + "".join(f"    step_{n} = advance(step_{n}, {draw.randrange(9)})\n" for n in range(8))


def noise(draw: random.Random) -> str:
    return "".join(draw.choice("{}[]()<>~^%$#@!?|;:,.0123456789") for _ in range(24))


def block(draw: random.Random) -> str:
    """A paste that is no longer than what may be typed between two requests."""
    return "\n".join(f"    pasted_{draw.randrange(99)} = frame[{n}, {n + 1}] @ weights[{n}]" for n in range(9))


def file(draw: random.Random) -> str:
    """A paste that is longer."""
    return "\n".join(f"    line_{n} = {draw.randrange(99)}" for n in range(99))


def places(user: str, count: int, write: Write) -> tuple[list[Completion], list[Feedback]]:
    """Requests at places of a file each, the later ones that show what was written there, and the accepts of the first."""
    draw = random.Random(user)
    requests, events = [], []
    for n in range(count):
        own, at = {"user": user, "file": f"{user}-{n}"}, draw.random()
        first = asked(f"{user}-{n}", at, **own)
        requests += [first, behind(f"{user}-{n} later", at + 20, write(draw), **own)]
        if draw.random() < 0.3:
            events.append(feedback(first.id, user=user, completion_id=first.id, prefix="", time=NOW + 2))
    return requests, events


@dataclass(frozen=True)
class Batch:
    samples: pl.DataFrame

    def tokens(self, user: str) -> float:
        """The share of a user in the weighted tokens of settled text, as the cross-entropy sums them."""
        weighted = self.samples.with_columns(of=pl.col("settled_token_ids").list.len() * pl.col("settled_weight"))
        return float(weighted.filter(user=user)["of"].sum()) / float(weighted["of"].sum())

    def advantages(self, user: str) -> float:
        """The share of a user in the absolute advantages."""
        return float(self.samples.filter(user=user)["advantage"].abs().sum()) / float(self.samples["advantage"].abs().sum())


def batch(write: Write, settings: Collect = SETTINGS, team: Write = code) -> Batch:
    tokenizer = Tokenizer.from_file(str(ROOT / "infra" / "base_model" / "tokenizer.json"))
    parts = [places(f"u{n}", EACH, team) for n in range(TEAM)] + [places("hostile", HOSTILE_EACH, write)]
    requests, events = ([row for part in parts for row in part[kind]] for kind in (0, 1))
    accounting = account(requests, events, limits=settings, until=NOW + 1000)
    chosen = with_settled_tokens(
        without_context_lines(accounting.samples), SettledTokens(Renderer(tokenizer, "spm", 512, 128), 24, lines=1)
    )
    return Batch(reward_samples(chosen, Reward(), weight_shares(settings)).samples)


@pytest.mark.parametrize("write", [noise, block, file])
def test_hostile_edits_have_no_more_than_their_cap(write: Write) -> None:
    found = batch(write)
    assert found.tokens("hostile") <= SHARE * (1 + 1e-6)
    assert found.advantages("hostile") <= SHARE * (1 + 1e-6)
    honest = found.samples.filter(pl.col("user") != "hostile")
    assert honest["settled_weight"].to_list() == [1.0] * honest.height, "the team's own text counts in full"
    assert honest.height == TEAM * EACH
    assert found.samples.filter(user="hostile").height <= SETTINGS.max_user_share * found.samples.height


def test_without_the_caps_noise_would_have_most_of_the_batch() -> None:
    open_ = batch(noise, SETTINGS.model_copy(update={"max_user_share": 1.0, "max_user_weight": 1.0}))
    assert open_.tokens("hostile") > 0.5


def test_short_noise_is_capped_by_what_is_trained_on_and_not_by_its_characters() -> None:
    found = batch(noise, team=method)
    written = found.samples.with_columns(characters=pl.col("settled").str.len_chars())
    assert written.filter(user="hostile")["characters"].sum() < SHARE / 2 * float(written["characters"].sum())
    uncapped = written.with_columns(tokens=pl.col("settled_token_ids").list.len())
    assert uncapped.filter(user="hostile")["tokens"].sum() > 2 * SHARE * float(uncapped["tokens"].sum())
    assert found.tokens("hostile") <= SHARE * (1 + 1e-6)


def test_what_an_agent_or_a_paste_wrote_at_once_is_no_label() -> None:
    found = batch(file).samples.filter(user="hostile")
    assert found["settled"].null_count() == found.height > 0
    assert found["unsettled"].cast(pl.String).unique().to_list() == ["pasted"]
