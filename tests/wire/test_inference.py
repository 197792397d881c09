"""What can be asked for here, and the endpoints that name a model but are not chat."""

from __future__ import annotations

import gzip
import json
import zlib

import aiohttp
import pytest

from tests.conftest import StartProxy
from tests.fakes.upstream import ScriptedUpstream, json_answer
from tests.proxy_fixture import Proxy, openai_config

CLIENT = {"Authorization": "Bearer sk-1"}


@pytest.fixture
async def proxy(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    return await start_proxy(openai_config(upstream.base_url))


async def told(proxy: Proxy) -> dict[tuple[str, str], float]:
    """How many requests ended how, by backend and outcome."""
    return {
        (name.split('"')[1], name.split('"')[5]): value
        for name, value in (await proxy.metrics()).items()
        if name.startswith("chatfuse_requests_total")
    }


# models


async def test_models_are_merged_over_backends_with_upstreams_entries_as_they_are(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    entry = {"id": "gpt-4o", "object": "model", "created": 5, "owned_by": "system", "extra": [1]}
    upstream.default = json_answer({"object": "list", "data": [entry, {"id": "other"}]})
    async with ScriptedUpstream(json_answer({"data": [{"id": "b/one"}, {"id": "gpt-4o"}]})) as second:
        proxy = await start_proxy(
            f"""
[admin]
port = 0
[[backends]]
name = "a"
kind = "openai"
base_url = "{upstream.base_url}"
[[backends]]
name = "b"
kind = "openai"
base_url = "{second.base_url}"
auth = "none"
[[models]]
name = "house-model"
targets = [{{ backend = "a", model = "gpt-4o" }}]
[[models]]
name = "gpt-*"
targets = [{{ backend = "a" }}]
[[models]]
name = "b/*"
targets = [{{ backend = "b" }}]
"""
        )
        async with session.get(
            f"{proxy.base_url}/models", headers={"Authorization": "Bearer sk-1"}
        ) as answer:
            listed = (await answer.json())["data"]
        assert [model["id"] for model in listed] == ["house-model", "gpt-4o", "b/one"]
        assert listed[1] == entry
        assert upstream.received[0].header("authorization") == "Bearer sk-1"


async def test_an_upstreams_refusal_of_the_list_passes_when_there_is_nothing_else(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    error = {"error": {"message": "bad key", "code": "invalid_api_key"}}
    upstream.then(json_answer(error, 401, [("X-Request-Id", "upstream's")]))
    async with session.get(f"{proxy.base_url}/models") as answer:
        assert answer.status == 401
        assert (await answer.json())["error"]["message"] == "bad key"


async def test_a_clients_key_goes_to_the_first_backend_that_takes_it_and_to_no_other(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    upstream.default = json_answer({"data": [{"id": "gpt-4o"}]})
    other = json_answer({"data": [{"id": "b/one"}]})
    async with ScriptedUpstream(other) as second, ScriptedUpstream(other) as third:
        sections = "".join(
            f'[[backends]]\nname = "{name}"\nkind = "openai"\nbase_url = "{up.base_url}"\nauth = "{auth}"\n'
            for name, up, auth in (
                ("a", upstream, "client"),
                ("b", second, "client"),
                ("c", third, "none"),
            )
        )
        models = "".join(
            f'[[models]]\nname = "{name}"\ntargets = [{{ backend = "{name[0]}" }}]\n'
            for name in ("a*", "b/*", "b-own", "c/*")
        ).replace('"a*"', '"gpt-*"')
        proxy = await start_proxy(f"[admin]\nport = 0\n{sections}{models}")
        async with session.get(f"{proxy.base_url}/models", headers=CLIENT) as answer:
            listed = (await answer.json())["data"]
        assert [model["id"] for model in listed] == ["gpt-4o", "b-own"]
        assert upstream.received[0].header("authorization") == "Bearer sk-1"
        assert second.received == []
        assert third.received[0].header("authorization") is None


async def test_a_list_is_told(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    upstream.then(json_answer({"data": [{"id": "gpt-4o"}]}))
    async with session.get(f"{proxy.base_url}/models") as answer:
        assert answer.status == 200
    assert await told(proxy) == {("", "ok"): 1}


# inference endpoints that are not chat


async def test_embeddings_go_to_their_models_backend_under_its_name_there(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(
        f"""
[admin]
port = 0
[[backends]]
name = "up"
kind = "openai"
base_url = "{upstream.base_url}"
[[models]]
name = "embed"
targets = [{{ backend = "up", model = "text-embedding-3-small" }}]
"""
    )
    body = b'{ "input":"x",  "model":"embed", "zz":1.0}'
    async with session.post(f"{proxy.base_url}/embeddings", data=body) as answer:
        assert answer.status == 200
    assert upstream.received[0].body == body.replace(b"embed", b"text-embedding-3-small")
    async with session.post(f"{proxy.base_url}/embeddings", json={"model": "nobody"}) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_packed_body_is_looked_into(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, coding: str
) -> None:
    model = '[[models]]\nname = "mine"\ntargets = [{ backend = "up", model = "theirs" }]'
    proxy = await start_proxy(openai_config(upstream.base_url, model=model))
    pack = gzip.compress if coding == "gzip" else zlib.compress
    headers = {"Content-Encoding": coding}
    for name, sent in (("mine", b'{"model":"theirs" }'), ("gpt", None)):
        body = pack(b'{"model":"%s" }' % name.encode())
        async with session.post(f"{proxy.base_url}/embeddings", data=body, headers=headers) as answer:
            assert answer.status == 200
            assert answer.headers["x-chatfuse-model"] == name
        received = upstream.received[-1]
        assert received.body == (sent or body)
        assert received.header("content-encoding") == (None if sent else coding)


CALLER = '[[callers]]\nname = "c"\nkey = "env:KEY"\nmodels = ["cheap"]'
LISTED = '[server]\npassthrough_paths = ["POST /v1/completions"]\n'


@pytest.mark.parametrize("extra", [CALLER, LISTED + CALLER], ids=["not listed", "listed"])
@pytest.mark.parametrize("backend", ['auth = "none"', 'auth = "config"\napi_key = "env:UP"'])
async def test_no_body_slips_past_a_callers_models(
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
    session: aiohttp.ClientSession,
    extra: str,
    backend: str,
) -> None:
    text = openai_config(upstream.base_url, extra, backend=backend)
    proxy = await start_proxy(text, {"KEY": "key-c", "UP": "sk-up"})
    dear = json.dumps({"model": "dear", "prompt": "h"}).encode()
    odd = b'{"model": "dear", "prompt": NaN}'
    for body, coding, status in (
        (dear, "identity", 403),
        (gzip.compress(dear), "gzip", 403),
        (zlib.compress(dear), "deflate", 403),
        (gzip.compress(gzip.compress(dear)), "gzip, gzip", 403),
        (dear, "br", 400),
        (dear, "gzip", 400),
        (odd, "identity", 400),
        (gzip.compress(dear) + b"x", "gzip", 400),
        (b"{}", "identity", 400),
        (b"", "identity", 400),
    ):
        headers = {"Authorization": "Bearer key-c", "Content-Encoding": coding}
        async with session.post(f"{proxy.base_url}/completions", data=body, headers=headers) as answer:
            assert answer.status == status, (body, coding)
    assert upstream.received == []
    assert await told(proxy) == {("", "refused"): 10}


async def test_what_inflates_without_end_is_too_large(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    proxy = await start_proxy(openai_config(upstream.base_url, "[server]\nmax_body_bytes = 100_000"))
    body, headers = gzip.compress(b" " * 1_000_000), {"Content-Encoding": "gzip"}
    async with session.post(f"{proxy.base_url}/embeddings", data=body, headers=headers) as answer:
        assert answer.status == 413
    assert upstream.received == []


@pytest.mark.parametrize("name", ["embeddings", "completions", "responses", "messages"])
@pytest.mark.parametrize("depth", [900, 1000, 1020])
async def test_what_is_nested_too_deep_to_be_looked_at_is_refused(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession, name: str, depth: int
) -> None:
    body = b'{"model":"m","x":1,"mod\\u0065l2":1,"a":' + b"[" * depth + b"]" * depth + b"}"
    async with session.post(f"{proxy.base_url}/{name}", data=body) as answer:
        assert answer.status in (200, 400)
        if answer.status == 400:
            error = (await answer.json())["error"]
            assert error["type"] == "invalid_request_error"
            # Where a prompt is read, its absence is what is told first.
            assert "nested" in error["message"] or "messages must be" in error["message"]
    if depth > 1000:
        assert upstream.received == []


async def test_every_outcome_is_told_once(
    start_proxy: StartProxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    text = openai_config(upstream.base_url, '[[callers]]\nname = "c"\nkey = "env:KEY"\nmodels = ["cheap"]')
    text = text.replace('name = "*"', 'name = "cheap"').replace("[[models]]", 'auth = "none"\n[[models]]')
    text += '[[models]]\nname = "dear"\ntargets = [{ backend = "up" }]\n'
    proxy = await start_proxy(text, {"KEY": "key-c"})
    upstream.then(json_answer({}), json_answer({}, 500))
    for key, model, status in (
        ("key-c", "cheap", 200),
        ("key-c", "cheap", 500),
        ("key-x", "cheap", 401),
        ("key-c", "dear", 403),
        ("key-c", "other", 404),
        ("key-c", "a\n", 400),
    ):
        headers = {"Authorization": f"Bearer {key}"}
        async with session.post(
            f"{proxy.base_url}/embeddings", json={"model": model}, headers=headers
        ) as answer:
            assert answer.status == status, model
    async with session.get(f"{proxy.base_url}/models") as answer:
        assert answer.status == 401
    assert await told(proxy) == {("up", "ok"): 1, ("up", "upstream_error"): 1, ("", "refused"): 5}
