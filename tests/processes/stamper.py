"""Part of a command in tests: writes down the time, over and over, for as long as it lives. Its child does, too,
and the last of them has an empty environment.

`stamper.py FILE CHILDREN leave` : each child leaves the process group; with `stay` it does not. The last number in a
file is when its writer was last alive."""

import os
import subprocess
import sys
import time

path, children = sys.argv[1], int(sys.argv[2])
if children:
    env: dict[str, str] | None = (
        {} if children == 1 else None
    )  # as after `env -i`: nothing in it tells where it comes from
    words = [sys.executable, "-S", __file__, f"{path}.{children}", str(children - 1), sys.argv[3]]
    subprocess.Popen(words, start_new_session=sys.argv[3] == "leave", stdout=1, env=env)
file = os.open(path, os.O_WRONLY | os.O_CREAT)
print(os.getpid(), flush=True)
while True:
    os.pwrite(file, b"%020d" % time.clock_gettime_ns(time.CLOCK_BOOTTIME), 0)
    time.sleep(0.0005)
