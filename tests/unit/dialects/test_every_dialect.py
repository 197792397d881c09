"""What holds in all dialects alike, over random bodies."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects import body, spans
from proxy.dialects.items import front
from proxy.dialects.paths import DIALECTS, spoken_at
from proxy.dialects.prompt import Dialect, Edits, Prompt
from tests.unit.dialects.bodies import KEYS, edits, requests, written
from tests.unit.dialects.test_spans import randoms

Request = tuple[Dialect, dict[str, Any]]


def elements(raw: bytes, key: str) -> list[str]:
    """The items as they stand in a body."""
    text = body.decode(raw)
    array = next(member for member in spans.scan_object(text) if member.key == key)
    if text[array.value_start] != "[":
        return [text[array.value_start : array.value_end]]
    return [text[start:end] for start, end in spans.scan_array(text, array.value_start)]


def untouched(prompt: Prompt, edit: Edits) -> list[int]:
    """Items that stay just as they came."""
    kept = range(len(prompt.items)) if edit.kept is None else edit.kept
    changed = {place.item for place in edit.texts}
    if edit.summary is not None:
        at, content = front(prompt.items, kept)
        changed |= {at} if content is not None else set()
    return [i for i in kept if i not in changed]


@given(requests, randoms)
def test_without_edits_the_same_bytes_go_on(request: Request, random: Random) -> None:
    dialect, fields = request
    prompt = dialect.parse(written(fields, random))
    assert dialect.encode(prompt, Edits()) is prompt.raw
    assert dialect.view(prompt, Edits()) is prompt


@settings(max_examples=300)
@given(requests, randoms, st.data())
def test_what_is_counted_is_what_is_sent(request: Request, random: Random, data: st.DataObject) -> None:
    dialect, fields = request
    prompt = dialect.parse(written(fields, random))
    edit = data.draw(edits(prompt))
    seen, again = dialect.view(prompt, edit), dialect.parse(dialect.encode(prompt, edit))
    assert list(again.items) == list(seen.items)
    assert list(again.messages) == list(seen.messages)
    assert again.chat.get("prompt") == seen.chat.get("prompt")
    assert again.origin == seen.origin
    assert again.unsure == seen.unsure
    assert again.model == (edit.model or "m")
    assert again.caps == edit.caps


@settings(max_examples=300)
@given(requests.filter(lambda request: request[0].path in KEYS), randoms, st.data())
def test_untouched_items_and_fields_keep_their_bytes(
    request: Request, random: Random, data: st.DataObject
) -> None:
    dialect, fields = request
    key = KEYS[dialect.path]
    prompt = dialect.parse(written(fields, random))
    edit = data.draw(edits(prompt))
    out = dialect.encode(prompt, edit)
    before, after = elements(prompt.raw, key), iter(elements(out, key))
    assert all(before[i] in after for i in untouched(prompt, edit))  # in this order

    changed = {key, "model", *edit.caps}
    texts = [body.decode(raw) for raw in (prompt.raw, out)]
    others = [
        [text[m.start : m.value_end] for m in spans.scan_object(text) if m.key not in changed]
        for text in texts
    ]
    assert others[0] == others[1]


@settings(max_examples=300)
@given(requests, randoms)
def test_messages_tell_which_items_they_came_from(request: Request, random: Random) -> None:
    dialect, fields = request
    prompt = dialect.parse(written(fields, random))
    if prompt.origin is None:
        assert len(prompt.messages) in (0, len(prompt.items))
        return
    assert len(prompt.origin) == len(prompt.messages)
    own = [items for items in prompt.origin if items]
    assert all(a.start <= b.start and a.stop <= b.stop for a, b in pairwise(own))
    if own:
        assert {i for items in own for i in items} == set(range(len(prompt.items)))


@given(requests, randoms)
def test_tool_outputs_are_where_they_are_said_to_be(request: Request, random: Random) -> None:
    dialect, fields = request
    prompt = dialect.parse(written(fields, random))
    for place, text in dialect.tool_outputs(prompt):
        value = prompt.items[place.item]
        for step in place.path:
            value = value[step]
        assert value == text


def test_each_path_has_its_dialect() -> None:
    assert {path: each.path for path, each in DIALECTS.items()} == {path: path for path in DIALECTS}
    assert spoken_at("/v1/messages").path == spoken_at("/v1/messages/count_tokens").path == "/v1/messages"
    assert spoken_at("/v1/embeddings").path == spoken_at("/healthz").path == "/v1/chat/completions"
