"""The parent's end: real small programs that start, crash, hang, and will not end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import uvloop

from backends.child import (
    Backoff,
    Child,
    ChildError,
    ChildSpec,
    Failure,
    Lines,
    Progress,
    Ready,
    State,
    Stream,
    Word,
    how_it_ended,
    what_mattered,
)

QUICK = Backoff(first_s=0.01, cap_s=0.05)

SERVES = """
import json, os, sys
print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
sys.stdin.read()
"""

WITH_GRANDCHILD = """
import json, subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"ready": True, "grandchild": grandchild.pid}), flush=True)
sys.stdin.read()
"""


def read_line(stream: Stream, line: str) -> Word | None:
    if stream != "stdout" or not line.startswith("{"):
        return None
    said = json.loads(line)
    if "error" in said:
        return Failure(said["error"], said.get("explain", False))
    return Progress(said["progress"]) if "progress" in said else Ready(said)


def spec(program: str, **changes: object) -> ChildSpec:
    given: dict[str, object] = {
        "name": "the test child",
        "argv": (sys.executable, "-c", program),
        "read_line": read_line,
        "start_timeout_s": 60.0,
        "backoff": QUICK,
    }
    return ChildSpec(**{**given, **changes})  # type: ignore[arg-type]


def is_gone(pid: int) -> bool:
    try:
        # An orphan waits as a zombie for an init that not every container has.
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def gone(pid: int, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        await asyncio.sleep(0.01)


class Watcher:
    """Every state a child went through, and a way to wait for one."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.progress: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, child: Child) -> None:
        if not self.states or self.states[-1] is not child.state:
            self.states.append(child.state)
        if child.progress and child.progress not in self.progress:
            self.progress.append(child.progress)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._news.clear()
                await self._news.wait()


async def test_a_child_is_ready_when_it_says_so_and_gone_when_stopped() -> None:
    seen = Watcher()
    child = Child(spec('print(\'{"progress": "half"}\')\n' + SERVES), seen)
    facts = (await child.start()).facts
    assert facts["pid"] == child.pid
    assert await child.wait_ready() is child.ready
    await child.stop()
    assert is_gone(facts["pid"])
    assert seen.states == [State.STARTING, State.READY, State.STOPPING, State.STOPPED]
    assert seen.progress == ["half"]
    assert child.pid is None
    with pytest.raises(ChildError, match="is stopped"):
        await child.wait_ready()


async def test_a_stopped_child_can_be_started_again_but_not_twice() -> None:
    child = Child(spec(SERVES))
    await child.start()
    with pytest.raises(RuntimeError):
        await child.start()
    await child.stop()
    await child.stop()
    await child.start()
    await child.stop()


async def test_a_crash_after_ready_is_a_restart() -> None:
    seen = Watcher()
    child = Child(spec(SERVES), seen)
    await child.start()
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await seen.until(lambda: State.BACKING_OFF in seen.states)
    await child.wait_ready()
    assert child.pid not in (first, None)
    assert child.restarts == 1
    assert child.last_error == "the test child was killed by SIGKILL (out of memory?)"
    await child.stop()
    assert seen.states == [
        State.STARTING,
        State.READY,
        State.BACKING_OFF,
        State.STARTING,
        State.READY,
        State.STOPPING,
        State.STOPPED,
    ]


async def test_a_restart_that_fails_is_tried_again(tmp_path: Path) -> None:
    program = f"""
import os, sys
with open({str(tmp_path / "starts")!r}, "a+") as f:
    f.write("x"); f.seek(0); starts = len(f.read())
if starts in (2, 3):
    sys.exit("error: the port is taken")
print('{{"ready": true}}', flush=True)
if starts > 1:
    sys.stdin.read()
"""
    seen = Watcher()
    child = Child(spec(program), seen)
    await child.start()
    await seen.until(lambda: child.restarts == 3 and child.state is State.READY)
    assert child.last_error == (
        "the test child ended with exit code 1 before it was ready: error: the port is taken"
    )
    await child.stop()


async def test_a_child_that_stayed_up_starts_again_without_a_growing_pause() -> None:
    steady = Backoff(first_s=0.001, cap_s=1e6, steady_s=0)
    seen = Watcher()
    child = Child(spec("print('{\"ready\": true}', flush=True)", backoff=steady), seen)
    await child.start()
    # Doubled each time, the pauses would add up to more than an hour.
    await seen.until(lambda: child.restarts == 22)
    await child.stop()


async def test_a_child_that_is_backing_off_stops_at_once() -> None:
    seen = Watcher()
    child = Child(spec("print('{\"ready\": true}', flush=True)", backoff=Backoff(600, 600)), seen)
    await child.start()
    await seen.until(lambda: child.state is State.BACKING_OFF)
    waiting = asyncio.create_task(child.wait_ready())
    async with asyncio.timeout(30):
        await child.stop()
        with pytest.raises(ChildError, match="ended with exit code 0"):
            await waiting
    assert child.state is State.STOPPED


async def test_a_crash_before_ready_is_an_error_and_no_restart() -> None:
    child = Child(spec("print('loading'); open('/no/such/file')"))
    with pytest.raises(ChildError) as caught:
        await child.start()
    sentence = str(caught.value)
    assert sentence.startswith("the test child ended with exit code 1 before it was ready: ")
    assert sentence.endswith("No such file or directory: '/no/such/file'")
    assert "\n" not in sentence
    assert child.state is State.FAILED
    assert child.restarts == 0


@pytest.mark.parametrize(
    ("explain", "sentence"),
    [
        (False, "the test child could not start: no weights"),
        (True, "the test child could not start: no weights: error: half a file"),
    ],
)
async def test_a_child_may_say_itself_why(explain: bool, sentence: str) -> None:
    said = json.dumps({"error": "no weights", "explain": explain})
    program = f"import sys, time; print('error: half a file', file=sys.stderr); print({said!r}, flush=True); "
    child = Child(spec(program + "time.sleep(600)"))
    with pytest.raises(ChildError) as caught:
        await child.start()
    assert str(caught.value) == sentence
    assert child.pid is None


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ChildError, match="could not be started: /no/such/program: No such file"):
        await Child(spec("", argv=("/no/such/program",))).start()


async def test_a_hang_at_the_start_runs_into_the_timeout() -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    seen = Watcher()
    child = Child(spec(program, start_timeout_s=0.5), seen)
    starting = asyncio.create_task(child.start())
    await seen.until(lambda: bool(seen.states))
    with pytest.raises(ChildError, match=r"was not ready after 0\.5 s"):
        await starting
    assert child.state is State.FAILED
    assert child.pid is None


async def test_a_cancelled_start_leaves_nothing() -> None:
    program = 'import os, time; print(\'{"progress": "%d"}\' % os.getpid(), flush=True); time.sleep(600)'
    seen = Watcher()
    child = Child(spec(program), seen)
    starting = asyncio.create_task(child.start())
    await seen.until(lambda: bool(seen.progress))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert child.state is State.STOPPED
    await gone(int(seen.progress[0]))


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_child_that_was_not_stopped_ends_with_the_event_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    child = Child(spec(SERVES))
    with asyncio.Runner(loop_factory=new_loop) as runner:
        pid = runner.run(child.start()).facts["pid"]
        assert not is_gone(pid)
    assert is_gone(pid)
    assert child.state is State.STOPPED


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVES
    child = Child(spec(program))
    await child.start()
    pid = child.pid
    assert pid is not None
    await child.stop(grace_s=0.2)
    assert is_gone(pid)


async def test_a_cancelled_stop_still_kills() -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVES
    seen = Watcher()
    child = Child(spec(program), seen)
    await child.start()
    pid = child.pid
    assert pid is not None
    stopping = asyncio.create_task(child.stop(grace_s=600))
    await seen.until(lambda: child.state is State.STOPPING)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await gone(pid)


@pytest.mark.parametrize("how", ["stop", "kill -9"])
async def test_a_grandchild_ends_with_the_child(how: str) -> None:
    child = Child(spec(WITH_GRANDCHILD))
    grandchild = (await child.start()).facts["grandchild"]
    if how == "kill -9":
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await gone(grandchild)
    await child.stop()
    await gone(grandchild)


async def test_a_grandchild_that_left_the_group_does_not_hold_up_the_end() -> None:
    program = WITH_GRANDCHILD.replace('(600)"]', '(600)"], start_new_session=True')
    child = Child(spec(program))
    grandchild = (await child.start()).facts["grandchild"]
    try:
        started = time.monotonic()
        await child.stop()
        # Not after the ten seconds that a process has to end when it is killed.
        assert time.monotonic() - started < 8
    finally:
        os.kill(grandchild, signal.SIGKILL)


async def test_output_never_blocks_the_child() -> None:
    program = """
import sys
for stream in (sys.stderr, sys.stdout):
    stream.write("x" * 3_000_000); stream.write("line\\n" * 100_000); stream.flush()
"""
    child = Child(spec(program + SERVES))
    await child.start()
    assert len(child.stderr_tail) <= 60
    assert child.stderr_tail[-1] == "line"
    await child.stop()


async def test_a_secret_comes_by_stdin_at_every_start() -> None:
    program = """
import hashlib, json, sys
print(json.dumps({"secret": sys.stdin.readline(), "argv": sys.argv}), flush=True)
sys.stdin.read()
"""
    given = spec(program, first_line=b"s3cret")
    seen = Watcher()
    child = Child(given, seen)
    assert (await child.start()).facts == {"secret": "s3cret\n", "argv": ["-c"]}
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await seen.until(lambda: child.restarts == 1)
    assert (await child.wait_ready()).facts["secret"] == "s3cret\n"
    await child.stop()
    assert "s3cret" not in repr(given)


async def test_a_failing_callback_leaves_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    def on_change(child: Child) -> None:
        if child.state is State.READY:
            raise ZeroDivisionError

    child = Child(spec(SERVES), on_change)
    with pytest.raises(ChildError, match="no longer supervised: ZeroDivisionError"):
        await child.start()
    assert child.state is State.FAILED
    assert "ZeroDivisionError" in caplog.text
    await child.stop()
    assert child.pid is None


def test_the_backoff_doubles_up_to_its_cap() -> None:
    backoff = Backoff(first_s=0.5, cap_s=3.0)
    assert [backoff.delay_s(n) for n in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.delay_s(10**9) == 3.0


def test_lines_do_not_depend_on_the_cuts() -> None:
    data = "one\r\n\n 10%\r 20%\rtwo € three\nrest".encode()
    want = ["one", " 10%", " 20%", "two € three", "rest"]
    for size in range(1, len(data) + 1):
        lines = Lines()
        got = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])]
        assert got + lines.end() == want


def test_a_line_without_end_is_let_go() -> None:
    lines = Lines(max_bytes=10)
    assert lines.feed(b"x" * 11) == ["x" * 11]
    assert lines.end() == []


def test_what_mattered_prefers_lines_that_speak_of_an_error() -> None:
    assert what_mattered(["starting", "CUDA error: out of memory", "bye"]) == "CUDA error: out of memory"
    assert what_mattered(["a", "b", "c", "d"]) == "b | c | d"
    assert what_mattered([]) == ""
    assert len(what_mattered(["error " + "x" * 10_000])) == 600


def test_how_it_ended() -> None:
    assert how_it_ended(3) == "ended with exit code 3"
    assert how_it_ended(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert how_it_ended(-250) == "was killed by signal 250"
    assert how_it_ended(None) == "ended"
