from __future__ import annotations

from proxy.state.summaries import SummaryBook


def test_the_first_writer_wins() -> None:
    book = SummaryBook()
    assert book.write(b"k", "first") == "first"
    assert book.write(b"k", "second") == "first"
    assert book.written(b"k") == "first"


def test_the_first_decision_stands_also_when_it_is_to_send_none() -> None:
    book = SummaryBook()
    assert book.decide(b"k", "") == ""
    assert book.decide(b"k", "late") == ""
    assert book.decided(b"k") == ""
    assert book.decided(b"other") is None


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    book = SummaryBook(max_bytes=3500)
    for name in (b"a", b"b", b"c"):
        book.write(name, "x" * 900)
    assert book.written(b"a")
    book.write(b"d", "x" * 900)
    assert book.written(b"b") is None
    assert book.written(b"a")
    assert book.written(b"d")
