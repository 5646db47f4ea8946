"""Developers against the real serving app: the labels joined from its records equal the developers' own counts."""

from collections import Counter

import pytest

from evals.developers import Address, Pin, Quirks, RunSettings, measure, run
from evals.developers.transport import EditorClient, connect
from tasks.evaluation.positions import Code, Source
from tests.serving import fakes
from tests.serving.fakes import House
from tests.tasks.rows import join

CODE = Code(
    [
        Source(f"{file}.py", "".join(f"def name_{i}(alpha, beta):\n    return alpha + beta * {i}\n\n" for i in range(60)))
        for file in range(16)
    ]
)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_stream_that_breaks_off_is_an_error_of_the_request_alone(tmp_path, whole):
    async with House(tmp_path, fakes.tokenizer()) as house, connect(1) as session:
        house.engines[0].fails_after = 3
        client = EditorClient(session, Address(f"{house.urls[0]}/v1", token=fakes.SIMULATION))
        answer = await client.complete("ada", "def f(x):\n    ", "", whole=whole)
    assert ("the engine ended in the middle" in answer.error, bool(answer.text)) == ((False, True) if whole else (True, False))


async def test_labels_joined_from_servings_records_equal_the_developers_counts(tmp_path):
    async with House(tmp_path, fakes.tokenizer()) as house:
        house.engines[0].delay = 0.001
        house.engines[0].reply = house.tokenizer.encode("alpha").ids
        address = Address(f"{house.urls[0]}/v1", f"{house.urls[1]}/v1/continue/events", fakes.SIMULATION)
        quirks = Quirks(late_accepts=0.3, cache_hits=0.1, duplicates=0.1, several_lines=0, breaks=0)
        tally = await run(RunSettings(address=address, users=30, seed=1, requests=300, speed=2000, quirks=quirks), CODE)
        await house.recorder.settle()
        completions, feedback = house.rows("completions"), house.rows("feedback")
        paired = await measure(RunSettings(address=address, users=30, seed=1), CODE, [Pin("0")], 20)
    total = tally.total
    assert (total.requests, total.errors, total.lost_events) == (len(completions), 0, 0)
    assert set(tally.by_version()) == {"0"} and len(paired.pairs) == 20
    assert {completion.client for completion in completions} == {"continue", "zed"}
    assert len({completion.user for completion in completions}) == sum(counts.requests > 0 for counts in tally.by_user().values())
    joined = join(completions, feedback, 600)
    labels = Counter(request.label.outcome for request in joined.joined if request.label)
    assert labels == {"accepted": total.accepted, "rejected": total.rejected} and joined.orphans == 0
    assert total.accepted > 3 and total.late > 0 and total.cache_hits > 0
