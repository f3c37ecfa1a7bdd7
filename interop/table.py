"""The README's table of harnesses, and the file of figures that it is made from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from interop.run import Row
from interop.tools import ROOT

RESULTS = ROOT / "interop" / "results.json"
BEGIN, END = "<!-- interop:begin -->", "<!-- interop:end -->"


def save(rows: list[Row]) -> None:
    """Puts the rows in the place of those of the same tools; the others stay."""
    ran = {row.tool for row in rows}
    kept = [row for row in load() if row.tool not in ran]
    everything = sorted([*kept, *rows], key=lambda row: row.tool)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(everything), indent=2) + b"\n")


def load() -> list[Row]:
    """Returns the rows of the last run of each tool."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=list[Row]) if RESULTS.exists() else []


def render(rows: list[Row]) -> str:
    """Returns the table in Markdown; below it stands why what failed is not ours."""
    lines = [
        "| harness | version | suite or scenario | passed | failed | seconds | its own local backend |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    notes: dict[str, str] = {}
    for row in rows:
        failed = str(row.failed)
        if row.explained:
            notes |= {f"{row.title}, `{test}`": reason for test, reason in row.explained.items()}
            failed += " (below)"
        local = "" if row.local_seconds is None else f"{row.local_seconds:g} s"
        lines.append(
            f"| [{row.title}]({row.page}) | {row.version} | {row.scenario} | {row.passed} | {failed} "
            f"| {row.seconds:g} | {local} |"
        )
    if notes:
        lines += ["", "Failures, none of them Skerry's:", ""]
        lines += [f"- {test}: {reason}" for test, reason in notes.items()]
    return "\n".join(lines)


def write(readme: Path) -> None:
    """Puts the table between its marks; raises ValueError if they are not there."""
    text = readme.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{readme} has no place for the table: {BEGIN} and {END}")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    readme.write_text(f"{before}{BEGIN}\n{render(load())}\n{END}{after}")
