"""Part of a command in tests: writes down the time, over and over, for as long as it lives. Its child does, too.

`stamper.py FILE CHILDREN` : the last number in a file is when its writer was last alive."""

import os
import subprocess
import sys
import time

path, children = sys.argv[1], int(sys.argv[2])
if children:
    subprocess.Popen(
        [sys.executable, __file__, f"{path}.{children}", str(children - 1)], start_new_session=True, stdout=1
    )
file = os.open(path, os.O_WRONLY | os.O_CREAT)
print(os.getpid(), flush=True)
while True:
    os.pwrite(file, b"%020d" % time.clock_gettime_ns(time.CLOCK_BOOTTIME), 0)
    time.sleep(0.0005)
