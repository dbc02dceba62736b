"""The refs of a clone, compared and swapped in one transaction of `git update-ref`."""

from __future__ import annotations

from dibs.stores.git import errors as trouble
from dibs.stores.git.refs import Refs, Swap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.stores.git.branch_push import BranchUpdate


class LocalRefs(Refs):
    """The refs of a clone."""

    verifies = True
    durably = (
        "core.fsync=loose-object,pack,reference",
    )  # git 2.36 and newer; older ones leave it to the system

    def _make(self) -> None:
        """Nothing to make: the clone exists."""

    def look(self, tails: Sequence[str]) -> dict[str, str]:
        patterns = [self.name(tail).rstrip("/") for tail in tails]
        return self._list(patterns, self.location.prefix + "/") if patterns else {}

    def swap(self, swaps: Sequence[Swap], branch_update: BranchUpdate | None = None) -> bool:
        nothing = "0" * len(self.tree())
        lines = []
        for each in swaps:
            name, old, new = self.name(each.tail), each.old or nothing, each.new or nothing
            if each.old == each.new:
                lines.append(f"verify {name} {old}\n")
            elif not each.new:
                lines.append(f"delete {name} {old}\n")
            else:
                lines.append(f"update {name} {new} {old}\n")
        given = "".join(lines).encode()
        result = self.git.run("update-ref", "--no-deref", "--stdin", given=given, config=self.durably)
        if not result.code and not result.timed_out:
            return True
        now = self.look([each.tail for each in swaps])
        if all(now.get(each.tail, "") == each.new for each in swaps):
            return True  # killed because it took too long, but it had finished
        if any(now.get(each.tail, "") == each.new != each.old for each in swaps):
            raise trouble.torn(self.location, result)
        if any(now.get(each.tail, "") != each.old for each in swaps):
            return False
        if trouble.is_passing(result):
            return False
        raise trouble.refused(self.location, result)
