"""`/healthz`: the process is alive. `/readyz`: a backend can serve, and we are not going down."""

from __future__ import annotations

import orjson

from backends.base import Readiness
from proxy.handlers.call import Call


async def alive(call: Call) -> None:
    await call.answer_json(200, b'{"status":"ok"}')


async def ready(call: Call) -> None:
    runtime = call.runtime
    states: dict[str, Readiness] = {}
    for name, backend in runtime.backends.items():
        states[name] = state = await backend.readiness()
        runtime.metrics.backend_state(name, state.ready)
    is_ready = not call.live.draining and any(state.ready for state in states.values())
    body = {
        "status": "draining" if call.live.draining else "ready" if is_ready else "not ready",
        "backends": {
            name: {"ready": state.ready, **({"detail": state.detail} if state.detail else {})}
            for name, state in states.items()
        },
    }
    await call.answer_json(200 if is_ready else 503, orjson.dumps(body))
