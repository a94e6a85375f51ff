import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmdm.config import ModelConfig
from tests.conftest import tiny_config


def test_a_config_survives_json_and_is_frozen() -> None:
    config = tiny_config()
    values = {**config.to_dict(), "grid": [2, 2]}  # JSON has lists only
    assert ModelConfig.from_dict(values) == config
    with pytest.raises(AttributeError):
        config.width = 64  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 100, "heads": 6}, "width 100 is not a multiple of heads 6"),
        ({"width": 36, "heads": 6}, "head size 6 is not a multiple of 4"),
        ({"length": 17}, "length 17 does not fit blocks of 2x2"),
        ({"layers": 0}, "layers 0 is not a whole number"),
        ({"layers": True}, "layers True is not a whole number"),
        ({"width": 10**9}, "width 1000000000"),
        ({"grid": (2,)}, "grid"),
        ({"attention": "sparse"}, "choose from full, units"),
        ({"places": -1}, "places -1 is not a whole number from 0 to 16"),
        ({"neighbours": 17}, "neighbours 17 is not a whole number from 0 to 16"),
        ({"neighbours": 2}, "neighbours 2 are for sequences"),
        ({"values": 1}, "values 1 is not true or false"),
        ({"step_embedding": "sine"}, "choose from learned, fixed, none"),
        ({"heads": 2, "attention": "units"}, "multiple of 4 heads"),
        ({"task": ""}, "task ''"),
    ],
)
def test_a_bad_value_is_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(**change)


values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)


@given(st.dictionaries(st.sampled_from([*tiny_config().to_dict(), "more"]), values) | values)
def test_any_dictionary_is_a_config_or_a_value_error(changes: object) -> None:
    whole = {**tiny_config().to_dict(), **changes} if isinstance(changes, dict) else changes
    with contextlib.suppress(ValueError):
        assert ModelConfig.from_dict(whole).to_dict()  # type: ignore[arg-type]
