"""Random request bodies of every dialect, as values, and as JSON spaced and escaped at random."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import strategies as st

from proxy.dialects.chat import CHAT
from proxy.dialects.completions import COMPLETIONS
from proxy.dialects.messages import MESSAGES
from proxy.dialects.prompt import Dialect, Edits, Prompt
from proxy.dialects.responses import RESPONSES
from tests.unit.dialects.test_spans import Pairs, surrounded

texts = st.text(st.characters(categories=None), max_size=12)
ids = st.sampled_from(["a", "b", "c"])
extras = st.dictionaries(
    st.sampled_from(["x", "ü", "cache_control", "id"]), st.integers() | texts, max_size=2
)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda extra, own: {**extra, **own}, extras, st.fixed_dictionaries(fields))


def parts(kind: str) -> st.SearchStrategy[Any]:
    return st.lists(objects(type=st.just(kind), text=texts), max_size=3)


# --- /v1/chat/completions ---

_chat_calls = st.lists(
    st.fixed_dictionaries(
        {"id": ids, "type": st.just("function"), "function": st.just({"name": "f", "arguments": "{}"})}
    ),
    min_size=1,
    max_size=2,
)
chat_items = st.lists(
    st.one_of(
        objects(role=st.sampled_from(["system", "developer"]), content=texts),
        objects(role=st.just("user"), content=texts | parts("text")),
        objects(role=st.just("user")),
        objects(role=st.just("assistant"), content=texts | st.none()),
        objects(role=st.just("assistant"), content=st.none(), tool_calls=_chat_calls),
        objects(role=st.just("tool"), tool_call_id=ids, content=texts | parts("text")),
        objects(role=st.just("judge"), content=texts),
    ),
    min_size=1,
    max_size=8,
)

# --- /v1/responses ---

responses_items = st.lists(
    st.one_of(
        objects(role=st.sampled_from(["system", "developer", "user", "assistant"]), content=texts),
        objects(type=st.just("message"), role=st.just("user"), content=parts("input_text")),
        objects(type=st.just("message"), role=st.just("assistant"), content=parts("output_text")),
        objects(type=st.just("reasoning"), summary=parts("summary_text")),
        objects(type=st.just("function_call"), call_id=ids, name=st.just("f"), arguments=st.just("{}")),
        objects(type=st.just("function_call_output"), call_id=ids, output=texts | parts("input_text")),
        objects(type=st.just("item_reference")),
        objects(type=st.just("web_search_call"), action=st.just({"query": "q"})),
    ),
    max_size=8,
)

# --- /v1/messages ---

_result = objects(
    type=st.just("tool_result"),
    tool_use_id=ids,
    content=texts | st.lists(objects(type=st.sampled_from(["text", "image"]), text=texts), max_size=2),
)
_user_block = st.one_of(
    objects(type=st.just("text"), text=texts),
    objects(type=st.just("image"), source=st.just({"type": "url", "url": "https://x/i.png"})),
    objects(type=st.just("document"), source=st.just({"type": "text", "data": "d"})),
    _result,
)
_assistant_block = st.one_of(
    objects(type=st.just("text"), text=texts),
    objects(type=st.just("thinking"), thinking=texts, signature=texts),
    objects(type=st.just("redacted_thinking"), data=st.just("x")),
    objects(type=st.just("tool_use"), id=ids, name=st.just("f"), input=st.just({"a": 1})),
)
messages_items = st.lists(
    st.one_of(
        objects(role=st.sampled_from(["user", "assistant", "system"]), content=texts),
        objects(role=st.just("user"), content=st.lists(_user_block, max_size=3)),
        objects(role=st.just("assistant"), content=st.lists(_assistant_block, max_size=3)),
    ),
    min_size=1,
    max_size=8,
)

KEYS: Mapping[str, str] = {CHAT.path: "messages", RESPONSES.path: "input", MESSAGES.path: "messages"}

requests: st.SearchStrategy[tuple[Dialect, dict[str, Any]]] = st.one_of(
    st.tuples(st.just(CHAT), st.fixed_dictionaries({"messages": chat_items})),
    st.tuples(
        st.just(RESPONSES),
        st.fixed_dictionaries({"input": responses_items | texts}, optional={"instructions": texts}),
    ),
    st.tuples(
        st.just(MESSAGES), st.fixed_dictionaries({"messages": messages_items}, optional={"system": texts})
    ),
    st.tuples(
        st.just(COMPLETIONS),
        st.fixed_dictionaries({"prompt": texts | st.lists(st.integers(0, 9)) | st.lists(texts) | st.none()}),
    ),
)


def as_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs([(key, as_pairs(inner)) for key, inner in value.items()])
    return [as_pairs(inner) for inner in value] if isinstance(value, list) else value


def written(fields: Mapping[str, Any], random: Random) -> bytes:
    members = list({"model": "m", **fields}.items())
    random.shuffle(members)
    return surrounded(as_pairs(dict(members)), random).encode()


@st.composite
def edits(draw: st.DrawFn, prompt: Prompt) -> Edits:
    """Any edits that a prompt can have."""
    many = len(prompt.items)
    listed = many and not isinstance(prompt.items[0], str)
    kept = draw(st.none() | st.sets(st.integers(0, many - 1), min_size=1).map(sorted)) if listed else None
    outputs = prompt.dialect.tool_outputs(prompt)
    return Edits(
        kept=kept,
        texts=dict.fromkeys((place for place, _ in outputs if draw(st.booleans())), draw(texts)),
        prompt=draw(st.none() | texts | st.lists(st.integers(0, 9)))
        if prompt.dialect is COMPLETIONS
        else None,
        summary=draw(st.none() | st.text(max_size=9)) if many else None,
        model=draw(st.none() | st.just("other/modèle")),
        caps=draw(st.just({}) | st.just({prompt.dialect.cap_names(reasoning=False)[0]: 4})),
    )
