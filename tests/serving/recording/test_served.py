"""The latest requests of a replica are forgotten in one pass, with their positions."""

import time

import pytest

from infra.storage.events.tombstones import digest
from serving.access import Caller
from serving.recording.served import MOST, Served
from tests.serving.fakes import House
from tests.tasks.made import completion


def add(served: Served, name: str, user: str, project: str) -> None:
    """Remember a request at a position that all requests have, and its completion."""
    served.add(Caller(project, user, "token", "zed", False), name, "x = ", "", 1.0)
    served.ended(completion(name, text="total"))


@pytest.mark.timing(reason="a core that others use, too, takes more CPU time for the same work")
async def test_the_users_of_a_forgotten_project_are_forgotten_in_one_pass(house: House) -> None:
    """A token may name as many users as requests are remembered: a pass for each would take seconds of the event loop."""
    recorder = house.recorder
    for number in range(MOST):
        add(recorder.served, f"c{number}", f"u{number}", "pq"[number % 2])
    began = time.thread_time()
    recorder.forget({digest("project", "p")})
    assert time.thread_time() - began < 0.5
    assert recorder.served.subjects() == {(f"u{number}", "q") for number in range(1, MOST, 2)}


async def test_what_is_forgotten_has_no_position_and_others_keep_theirs(house: House) -> None:
    served, names = house.recorder.served, {digest("user", "ada"), digest("project", "r"), digest("user", "nobody")}
    who = [("ada", "p"), ("bob", "p"), ("ada", "q"), ("eve", "r"), ("bob", "r")]
    for number, (user, project) in enumerate(who):
        add(served, f"c{number}", user, project)
    house.recorder.forget(names)
    assert served.subjects() == {("bob", "p")}
    found = [served.at_place(project, user, "x = ", "", "total") for user, project in who]
    assert [request.id if request else "" for request in found] == ["", "c1", "", "", ""]
    add(served, "c5", "ada", "p")
    again = served.at_place("p", "ada", "x = ", "", "total")
    assert again and again.id == "c5"
