"""The child's end: whatever ends the parent ends the child, and all that it started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backends.child import Child, ChildError
from backends.lifeline import PARENT_PID, watched
from tests.unit.backends.test_child import WITH_GRANDCHILD, gone, is_gone, spec

ROOT = Path(__file__).parents[3]

PARENT = """
import asyncio, json, sys
from backends import lifeline
from backends.child import Child, ChildSpec, Ready

def read_line(stream, line):
    return Ready(json.loads(line)) if line.startswith("{") else None

async def main(watch, program):
    argv = [sys.executable, "-c", program]
    child = Child(ChildSpec("child", lifeline.watched(argv) if watch else argv, read_line))
    facts = {**(await child.start()).facts, "child": child.pid}
    exec(sys.argv[3], {"facts": facts})
    print(json.dumps(facts), flush=True)
    await asyncio.sleep(600)

asyncio.run(main(sys.argv[1] == "watched", sys.argv[2]))
"""

HOLDS = """
import json, time
from backends import lifeline
lifeline.hold()
print(json.dumps({"ready": True}), flush=True)
time.sleep(600)
"""

BUSY_IN_C = """
import json, re
from backends import lifeline
lifeline.hold()
print(json.dumps({"ready": True}), flush=True)
re.match("(a+)+$", "a" * 40 + "b")  # holds the GIL: no thread of ours runs any more
"""

# Deaf to signals and to its stdin: nothing but the lifeline ends it.
FOREIGN = """
import json, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
deaf = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(json.dumps({"grandchild": deaf.pid}), flush=True)
time.sleep(600)
"""

FORKS = """
import os, time
copy = os.fork()
if copy == 0:
    time.sleep(600)
facts["copy"] = copy
"""


@asynccontextmanager
async def parent(
    program: str, how: str = "held", then: str = ""
) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """A process that starts a `Child` and runs `then`: its id, and what that child told."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        how,
        program,
        then,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield process.pid, json.loads(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(HOLDS, id="sleeping"),
        pytest.param("import sys; sys.platform = 'other'\n" + HOLDS, id="by its stdin alone"),
        pytest.param(
            BUSY_IN_C,
            id="busy in C",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end such a one"),
        ),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_child_of_ours_ends_with_its_parent(program: str, number: int) -> None:
    async with parent(program) as (pid, facts):
        assert not is_gone(facts["child"])
        os.kill(pid, number)
        await gone(facts["child"])


async def test_anothers_program_ends_with_its_parent_and_so_does_its_group() -> None:
    async with parent(FOREIGN, "watched") as (pid, facts):
        assert not is_gone(facts["grandchild"])
        os.kill(pid, signal.SIGKILL)
        await gone(facts["child"])
        await gone(facts["grandchild"])


async def test_a_watched_program_starts_and_stops_like_any_other() -> None:
    child = Child(
        spec("", argv=watched([sys.executable, "-c", WITH_GRANDCHILD + "import time; time.sleep(600)"]))
    )
    facts = (await child.start()).facts
    pid = child.pid
    assert pid is not None
    await child.stop()
    assert is_gone(pid)
    await gone(facts["grandchild"])


async def test_a_watched_program_gets_sigterm_and_the_time_to_end(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    program = f"""
import signal, sys, time
def end(*_):
    time.sleep(0.2); open({str(ended)!r}, "w").close(); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('{{"ready": true}}', flush=True)
time.sleep(600)
"""
    child = Child(spec("", argv=watched([sys.executable, "-c", program])))
    await child.start()
    await child.stop(grace_s=60)
    assert ended.exists()


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([sys.executable, "-c", "import sys; sys.exit(7)"], "ended with exit code 7 before it was ready"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], "was killed by SIGKILL"),
        (["/no/such/program"], "ended with exit code 127 before it was ready: error: .*no/such/program"),
    ],
)
async def test_a_watched_program_ends_as_it_ended(argv: list[str], sentence: str) -> None:
    with pytest.raises(ChildError, match=sentence):
        await Child(spec("", argv=watched(argv))).start()


async def test_a_watched_program_does_not_see_the_parents_mark() -> None:
    program = (
        f"import json, os, sys; print(json.dumps({{'seen': {PARENT_PID!r} in os.environ}}), flush=True); "
    )
    child = Child(spec("", argv=watched([sys.executable, "-c", program + "import time; time.sleep(600)"])))
    assert (await child.start()).facts == {"seen": False}
    await child.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize("how", ["held", "watched"])
async def test_a_copy_of_the_lifeline_in_a_forked_process_does_not_keep_the_child(how: str) -> None:
    async with parent(HOLDS if how == "held" else FOREIGN, how, FORKS) as (pid, facts):
        try:
            os.kill(pid, signal.SIGKILL)
            await gone(facts["child"])
            assert not is_gone(facts["copy"])
        finally:
            os.kill(facts["copy"], signal.SIGKILL)
