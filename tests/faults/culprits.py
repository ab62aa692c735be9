"""Who was at fault: gangs drawn at random, one rank of each goes wrong, and what the caller is told is compared.

    python -m tests.faults.culprits --seeds 200 [--first 0] [--json FILE]

World size, nodes, rank, moment, collective and way are drawn from the seed. Each trial runs on a real cluster of two
nodes. Right: the rank is named, or nobody where that cannot be known. A victim that is named is a failure of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import phalanx
from phalanx.core.errors import PhalanxError
from tests.support import dies_early
from tests.support.gang_table import COLLECTIVES, EARLY, WAYS, Trial, go_wrong
from tests.support.shared_cluster import connected_cluster

HANG_S = 1.5
PATIENCE_S = 60.0
SUCCEEDED = "it succeeded"


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller of one trial heard. ``named``: the ranks that are called culprits."""

    seed: int
    trial: Trial
    named: tuple[int, ...]
    message: str

    @property
    def verdict(self) -> str:
        if self.named == (self.trial.culprit,):
            return "right"
        if self.named:
            return "victim named"
        if self.message == SUCCEEDED:
            return "nothing failed" if self.trial.may_succeed else "not seen"
        return "undetermined" if not self.trial.can_be_known else "not named"

    @property
    def is_right(self) -> bool:
        return self.verdict in ("right", "undetermined", "nothing failed")


def drawn(seed: int) -> Trial:
    """Returns the trial of a seed."""
    chance = random.Random(seed)
    world = chance.randint(2, 8)
    nodes = 2 if world > 4 else chance.choice((1, 2)) if world % 2 == 0 else 1
    world += world % nodes
    rounds = chance.randint(3, 6)
    return Trial(
        world=world,
        nodes=nodes,
        culprit=chance.randrange(world),
        how=chance.choice((*WAYS, EARLY)),
        moment=chance.randrange(rounds),
        rounds=rounds,
        collective=chance.choice(COLLECTIVES),
        root=chance.randrange(world),
    )


def run_trial(seed: int) -> Told:
    """Runs one trial on the cluster that this process is connected to."""
    trial = drawn(seed)
    early = trial.how == EARLY
    wrong: Callable[..., Any] = dies_early.never if early else go_wrong
    function = phalanx.gpu_function(
        gpus=trial.world,
        nodes=trial.nodes,
        hang_timeout=HANG_S,
        grace=1,
        scaledown_window=1,
        name=f"trial-{seed}",
        env=phalanx.env(vars={"DIES": str(trial.culprit)} if early else {}),
    )(wrong)
    call = function.spawn(trial.culprit, trial.how, trial.moment, trial.rounds, trial.collective, trial.root)
    try:
        call.get(timeout=PATIENCE_S)
    except PhalanxError as e:
        message = str(e)
    except (ValueError, RuntimeError) as e:
        message = f"{type(e).__name__}: {e}"
    else:
        message = SUCCEEDED
    error = call.status().error
    named = tuple(r.rank for r in error.ranks if r.culprit) or ((error.rank,) if error.rank >= 0 else ())
    return Told(seed, trial, named, message.partition("\n")[0][:300])


def run_trials(seeds: range) -> list[Told]:
    """Runs the trials of ``seeds`` on a cluster of their own, and writes of each that went wrong."""
    found: list[Told] = []
    with (
        tempfile.TemporaryDirectory(prefix="px-culprits-") as folder,
        connected_cluster(Path(folder), agents=2, gpus_per_agent=4),
    ):
        for seed in seeds:
            told = run_trial(seed)
            found.append(told)
            if not told.is_right:
                sys.stdout.write(f"{told.verdict}: {told}\n")
                sys.stdout.flush()
    counts = Counter(told.verdict for told in found)
    sys.stdout.write(f"{len(found)} seeds: " + ", ".join(f"{n} {what}" for what, n in counts.most_common()) + "\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = run_trials(range(args.first, args.first + args.seeds))
    if args.json:
        args.json.write_text(json.dumps([{**asdict(t), "verdict": t.verdict} for t in found], indent=1))
    return 0 if all(t.is_right for t in found) else 1


if __name__ == "__main__":
    sys.exit(main())
