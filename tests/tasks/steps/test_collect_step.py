"""What is said of a window whose sample of users is too small for a cycle."""

import pytest

from infra.settings import Settings
from infra.settings.schema import Collect
from infra.storage import few as log
from tasks.labels.accounting import RequestAccounting
from tasks.labels.collect import collect
from tasks.labels.sampled import level
from tasks.steps.collect import small_sample
from tests.tasks import rows
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback

USERS = sorted((f"{number:032x}" for number in range(40)), key=level)


def accounted(busy: str, most_requests: int) -> RequestAccounting:
    """Return a window in which one user makes 60 of 138 requests, all accepted."""
    store, registry = MemoryStore(), MemoryRegistry(v1={})
    registry.aliases["champion"] = "1"
    made = [(user, number) for user in USERS for number in range(60 if user == busy else 2)]
    names = [f"{user}-{number}" for user, number in made]
    fields = [{"user": user, "prefix": f"{name} = "} for (user, _), name in zip(made, names, strict=True)]
    rows.put(
        store,
        [completion(name, **each) for name, each in zip(names, fields, strict=True)],
        [feedback(name, **each) for name, each in zip(names, fields, strict=True)],
    )
    limits = Collect(min_samples=20, most_requests=most_requests, settle_seconds=10, join_seconds=60, max_user_share=1)
    return collect(store, registry.client, Settings(collect=limits), NOW + 100).accounting


def test_a_user_with_more_requests_than_a_sample_holds_is_said_with_the_setting_to_raise() -> None:
    found = accounted(busy=USERS[-1], most_requests=50)  # the user of the highest level, so that no sample with it fits
    assert found.samples.is_empty() and found.counts.unsampled == 138
    few = small_sample(found, NOW)
    assert few is not None
    said = log.in_words(few)
    assert said.startswith("0 samples of 0 of 138 requests, of a sample of 1 in ") and "collect.min_samples asks for 20" in said
    assert said.endswith("Set collect.most_requests to 138 or more, with memory for them (`tabloop plan capacity`)")


@pytest.mark.parametrize(("busy", "most"), [(USERS[-1], 138), (USERS[0], 70)], ids=["all users", "a sample that suffices"])
def test_nothing_is_said_of_enough_samples(busy: str, most: int) -> None:
    found = accounted(busy, most)
    assert found.samples.height >= 20 and small_sample(found, NOW) is None
