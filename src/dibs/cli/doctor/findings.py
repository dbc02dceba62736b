"""The checks of `dibs doctor` and their results, in order."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]


class Findings:
    """`bad` is broken, and the command fails. `look` works, but somebody should do what the line says."""

    def __init__(self) -> None:
        self.checks: list[Document] = []

    def good(self, check: str, says: str) -> None:
        self.checks.append({"check": check, "ok": True, "says": says})

    def look(self, check: str, says: str) -> None:
        self.checks.append({"check": check, "ok": True, "look": True, "says": says})

    def bad(self, check: str, says: str) -> None:
        self.checks.append({"check": check, "ok": False, "says": says})

    @property
    def broken(self) -> list[Document]:
        return [each for each in self.checks if not each["ok"]]

    @property
    def noted(self) -> list[Document]:
        return [each for each in self.checks if each.get("look")]
