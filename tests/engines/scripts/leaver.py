"""Starts processes that outlive it: one in its process group, one in a new group, one in a new session, one as a
daemon.
"""

import os
import subprocess
import sys

where = sys.argv[1]
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(300)", where]
subprocess.Popen(sleep)
subprocess.Popen(sleep, process_group=0)
subprocess.Popen(sleep, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, sleep)
    os._exit(0)
os.wait()
print("left them")
