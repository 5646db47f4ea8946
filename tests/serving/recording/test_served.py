"""The latest requests of a replica, and how they are forgotten."""

import time

from infra.storage.events import tombstones
from serving.access import Caller
from serving.recording.served import MOST
from tests.serving.fakes import House


async def test_a_project_of_as_many_users_as_requests_is_forgotten_without_holding_up_others(house: House) -> None:
    """The names of users are those that a token with the role `users` makes up."""
    recorder = house.recorder
    for number in range(MOST):
        caller = Caller("p1" if number % 2 else "p2", f"user {number}", "token", "continue", opted_out=False)
        recorder.served.add(caller, f"id {number}", "def f(x):", "", time.time())
        recorder.received.add(caller.user, "continue", time.time(), matched=True)
    names = {tombstones.digest("project", "p1"), tombstones.digest("user", "user 2")}
    begin = time.process_time()
    recorder.forget(names)
    assert time.process_time() - begin < 1.0, "each user looked for all requests: several seconds of the event loop"
    left = {f"id {number}" for number in range(MOST) if number % 2 == 0 and number != 2}
    assert {id for id in map("id {}".format, range(MOST)) if id in recorder.served} == left
    assert not recorder.received.of("user 2") and recorder.received.of("user 4")
    recorder.forget_user("user 4")
    assert not recorder.served.of_user("user 4") and not recorder.received.of("user 4") and recorder.served.of_user("user 6")
