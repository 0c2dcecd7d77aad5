"""Processes that take calls: they are used again, failures cost one call, and nobody outlives the one who asked."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from equipoise.comparison.jobs import Job, LocalJobs
from tests.comparison import calls

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def jobs():
    with LocalJobs(2, calls.begin) as jobs:
        yield jobs


def of_one(jobs, function, *arguments):
    (outcome,) = jobs.outcomes([Job("one", function, arguments)])
    return outcome


def test_many_calls_few_processes(jobs):
    ticks = []
    outcomes = list(
        jobs.outcomes([Job(str(n), calls.square, (n,)) for n in range(20)], tick=lambda: ticks.append(None))
    )
    assert {outcome.name: outcome.value[0] for outcome in outcomes} == {str(n): n * n for n in range(20)}
    processes = {outcome.value[1] for outcome in outcomes}
    assert 1 <= len(processes) <= 2
    assert os.getpid() not in processes
    assert {outcome.value[2] for outcome in outcomes} == {"1"}  # begun once
    assert ticks
    assert all(outcome.error is None for outcome in outcomes)


def test_a_call_begins_once_the_one_before_it_is_over(jobs, tmp_path):
    """It does not wait for others, and neither do they for it; that the one before it failed is its own affair."""
    asked = [
        Job("second", calls.leave, (tmp_path / "second",), after="first"),
        Job("long", calls.wait_for, (tmp_path / "second",)),
        Job("first", calls.now, (0.1,)),
        Job("after a failure", calls.now, (0.0,), after="wrong"),
        Job("wrong", calls.complain, (ValueError, "no")),
        Job("after one that is not asked for", calls.now, (0.0,), after="done before"),
    ]
    outcomes = {outcome.name: outcome for outcome in jobs.outcomes(asked)}
    assert {name for name, outcome in outcomes.items() if outcome.error} == {"wrong"}
    begun, ended = ({name: one.value[k] for name, one in outcomes.items() if not one.error} for k in (0, 1))
    assert begun["second"] > ended["first"]
    assert ended["second"] < ended["long"]
    assert len(outcomes) == len(asked)


def test_what_goes_wrong_is_a_line_with_a_log(jobs):
    outcome = of_one(jobs, calls.complain, ValueError, "too\n  much")
    assert outcome.error == "too much"
    assert outcome.log.splitlines() == ["what it said before", "what others said", "too much"]
    outcome = of_one(jobs, calls.complain, KeyError, "gone")
    assert outcome.error == "KeyError: 'gone'"
    assert "what it said before" in outcome.log
    assert "Traceback" in outcome.log
    assert "too much" not in outcome.log  # that was another call


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("kill", "terminated by SIGKILL, which the system does if memory is low"),
        ("segfault", "terminated by SIGSEGV"),
        ("exit", "ended with status 3"),
    ],
)
def test_a_process_that_dies_costs_one_call(jobs, how, error):
    wanted = [Job("a", calls.square, (1,)), Job("b", calls.die, (how,))]
    wanted += [Job(f"c{n}", calls.square, (n,)) for n in range(6)]
    outcomes = {outcome.name: outcome for outcome in jobs.outcomes(wanted)}
    assert error in outcomes.pop("b").error.removeprefix("the process of the run ")
    assert len(outcomes) == 7
    assert all(outcome.error is None for outcome in outcomes.values())


def test_the_log_of_a_process_that_died(jobs):
    outcome = of_one(jobs, calls.die, "segfault")
    assert outcome.log.startswith("what it said before\n")
    assert "Segmentation fault" in outcome.log


def test_a_process_that_dies_while_it_waits_costs_nothing(jobs):
    of_one(jobs, calls.square, 2)
    for process in jobs.processes:
        process.process.kill()
        process.process.join()
    assert of_one(jobs, calls.square, 3).value[0] == 9


def test_an_interrupt_from_the_keyboard_is_for_the_one_who_asked(jobs):
    assert of_one(jobs, calls.interrupt_oneself).value == "still there"


def test_processes_take_turns_with_environments():
    with LocalJobs(2, calls.begin, [{"DEVICE": "3"}, {"DEVICE": "5"}]) as jobs:
        outcomes = list(jobs.outcomes([Job(str(n), calls.variable, ("DEVICE",)) for n in range(4)]))
    assert {outcome.value for outcome in outcomes} == {"3", "5"}


# ------------------------------------------------------------------------------------------- several calls in a process


@pytest.fixture(scope="module")
def shared():
    with LocalJobs(1, calls.begin, together=4) as jobs:
        yield jobs


def test_calls_in_one_process_overlap(shared, tmp_path):
    file = tmp_path / "there"
    asked = [Job("waits", calls.wait_for, (file,)), Job("leaves", calls.leave, (file,))]
    outcomes = {outcome.name: outcome.value for outcome in shared.outcomes(asked)}
    assert outcomes["waits"][0] < outcomes["leaves"][1] < outcomes["waits"][1]


def test_a_failed_call_has_its_own_log(shared):
    asked = [Job(f"wrong {n}", calls.speak_and_fail, (n,)) for n in range(3)]
    asked += [Job(f"right {n}", calls.square, (n,)) for n in range(3)]
    outcomes = {outcome.name: outcome for outcome in shared.outcomes(asked)}
    assert {name for name, outcome in outcomes.items() if outcome.error} == {f"wrong {n}" for n in range(3)}
    for n in range(3):
        assert outcomes[f"wrong {n}"].error == f"no {n}"
        assert f"call {n}" in outcomes[f"wrong {n}"].log
        assert not any(f"call {other}" in outcomes[f"wrong {n}"].log for other in range(3) if other != n)


@pytest.mark.parametrize("how", ["kill", "segfault", "exit"])
def test_of_a_process_that_dies_only_the_guilty_call_fails(how, tmp_path):
    asked = [Job("guilty", calls.die, (how, 0.3))]
    asked += [Job(f"innocent {n}", calls.begin_and_end, (tmp_path / str(n), 0.6)) for n in range(3)]
    with LocalJobs(1, calls.begin, together=4) as jobs:
        outcomes = {outcome.name: outcome for outcome in jobs.outcomes(asked)}
    assert {name for name, outcome in outcomes.items() if outcome.error} == {"guilty"}
    assert "what it said before" in outcomes["guilty"].log
    for n in range(3):
        assert 2 <= (tmp_path / str(n)).read_text().count("begun") <= 3  # begun again after each death in company


def test_calls_continue_in_company_after_one_kill(tmp_path):
    """A kill from outside is no fault of any call, and no call is reported as failed."""
    asked = [Job(str(n), calls.die_once, (tmp_path / "died", 0.3)) for n in range(3)]
    with LocalJobs(1, calls.begin, together=3) as jobs:
        outcomes = list(jobs.outcomes(asked))
        assert not jobs.separate
    assert [outcome.error for outcome in outcomes] == [None] * 3


def test_a_call_without_memory_in_company_is_tried_alone(tmp_path):
    asked = [
        Job("large", calls.need_memory_alone, (tmp_path,)),
        Job("small", calls.begin_and_end, (tmp_path / "s", 0.5)),
    ]
    with LocalJobs(1, calls.begin, together=2) as jobs:
        outcomes = {outcome.name: outcome for outcome in jobs.outcomes(asked)}
    assert outcomes["large"].value == "enough"
    assert outcomes["small"].error is None


def test_calls_of_a_process_that_dies_between_looks_are_not_lost(tmp_path):
    """It has room, and another call waits for it."""
    asked = [Job("first", calls.now, (0.1,)), Job("long", calls.begin_and_end, (tmp_path / "long", 0.5))]
    asked.append(Job("second", calls.now, (0.0,), after="first"))
    killed, over = [], []
    with LocalJobs(1, calls.begin, together=3) as jobs:

        def tick():
            if over and not killed:
                killed.append(jobs.processes[0].process.pid)
                os.kill(killed[0], signal.SIGKILL)
                jobs.processes[0].process.join()

        for outcome in jobs.outcomes(asked, tick):
            over.append(outcome.name)
    assert killed
    assert sorted(over) == ["first", "long", "second"]


def test_calls_at_a_time_are_limited_over_all_processes(tmp_path):
    asked = [Job(str(n), calls.now, (0.3,)) for n in range(6)]
    with LocalJobs(2, calls.begin, together=2, most=3) as jobs:
        spans = [outcome.value for outcome in jobs.outcomes(asked)]
    assert max(sum(begun <= moment < ended for begun, ended in spans) for moment, _ in spans) <= 3
    assert jobs.at_a_time == 3


def test_a_result_that_cannot_be_sent_is_an_error():
    with LocalJobs(1, calls.begin, together=2) as jobs:
        assert "the result cannot be sent" in of_one(jobs, calls.unpicklable).error


def test_a_lost_device_is_found_out_alone(tmp_path):
    asked = [Job("guilty", calls.lose_device, ()), Job("innocent", calls.begin_and_end, (tmp_path / "i", 0.5))]
    with LocalJobs(1, calls.begin, together=2) as jobs:
        outcomes = {outcome.name: outcome for outcome in jobs.outcomes(asked)}
    assert outcomes["guilty"].error == "an assertion failed in a kernel"
    assert outcomes["innocent"].error is None


def test_a_process_that_cannot_begin():
    with LocalJobs(1, calls.begin_badly) as jobs:
        outcomes = list(jobs.outcomes([Job(str(n), calls.square, (n,)) for n in range(2)]))
    assert [outcome.error for outcome in outcomes] == ["the process of the run ended with status 1; see its log"] * 2
    assert "nothing to begin with" in outcomes[0].log


def test_nothing_is_left_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with LocalJobs(2, calls.begin) as jobs:
        assert not any(tmp_path.iterdir())  # nor would a kill leave anything now
        processes = [process.process for process in jobs.processes]
        next(jobs.outcomes([Job("a", calls.square, (1,)), Job("b", calls.say_who, (os.devnull,))]))
    assert not any(process.is_alive() for process in processes)
    assert not any(tmp_path.iterdir())


def test_a_process_ends_with_the_one_who_asked(tmp_path):
    """Killed, it cannot tell anybody."""
    file = tmp_path / "who"
    asking = subprocess.Popen([sys.executable, "-m", "tests.comparison.calls", str(file)], cwd=ROOT)
    until(lambda: file.is_file() and file.read_text())
    process = int(file.read_text())
    assert alive(process)
    asking.kill()
    asking.wait()
    until(lambda: not alive(process))


def test_interruption_prints_no_resource_warnings(tmp_path):
    file = tmp_path / "who"
    command = [sys.executable, "-m", "tests.comparison.calls", str(file)]
    asking = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    until(lambda: file.is_file() and file.read_text())
    asking.send_signal(signal.SIGINT)
    _, output = asking.communicate(timeout=240)
    assert "KeyboardInterrupt" in output
    assert "leaked" not in output


def test_warnings_stay_as_they_were(monkeypatch):
    for before in (None, "error::UserWarning"):
        monkeypatch.delenv("PYTHONWARNINGS", raising=False)
        if before is not None:
            monkeypatch.setenv("PYTHONWARNINGS", before)
        with LocalJobs(1, calls.begin) as jobs:
            assert of_one(jobs, calls.variable, "PYTHONWARNINGS").value == before
        assert os.environ.get("PYTHONWARNINGS") == before


def until(condition):
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(process):
    """Whether a process is at work; one that is dead and not buried is not."""
    status = Path(f"/proc/{process}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
