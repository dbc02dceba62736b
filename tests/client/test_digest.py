"""Different parts have different digests, also if they differ only in where one part ends."""

from __future__ import annotations

from dibs.base.ids import digest, digest_id, is_id


def test_the_same_parts_have_the_same_digest_and_others_another() -> None:
    assert digest("a", "b") == digest("a", "b")
    parts = [("a", "b"), ("ab",), ("", "ab"), ("a\0b",), ("1:a", "b"), ("b", "a"), ("a", "b", "")]
    assert len({digest(*each) for each in parts}) == len(parts)


def test_what_cannot_be_sent_still_has_a_digest() -> None:
    assert digest("\ud800") != digest("\udfff")


def test_a_digest_can_be_written_like_an_id() -> None:
    assert is_id(digest_id("a"))
    assert digest_id("a").replace("-", "") == digest("a")
