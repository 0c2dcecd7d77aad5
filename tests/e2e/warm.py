"""A process that has imported the command line once, and forks for each command.

Python needs seconds to import PyTorch and Lightning. A fork starts at once, and is an ordinary process: it has its own
working folder, limits and exit status, and can be killed.

Commands are lines of JSON. For each, the process id is printed, and the exit status when it ends.
"""

import gc
import json
import os
import resource
import sys
from pathlib import Path

import PIL.Image  # noqa: F401
import pyarrow.csv
import pyarrow.parquet  # noqa: F401
import sklearn.datasets  # noqa: F401

import equipoise.cli.app
import equipoise.cli.compare
import equipoise.cli.summary
import equipoise.cli.train
import equipoise.train.run  # noqa: F401
from equipoise.cli import main


def tell(word):
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def next_command():
    """Wait for commands; return one only in the process forked for it."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            return json.loads(line)
        tell(process)
        tell(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    sys.exit()


def become(command):
    """Make this process look like one started by a user."""
    os.setsid()
    os.chdir(command["folder"])
    for path, descriptor in ((os.devnull, 0), (command["out"], 1), (command["err"], 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
    if command["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (command["largest_file"], resource.RLIM_INFINITY))
    program = Path(sys.executable).with_name("equipoise")  # Lightning starts it again for further processes
    sys.argv = [str(program), *command["arguments"]]


if __name__ == "__main__":
    gc.freeze()  # a collection would copy the memory that forks share
    tell("ready")
    become(next_command())
    main()
