"""Which fields cross the proxy, and that nobody's key goes where it does not belong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import Auth
from backends.headers import CREDENTIALS, HOP_BY_HOP, client_key, subprotocols, to_client, to_upstream

NOTHING: frozenset[str] = frozenset()
SECRET = "sk-client"
OURS = "sk-ours"

# RFC 9110 section 7.6.1: "intermediaries ... MUST remove ... fields ... that are not intended to be forwarded"
HOP = [(name.title(), "x") for name in sorted(HOP_BY_HOP - {"connection"})]
END_TO_END = [
    ("Content-Type", "application/json"),
    ("X-Stainless-Lang", "python"),
    ("accept", "*/*"),
    ("Accept", "text/event-stream"),
    ("traceparent", "00-abc"),
    ("OpenAI-Beta", "assistants=v2"),
]
ALL_CREDENTIALS = [(name, SECRET) for name in sorted(CREDENTIALS)]


def test_end_to_end_fields_go_as_they_came() -> None:
    assert to_upstream(END_TO_END, "client", None, NOTHING) == END_TO_END
    assert to_client(END_TO_END) == END_TO_END


@pytest.mark.parametrize("spelling", [str.lower, str.upper, str.title])
def test_hop_by_hop_fields_stay(spelling: object) -> None:
    assert callable(spelling)
    fields = [(spelling(name), value) for name, value in [*HOP, ("connection", "close")]]
    assert to_upstream(fields, "client", None, NOTHING) == []
    assert to_client(fields) == []


def test_what_connection_names_stays() -> None:
    # RFC 9110 section 7.6.1: "for each connection-option in this field, remove any header field(s) ... with the
    # same name as the connection-option".
    fields = [
        ("Connection", "keep-alive, X-Mine"),
        ("connection", " x-other "),
        ("x-mine", "1"),
        ("X-Other", "2"),
    ]
    for found in (
        to_upstream([*fields, *END_TO_END], "client", None, NOTHING),
        to_client([*fields, *END_TO_END]),
    ):
        assert found == END_TO_END


def test_what_the_client_side_sets_anew_stays() -> None:
    fields = [
        ("Host", "proxy"),
        ("Content-Length", "5"),
        ("Expect", "100-continue"),
        ("Sec-WebSocket-Key", "x"),
    ]
    assert to_upstream(fields, "client", None, NOTHING) == []
    assert ("Content-Length", "5") in to_client(fields)


def test_our_own_names_are_ours() -> None:
    fields = [("X-Chatfuse-Context", "trim"), ("x-chatfuse-model", "fake")]
    assert to_upstream(fields, "client", None, NOTHING) == []
    assert to_client(fields) == []


def test_the_request_id_is_ours_in_an_answer_and_goes_along_in_a_request() -> None:
    fields = [("X-Request-ID", "1"), ("x-request-id", "2")]
    assert to_client(fields) == []
    assert to_upstream(fields, "client", None, NOTHING) == fields


def test_further_names_can_be_left_out() -> None:
    assert to_upstream(END_TO_END, "client", None, frozenset({"accept"})) == [
        field for field in END_TO_END if field[0].lower() != "accept"
    ]


# --- credentials ---


def test_the_clients_key_goes_along_where_the_backend_takes_it() -> None:
    assert to_upstream(ALL_CREDENTIALS, "client", None, NOTHING) == ALL_CREDENTIALS
    # Even with a key of ours at hand: it is not this backend's way.
    assert OURS not in str(to_upstream(ALL_CREDENTIALS, "client", OURS, NOTHING))


def test_our_key_takes_the_place_of_all_of_the_clients() -> None:
    assert to_upstream([*ALL_CREDENTIALS, *END_TO_END], "config", OURS, NOTHING) == [
        *END_TO_END,
        ("Authorization", f"Bearer {OURS}"),
    ]


def test_without_authentication_no_key_goes() -> None:
    assert to_upstream([*ALL_CREDENTIALS, *END_TO_END], "none", None, NOTHING) == END_TO_END
    assert to_upstream(END_TO_END, "none", OURS, NOTHING) == END_TO_END


_names = st.sampled_from(
    [*CREDENTIALS, *HOP_BY_HOP, "x-mine", "accept", "x-chatfuse-x", "host", "sec-websocket-protocol"]
).flatmap(lambda name: st.sampled_from([name, name.upper(), name.title()]))


@given(st.lists(st.tuples(_names, st.sampled_from([SECRET, f"Bearer {SECRET}", "x-mine, close"]))))
def test_whatever_is_sent_a_clients_key_stays_with_us(fields: list[tuple[str, str]]) -> None:
    auths: list[Auth] = ["config", "none"]
    for auth in auths:
        found = to_upstream(fields, auth, OURS if auth == "config" else None, NOTHING)
        credentials = [(n, v) for n, v in found if n.lower() in CREDENTIALS]
        assert credentials == ([("Authorization", f"Bearer {OURS}")] if auth == "config" else [])


PROTOCOLS = [
    ("Sec-WebSocket-Protocol", f"realtime, openai-insecure-api-key.{SECRET}"),
    ("sec-websocket-protocol", " openai-beta.realtime-v1 ,,"),
]


def test_a_key_among_the_subprotocols_follows_the_same_rule() -> None:
    others = ["realtime", "openai-beta.realtime-v1"]
    assert subprotocols(PROTOCOLS, "client", None) == [
        "realtime",
        f"openai-insecure-api-key.{SECRET}",
        "openai-beta.realtime-v1",
    ]
    assert subprotocols(PROTOCOLS, "config", OURS) == others
    assert subprotocols(PROTOCOLS, "none", None) == others


def test_whose_account_it_is_stands_among_the_subprotocols_too() -> None:
    fields = [
        ("Sec-WebSocket-Protocol", "realtime, openai-organization.org-1, OpenAI-Project.p,openai-beta.x")
    ]
    assert subprotocols(fields, "config", OURS) == ["realtime", "openai-beta.x"]
    assert subprotocols(fields, "none", None) == ["realtime", "openai-beta.x"]
    assert len(subprotocols(fields, "client", None)) == 4


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ([], None),
        ([("Authorization", "Bearer abc")], "abc"),
        ([("authorization", "bearer   abc ")], "abc"),
        ([("Authorization", "Bearer")], None),
        ([("Authorization", "Bearer ")], None),
        ([("Authorization", "Basic abc")], None),
        ([("Authorization", "abc")], None),
        ([("x-api-key", "abc")], "abc"),
        ([("X-API-Key", " ")], None),
        ([("api-key", "abc")], "abc"),
        ([("api-key", "azure"), ("Authorization", "Bearer abc")], "abc"),
        ([("Authorization", "Bearer abc"), ("api-key", "azure")], "abc"),
        (PROTOCOLS, SECRET),
    ],
)
def test_the_key_is_found_wherever_an_sdk_puts_it(fields: list[tuple[str, str]], key: str | None) -> None:
    assert client_key(fields) == key
