"""Runs tooz's own tests of a driver: `python -m tests.plugins.contrib.tooz_suite URL MODULE...`. Prints JSON lines.

tooz's test module imports four of tooz's drivers to ask whether the coordinator is one of them. Their client libraries
are not needed for that, so empty classes stand in for these drivers."""

from __future__ import annotations

import json
import os
import sys
import types
import unittest
from typing import Any

import tooz.drivers

STAND_INS = {
    "etcd3gw": "Etcd3Driver",
    "ipc": "IPCDriver",
    "memcached": "MemcachedDriver",
    "redis": "RedisDriver",
}


class JsonResult(unittest.TestResult):
    """One line for each test that ended."""

    def _say(self, test: unittest.TestCase, how: str, why: str = "") -> None:
        print(json.dumps({"test": test.id().rpartition(".")[2], "how": how, "why": why}), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._say(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._say(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        self._say(test, "failed", self._exc_info_to_string(error, test))  # type: ignore[attr-defined]

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        self.addFailure(test, error)


# When this module is imported, because the processes that tooz's tests spawn import it, too.
for name, driver in STAND_INS.items():
    module = types.ModuleType(f"tooz.drivers.{name}")
    setattr(module, driver, type(driver, (), {}))
    sys.modules[module.__name__] = module
    setattr(tooz.drivers, name, module)


def main() -> None:
    os.environ["TOOZ_TEST_URL"] = sys.argv[1]
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:])
    suite.run(JsonResult())


if __name__ == "__main__":
    main()
