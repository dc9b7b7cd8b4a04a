"""Options of Inductor that change its graphs, layouts, memory and kernels, and so what our choices have to go with."""

from random import Random
from typing import Any

from torch._inductor import config

OPTIONS: dict[str, tuple[Any, ...]] = {
    "aggressive_fusion": (True,),
    "allow_buffer_reuse": (False,),
    "assume_aligned_inputs": (False,),
    "combo_kernels": (True,),
    "combo_kernel_per_subkernel_blocks": (True,),
    "comprehensive_padding": (False,),
    "deterministic": (True,),
    "emulate_precision_casts": (True,),
    "enable_caching_generated_triton_templates": (False,),
    "epilogue_fusion": (False,),
    "epilogue_fusion_first": (True,),
    "force_pointwise_cat": (True,),
    "force_shape_pad": (True,),
    "graph_partition": (True, False),
    "inplace_buffers": (False,),
    "inplace_padding": (False,),
    "joint_graph_constant_folding": (False,),
    "keep_addmm_fused_for_half_dtypes": (False,),
    "keep_output_stride": (False,),
    "layout_optimization": (False,),
    "loop_ordering_after_fusion": (True, False),
    "max_autotune_allow_flexible_layouts": (True,),
    "max_autotune_gemm_backends": ("ATEN", "TRITON", "ATEN,TRITON"),
    "max_fusion_size": (1, 2, 8),
    "max_pointwise_cat_inputs": (1,),
    "memory_planning": (True,),
    "online_softmax": (False,),
    "pad_outputs": (True,),
    "padding_alignment_bytes": (32, 256),
    "padding_stride_threshold": (0, 16, 64),
    "pattern_matcher": (False,),
    "permute_fusion": (True,),
    "prologue_fusion": (True, False),
    "realize_opcount_threshold": (1,),
    "realize_reads_threshold": (1,),
    "reorder_for_locality": (False,),
    "reorder_for_peak_memory": (False,),
    "shape_padding": (False,),
    "split_reductions": (False,),
    "triton.coalesce_tiling_analysis": (False,),
    "triton.dense_indexing": (True,),
    "triton.divisible_by_16": (False,),
    "triton.enable_persistent_tma_matmul": (True,),
    "triton.enable_template_tma_store": (True,),
    "triton.enable_tma_load_for_template_epilogue": (True,),
    "triton.max_tiles": (1, 2, 3),
    "triton.mix_order_reduction": (False,),
    "triton.persistent_reductions": (False,),
    "triton.prefer_nd_tiling": (True,),
    "triton.tiling_prevents_pointwise_fusion": (False,),
    "triton.tiling_prevents_reduction_fusion": (False,),
    "triton.use_block_ptr": (True,),
    "unroll_reductions_threshold": (1,),
}
"""Values that are tried. Some only have an effect together: padding, for instance, if there is a low threshold."""

PADDING = ("pad_outputs", "padding_stride_threshold", "force_shape_pad")


def draw_options(random: Random) -> dict[str, Any]:
    """A few options, those of padding more often than others, as they move tensors in memory."""
    names = random.sample(sorted(OPTIONS), random.choice([0, 2, 4, 8]))
    names += [name for name in PADDING if random.random() < 0.25]
    return {name: random.choice(OPTIONS[name]) for name in sorted(set(names))}


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that the installed release has."""
    return {name: value for name, value in options.items() if _exists(name)}


def _exists(name: str) -> bool:
    place: Any = config
    *sections, option = name.split(".")
    for section in sections:
        place = getattr(place, section, None)
    return hasattr(place, option)
