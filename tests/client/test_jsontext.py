"""The bare way and json agree."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.base import jsontext

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_the_text_is_that_of_json_and_comes_back(value: Any) -> None:
    text = jsontext._bare()[0](value)
    assert text == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for _, decode in (jsontext._bare(), jsontext._standard()):
        assert decode(text) == value
        assert decode(f" \r\n\t{text} \n") == value


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", "Infinity", "1 2", "\u00a01", '"a', "'a'", "{1:2}", "[1,]", "\ufeff{}", "nul"]
)
def test_what_is_not_json_is_refused_by_both(text: str) -> None:
    for _, decode in (jsontext._bare(), jsontext._standard()):
        with pytest.raises(ValueError, match=r"."):
            decode(text)


def test_half_a_document_is_refused_where_json_itself_is_not_loaded() -> None:
    """CPython 3.11 makes its error only if json.decoder is there, which it is not in a command."""
    script = (
        "import sys\nfrom dibs.base import jsontext\nassert 'json' not in sys.modules\n"
        "try:\n    jsontext.decode('{\"a\": {\"b\"')\nexcept ValueError:\n    print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"refused\n"


def test_a_python_without_the_private_functions_takes_the_public_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> None:
        raise ImportError

    monkeypatch.setattr(jsontext, "_bare", missing)
    encode, decode = jsontext._pick()
    assert decode(encode({"a": [1]})) == {"a": [1]}
