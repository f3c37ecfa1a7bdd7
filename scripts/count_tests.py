"""Count the tests that ran, by kind, and compare with .ci/minimum-tests.toml.

    python scripts/count_tests.py --junit junit.xml --log make-test.log \
        --minimum .ci/minimum-tests.toml

Exits 1 when a kind has fewer than its minimum or when a test belongs to no kind. Skipped
tests and expected failures do not count. Native tests are read from the log of "make test":
the sum of the lines "N passed" that the C test programs print.
"""

import argparse
import collections
import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

NATIVE_LINE = re.compile(r"^(?:[\w./-]+: )?(\d+) passed(?:, \d+ failed)?(?:, \d+ skipped)?$")


def count_python(junit: Path) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Return how many tests ran and how many were skipped, by folder of tests/."""
    ran: collections.Counter[str] = collections.Counter()
    skipped: collections.Counter[str] = collections.Counter()
    for case in ET.parse(junit).iter("testcase"):
        # "tests.unit.wire.test_http.TestX"; a file that failed to import has its name only
        # in "name".
        parts = (case.get("classname") or case.get("name", "")).split(".")
        kind = parts[1] if len(parts) > 1 and parts[0] == "tests" else "unknown"
        (ran if case.find("skipped") is None else skipped)[kind] += 1
    return ran, skipped


def count_native(log: Path) -> int:
    """Return the sum of the native programs' "N passed" lines."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        matches = (NATIVE_LINE.match(line.rstrip()) for line in lines)
        return sum(int(match[1]) for match in matches if match)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--junit", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--minimum", type=Path, required=True)
    arguments = parser.parse_args()

    minimum: dict[str, int] = tomllib.loads(arguments.minimum.read_text())["executed"]
    ran, skipped = count_python(arguments.junit)
    ran["native"] += count_native(arguments.log)

    good = True
    print(f"{'kind':<12} {'ran':>6} {'minimum':>8} {'skipped':>8}")
    for kind in sorted(minimum.keys() | ran.keys() | skipped.keys()):
        verdict = ""
        if kind not in minimum:
            verdict = "  a kind without a minimum: add it, or move the tests"
        elif ran[kind] < minimum[kind]:
            verdict = "  too few"
        good = good and not verdict
        print(f"{kind:<12} {ran[kind]:>6} {minimum.get(kind, 0):>8} {skipped[kind]:>8}{verdict}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
