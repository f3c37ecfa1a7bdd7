"""What an import or a commit changed or left out, counted and told with a few examples."""

from __future__ import annotations

from skerry.images.tree.entry import show

_EXAMPLES_MAX = 3


class Notes:
    """Counts remarks by their text; memory stays small however many files they concern."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, remark: str, path: bytes) -> None:
        """Counts a remark about one path."""
        self._counts[remark] = self._counts.get(remark, 0) + 1
        examples = self._examples.setdefault(remark, [])
        if len(examples) < _EXAMPLES_MAX:
            examples.append(show(path))

    def lines(self) -> list[str]:
        """Returns one line a remark."""
        return [
            f"{remark}: {count} ({', '.join(self._examples[remark])}{', ...' if count > 3 else ''})"
            for remark, count in self._counts.items()
        ]
