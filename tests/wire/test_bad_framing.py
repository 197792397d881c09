"""Bodies, headers and paths that are not as HTTP has them, or not as they were announced."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.wire.conftest import BOUND_S, KEY, PATH, Connect, Served, refusal
from tests.wire.requests import chat

# --- framing ---

HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"


async def test_a_post_without_a_body(served: Served) -> None:
    refusal(await served.send(f"{HEAD}\r\n".encode()), 400, "invalid_json", "empty")


async def test_a_chunked_body(served: Served) -> None:
    body = chat()
    parts = b"".join(b"%x\r\n%s\r\n" % (1, body[i : i + 1]) for i in range(len(body)))
    answer = await served.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + parts + b"0\r\n\r\n")
    assert answer.status == 200
    (received,) = served.upstream.received
    assert received.body == body
    assert received.header("content-length") == str(len(body))
    assert received.header("transfer-encoding") is None


@pytest.mark.parametrize("path", [PATH, "/v1/embeddings", "/v1/files"])
async def test_a_body_that_may_come_is_asked_for(served: Served, raw: Connect, path: str) -> None:
    # RFC 9110 section 10.1.1: a server that waits for the body "MUST send ... a 100 (Continue) response".
    body = chat()
    client = await raw(served.proxy.port)
    async with asyncio.timeout(BOUND_S):
        head = HEAD.replace(PATH, path)
        await client.send(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert await client.head() == (100, [])
        await client.send(body)
        assert (await client.answer()).status == 200
    (received,) = served.upstream.received
    assert received.body == body
    assert received.header("expect") is None


@pytest.mark.parametrize("framing", ["Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n"])
async def test_a_body_that_stalls_is_408(served: Served, framing: str) -> None:
    begun = b'{"model":' if "Length" in framing else b'9\r\n{"model":\r\n'
    error = refusal(
        await served.send(f"{HEAD}{framing}\r\n".encode() + begun),
        408,
        "request_timeout",
        "stopped after 9 bytes",
    )
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("reset", [True, False])
async def test_a_client_that_leaves_halfway(served: Served, raw: Connect, reset: bool) -> None:
    for _ in range(5):
        client = await raw(served.proxy.port)
        await client.send(f"{HEAD}Content-Length: 100\r\n\r\n".encode() + b'{"model":')
        if reset:
            client.reset()
        else:
            client.writer.write_eof()
        async with asyncio.timeout(BOUND_S):
            with suppress(ConnectionError):
                assert await client.reader.read() == b""
    assert served.upstream.received == []


async def test_a_declared_size_over_the_limit(served: Served) -> None:
    answer = await served.send(f"{HEAD}Content-Length: 8000001\r\n\r\n".encode())
    refusal(answer, 413, "request_too_large", "8000001 bytes, more than the limit of 8000000")


async def test_a_declared_size_over_the_limit_is_told_before_the_body(served: Served) -> None:
    answer = await served.send(f"{HEAD}Content-Length: 8000001\r\nExpect: 100-continue\r\n\r\n".encode())
    refusal(answer, 413, "request_too_large")


async def test_a_chunked_body_over_the_limit(served: Served) -> None:
    chunk = b"%x\r\n%s\r\n" % (1_000_000, b" " * 1_000_000)
    answer = await served.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 9)
    refusal(answer, 413, "request_too_large", "more than 8000000 bytes")


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 5x\r\n",
        "Content-Length: +5\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding : chunked\r\n",
    ],
)
async def test_a_body_whose_end_is_in_doubt_is_refused(served: Served, framing: str) -> None:
    """RFC 9112 section 6.3: two parsers that disagree about it can be played against each other."""
    answer = await served.send(f"{HEAD}{framing}\r\n".encode() + b"0\r\n\r\n")
    refusal(answer, 400, "invalid_request")
    assert served.upstream.received == []


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"hello\r\n\r\n", b"GET\r\n\r\n"])
async def test_what_is_not_http(served: Served, data: bytes) -> None:
    refusal(await served.send(data), 400, "invalid_request", "HTTP/1.1")


# --- headers and paths ---


async def test_a_header_of_a_megabyte(served: Served) -> None:
    answer = await served.ask(chat(), f"X-Long: {'a' * 1_000_000}\r\n")
    refusal(answer, 431, "invalid_request", "longer than the limit")
    assert served.upstream.received == []


async def test_1000_headers(served: Served) -> None:
    answer = await served.ask(chat(), "".join(f"X-Header-{i}: {i}\r\n" for i in range(1000)))
    if answer.status != 200:
        refusal(answer, 400, "invalid_request")


@pytest.mark.parametrize("value", ["a" * 10_000, "a b", "ü", "'\"<script>", "", "%0d%0a", "a,b"])
async def test_a_request_id_that_a_log_line_cannot_hold_is_replaced(served: Served, value: str) -> None:
    answer = await served.passes(chat(), f"X-Request-Id: {value}\r\n")
    found = answer.header("x-request-id") or ""
    assert found != value
    assert len(found) == 32


@pytest.mark.parametrize("value", ["a\x00b", "a\x01b", "a\x7fb", "a\rb"])
async def test_control_characters_in_a_header(served: Served, value: str) -> None:
    answer = await served.ask(chat(), f"X-Request-Id: {value}\r\n")
    if answer.status == 200:
        assert len(answer.header("x-request-id") or "") == 32
    else:
        refusal(answer, 400, "invalid_request")


async def test_a_good_request_id_stays_also_on_an_error(served: Served) -> None:
    answer = await served.ask(b"{}", "X-Request-Id: my-id.1:2\r\n")
    refusal(answer, 400, "invalid_request")
    assert answer.header("x-request-id") == "my-id.1:2"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../x",
        "/v1/%2e%2e/x",
        "/v1/%2E./x",
        "/v1/files/../../x",
        "/v1/..%2fx",
        "/v1/./x",
        "/v1/..",
        "/v1/a\\..\\x",
        "/v1/a%5c..%5cx",
        "/v1/%2e%2e",
        "/v1/a/%2e%2e%2Fx",
        "http://x/v1/../y",
    ],
)
async def test_a_path_out_of_its_folder(served: Served, path: str) -> None:
    answer = await served.send(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
    )
    refusal(answer, 400, "invalid_request")
    assert served.upstream.received == []


@pytest.mark.parametrize(
    "path", ["/", "/v2/chat/completions", "/v1x", "/favicon.ico", "/%ff%00", "/" + "a" * 5000]
)
async def test_an_unknown_path(served: Served, path: str) -> None:
    answer = await served.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin-1"))
    error = refusal(answer, 404, "not_found", "API paths begin with /v1/")
    assert len(error["message"]) < 1000


@pytest.mark.parametrize("path", ["/\xff", "/v1/\xff\xfe", "/v1/\xc3\xa9"])
async def test_a_path_that_is_not_ascii(served: Served, path: str) -> None:
    answer = await served.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin-1"))
    refusal(answer, 400, "invalid_request", "HTTP/1.1")


@pytest.mark.parametrize("name", ["embeddings", "completions", "responses", "messages"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a\\r\\nx-evil: 1"}',
        b'{"model":"\\ud800"}',
        b'{"model":"m","model":"n"}',
        b'{"mod\\u0065l":"m","model":"n"}',
    ],
    ids=range(4),
)
async def test_a_model_name_that_no_header_can_hold_elsewhere(served: Served, name: str, body: bytes) -> None:
    await served.refuses(body, 400, "invalid_request", "model", path=f"/v1/{name}")


@pytest.mark.parametrize("name", ["embeddings", "messages"])
@pytest.mark.parametrize(
    "body", [b"", b"hello", b"[1]", b"{}", b'{"model":7}', b"\xff" * 1000, b"[" * 100_000], ids=range(7)
)
async def test_elsewhere_the_upstream_judges_what_names_no_model(
    served: Served, name: str, body: bytes
) -> None:
    answer = await served.ask(body, path=f"/v1/{name}")
    assert answer.status == 200
    assert served.upstream.received[-1].body == body
