"""The tokens file when several change it at once."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

from dibs.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 6


def test_tokens_that_are_revoked_at_once_stay_revoked_and_one_that_is_added_stays(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    for _ in range(5):
        path.touch(mode=0o600)
        path.write_text("".join([f"user-{number}:tok-{number}\n" for number in range(COUNT)]))
        orders = [["token", "revoke", f"user-{number}", "--tokens", str(path)] for number in range(COUNT)]
        orders.append(["token", "create", "new", "--tokens", str(path)])
        threads = [
            threading.Thread(target=run, args=(order, {}, io.StringIO(), io.StringIO(), io.BytesIO()))
            for order in orders
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [line.partition(":")[0] for line in path.read_text().splitlines()] == ["new"]
        path.unlink()
