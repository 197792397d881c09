"""Event framing: each case fed whole, byte by byte and with every cut in two, in all three kinds of line end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.sse import MAX_EVENT_BYTES, Framer, event_data, split_events

CASES = {
    "one": b"data: a\n\n",
    "two": b"data: a\n\ndata: b\n\n",
    "done": b'data: {"x":"\\n\\n"}\n\ndata: [DONE]\n\n',
    "fields": b"event: x\nid: 1\nretry: 5\ndata: a\ndata: b\n\n",
    "comment": b": keep-alive\n\ndata: a\n\n",
    "empty lines": b"\n\n\n\ndata: a\n\n\n\n",
    "begins with an empty line": b"\ndata: a\n\n",
    "byte order mark": b"\xef\xbb\xbfdata: a\n\n",
    "not UTF-8": b"data: \xff\xfe\n\ndata: \xf0\x9f\x98\x80\n\n",
    "no end": b"data: a\n\ndata: b\n",
    "no line end": b"data: a\n\ndata: b",
    "nothing": b"",
    "only line ends": b"\n\n\n",
}
MIXED = {
    "LF then CRLF": b"data: a\n\r\ndata: b\r\n\n",
    "CR then CRLF": b"data: a\r\r\ndata: b\n\r",
    "CRLF then CR": b"data: a\r\n\rdata: b\r\n\n",
    "three kinds": b"data: a\n\ndata: b\r\n\r\ndata: c\r\rdata: d\n\n",
    "CR within": b"data: a\rdata: b\n\n",
}
ALL = {
    **{
        f"{name}, {label}": case.replace(b"\n", end)
        for name, case in CASES.items()
        for label, end in (("LF", b"\n"), ("CRLF", b"\r\n"), ("CR", b"\r"))
    },
    **MIXED,
}


def run(parts: Iterable[bytes]) -> tuple[list[bytes], bytes]:
    framer = Framer()
    blocks = [framer.feed(part) for part in parts]
    return blocks, framer.rest()


def cuts(raw: bytes) -> Iterable[list[bytes]]:
    yield [raw]
    yield [raw[i : i + 1] for i in range(len(raw))]
    for i in range(len(raw) + 1):
        yield [raw[:i], raw[i:]]


def datas(raw: bytes) -> list[bytes]:
    """The data of all events, read slowly by the rules of the HTML standard, section 9.2.6."""
    lines = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    found: list[bytes] = []
    data: list[bytes] = []
    for line in lines:
        name, _, value = line.partition(b":")
        if not line and data:
            found.append(b"\n".join(data))
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    return found


@pytest.mark.parametrize("raw", ALL.values(), ids=ALL.keys())
def test_any_cut_gives_the_same_bytes_and_whole_events(raw: bytes) -> None:
    whole = datas(raw)
    for parts in cuts(raw):
        blocks, rest = run(parts)
        assert b"".join(blocks) + rest == raw
        events = [event for block in blocks for event in split_events(block)]
        assert b"".join(events) + rest == raw
        found = [data for data in map(event_data, events) if data is not None]
        if not raw.startswith(b"\xef"):
            assert found == whole
        # Each block ends where an event ends: nothing that is written to a client breaks into one.
        assert all(datas(block + b"\n\n") == datas(block) for block in blocks)


@pytest.mark.parametrize("raw", ALL.values(), ids=ALL.keys())
def test_an_event_goes_out_as_soon_as_it_is_whole(raw: bytes) -> None:
    framer = Framer()
    given, out = b"", b""
    for i in range(len(raw)):
        given += raw[i : i + 1]
        out += framer.feed(raw[i : i + 1])
        assert len(datas(out)) == len(datas(given)), given


_bytes = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"data: x", b"data", b":", b"id: 1", b"\xff"]), max_size=30
)


@given(_bytes.map(b"".join), st.data())
def test_whatever_comes_in_goes_out(raw: bytes, data: st.DataObject) -> None:
    at = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    edges = [0, *at, len(raw)]
    blocks, rest = run([raw[a:b] for a, b in pairwise(edges)])
    assert b"".join(blocks) + rest == raw
    assert all(datas(block + b"\n\n") == datas(block) for block in blocks)
    found = [event_data(event) for block in blocks for event in split_events(block)]
    assert [value for value in found if value is not None] == datas(raw)


def test_rest_is_given_once() -> None:
    framer = Framer()
    assert framer.feed(b"data: a") == b""
    assert framer.rest() == b"data: a"
    assert framer.rest() == b""


def test_an_endless_event_is_given_out_as_it_is() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\n\ndata: " + b"x" * 1000) == b"data: a\n\n"
    assert framer.feed(b"x" * MAX_EVENT_BYTES) == b"data: " + b"x" * (1000 + MAX_EVENT_BYTES)
    assert framer.feed(b"x\n\ndata: b\n\n") == b"x\n\ndata: b\n\n"
    # A CR at its end may be half of a CRLF, and is kept back.
    long = b"y" * (MAX_EVENT_BYTES + 1)
    assert framer.feed(long + b"\r") == long
    assert framer.feed(b"\n\r\n") == b"\r\n\r\n"


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data:  a \n\n", b" a "),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"data: a\r\ndata\rdata: b\n\n", b"a\n\nb"),
        (b"event: x\ndata: a\nid: 1\n\n", b"a"),
        (b": comment\n\n", None),
        (b"database: a\n\n", None),
        (b" data: a\n\n", None),
        (b"\n\n", None),
        (b"", None),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes | None) -> None:
    assert event_data(event) == data
