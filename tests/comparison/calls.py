"""What processes are asked to do in tests."""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path


def begin():
    os.environ["BEGUN"] = str(int(os.environ.get("BEGUN", "0")) + 1)


def begin_badly():
    raise RuntimeError("nothing to begin with")


def square(number):
    return number * number, os.getpid(), os.environ["BEGUN"]


def now(seconds):
    begun = time.monotonic()
    time.sleep(seconds)
    return begun, time.monotonic()


def leave(file):
    """When it began and ended, and then a file."""
    begun = ended = time.monotonic()
    Path(file).touch()
    return begun, ended


def wait_for(file, patience=60.0):
    begun = time.monotonic()
    while not Path(file).exists() and time.monotonic() < begun + patience:
        time.sleep(0.01)
    return begun, time.monotonic()


def variable(name):
    time.sleep(0.2)  # so that all processes get something to do
    return os.environ.get(name)


def complain(kind, message):
    sys.stdout.write("what it said before\n")
    os.system("echo what others said")
    raise kind(message)


def speak_and_fail(number):
    for _ in range(10):
        sys.stdout.write(f"call {number}\n")
        time.sleep(0.01)
    raise ValueError(f"no {number}")


def begin_and_end(file, seconds):
    with file.open("a") as lines:
        lines.write("begun\n")
    time.sleep(seconds)


def die_once(file, seconds):
    time.sleep(seconds)
    try:
        file.open("x").close()
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def need_memory_alone(folder):
    """Fails as long as the other call has not ended."""
    from equipoise.train.errors import OutOfMemoryError

    tried = folder / "tried"
    if tried.exists():
        return "enough"
    tried.touch()
    raise OutOfMemoryError("the device does not have enough memory")


def unpicklable():
    return lambda: None


def lose_device():
    from equipoise.train.errors import LostDeviceError

    time.sleep(0.2)
    raise LostDeviceError("an assertion failed in a kernel")


def die(how, seconds=0.0):
    time.sleep(seconds)
    sys.stdout.write("what it said before\n")
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def say_who(file):
    semaphore = multiprocessing.get_context("spawn").Semaphore()  # as those have that decode images
    semaphore.acquire()
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


def interrupt_oneself():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    return "still there"


if __name__ == "__main__":  # a process that asks, and waits for the answer for ever
    from equipoise.comparison.jobs import Job, LocalJobs

    with LocalJobs(1, begin) as jobs:
        list(jobs.outcomes([Job("long", say_who, (sys.argv[1],))]))
