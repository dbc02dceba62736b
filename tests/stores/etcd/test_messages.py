"""Messages that are at the edges of protobuf's encoding."""

from __future__ import annotations

import pytest

from dibs.stores.etcd.messages import LeaseAnswer, StatusAnswer, fields, message, operations, put_op, txn


@pytest.mark.parametrize("number", [1, 127, 128, 2**31, 2**63, 2**64 - 1])
def test_a_number_of_any_size_comes_back_as_it_was(number: int) -> None:
    assert fields(message(number)) == {1: [number]}


def test_ids_of_64_bits_are_not_negative_and_a_lease_that_is_gone_is_reported() -> None:
    assert StatusAnswer(message(message(0, 2**63 + 5))).member == 2**63 + 5
    assert LeaseAnswer(message(b"", 7, 2**64 - 1)).left_s is None
    assert LeaseAnswer(message(b"", 7, 60)).left_s == 60


def test_operations_of_any_length_are_found_again() -> None:
    ops = [put_op(b"key", b"x" * size) for size in (0, 1, 120, 127, 128, 16_384, 300_000)]
    assert operations(txn(ops)) == ops


@pytest.mark.parametrize("data", [b"\x0a\x05abc", b"\x0a", b"\x0d1234", b"\x0a\xff", b"\x80\x01\x00"])
def test_what_is_no_message_raises(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        fields(data)
