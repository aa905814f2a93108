"""Small worlds after bAbI's first three tasks: people move, take things along and put them down.

Questions: qa1, where a person is; qa2, where a thing is; qa3, where a thing was before a place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from generators.rng import Stream
from harness.errors import InputError

PEOPLE = ("Daniel", "John", "Mary", "Sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
_MOVES = ("went to", "moved to", "travelled to", "walked to", "hurried to", "returned to")
_TAKES = ("took", "picked up", "grabbed", "got")
_DROPS = ("put down", "dropped", "left", "set down")
_TRIES = 500

# Background sentences that mention the world would be facts of it.
MENTION = re.compile(rf"\b(?:{'|'.join((*PEOPLE, *PLACES, *THINGS))})s?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Story:
    """Facts in order, and a question that they answer.

    Attributes:
        facts: sentences, no two alike.
        subjects: what each fact is about: a person or a thing.
    """

    facts: list[str]
    subjects: list[str]
    question: str
    answer: str


class _World:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.place: dict[str, str] = {}
        self.holder: dict[str, str] = {}
        self.path: dict[str, list[str]] = {}
        self.facts: list[str] = []
        self.subjects: list[str] = []

    def act(self, things: bool) -> bool:
        """Let one thing happen; False where its sentence has been used in every wording."""
        person = self.stream.choice(PEOPLE)
        here = self.place.get(person)
        held = [thing for thing in THINGS if self.holder.get(thing) == person]
        free = [
            thing
            for thing in THINGS
            if thing not in self.holder and (thing not in self.path or self.path[thing][-1] == here)
        ]
        kind = self.stream.integer(0, 5) if things and here else 0
        if kind >= 4 and held:
            thing = self.stream.choice(held)
            del self.holder[thing]
            return self._tell(thing, [f"{person} {verb} the {thing}." for verb in _DROPS])
        if kind >= 2 and free and here:
            thing = self.stream.choice(free)
            self.holder[thing] = person
            self.path.setdefault(thing, [here])
            return self._tell(thing, [f"{person} {verb} the {thing}." for verb in _TAKES])
        to = self.stream.choice([place for place in PLACES if place != here])
        self.place[person] = to
        for thing in held:
            self.path[thing].append(to)
        return self._tell(person, [f"{person} {verb} the {to}." for verb in _MOVES])

    def _tell(self, subject: str, wordings: list[str]) -> bool:
        new = [sentence for sentence in wordings if sentence not in self.facts]
        if new:
            self.facts.append(self.stream.choice(new))
            self.subjects.append(subject)
        return bool(new)

    def question(self, kind: str) -> tuple[str, str] | None:
        """A question of this kind and its answer, if the facts so far allow one."""
        if kind == "qa1":
            person = self.stream.choice(sorted(self.place))
            return f"Where is {person}?", self.place[person]
        # A thing that was carried: its place takes two facts to know.
        moved = [thing for thing in THINGS if len(self.path.get(thing, ())) > 1]
        if kind == "qa3":
            moved = [thing for thing in moved if self.path[thing].count(self.path[thing][-1]) == 1]
        if not moved:
            return None
        thing = self.stream.choice(moved)
        path = self.path[thing]
        if kind == "qa2":
            return f"Where is the {thing}?", path[-1]
        return f"Where was the {thing} before the {path[-1]}?", path[-2]


def make_story(stream: Stream, kind: str, facts: int) -> Story:
    """A story of `facts` sentences with a question of `kind` (qa1, qa2 or qa3).

    Raises:
        InputError: so few sentences allow no such question, or so many repeat.
    """
    for attempt in range(_TRIES):
        world = _World(stream.child("story", attempt))
        if not all(world.act(kind != "qa1") for _ in range(facts)):
            continue
        asked = world.question(kind)
        if asked is not None:
            return Story(world.facts, world.subjects, *asked)
    raise InputError(f"No {kind} story of {facts} facts was found: choose between 3 and 40 facts.")
