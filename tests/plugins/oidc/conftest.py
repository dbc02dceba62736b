"""An issuer of signed tokens, and a file of rules for it: RULES of the test's module, with the issuer's address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugins.oidc.issuer import Issuer, issuing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as found:
        yield found


@pytest.fixture
def rules(issuer: Issuer, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "identity.toml"
    path.write_text(request.module.RULES.format(issuer=issuer.url))
    return path
