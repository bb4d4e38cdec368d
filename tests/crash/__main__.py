"""`python -m tests.crash`: kill often, print a table, fail where anything was lost or wrong."""

from __future__ import annotations

import argparse
import sys

from tests.crash.harness import Tally, harness
from tests.crash.operations import OPERATIONS

_LINE = "{:<16} {:>6} {:>9} {:>9} {:>5} {:>6}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=220)
    parser.add_argument("--full", type=int, default=44, help="runs on a full disk")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operation", choices=OPERATIONS, action="append")
    asked = parser.parse_args()
    names = asked.operation or list(OPERATIONS)
    tallies = {}
    for what, count in (("killed", asked.kills), ("disk full", asked.full)):
        with harness(asked.seed) as work:
            for number in range(count):
                name = names[number % len(names)]
                (work.kill if what == "killed" else work.deny)(name)
            tallies[what] = work.tallies
    faults: list[str] = []
    for what, found in tallies.items():
        print(_LINE.format(what, "times", "survived", "refused", "lost", "wrong"))
        for name in names:
            print(_line(name, found[name]))
            faults += found[name].faults
        print(_line("all", _sum([found[name] for name in names])), end="\n\n")
    print(*faults, sep="\n", end="\n" if faults else "")
    return int(bool(faults))


def _line(name: str, one: Tally) -> str:
    return _LINE.format(name, one.kills, one.survived, one.refused, one.lost, one.wrong)


def _sum(tallies: list[Tally]) -> Tally:
    total = Tally()
    for one in tallies:
        for name in ("kills", "survived", "refused", "lost", "wrong"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
    return total


if __name__ == "__main__":
    sys.exit(main())
