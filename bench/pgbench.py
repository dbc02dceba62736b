"""pgbench as a worker with a table of its own: an acquire or a release is one statement, and one transaction.

pgbench is written in C and prepares its statements: nobody claims through SQL with less effort than this.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import databases
import psycopg
from load import GRACE_SECONDS, Sample
from procs import BenchError
from sql_server import ACQUIRE, RELEASE, TABLE
from stats import percentile

# Every transaction is one request: acquires and releases take turns. No row, or a false, ends pgbench with an error.
CYCLE = """\
\\if :phase = 0
\\set n random(1, 1000000000000)
\\set phase 1
{acquire} \\gset
\\else
\\set phase 0
{release} \\gset
\\endif
"""


def _one_line(sql: str) -> str:
    filled = sql.replace("%s", "'bench' || :n", 1).replace("%s", "'worker' || :client_id", 1)
    return " ".join(filled.split())


SCRIPTS = {
    "acquires": "\\set n random(1, 1000000000000)\n" + _one_line(ACQUIRE) + " \\gset\n",
    "claims": CYCLE.format(acquire=_one_line(ACQUIRE), release=_one_line(RELEASE)),
    "advisory": CYCLE.format(
        acquire="SELECT 1 / pg_try_advisory_lock(hashtextextended('bench' || :n, 0))::int AS got",
        release="SELECT 1 / pg_advisory_unlock(hashtextextended('bench' || :n, 0))::int AS gone",
    ),
}


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(TABLE)


def run(script: str, url: str, connections: int, seconds: int) -> Sample:
    where = urlsplit(url)
    with tempfile.TemporaryDirectory(prefix="dibs-pgbench-") as folder:
        file = Path(folder) / "cycle.sql"
        file.write_text(SCRIPTS[script])
        argv = [str(databases.program("pgbench")), "-h", str(where.hostname), "-p", str(where.port)]
        argv += ["-U", str(where.username), "-n", "-M", "prepared", "-D", "phase=0", "-c", str(connections)]
        argv += ["-j", "1", "-T", str(seconds), "-f", str(file), "-l", where.path.lstrip("/")]
        done = subprocess.run(
            argv, capture_output=True, text=True, cwd=folder, timeout=seconds + GRACE_SECONDS, check=False
        )
        if done.returncode != 0:
            raise BenchError(f"pgbench ended with {done.returncode}: {done.stderr[-800:]}")
        rates = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("tps = ")]
        if not rates:
            raise BenchError(f"pgbench printed no rate: {done.stdout[-400:]}")
        taken = sorted(int(line.split()[2]) for log in Path(folder).glob("pgbench_log.*") for line in log.open())
    half = len(taken) // 2
    return Sample(
        requests_per_s=float(rates[0]),
        acquires_per_s=float(rates[0]) / 2,
        releases_per_s=float(rates[0]) / 2,
        p50_ms=percentile(taken, 50) / 1e3,
        p99_ms=percentile(taken, 99) / 1e3,
        acquired=len(taken) - half,
        released=half,
        bad=0,
        requests=len(taken),
    )
