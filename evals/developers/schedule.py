"""The schedule of a run: which developer writes what in which session, and the positions of a comparison."""

from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from evals.developers import draws, editor
from evals.developers.draws import Quirks
from evals.developers.grounds import Ground, Grounds
from evals.developers.pause import Developer, Pause, SettledTruth
from evals.developers.sessions import Draft, Session, Team, sessions_of_pass
from evals.developers.writer import OnSettled, Reaction, Writer
from tasks.evaluation.positions import Code


class Schedule:
    """The seeded developers, their sessions and the positions of comparisons; the same for the same seed whatever a server sends.

    Args:
        users: Number of developers.
        seed: Of tastes, editors, sessions, positions and chance events.
        code: The sources. Which of their text is written live and which makes up the grounds depends on them alone.
        quirks: The rates of all chance events.
    """

    def __init__(self, users: int, seed: int, code: Code, quirks: Quirks | None = None) -> None:
        if users < 1:
            raise ValueError(f"users: expected at least 1, got {users}")
        self._seed, self._code, self.quirks = seed, code, quirks or Quirks()
        people = ((f"developer-{i:03d}", draws.taste_of(seed, i), draws.editor_of(seed, i, self.quirks)) for i in range(users))
        self._team = Team([Developer(*person) for person in people])
        self._pass: tuple[Session, ...] = ()
        self._ends: list[int] = []
        """Cumulative numbers of pauses of the sessions read so far."""
        self._last: tuple[int, tuple[Pause, ...]] = (-1, ())

    def session(self, number: int) -> Session:
        """Return a session; when all holes are written, the next pass begins.

        Raises NoCode where the code holds no file that developers type in.
        """
        if not self._pass:
            self._pass = self._sessions(0)
        current, index = divmod(number, len(self._pass))
        if self._pass[0].round != current:
            self._pass = self._sessions(current)
        return replace(self._pass[index], number=number)

    def writer(self, session: Session, draft: Draft, on_settled: OnSettled) -> Writer:
        """Return the writer of a session; `on_settled` receives each pause once its text has settled."""
        return Writer(session, draft, self.quirks, ("live", self._seed), on_settled)

    def live_pauses(self, session: int) -> tuple[Pause, ...]:
        """Return the pauses of a session as if no completion was ever accepted, each with the text that settled there."""
        if self._last[0] != session:
            self._last = session, self._untouched(self.session(session))
        return self._last[1]

    def first_pause(self, number: int, ground: Ground | None = None) -> Pause:
        """Return a pause: of the live sessions in order without a ground, else at the position of that number on the ground.

        Raises NoCode where the code holds no position of the ground, or no file that developers type in.
        """
        if ground is not None:
            return self._ground_pause(number, ground)
        while not self._ends or self._ends[-1] <= number:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self.live_pauses(len(self._ends))))
        session = bisect_right(self._ends, number)
        return self.live_pauses(session)[number - (self._ends[session - 1] if session else 0)]

    def _ground_pause(self, number: int, ground: Ground) -> Pause:
        key = (ground, self._seed, number)
        rng = draws.random_stream(*key)
        developer = self._team.draw(rng)
        position, rest = self._grounds.draw(ground, rng, self.quirks.several_lines)
        prefix, suffix = editor.prompt_context(position.prefix, position.suffix)
        chances = draws.draws_at(draws.random_stream(*key, 0), developer.taste, self.quirks)
        settled = SettledTruth(rest, True, "typed", 0.0, rest)
        return Pause(developer, position, prefix, suffix, rest, chances, number, settled=settled, people=self.quirks.people)

    def _untouched(self, session: Session) -> tuple[Pause, ...]:
        settled: dict[int, SettledTruth] = {}
        pauses: list[Pause] = []
        writer = self.writer(session, session.draft(), lambda pause, truth: settled.update({id(pause): truth}))
        steps = writer.steps()
        with suppress(StopIteration):
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    pauses.append(step)
                step = steps.send(Reaction("rejected"))  # a wait ignores it
        return tuple(replace(pause, settled=settled[id(pause)]) for pause in pauses)

    def _sessions(self, number: int) -> tuple[Session, ...]:
        return sessions_of_pass(self._code.sources, self._team, self.quirks, self._seed, number)

    @cached_property
    def _grounds(self) -> Grounds:
        return Grounds(self._code.sources)
