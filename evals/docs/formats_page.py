"""The page of the clients' prompt formats from the table in code (infra/model/fim/formats.py)."""

from evals.docs.schema import INTROS, code, table
from infra.model.fim import FORMATS, REFUSED, Format

TEST = "tests/serving/gateway/test_client_prompts.py"
HEAD = ("format", "recognized by", "split", "tokens that end a completion", "sent by", "tested with")


def page() -> str:
    formats = table(HEAD, [_cells(each) for each in FORMATS])
    refused = table(("refused", "recognized by", "setting"), [(each.name, each.recognized_by, each.setting) for each in REFUSED])
    return INTROS["formats"] + formats + "\n## Refused formats\n\n" + INTROS["refused formats"] + refused


def _cells(each: Format) -> tuple[str, ...]:
    starts = " or ".join(code(marker.partition("\n")[0]) for marker in (each.first, *each.files))
    ends = f", or {code(each.endings[0].strip())} at its end" if each.endings else ""
    before, after = ("prefix", "suffix") if each.order == "psm" else ("suffix", "prefix")
    closing = f", {code(each.closing.strip())} left out" if each.closing else ""
    split = f"{before} up to {code(each.between.strip())}, then {after}{closing}"
    if each.middle:
        split += f"; text behind {code(each.middle.strip())} belongs to the prefix"
    stops = ", ".join(map(code, dict.fromkeys(marker.strip() for marker in (*each.markers, *each.stops))))
    return each.name, f"{starts} at the prompt's start{ends}", split, stops, each.clients, f"`{TEST}`: {each.name}"
