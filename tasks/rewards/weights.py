"""Cap the share of a cycle's weight of each user, credential and project. Pure.

A group's weight is the sum over the tokens of its actions, served and drawn, of their absolute advantages, which bounds its
part of the surrogate; and, apart from it, the tokens of its settled text and context lines that are trained on, which bound its
part of the cross-entropy. The share of samples is capped already (tasks/labels/shares.py), but a few rare samples may weigh as
much as many. One factor scales all samples of a group, so that their order and sign stay. Where the trainer weighs a text by
its probability, it caps the weights that result, too (tasks/trainer/update/caps.py).
"""

from collections.abc import Mapping, Sequence

import polars as pl

from infra.records import Sample
from tasks.labels.shares import codes, least_groups
from tasks.rewards.scaling import scale

_PLAIN: dict[str, pl.DataType] = {
    **{"user": pl.String(), "project": pl.String(), "credential": pl.String()},
    **{"advantage": pl.Float64(), "tokens": pl.Int64()},
}
"""Columns of an advantage, of the tokens that it is the advantage of, and of the groups whose share is limited."""


class TooFewToShare(ValueError):
    """No group can have any weight without having more than its share."""


def cap_weights(
    samples: pl.DataFrame, drawn: Sequence[Sample], shares: Mapping[str, float], *, written: bool = True
) -> tuple[pl.DataFrame, Sequence[float]]:
    """Return samples with the advantages and the written text of groups above their share scaled down to it.

    Adds the column `settled_weight`, from 0 to 1. Beside them stand the factors of the drawn rows' advantages, which count in the
    same sum: a drawn row is one of the user, project and credential of its place.

    Args:
        samples: with `advantage` and the columns of `samples.with_settled_tokens` (tasks/labels/samples.py).
        shares: largest share of the weight that remains, by the column that names the group.
        written: whether the settled text teaches; its weights are 1 else.

    Raises:
        TooFewToShare: fewer groups have weight than the shares ask for.
    """
    rows = [(row.user, row.project, row.credential, row.advantage, len(row.token_ids)) for row in drawn]
    others = pl.DataFrame(rows, _PLAIN, orient="row")
    both = pl.concat([samples.select(pl.col(name).cast(kind) for name, kind in _PLAIN.items()), others])
    advantages = _factors(both, pl.col("advantage").abs() * pl.col("tokens"), shares)
    tokens = pl.col("settled_token_ids").list.len() + pl.col("standing_tokens")
    settled = _factors(samples, tokens * float(written), shares)
    own = advantages.head(samples.height)
    capped = samples.with_columns(advantage=pl.col("advantage") * own, settled_weight=settled)
    return capped, advantages.tail(len(drawn)).to_list()


def _factors(samples: pl.DataFrame, weight: pl.Expr, shares: Mapping[str, float]) -> pl.Series:
    sizes = samples.select(weight.alias("weight"))["weight"].to_numpy()
    factors = scale(sizes, [(codes(samples[name]), share) for name, share in shares.items()])
    if sizes.any() and not (sizes * factors).any():
        heavy = samples.filter(weight != 0)
        asked = ", ".join(
            f"{heavy[name].n_unique()} {name}s for {least_groups(s)} or more" for name, s in shares.items() if s < 1
        )
        raise TooFewToShare(
            f"too few have any weight to be within their shares of it: {asked} that collect.max_user_weight and the other shares "
            "ask for; a small team sets these by infra/docs/how/caps.md"
        )
    return pl.Series(factors, dtype=pl.Float64)
