"""Configs as people write them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.errors import ProblemError
from diode_lut.templates.config import TEMPLATES, Config


@given(data=st.data())
def test_a_config_is_read_as_it_is_written(data: st.DataObject) -> None:
    """Any config is what its text says, however many blanks are between the parts."""
    template = data.draw(st.sampled_from(sorted(TEMPLATES)))
    values = {each.name: data.draw(st.sampled_from(each.values)) for each in TEMPLATES[template].parameters}
    left_out = data.draw(st.sets(st.sampled_from(["pad", "kpack", "waves_per_eu"])))
    config = Config.make(template, {name: value for name, value in values.items() if name not in left_out})
    assert Config.parse(str(config)) == config
    assert Config.parse(f"  {'   '.join(str(config).split())} ") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "template: '' is not one of aten, triton_mm, "),
        ("triton 128x128x64", "template: 'triton' is not one of aten, triton_mm, "),
        (
            "triton_mm 128x128 g8 s4 w8",
            (
                "'triton_mm 128x128 g8 s4 w8' is not a config "
                "(expected: triton_mm BLOCK_MxBLOCK_NxBLOCK_K gGROUP_M sNUM_STAGES wNUM_WARPS)"
            ),
        ),
        ("triton_mm 96x128x64 g8 s4 w8", "block_m: 96 is not allowed (allowed: 16, 32, 64, 128, 256)"),
        ("aten 1", "'aten 1' is not a config (expected: aten)"),
        ("decompose_k 1", "k_split: 1 is not allowed (allowed: 2 to 4096)"),
    ],
)
def test_what_is_no_config_is_explained(text: Any, message: str) -> None:
    """The message says what was found and what would be right."""
    with pytest.raises(ProblemError) as raised:
        Config.parse(text)
    assert str(raised.value).startswith(message)
