"""The fuse, the cap, usage and errors on all paths that take a prompt, each in its own shape."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.conftest import StartProxy
from tests.fakes.upstream import ScriptedUpstream, json_answer, sse_answer
from tests.proxy_fixture import Proxy, openai_config
from tests.wire.conftest import Served
from tests.wire.dialects import IDS, SPOKEN, Spoken

every = pytest.mark.parametrize("spoken", SPOKEN, ids=IDS)
KEYED = '[[callers]]\nname = "c"\nkey = "env:KEY"\n'


async def post(
    session: aiohttp.ClientSession, proxy: Proxy, path: str, body: bytes, **headers: str
) -> tuple[int, bytes]:
    async with session.post(proxy.url + path, data=body, headers=headers) as answer:
        return answer.status, await answer.read()


def told(body: bytes, path: str, status: int) -> dict[str, Any]:
    """The error of an answer, in the shape that its path has."""
    value = json.loads(body)
    error: dict[str, Any] = value.pop("error")
    if path.startswith("/v1/messages"):
        assert value == {"type": "error"}
        assert set(error) == {"type", "message"}
    else:
        assert value == {}
        assert set(error) == {"message", "type", "param", "code"}
    return error


@every
async def test_a_request_and_its_answer_pass_as_they_came(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, spoken: Spoken
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(json_answer(spoken.answer))
    body = spoken.body(odd={"ü": [1.0, 1e5]}, stream=False)
    status, answer = await post(session, proxy, spoken.path, body)
    assert (status, json.loads(answer)) == (200, spoken.answer)
    assert (upstream.received[0].path, upstream.received[0].body) == (spoken.path, body)


@every
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_stream_keeps_its_bytes_whatever_the_cuts(
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
    session: aiohttp.ClientSession,
    spoken: Spoken,
    size: int,
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    whole = b"".join(spoken.stream)
    upstream.then(sse_answer([whole[i : i + size] for i in range(0, len(whole), size)]))
    asked = {"stream_options": {"include_usage": True}} if spoken.asks_usage else {}
    body = spoken.body(stream=True, **asked)
    assert await post(session, proxy, spoken.path, body) == (200, whole)
    assert upstream.received[0].body == body


@every
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_usage_is_noted_and_asked_for_only_where_it_has_to_be(
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
    session: aiohttp.ClientSession,
    spoken: Spoken,
    stream: bool,
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(sse_answer(spoken.stream) if stream else json_answer(spoken.answer))
    body = spoken.body(stream=stream)
    status, _ = await post(session, proxy, spoken.path, body)
    assert status == 200
    asked = json.loads(upstream.received[0].body).get("stream_options")
    assert asked == ({"include_usage": True} if stream and spoken.asks_usage else None)
    metrics = await proxy.metrics()
    for kind, number in (("prompt", 9), ("completion", 2), ("cached", 4)):
        assert metrics[f'chatfuse_tokens_total{{kind="{kind}",model="gpt-4o"}}'] == number
    assert metrics['chatfuse_requests_total{backend="up",model="gpt-4o",outcome="ok"}'] == 1


@every
async def test_over_the_fuse_is_a_422(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, spoken: Spoken
) -> None:
    proxy = await start_proxy(
        openai_config(upstream.base_url, f'[fuse.routes."{spoken.path}"]\nmax_context_tokens = 50')
    )
    status, body = await post(session, proxy, spoken.path, spoken.body())
    assert status == 422
    error = told(body, spoken.path, 422)
    assert error["type"] == "invalid_request_error"
    assert error.get("code", "context_length_exceeded") == "context_length_exceeded"
    assert error.get("param", next(iter(spoken.prompt))) == next(iter(spoken.prompt))
    assert "prompt is too long" in error["message"]
    assert upstream.received == []
    assert (await proxy.metrics())['llm_request_context_length_total{status="tripped"}'] == 1


@every
async def test_a_cap_is_put_in_and_lowered_under_the_name_that_the_api_has(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, spoken: Spoken
) -> None:
    upstream.default = json_answer(spoken.answer)
    proxy = await start_proxy(openai_config(upstream.base_url, "[cap]\ndefault_tokens = 40\nmax_tokens = 60"))
    for given, sent in (({}, 40), ({spoken.cap: 50}, 50), ({spoken.cap: 500}, 60), ({"n_predict": 50}, 50)):
        assert (await post(session, proxy, spoken.path, spoken.body(**given)))[0] == 200
        assert json.loads(upstream.received[-1].body)[spoken.cap] == sent


@every
@pytest.mark.parametrize(
    ("extra", "key", "model", "status", "kind"),
    [
        (KEYED, "wrong", "gpt-4o", 401, "authentication_error"),
        (KEYED + 'models = ["other"]\n', "key-c", "gpt-4o", 403, "permission_error"),
        (KEYED, "key-c", "nobody", 404, "not_found_error"),
        ("[server]\nmax_body_bytes = 1024\n" + KEYED, "key-c", "gpt-4o", 413, "request_too_large"),
    ],
)
async def test_refusals_have_the_shape_of_their_path(
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
    session: aiohttp.ClientSession,
    spoken: Spoken,
    extra: str,
    key: str,
    model: str,
    status: int,
    kind: str,
) -> None:
    text = openai_config(upstream.base_url, extra, backend='auth = "none"')
    proxy = await start_proxy(text.replace('name = "*"', 'name = "gpt-4o"'), {"KEY": "key-c"})
    headers = {"x-api-key": key} if spoken.path == "/v1/messages" else {"Authorization": f"Bearer {key}"}
    got, body = await post(session, proxy, spoken.path, spoken.body(model=model, pad="x" * 1024), **headers)
    assert got == status
    error = told(body, spoken.path, status)
    if spoken.path == "/v1/messages":
        assert error["type"] == kind
    assert upstream.received == []


@every
async def test_an_upstream_that_breaks_off_ends_a_stream_with_the_error_event_of_its_api(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, spoken: Spoken
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    upstream.then(sse_answer(spoken.stream[:1], end=False))
    status, body = await post(session, proxy, spoken.path, spoken.body(stream=True))
    assert status == 200
    assert body.startswith(spoken.stream[0])
    last = body.removeprefix(spoken.stream[0])
    name, _, data = last.strip().rpartition(b"data: ")
    error = json.loads(data)
    if spoken.path == "/v1/messages":
        assert name == b"event: error\n"
        assert (error["type"], error["error"]["type"]) == ("error", "api_error")
    elif spoken.path == "/v1/responses":
        assert name == b"event: error\n"
        assert set(error) == {"type", "code", "message", "param", "sequence_number"}
        assert (error["type"], error["code"]) == ("error", "upstream_error")
    else:
        assert name == b""
        assert error["error"]["code"] == "upstream_error"


@every
async def test_an_upstream_that_is_not_there_is_told_in_the_shape_of_the_path(
    start_proxy: StartProxy, session: aiohttp.ClientSession, spoken: Spoken
) -> None:
    async with ScriptedUpstream() as gone:
        text = openai_config(gone.base_url)
    proxy = await start_proxy(text)
    status, body = await post(session, proxy, spoken.path, spoken.body())
    assert status == 502
    error = told(body, spoken.path, 502)
    assert error["type"] == ("api_error" if spoken.path == "/v1/messages" else "server_error")


BAD = [
    ("/v1/completions", {"prompt": 5}, "prompt"),
    ("/v1/completions", {"prompt": ["a", None]}, "prompt[1]"),
    ("/v1/completions", {"prompt": [[1], [2, 0.5]]}, "prompt[1][1]"),
    ("/v1/completions", {"prompt": "x", "stream": "yes"}, "stream"),
    ("/v1/responses", {"input": 5}, "input"),
    ("/v1/responses", {"input": ["x"]}, "input[0]"),
    ("/v1/responses", {"input": [{"role": 1}]}, "input[0].role"),
    ("/v1/responses", {"input": [{"type": []}]}, "input[0].type"),
    ("/v1/responses", {"input": [{"role": "user", "content": 1}]}, "input[0].content"),
    ("/v1/responses", {"input": [{"role": "user", "content": [1]}]}, "input[0].content[0]"),
    ("/v1/responses", {"input": "x", "stream": 1}, "stream"),
    ("/v1/messages", {}, "messages"),
    ("/v1/messages", {"messages": []}, "messages"),
    ("/v1/messages", {"messages": [1]}, "messages[0]"),
    ("/v1/messages", {"messages": [{}]}, "messages[0].role"),
    ("/v1/messages", {"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
    ("/v1/messages", {"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "system": 1}, "system"),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "system": [1]}, "system[0]"),
]


async def test_what_is_wrong_is_named_by_its_place(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    for path, fields, place in BAD:
        status, body = await post(session, proxy, path, json.dumps({"model": "m", **fields}).encode())
        assert status == 400, (path, fields)
        error = told(body, path, 400)
        assert error["message"].startswith(f"{place} must "), (path, fields)
        assert error.get("param", place) == place
    assert upstream.received == []


ODD = [
    ("/v1/completions", b'{"model":"m"}'),
    ("/v1/completions", b'{"model":"m", "prompt":null,"prompt_embeds":"AA=="}'),
    ("/v1/completions", b'{"model":"m","prompt":[[1,2],[3]],"echo":true,"max_tokens":0}'),
    ("/v1/completions", b'{"model":"m","prompt":[1, "two", 3]}'),
    ("/v1/completions", b'{"model":"m","prompt":{"prompt_string":"x","multimodal_data":["AA=="]}}'),
    ("/v1/completions", b'{"prompt":"no model"}'),
    ("/v1/responses", b'{"model":"m","prompt":{"id":"pmpt_1","version":"2"}}'),
    ("/v1/responses", b'{"prompt":{"id":"pmpt_1"},"input":"x"}'),
    ("/v1/responses", b'{"model":"m","input":[],"conversation":"conv_1"}'),
    (
        "/v1/responses",
        b'{"model":"m","input":[{"id":"msg_1"},{"type":"compaction","encrypted_content":"x"}]}',
    ),
    (
        "/v1/responses",
        b'{"model":"m","previous_response_id":"resp_1","input":[{"type":"function_call_output"}]}',
    ),
    ("/v1/responses", b'{"model":"m","input":"\\ud800","max_output_tokens":"many"}'),
    ("/v1/messages", b'{"model":"m","messages":[{"role":"user"}],"max_tokens":1.5}'),
    ("/v1/messages", b'{"model":"m","messages":[{"role":"user","content":[{"type":"from_tomorrow"}]}]}'),
    ("/v1/messages", b'{"messages":[{"role":"user","content":[]}]}'),
]


async def test_what_is_odd_passes_when_nothing_is_limited(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    for path, body in ODD:
        status, answer = await post(session, proxy, path, body)
        assert status == 200, (path, body, answer)
        assert upstream.received[-1].body == body


@pytest.mark.parametrize("limit", ["[fuse]\nmax_context_tokens = 50", "[cap]\nmax_tokens = 5"])
async def test_a_limit_cannot_be_evaded_by_a_body_without_a_model(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, limit: str
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, limit))
    for path, body in (("/v1/responses", b'{"input":"x"}'), ("/v1/completions", b'{"prompt":NaN}')):
        assert (await post(session, proxy, path, body))[0] == 400
    assert upstream.received == []


async def test_tokens_of_an_anthropic_request_are_counted_by_the_models_backend(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    model = '[[models]]\nname = "mine"\ntargets = [{ backend = "up", model = "theirs" }]'
    proxy = await start_proxy(openai_config(upstream.base_url, "[fuse]\nmax_context_tokens = 1", model))
    upstream.then(json_answer({"input_tokens": 7}))
    path = "/v1/messages/count_tokens"
    body = b'{ "messages":[{"role":"user","content":"x y z"}], "model":"mine" }'
    assert await post(session, proxy, path, body) == (200, b'{"input_tokens": 7}')
    assert (upstream.received[0].path, upstream.received[0].body) == (path, body.replace(b"mine", b"theirs"))
    assert "llm_request_context_length_total" not in "".join(
        name for name, value in (await proxy.metrics()).items() if value
    )
    text = openai_config(upstream.base_url).replace('name = "*"', 'name = "mine"')
    other = await start_proxy(text)
    status, answer = await post(session, other, path, b'{"model":"nobody"}')
    assert (status, told(answer, path, 404)["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("", {"messages": [{"role": "user", "content": "x"}]}),
        ("?dialect=chat", {"messages": [{"role": "user", "content": "x"}]}),
        ("?dialect=completions", {"prompt": "x"}),
        ("?dialect=responses", {"input": "x"}),
        ("?dialect=messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}),
    ],
)
async def test_explain_takes_every_dialect(
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
    session: aiohttp.ClientSession,
    dialect: str,
    fields: dict[str, Any],
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url))
    path = f"/chatfuse/explain{dialect}"
    status, body = await post(session, proxy, path, json.dumps({"model": "gpt-4o", **fields}).encode())
    assert status == 200
    assert json.loads(body)["tokens"] > 0
    status, body = await post(session, proxy, "/chatfuse/explain?dialect=latin", b"{}")
    assert (status, json.loads(body)["error"]["param"]) == (400, "dialect")


async def test_each_of_several_prompts_has_the_window_for_itself(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model="window = 150"))
    text = "word " * 100
    body = json.dumps({"model": "gpt-4o", "prompt": [text, "x", text], "max_tokens": 100}).encode()
    assert (await post(session, proxy, "/v1/completions", body))[0] == 200
    assert 0 < json.loads(upstream.received[0].body)["max_tokens"] <= 50
    body = json.dumps({"model": "gpt-4o", "prompt": ["x", text * 2], "max_tokens": 1}).encode()
    status, answer = await post(session, proxy, "/v1/completions", body)
    assert (status, json.loads(answer)["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "fields", "leave"),
    [
        ("/v1/responses", {"input": "word " * 100, "max_output_tokens": 9}, {"truncation": "auto"}),
        ("/v1/completions", {"prompt": "word " * 100, "max_tokens": 9}, {"truncate_prompt_tokens": 20}),
    ],
)
async def test_a_prompt_that_the_upstream_may_cut_is_not_refused_for_its_length(
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
    session: aiohttp.ClientSession,
    path: str,
    fields: dict[str, Any],
    leave: dict[str, Any],
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, model="window = 50"))
    body = {"model": "gpt-4o", **fields}
    assert (await post(session, proxy, path, json.dumps(body).encode()))[0] == 400
    sent = json.dumps({**body, **leave}).encode()
    assert (await post(session, proxy, path, sent))[0] == 200
    assert upstream.received[0].body == sent


DEEP = '{"a":' * 900 + "1" + "}" * 900
DEEP_BODIES = {
    "/v1/messages": '{"model":"gpt-4o","max_tokens":5,"messages":[{"role":"user","content":"hi"},{"role":"assistant",'
    '"content":[{"type":"tool_use","id":"t","name":"f","input":%s},{"type":"odd","x":%s}]},{"role":"user",'
    '"content":[{"type":"tool_result","tool_use_id":"t","content":"1"}]}]}',
    "/v1/responses": '{"model":"gpt-4o","input":[{"type":"odd","x":%s},{"type":"custom_tool_call","call_id":"c",'
    '"name":"f","input":%s},{"type":"custom_tool_call_output","call_id":"c","output":"1"}]}',
}


@pytest.mark.parametrize("path", DEEP_BODIES)
async def test_what_is_too_deep_to_be_written_again_passes_as_it_came(served: Served, path: str) -> None:
    body = (DEEP_BODIES[path] % (DEEP, DEEP)).encode()
    answer = await served.ask(body, path=path)
    assert answer.status == 200, answer.body
    assert served.upstream.received[-1].body == body
