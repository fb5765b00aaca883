"""The kinds of word problem of the desk world: how each is worded, solved, and which numbers it may hold.

A kind draws *slots* (numbers and choices such as gain or loss), each tied to the fact that tells it. From slots
and a cast of names and things a kind writes facts, a question, a formula and the steps that solve it. Since a
slot knows its fact, the slots of one copy can be kept and the partner's drawn anew (`redraw`): that is how a
copy makes its partner's numbers up, and how the audit asks what one half alone can reach.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .parts import Cast, Rng, Slot, Step, Story, chain

HE = ("Tom", "Ben", "Sam", "Leo", "Max", "Jack", "Omar", "Ivan", "Raj", "Hugo", "Carl", "Dan", "Eli", "Luis")
SHE = ("Ann", "Mia", "Zoe", "Lily", "Emma", "Nora", "Ruth", "Tara", "Ivy", "Sara", "Rosa", "Jane", "Kim", "Mei")
THINGS = ("apples", "pens", "cards", "marbles", "stickers", "coins", "shells", "buttons", "cookies", "books",
          "pencils", "stamps", "beads", "toys", "plums", "eggs", "candles", "balloons", "ribbons", "stones")
PLANTS = ("tulips", "roses", "carrots", "beans", "onions", "herbs")
GOODS = ("bag", "hat", "lamp", "map", "kite", "scarf")

SIGNS = ("+", "-")

# (start, gains, losses, questions)
LEDGERS = (
    ("{N} has {n} {O}.",
     ("{P} buys {n} more {O}.", "{M} gives {N} {n} {O}.", "{P} finds {n} {O} at home."),
     ("{P} gives {n} {O} to {M}.", "{P} loses {n} of the {O}.", "{P} sells {n} {O}."),
     ("How many {O} does {N} have now?", "How many {O} does {N} have in the end?")),
    ("A bus starts with {n} riders.",
     ("At a stop {n} riders get on.", "At the park {n} riders get on."),
     ("At a stop {n} riders get off.", "At the mall {n} riders get off."),
     ("How many riders are on the bus now?",)),
    ("A shelf holds {n} books.",
     ("{N} puts {n} books on it.", "{N} adds {n} books."),
     ("{M} takes {n} books away.", "{M} borrows {n} books."),
     ("How many books are on the shelf now?",)),
    ("A tank holds {n} gallons of water.",
     ("The rain adds {n} gallons.", "{N} pours in {n} gallons."),
     ("{M} uses {n} gallons.", "The tank leaks {n} gallons."),
     ("How many gallons are in the tank now?",)),
)


def ledger_shape(rng: Rng) -> tuple[int, ...]:
    """(setting, changes, position of the start fact)."""
    return rng.between(0, len(LEDGERS) - 1), rng.one((1, 1, 1, 2, 2, 2, 2, 3)), rng.one((0, 0, 1))


def ledger_slots(shape, rng: Rng) -> list[Slot]:
    _, changes, first = shape
    places = [i for i in range(changes + 1) if i != first]
    slots = [Slot(rng.between(10, 60), first)]
    for place in places:
        slots += [Slot(rng.between(0, 1), place), Slot(rng.wide(), place)]
    return slots


def ledger(shape, slots, cast: Cast):
    start, gains, losses, questions = LEDGERS[shape[0]]
    facts, moves = {slots[0].fact: cast.say(start, n=slots[0].value)}, []
    for sign, amount in zip(slots[1::2], slots[2::2], strict=True):
        line = cast.pick(losses if sign.value else gains, amount.fact)
        facts[amount.fact] = cast.say(line, n=amount.value)
        moves.append((SIGNS[sign.value], amount.value))
    formula = str(slots[0].value) + "".join(f" {op} {n}" for op, n in moves)
    return in_order(facts), cast.say(cast.pick(questions, 5)), formula, chain(slots[0].value, *moves)


# (groups, size of one, both in one sentence, gain, loss, question)
GROUPS = (
    ("{N} packs {x} boxes.", "Each box holds {k} {O}.", "{N} packs {x} boxes of {k} {O}.",
     "There are {n} loose {O} too.", "{M} takes {n} {O} away.", "How many {O} are there now?"),
    ("{N} works {x} hours.", "The pay is ${k} an hour.", "{N} works {x} hours for ${k} an hour.",
     "{N} gets a tip of ${n}.", "{N} spends ${n} on food.", "How many dollars does {N} have now?"),
    ("{N} plants {x} rows.", "Each row has {k} {G}.", "{N} plants {x} rows of {k} {G}.",
     "{M} plants {n} more {G}.", "Rabbits eat {n} {G}.", "How many {G} are in the garden now?"),
    ("{N} bakes {x} trays.", "Each tray holds {k} rolls.", "{N} bakes {x} trays of {k} rolls.",
     "{M} brings {n} more rolls.", "The guests eat {n} rolls.", "How many rolls are there now?"),
)
GROUP_LAYOUTS = (("both", "y"), ("y", "both"), ("x", "y", "k"), ("k", "y", "x"), ("x", "y", "k"), ("k", "y", "x"),
                 ("x", "k", "y", "z"))


def groups_shape(rng: Rng) -> tuple[int, ...]:
    """(setting, layout)."""
    return rng.between(0, len(GROUPS) - 1), rng.between(0, len(GROUP_LAYOUTS) - 1)


def groups_slots(shape, rng: Rng) -> list[Slot]:
    layout = GROUP_LAYOUTS[shape[1]]

    def place(name: str) -> int:
        return layout.index(name if name in layout else "both")

    slots = [Slot(rng.between(3, 12), place("x")), Slot(rng.between(2, 9), place("k"))]
    for name in ("y", "z"):
        if name in layout:
            slots += [Slot(rng.between(0, 1), place(name)), Slot(rng.wide(), place(name))]
    return slots


def groups(shape, slots, cast: Cast):
    """So many groups of so many each, then gains and losses: (facts, question, formula, steps)."""
    many, each, both, gain, loss, question = GROUPS[shape[0]]
    x, k = slots[0].value, slots[1].value
    if slots[0].fact == slots[1].fact:
        facts = {slots[0].fact: cast.say(both, x=x, k=k)}
    else:
        facts = {slots[0].fact: cast.say(many, x=x), slots[1].fact: cast.say(each, k=k)}
    moves = []
    for sign, amount in sorted(zip(slots[2::2], slots[3::2], strict=True), key=lambda pair: pair[1].fact):
        facts[amount.fact] = cast.say(loss if sign.value else gain, n=amount.value)
        moves.append((SIGNS[sign.value], amount.value))
    formula = f"{x} * {k}" + "".join(f" {op} {n}" for op, n in moves)
    return in_order(facts), cast.say(question), formula, chain(x, ("*", k), *moves)


def compare_shape(rng: Rng) -> tuple[int, ...]:
    """(asked: 0 the other's amount, 1 both together, 2 with a third child; order of the first two facts)."""
    return rng.between(0, 2), rng.between(0, 1)


def compare_slots(shape, rng: Rng) -> list[Slot]:
    asked, swap = shape
    slots = [Slot(rng.between(10, 60), swap), Slot(rng.between(0, 1), 1 - swap), Slot(rng.wide(), 1 - swap)]
    return slots + ([Slot(rng.wide(), 2)] if asked == 2 else [])


def compare(shape, slots, cast: Cast):
    """One child's amount, and another's as more or fewer than it: (facts, question, formula, steps)."""
    a, fewer, b = (slot.value for slot in slots[:3])
    op, word = SIGNS[fewer], ("more", "fewer")[fewer]
    facts = {slots[0].fact: cast.say("{N} has {n} {O}.", n=a),
             slots[1].fact: cast.say("{M} has {n} " + word + " {O} than {N}.", n=b)}
    steps, formula = (Step(a, op, b),), f"{a} {op} {b}"
    if shape[0] == 0:
        return in_order(facts), cast.say("How many {O} does {M} have?"), formula, steps
    steps += (Step(steps[-1].result, "+", a),)
    formula = f"{a} + ({formula})"
    if shape[0] == 1:
        return in_order(facts), cast.say("How many {O} do {N} and {M} have together?"), formula, steps
    c = slots[3].value
    facts[2] = cast.say("{L} has {n} {O}.", n=c)
    steps += (Step(steps[-1].result, "+", c),)
    return in_order(facts), cast.say("How many {O} do all three have together?"), f"{formula} + {c}", steps


def times_shape(rng: Rng) -> tuple[int, ...]:
    """(layout: 0 and 1 a third child has some times the second's, 2 and 3 more than twice; setting)."""
    return rng.between(0, 3), rng.between(0, 1)


def times_slots(shape, rng: Rng) -> list[Slot]:
    layout = shape[0]
    if layout < 2:
        return [Slot(rng.wide(), 0), Slot(rng.between(5, 30), 1), Slot(rng.between(2, 3), 2)]
    return [Slot(rng.between(5, 40), layout - 2), Slot(rng.wide(), 3 - layout)]


def times(shape, slots, cast: Cast):
    """An amount as some times another's: (facts, question, formula, steps)."""
    verb, base = ("picks", "pick")[:2] if shape[1] else ("has", "have")
    if shape[0] < 2:
        a, b, m = (slot.value for slot in slots)
        facts = (cast.say("{N} " + verb + " {n} {O}.", n=a), cast.say("{M} " + verb + " {n} {O}.", n=b),
                 cast.say("{L} " + verb + (" twice" if m == 2 else " 3 times") + " as many as {M}."))
        steps = (*chain(b, ("*", m), ("+", b), ("+", a)),)
        return facts, cast.say("How many {O} do all three " + base + " together?"), f"{a} + {b} + {m} * {b}", steps
    a, c = slots[0].value, slots[1].value
    facts = {slots[0].fact: cast.say("{N} " + verb + " {n} {O}.", n=a),
             slots[1].fact: cast.say("{M} " + verb + " {n} more than twice as many as {N}.", n=c)}
    question = cast.say("How many {O} does {M} " + base + "?")
    return in_order(facts), question, f"2 * {a} + {c}", chain(a, ("*", 2), ("+", c))


# (whole, parts, question)
REMAINDERS = (
    ("{N} has a book of {n} pages.", ("{P} reads {n} pages on Monday.", "{P} reads {n} pages on Friday."),
     "How many pages are left to read?"),
    ("{N} needs ${n} for a bike.", ("{P} saves ${n} in May.", "{M} gives {N} ${n}."),
     "How many dollars does {N} still need?"),
    ("A rope is {n} feet long.", ("{N} cuts off {n} feet.", "{M} cuts off {n} feet."),
     "How many feet of rope are left?"),
)


def remainder_shape(rng: Rng) -> tuple[int, ...]:
    """(setting, number of parts, position of the whole)."""
    return rng.between(0, len(REMAINDERS) - 1), rng.between(1, 2), rng.between(0, 1)


def remainder_slots(shape, rng: Rng) -> list[Slot]:
    _, parts, first = shape
    places = [i for i in range(parts + 1) if i != first]
    return [Slot(rng.between(40, 99), first)] + [Slot(rng.wide(), place) for place in places]


def remainder(shape, slots, cast: Cast):
    whole, parts, question = REMAINDERS[shape[0]]
    facts = {slots[0].fact: cast.say(whole, n=slots[0].value)}
    for line, slot in zip(parts, slots[1:], strict=False):
        facts[slot.fact] = cast.say(line, n=slot.value)
    formula = " - ".join(str(slot.value) for slot in slots)
    return in_order(facts), cast.say(question), formula, chain(slots[0].value, *(("-", s.value) for s in slots[1:]))


def cost_shape(rng: Rng) -> tuple[int, ...]:
    """(asked: 0 the price of all, 1 what is left of a sum; order of the first two facts)."""
    return rng.between(0, 1), rng.between(0, 1)


def cost_slots(shape, rng: Rng) -> list[Slot]:
    left, swap = shape
    slots = [Slot(rng.between(3, 12), swap), Slot(rng.between(2, 9), swap), Slot(rng.wide(), 1 - swap)]
    return slots + ([Slot(rng.between(60, 120), 2)] if left else [])


def cost(shape, slots, cast: Cast):
    k, p, y = (slot.value for slot in slots[:3])
    facts = {slots[0].fact: cast.say("{N} buys {k} {O} at ${p} each.", k=k, p=p),
             slots[2].fact: cast.say("{N} buys a {D} for ${n}.", n=y)}
    steps, formula = chain(k, ("*", p), ("+", y)), f"{k} * {p} + {y}"
    if not shape[0]:
        return in_order(facts), cast.say("How many dollars does {N} spend?"), formula, steps
    total = slots[3].value
    facts[2] = cast.say("{P} had ${n} at first.", n=total)
    steps += (Step(total, "-", steps[-1].result),)
    return in_order(facts), cast.say("How many dollars does {N} have left?"), f"{total} - ({formula})", steps


def half_shape(rng: Rng) -> tuple[int, ...]:
    """(setting,)."""
    return (rng.between(0, 1),)


def half_slots(shape, rng: Rng) -> list[Slot]:
    return [Slot(rng.between(10, 60), 0), Slot(rng.between(10, 60), 1)]


def half(shape, slots, cast: Cast):
    a, b = (slot.value for slot in slots)
    facts = (cast.say("{N} has {n} {O}.", n=a), cast.say("{P} buys {n} more {O}.", n=b),
             cast.say(("{P} gives half of all {O} to {M}.", "{P} then sells half of all {O}.")[shape[0]]))
    return facts, cast.say("How many {O} does {N} keep?"), f"({a} + {b}) / 2", chain(a, ("+", b), ("/", 2))


def in_order(facts: dict[int, str]) -> tuple[str, ...]:
    """Facts by position."""
    return tuple(facts[place] for place in sorted(facts))


@dataclass(frozen=True)
class Kind:
    """A kind of problem: draw a shape, draw slots, write. `weight` is its share before unsound draws drop out."""

    shape: Callable
    slots: Callable
    write: Callable
    weight: float


KINDS = {
    "ledger": Kind(ledger_shape, ledger_slots, ledger, 0.26),
    "groups": Kind(groups_shape, groups_slots, groups, 0.24),
    "compare": Kind(compare_shape, compare_slots, compare, 0.13),
    "times": Kind(times_shape, times_slots, times, 0.12),
    "remainder": Kind(remainder_shape, remainder_slots, remainder, 0.11),
    "cost": Kind(cost_shape, cost_slots, cost, 0.10),
    "half": Kind(half_shape, half_slots, half, 0.04),
}


def tell(kind: str, shape: tuple[int, ...], slots, cast: Cast) -> Story:
    """Writes a story from its parts; it may be unsound."""
    return Story(kind, shape, tuple(slots), cast, *KINDS[kind].write(shape, slots, cast))


def draw_cast(rng: Rng) -> Cast:
    """Three different names, things, and random wordings."""
    male = rng.between(0, 1)
    name = rng.one(HE if male else SHE)
    others = [n for n in HE + SHE if n != name]
    other = rng.one(others)
    third = rng.one([n for n in others if n != other])
    return Cast(name, "He" if male else "She", other, third, rng.one(THINGS), rng.one(PLANTS), rng.one(GOODS),
                tuple(rng.between(0, 11) for _ in range(6)))


def draw(rng: Rng) -> Story:
    """One sound story: kind, shape and cast are drawn once, the slots until they fit."""
    names = list(KINDS)
    weights = np.array([KINDS[name].weight for name in names])
    kind = names[int(rng.generator.choice(len(names), p=weights / weights.sum()))]
    shape, cast = KINDS[kind].shape(rng), draw_cast(rng)
    while True:
        story = tell(kind, shape, KINDS[kind].slots(shape, rng), cast)
        if story.sound:
            return story


def redraw(story: Story, copy: int, rng: Rng, tries: int = 200) -> Story | None:
    """A sound story in which copy 0's (or 1's) facts stay and its partner's slots are drawn anew, or None."""
    for _ in range(tries):
        fresh = KINDS[story.kind].slots(story.shape, rng)
        mixed = [old if old.fact % 2 == copy else new for old, new in zip(story.slots, fresh, strict=True)]
        other = tell(story.kind, story.shape, mixed, story.cast)
        if other.sound:
            return other
    return None
