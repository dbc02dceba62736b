"""Documents beside a release: python -m scripts.dev.packaging.documents FOLDER WHEEL SITE

SITE is the site-packages of an environment in which WHEEL is installed with the extras of a server. Writes into FOLDER
the bill of materials (CycloneDX) and, if the project has an address on GitHub (DIBS_PROJECT_URL), server.json for the
registry of MCP servers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from native.description import registry_name

NAME = "dibs-lease"
# The registry takes a hundred characters.
DESCRIPTION = "One owner per job: agents claim, heartbeat and release work, so that no two do the same."
# What makes an environment is no part of dibs.
_TOOLS = ("pip", "setuptools", "wheel")


def bill_of_materials(installed: list[Distribution], wheel: Path, epoch_s: int) -> dict[str, Any]:
    """What is installed with dibs, in the order of names. The same input gives the same document."""
    found = {_name(each): each for each in installed if _name(each) not in _TOOLS}
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    components = [_component(each) for name, each in sorted(found.items()) if name != NAME]
    main = {**_component(found[NAME]), "hashes": [{"alg": "SHA-256", "content": digest}]}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch_s, UTC).isoformat(),
            "component": {**main, "type": "application"},
        },
        "components": components,
        "dependencies": [_needs(each, found) for _, each in sorted(found.items())],
    }


def server_document(url: str, version: str) -> dict[str, Any] | None:
    """How an MCP client starts dibs, for the registry; None without an account that it could be listed under."""
    name = registry_name(url)
    if name is None:
        return None
    return {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": name,
        "title": "dibs",
        "description": DESCRIPTION,
        "repository": {"url": url, "source": "github"},
        "version": version,
        "packages": [
            {
                "registryType": "pypi",
                "identifier": NAME,
                "version": version,
                "runtimeHint": "uvx",
                "transport": {"type": "stdio"},
                "packageArguments": [{"type": "positional", "value": "mcp"}],
                "environmentVariables": [
                    {"name": "DIBS_URL", "description": "A server or store; without it, the user's own store."},
                    {"name": "DIBS_TOKEN", "description": "The token for a server.", "isSecret": True},
                ],
            }
        ],
    }


def _name(each: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", each.name).lower()


def _reference(each: Distribution) -> str:
    return f"pkg:pypi/{_name(each)}@{each.version}"


def _component(each: Distribution) -> dict[str, Any]:
    said = each.metadata.json  # the names of fields in small letters, each once
    expression, named = said.get("license_expression"), str(said.get("license") or "")
    licenses: list[dict[str, Any]] = [{"expression": expression}] if expression else []
    if not expression and named and "\n" not in named:
        licenses = [{"license": {"name": named}}]
    component = {"type": "library", "name": _name(each), "version": each.version}
    return {**component, "bom-ref": _reference(each), "purl": _reference(each), "licenses": licenses}


def _needs(each: Distribution, found: dict[str, Distribution]) -> dict[str, Any]:
    """What it asks for, of what is there."""
    asked = {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", need, maxsplit=1)[0]).lower() for need in each.requires or []}
    there = [_reference(found[name]) for name in sorted(asked & found.keys()) if found[name] is not each]
    return {"ref": _reference(each), "dependsOn": there}


def main() -> None:
    folder, wheel, site = map(Path, sys.argv[1:])
    installed = list(distributions(path=[str(site)]))
    version = next(each.version for each in installed if _name(each) == NAME)
    bill = bill_of_materials(installed, wheel, int(os.environ["SOURCE_DATE_EPOCH"]))
    written = {f"{NAME}-{version}.cdx.json": bill}
    server = server_document(os.environ.get("DIBS_PROJECT_URL", "").rstrip("/"), version)
    if server is not None:
        written["server.json"] = server
    for name, document in written.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
