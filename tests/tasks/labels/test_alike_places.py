"""Places of one file that are alike, seen through windows of a few lines: the settled text is of the place itself."""

import random
from collections.abc import Iterator

import polars as pl
import pytest

from infra.records import Completion
from infra.settings.schema import Hindsight
from tasks.labels import hindsight
from tests.tasks import rows
from tests.tasks.labels.test_hindsight import accounted, mined, row
from tests.tasks.labels.test_unnamed_files import WORDS
from tests.tasks.made import NOW, completion, feedback

WINDOW = 20
"""Lines before and behind the cursor that Tabby sends."""
SESSIONS, TESTS, LINES = 20, 5, 16
IMPORTS = "import pytest\n\nfrom shop.api import client, database\n\n\n"


def asked(id: str, at: float, document: str, **fields: str) -> Completion:
    """A request at the end of a document of which its window shows the last lines."""
    prefix = "".join(document.splitlines(keepends=True)[-WINDOW:])
    values = {"client": "tabby", "file": "f", "prefix": prefix, "suffix": "\n", "text": "201"}
    return completion(id, time=NOW + at, **{**values, **fields})


def written(name: str) -> str:
    """A test up to the status that it expects."""
    return f'''def test_{name}(client, database):
    """Add {name}."""
    team = database.add_team("team of {name}")
    database.add_member(team, "{name}@example.org")
    headers = {{"Authorization": f"Bearer {{team.token}}"}}
    payload = {{
        "name": "{name}",
        "team": team.id,
        "role": "member",
        "language": "de",
        "time_zone": "Europe/Berlin",
        "newsletter": False,
        "address": {{"street": "Main Street 1", "city": "{name}"}},
    }}
    client.login(team, name="{name}", remember=False)
    client.set_headers(headers, merge=True, force=False)
    assert database.count_users(team, name="{name}") == 0
    database.commit()
    response = client.post("/api/v1/users", json=payload)
    assert response.status_code == '''


FIRST = IMPORTS + written("alice")
NEXT = FIRST + '201\n    assert response.json()["email"]'
SECOND = NEXT + " == email\n\n\n" + written("broken")


@pytest.mark.parametrize(
    "last",
    [
        SECOND + '422\n    assert response.json()["detail"]',
        SECOND[: SECOND.rindex("    assert")] + "    data = response.",  # without the line of the place
        SECOND + "422\n" + "".join(f"    assert database.count_{n}() == {n}\n" for n in range(WINDOW - 4)),  # at the window's top
    ],
    ids=["alike", "changed", "top"],
)
def test_the_text_of_another_test_that_ends_alike_is_not_settled(last: str) -> None:
    served = [asked("c", 0, FIRST), asked("m", 15, NEXT), asked("n", 150, last)]
    accepted = [feedback("s", prefix="", suffix="", shown="", client="tabby", completion_id="c", outcome="accepted")]
    found = row(accounted(served, accepted))
    assert (found["settled"], found["settled_by"], found["kept_characters"]) == ("201\n", "m", 3)
    assert mined(served[0], served[2])["unsettled"] == "not_shown"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import client, database", "import client, database, users"),
        ("    database.commit()\n", "    database.add(payload)\n    database.commit()\n"),
        ("remember=False", "remember=True"),
        ("    client.set_headers(headers, merge=True, force=False)\n", ""),
    ],
)
def test_lines_above_may_be_edited(old: str, new: str) -> None:
    assert mined(asked("c", 0, FIRST), asked("d", 30, NEXT.replace(old, new)))["settled"] == "201\n"


def session(number: int) -> Iterator[tuple[Completion, str]]:
    """Requests within similar tests that a user writes, and the rest of each one's line."""
    rng, document, now = random.Random(number), IMPORTS, 10_000.0 * number
    draw = [f"    {rng.choice(WORDS)}_{n} = client.{rng.choice(WORDS)}({rng.randrange(99)})" for n in range(LINES)]
    own = set(rng.sample(range(LINES), LINES // 2))
    for at in range(TESTS):
        name, status = f"{rng.choice(WORDS)}_{at}", rng.choice([200, 201, 400, 404, 422])
        body = [f"    {name}_{n} = client.add('{name}', {rng.randrange(999)})" if n in own else draw[n] for n in range(LINES)]
        ends = ['    response = client.post("/api/v1/users", json=payload)', f"    assert response.status_code == {status}"]
        for line in [f"def test_{name}(client):", *body, *ends, f"    assert response.json() == '{name}'", "", ""]:
            if line and rng.random() < 0.5:
                cut = line.index("==") + 3 if "==" in line else rng.randrange(2 * len(line) // 3, len(line))
                yield asked(f"{number}-{len(document)}", now, document + line[:cut], user=f"u{number}"), line[cut:]
            document, now = f"{document}{line}\n", now + rng.uniform(2, 6)


def test_labels_of_similar_tests_are_right() -> None:
    written = [one for number in range(SESSIONS) for one in session(number)]
    served = rows.frame([request for request, _ in written], Completion)
    found = hindsight.settle(served, pl.Series([request.id for request, _ in written]), Hindsight())
    labels = dict(found.drop_nulls("settled").select("id", "settled").iter_rows())
    right = [labels[request.id].split("\n")[0] == rest for request, rest in written if request.id in labels]
    assert len(labels) >= 0.9 * len(written) > 800
    assert sum(right) >= 0.995 * len(right)
