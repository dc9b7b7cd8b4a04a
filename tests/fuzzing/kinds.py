"""The ops of which cases are generated, besides GEMMs, and what is done with them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.fuzzing.attention import draw_attention_case, lowered_attention
from tests.fuzzing.attention_check import executed_attention
from tests.fuzzing.generated import draw_generated_case, executed_generated, lowered_generated
from tests.fuzzing.grouped import draw_grouped_case, lowered_grouped
from tests.fuzzing.grouped_check import executed_grouped
from tests.fuzzing.outcome import Outcome
from tests.fuzzing.scaled import draw_scaled_case, lowered_scaled
from tests.fuzzing.scaled_check import executed_scaled


class OpKind(NamedTuple):
    """What draws a case from a seed and a number, and what becomes of one that is lowered, or run on a device."""

    draw: Callable[..., Any]
    lowered: Callable[..., Outcome]
    executed: Callable[..., Outcome]


OP_KINDS = {
    "attention": OpKind(draw_attention_case, lowered_attention, executed_attention),
    "generated": OpKind(draw_generated_case, lowered_generated, executed_generated),
    "grouped": OpKind(draw_grouped_case, lowered_grouped, executed_grouped),
    "scaled": OpKind(draw_scaled_case, lowered_scaled, executed_scaled),
}
"""By the names that ``tools/fuzz_hook.py --kind`` takes."""
