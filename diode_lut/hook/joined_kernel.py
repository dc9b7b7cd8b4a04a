"""The Triton template of joined matmuls: the column of a tile tells its B and its result.

It follows Inductor's template for mm. The first result is the template's. The others are inputs into which it writes.
With ``GATED``, a program computes the tiles of both products, and writes ``silu(first) * second`` alone, or the same
with gelu, whose ``0.5 x (1 + tanh(y))`` is ``x sigmoid(2 y)``. With ``FEW_ROWS``, it keeps a sum for each element of a
block of K, and adds these up in the end. With ``SCALED``, A and B have a scale each, or one for each row and column.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate

from diode_lut.hook.versions import KWARGS
from diode_lut.problem import rounded_up
from diode_lut.templates.config import Config

FEW_ROWS = "diode_lut_few_rows"  # the template's name for a single B


@SymbolicGridFn
def joined_grid(m: Any, _n: Any, meta: dict[str, int], *, cdiv: Any) -> tuple[Any, int, int]:
    """Return the number of programs: tiles of all results."""
    return (cdiv(m, meta["BLOCK_M"]) * meta["TILES_N"], 1, 1)


# Triton wants a variable to have the same type in all branches, so ``tile * 0`` makes tensors of numbers. Numbers that
# are the same for all B stay constants. The loop along K ends as in ``choices._with_short_code``.
_SOURCE = """
    M = {{size("A", 0)}}
    K = {{size("A", 1)}}
    pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_m = (M + BLOCK_M - 1) // BLOCK_M
    width = GROUP_M * TILES_N
    group_id = pid // width
    group_size = min(grid_m - group_id * GROUP_M, GROUP_M)
    pid_m = group_id * GROUP_M + (pid % group_size)
    tile = (pid % width) // (group_size)
    tl.assume(pid_m >= 0)
    tl.assume(tile >= 0)
{% if AT_ONCE == COUNT %}
    pid_n = tile
{% for i in range(COUNT) %}
    P{{i}} = B{{i}}
    P{{i}}_k = {{stride("B" ~ i, 0)}}
    P{{i}}_n = {{stride("B" ~ i, 1)}}
{% if SCALED %}
    S{{i}} = SB{{i}}
{% endif %}
{% endfor %}
{% else %}
{% set tiles = namespace(end=0) %}
{% for i in range(COUNT) %}
{% set first = tiles.end %}
{% set tiles.end = first + ((size("B" ~ i, 1) | int) + BLOCK_N - 1) // BLOCK_N %}
    {{"if tile < %d:" % tiles.end if loop.first else "else:" if loop.last else "elif tile < %d:" % tiles.end}}
        P0 = B{{i}}
        pid_n = tile - {{first}}
        result = R{{[i, 1] | max}}
{% if SCALED %}
        S0 = SB{{i}}
{% endif %}
{% if not SAME_N %}
        N = tile * 0 + {{size("B" ~ i, 1)}}
{% endif %}
{% if not SAME_STRIDES %}
        P0_k = tile * 0 + {{stride("B" ~ i, 0)}}
        P0_n = tile * 0 + {{stride("B" ~ i, 1)}}
{% endif %}
{% if BIASES %}
{% set biased = BIASES // 2**i % 2 %}
        C = {{"C%d" % i if biased else "A"}}
        has_bias = tile * 0 + {{biased}}
{% endif %}
{% endfor %}
{% if SAME_STRIDES %}
    P0_k = {{stride("B0", 0)}}
    P0_n = {{stride("B0", 1)}}
{% endif %}
{% endif %}
{% if GATED or SAME_N %}
    N = {{size("B0", 1)}}
{% endif %}
    stride_am = {{stride("A", 0)}}
    stride_ak = {{stride("A", 1)}}
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
{% if MASKED %}
    offs_a_m = rm
{% else %}
    if ((stride_am == 1 and stride_ak == M) or (stride_am == K and stride_ak == 1)) and (M >= BLOCK_M and K > 1):
        offs_a_m = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    else:
        offs_a_m = rm % M
{% endif %}
{% if EVEN_N %}
    offs_b_n = tl.max_contiguous(tl.multiple_of(rn, BLOCK_N), BLOCK_N)
{% else %}
    offs_b_n = rn % N
{% endif %}
    offs_k = tl.arange(0, BLOCK_K).to(INDEX_DTYPE)
{% for i in range(AT_ONCE) %}
    acc{{i}} = tl.zeros((BLOCK_M, BLOCK_N{{", BLOCK_K" if FEW_ROWS}}), dtype=tl.float32)
{% endfor %}

{% if FEW_ROWS %}
    for k_idx in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=STAGES):
{% else %}
    for k_idx in range(0, tl.cdiv(K + tl.program_id(2), BLOCK_K)):
{% endif %}
        {% if not EVEN_K %}
        a_mask = offs_k[None, :] < (K - k_idx * BLOCK_K)
        b_mask = offs_k[:, None] < (K - k_idx * BLOCK_K)
        {% endif %}
        {% if MASKED %}
        a_mask = (rm < M)[:, None]{{"" if EVEN_K else " & a_mask"}}
        {% endif %}
        b_k = offs_k[:, None] + (k_idx * BLOCK_K)
        idx_m = offs_a_m[:, None]
        idx_n = offs_k[None, :] + (k_idx * BLOCK_K)
        {{load_input("A", "a", ("idx_m", "idx_n"), mask="a_mask" if MASKED or not EVEN_K else None,
                     indent_width=8, index_shape=("BLOCK_M", "BLOCK_K"))}}
{% for i in range(AT_ONCE) %}
{% if FEW_ROWS %}
        P{{i}}_block = P{{i}} + offs_b_n[:, None] * P{{i}}_n + idx_n * P{{i}}_k
        b{{i}} = tl.load(P{{i}}_block, {{"" if EVEN_K else "a_mask, 0.0, "}}eviction_policy="evict_first")
        acc{{i}} += a[:, None, :].to(tl.float32) * b{{i}}[None, :, :].to(tl.float32)
{% else %}
        P{{i}}_block = P{{i}} + b_k * P{{i}}_k + offs_b_n[None, :] * P{{i}}_n
        b{{i}} = tl.load(P{{i}}_block{% if not EVEN_K %}, mask=b_mask, other=0.0{% endif %})
        acc{{i}} = tl.dot(a, b{{i}}, acc{{i}}, allow_tf32=ALLOW_TF32, out_dtype=tl.float32)
{% endif %}
{% endfor %}
{% if FEW_ROWS %}
{% for i in range(AT_ONCE) %}
    acc{{i}} = tl.sum(acc{{i}}, 2)
{% endfor %}
{% endif %}

    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N)
{% for i in range(AT_ONCE if SCALED else 0) %}
    acc{{i}} *= tl.load(SA + idx_m * SCALE_STEP, mask=idx_m < M, other=0.0)
    acc{{i}} *= tl.load(S{{i}} + idx_n * SCALE_STEP, mask=idx_n < N, other=0.0)
{% endfor %}
{% if AT_ONCE == COUNT %}
{% for i in range(COUNT if GATED else 0) %}
{% if BIASES // 2**i % 2 %}
    acc{{i}} += tl.load(C{{i}} + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]
{% endif %}
    product{{i}} = acc{{i}}.to({{"tl.bfloat16" if SCALED else "P0.dtype.element_ty"}}).to(tl.float32)
{% endfor %}
{% if GATED %}
{% if GELU %}
    steep = 1.5957691216057308 * (product0 + 0.044715 * product0 * product0 * product0)
{% else %}
    steep = product0
{% endif %}
    value = product0 / (1 + tl.exp(-steep)) * product1
{% else %}
    value = acc0
{% endif %}
    {{store_output(("idx_m", "idx_n"), "value", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
{% else %}
{% if BIASES %}
    acc0 += tl.load(C + rn, mask=(rn < N) & (has_bias != 0), other=0.0).to(tl.float32)[None, :]
{% endif %}
    if tile < {{((size("B0", 1) | int) + BLOCK_N - 1) // BLOCK_N}}:
        {{store_output(("idx_m", "idx_n"), "acc0", "mask", val_shape=("BLOCK_M", "BLOCK_N"), indent_width=8)}}
    else:
        tl.store(result + idx_m * N + idx_n, acc0.to(result.dtype.element_ty), mask)
{% endif %}
"""


def joined_template(count: int, biases: int, *, gated: bool, scaled: bool = False) -> TritonTemplate:
    """Return the template for a number of B. ``biases`` has a bit for each B with a bias.

    Each list of arguments has its own template. The template for a single B leaves the bias to Inductor.
    """
    names = ["A", *(f"B{i}" for i in range(count)), *(f"C{i}" for i in range(count) if biases >> i & 1)]
    names += ["SA", *(f"SB{i}" for i in range(count))] if scaled else []
    names += [] if gated else [f"R{i}" for i in range(1, count)]
    kind = "gated" if gated else "joined"
    name = f"diode_lut_{kind}_{count}_{'scaled' if scaled else biases}" if count > 1 else FEW_ROWS
    known: TritonTemplate | None = TritonTemplate.all_templates.get(name)
    arguments = ", ".join(f'"{each}"' for each in names)
    return known or TritonTemplate(name, joined_grid, f"{{{{def_kernel({arguments})}}}}{_SOURCE}")


def options_of(config: Config, rows: int, columns: list[int], k: int) -> dict[str, Any]:
    """Return the template's options for a config, the rows of A, the columns of each B, and K."""
    options: dict[str, Any] = {KWARGS[config.template][name]: value for name, value in config.tunables.items()}
    few = "BLOCK_M" not in options
    if few:
        options |= {"BLOCK_M": rounded_up(rows), "GROUP_M": 1, "STAGES": options["num_stages"]}
    block_n = options["BLOCK_N"]
    return options | {
        "FEW_ROWS": few,
        "COUNT": len(columns),
        "AT_ONCE": 1,
        "GATED": False,
        "GELU": False,
        "BIASES": 0,
        "SCALED": False,
        "TILES_N": sum(-(-n // block_n) for n in columns),
        "SAME_N": len(set(columns)) == 1,
        "EVEN_N": all(n % block_n == 0 for n in columns),
        "EVEN_K": k % options["BLOCK_K"] == 0,
        "MASKED": False,
    }
