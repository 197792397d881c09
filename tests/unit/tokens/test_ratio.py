"""Texts whose tokens nobody would guess from their length are remarked on, others are not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from backends.errors import BackendError
from proxy.tokens.counts import Counter, Counts
from proxy.tokens.local import CountingPool, LocalCounter
from proxy.tokens.memo import Memo
from proxy.tokens.ratio import SAMPLE, USUAL, remark, remarks, usual_ratio
from tests.unit.tokens.template_models import package

CHINESE = "市议会星期二开会决定是修复还是更换这座老桥工程师在两个桥墩上发现了裂缝而且河水涨得比有记录以来的任何春天都高"
GERMAN = (
    "Der Gemeinderat entschied am Dienstag darüber, ob die alte Brücke repariert oder ersetzt werden soll."
    " Ingenieure hatten in zwei ihrer Pfeiler Risse gefunden, und der Fluss war gestiegen."
)
CODE = "def remark(characters: int, tokens: int) -> str | None:\n    return None if tokens > 5 else 'x'\n" * 3


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    pool = CountingPool()
    yield pool
    pool.close()


def local(pool: CountingPool, model: str = "gpt-4o") -> LocalCounter:
    return LocalCounter(model, None, Memo(1000), pool)


async def remark_on(counter: Counter, text: str) -> str | None:
    tokens = (await counter.count({"prompt": text})).tokens
    [said] = await remarks(counter, [(len(text), tokens)])
    return said


async def test_chinese_that_would_be_cut_silently(pool: CountingPool) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("sentencepiece")
    from proxy.tokens.template import ChatTemplate
    from proxy.tokens.template_counter import TemplateCounter
    from proxy.tokens.tokenizer_files import load

    # Mistral's first: Llama 2's kind.
    tokenizer = load(package("mistral_common") / "data" / "tokenizer.model.v1")
    counter = TemplateCounter(ChatTemplate({"default": ""}, {}), tokenizer, Memo(1000), pool)
    text = (CHINESE * 40)[:2040]
    said = await remark_on(counter, text)
    assert (await counter.count({"prompt": text})).tokens > 2048
    assert said is not None
    assert said.startswith("2,040 characters are 2,")
    assert "times as many as English prose" in said


@pytest.mark.parametrize("text", [SAMPLE, GERMAN, CODE, '{"id": 7, "name": "item", "tags": ["a", "b"]}' * 5])
@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4"])
async def test_prose_code_and_json_are_nothing_to_speak_of(text: str, model: str, pool: CountingPool) -> None:
    assert await remark_on(local(pool, model), text) is None


@pytest.mark.parametrize(
    "text", [CHINESE * 3, "👩‍👩‍👧🏽🎉🚗" * 20, "aGVsbG8gd29ybGQ5MTIzeHl6QUJDREVGR0g" * 10]
)
@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4"])
async def test_dense_text_is(text: str, model: str, pool: CountingPool) -> None:
    assert "falls short" in str(await remark_on(local(pool, model), text))


@pytest.mark.parametrize("text", [" " * 2000, "-" * 2000])
async def test_so_are_runs_of_one_character(text: str, pool: CountingPool) -> None:
    assert "far too high" in str(await remark_on(local(pool), text))


def test_short_messages_and_empty_ones_are_not_judged() -> None:
    assert remark(0, 4) is None
    assert remark(20, 30) is None
    assert remark(150, 150, usual=0.5) is None


async def test_a_message_that_was_not_counted_has_no_remark(pool: CountingPool) -> None:
    said = await remarks(local(pool), [(2000, None), (2000, 2000)])
    assert said[0] is None
    assert said[1] is not None


async def test_a_counter_that_cannot_be_asked_is_taken_for_a_usual_one() -> None:
    class Away:
        async def count(self, body: Mapping[str, Any], limit: int | None = None) -> Counts:
            raise BackendError("away")

        async def weigh(self, body: Mapping[str, Any], units: Sequence[tuple[int, int]]) -> Sequence[int]:
            raise AssertionError

        async def clip(self, text: str, head_tokens: int, tail_tokens: int) -> tuple[str, str]:
            raise AssertionError

    assert await usual_ratio(Away()) == USUAL
