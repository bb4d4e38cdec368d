"""Patterns of paths, written as in a .gitignore. The only module that knows pathspec."""

from __future__ import annotations

from collections.abc import Sequence


class PatternError(ValueError):
    """Patterns that cannot be used; the message goes on after the name of what holds them."""


class Patterns:
    """Which relative paths match: the last pattern that fits decides, `!` takes back (unlike in
    git also what lies in a directory that matches).

    Raises `PatternError` for what is no pattern.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._spec = None
        self._takes_back = False
        if not lines:
            return
        from pathspec import GitIgnoreSpec

        try:
            self._spec = GitIgnoreSpec.from_lines(lines)
        except ValueError as error:
            raise PatternError(f"holds what is no pattern ({error})") from None
        self._takes_back = any(line.startswith("!") for line in lines)

    def match(self, relative: str) -> bool:
        """Whether the file of a path, its parts divided by `/`, matches."""
        return self._spec is not None and self._spec.match_file(relative)

    def match_all_in(self, relative: str) -> bool:
        """Whether all that lies in a directory is sure to match."""
        return not self._takes_back and self.match(f"{relative}/")
