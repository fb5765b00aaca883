"""The post's factual sentences, in our words, checked: by its own published figures, and then asked of our runs.

A claim is a question (`questions`) to an `Evidence`. By the post's figures it holds, holds with a remark, does not hold
or cannot be checked; by our runs, which are another model on other problems, it holds, differs, or was not run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from . import questions as ask
from .bars import METHODS
from .evidence import Evidence
from .questions import ABSENT, DIFFERS, FAILS, HOLDS, REMARK, UNKNOWN, Answer


@dataclass(frozen=True)
class Claim:
    """A factual sentence of the post in our words, and the question that checks it."""

    key: str
    text: str
    ask: Callable[[Evidence], Answer]
    needs: tuple[str, ...] = ()
    """Arms without which the question is "not run"."""

    def answer(self, evidence: Evidence) -> Answer:
        """How the claim stands by this source."""
        lacking = [name for name in self.needs if name not in evidence.arms]
        if lacking:
            return Answer(ABSENT, remark=f"needs runs of {', '.join(lacking)}")
        answer = self.ask(evidence)
        return replace(answer, verdict=DIFFERS) if evidence.ours and answer.verdict == FAILS else answer


CLAIMS = (
    Claim("design", "Trained for 80 steps; scored on 300 held-out problems, two chats each, both answers graded.",
          ask.design),
    Claim("alone", "Where one copy can solve a problem alone, talk adds nothing over plain training.",
          ask.beyond("no such arm was run")),
    Claim("untrained", "An untrained pair that may talk solves about 11 problems in 100.", ask.untrained, ("base",)),
    Claim("trained", "After training on the team's answer it solves about 40.", ask.trained, ("grpo",)),
    Claim("only_way", "Without talk the answer is out of reach: an untrained pair, blocked, stays near zero.",
          ask.needs_talk, ("base_blocked",)),
    Claim("blocked", "The same training with messages blocked stays near zero.", ask.blocked_floor, ("grpo_blocked",)),
    Claim("delta", "Training with talk beats training without it, by the post's rule of verdict.", ask.moved),
    Claim("sends", "Trained copies send more of what only they know.", ask.change("sends", True), ("base", "grpo")),
    Claim("uses", "Their answers use more of what the partner sent.", ask.change("uses", True), ("base", "grpo")),
    Claim("agrees", "Both copies give the same answer more often.", ask.change("agrees", True), ("base", "grpo")),
    Claim("asks", "They stop asking in the first message.", ask.stops_asking, ("base", "grpo")),
    Claim("asks_why", "They stop because a question wastes a turn once both sides send everything.",
          ask.beyond("a cause; no arm takes it apart")),
    Claim("blocked_uses", "With messages blocked, answers hold few of the partner's numbers.", ask.blocked_uses,
          ("grpo_blocked",)),
    Claim("one_seed", "One training seed sends its numbers, makes little use of its partner's, and falls far behind.",
          ask.one_seed_fails, ("base", "grpo")),
    Claim("retained", "The habit belongs to the pair: with a new, untrained partner most of the gain is lost.",
          ask.retained, ("base", "grpo")),
    Claim("near_start", "A trained copy with an untrained one lands near where two untrained copies start.",
          ask.near_start, ("base", "grpo")),
    Claim("means", "By means over seeds: RAFT lowest, then plain RL, mixed partners, and Reinforce-Ada highest.",
          ask.method_means, METHODS),
    Claim("flat", "No method differs from plain RL by the post's rule.", ask.all_flat, ("grpo",)),
    Claim("spread", "Plain RL's own training seeds range widely, from about 15 to 40.", ask.spread, ("grpo",)),
    Claim("budget", "The four methods were compared on one budget.", ask.budget, METHODS),
    Claim("nothing", "Plain RL learns nothing from a problem all of whose chats failed.", ask.flat_teaches_nothing),
    Claim("early", "Early in training, most problems are of that kind.", ask.flat_first,
          ("grpo",)),
    Claim("ada_seeds", "With Reinforce-Ada every seed learned to talk.", ask.ada_every_seed, ("base", "reinforce_ada")),
    Claim("ada_cost", "Reinforce-Ada takes about twice the compute.", ask.ada_cost, ("grpo", "reinforce_ada")),
    Claim("raft_short", "RAFT writes the shortest messages.", ask.raft_shortest, METHODS),
    Claim("raft_uses", "RAFT uses the partner's facts least.", ask.raft_uses_least, METHODS),
    Claim("mixed", "Training with untrained partners does not make the habit travel.", ask.partner_flat),
    Claim("partners", "With an untrained partner, copies of Reinforce-Ada and RAFT do better than plain RL's.",
          ask.better_partners),
    Claim("noise", "Re-running the untrained pair moves its score by about half a point.", ask.noise, ("base",)),
    Claim("price", "The two parts cost about $38 and $81 on H100s.", ask.price),
    Claim("general", "Whenever a task pays for talk, an outcome reward is enough to teach it.",
          ask.beyond("a generalisation; one task and one model each speak for it, no more")),
)


def check(sources: Sequence[Evidence]) -> dict[str, dict[str, Answer]]:
    """Claim's key -> source's name -> how it stands there."""
    return {claim.key: {source.name: claim.answer(source) for source in sources} for claim in CLAIMS}


def table(sources: Sequence[Evidence]) -> list[dict[str, str]]:
    """One row a claim: in our words, then verdict and numbers by the post's figures and by each of our sources."""
    found = check(sources)
    rows = []
    for claim in CLAIMS:
        row = {"claim": claim.text}
        for source in sources:
            answer = found[claim.key][source.name]
            row[source.short] = answer.verdict
            row[f"{source.short}: numbers"] = "; ".join(t for t in (answer.numbers, answer.remark) if t) or "-"
        rows.append(row)
    return rows


def disagreements(sources: Sequence[Evidence]) -> list[tuple[Claim, Answer, Answer]]:
    """Claims on which the first source (the post's figures) and the second (ours) part, as (claim, post, ours): borne
    out by one and not by the other."""
    found, (post, ours) = check(sources), (source.name for source in sources[:2])
    rows = [(claim, found[claim.key][post], found[claim.key][ours]) for claim in CLAIMS]
    return [row for row in rows if {row[1].verdict, row[2].verdict} & {FAILS, DIFFERS}
            and {row[1].verdict, row[2].verdict} & {HOLDS, REMARK}]


def tally(sources: Sequence[Evidence]) -> dict[str, dict[str, int]]:
    """Source's name -> verdict -> how many claims."""
    found = check(sources)
    return {source.name: {verdict: sum(found[c.key][source.name].verdict == verdict for c in CLAIMS)
                          for verdict in (HOLDS, REMARK, FAILS, DIFFERS, UNKNOWN, ABSENT)} for source in sources}
