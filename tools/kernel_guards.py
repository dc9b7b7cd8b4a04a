"""The guards of what a row decides for one GEMM: which problem it is, and which kernels may compute it."""

from typing import Any

from source_changes import FALSE, NONE, RAISES, TRUE, Instead, Without

HOOK, KERNELS = "tests/hook/test_hook.py::", "tests/hook/test_guards.py::"
TIMED = "tests/hook/test_timed_options.py::"
ON_CPU, CPU = "tests/hook/test_guards_on_cpu.py::", "tests/hook/test_cpu.py::"
INSTALL, CACHE = "tests/hook/test_install.py::", "tests/hook/test_cache.py::"
SMALL_GPUS = "tests/hook/test_small_gpus.py::"
PADDING = "tests/hook/test_padding.py::"
CONCAT = "tests/hook/test_concat.py::"
ATTENTION = "tests/hook/test_attention.py::"
GENERATED = "tests/hook/test_generated.py::"
SPLITS = "tests/hook/test_split_reductions.py::"
GROUPED = "tests/hook/test_grouped_mm.py::"
FUSED, LEFT = "tests/hook/test_fused.py::", "tests/hook/test_fused.py::test_others_are_left"
JOINED, FEW_ROWS = "tests/hook/test_joined.py::", "tests/hook/test_few_rows.py::"
SHARED = "tests/hook/test_shared_kernels.py::"
STANDALONE = "tests/hook/test_standalone.py::"
WRAPPERS = "test_wrappers_that_know_no_such_argument"
CONVOLUTIONS = "tests/hook/test_convolutions.py::"
STAYS = "test_what_stays_a_convolution"
SCALED = "tests/hook/test_scaled_mm.py::"
INT8 = "tests/hook/test_int_mm.py::"
CHANGES, TRANSIENT = "tests/hook/test_snapshot.py::", "tests/hook/test_transient.py::"
DYNAMIC = "tests/hook/test_dynamic.py::"
SETTINGS = "tests/test_settings.py::"
RUNTIME, STATISTICS = "tests/test_runtime.py::", "tests/test_statistics.py::"


def parameters(more: str) -> Instead:
    """A template's kernel gets these parameters, whatever Inductor derives."""
    changed = f"params.kwargs.update({more})"
    return Instead(f"lambda template, params, *others: ({changed}, original(template, params, *others))[1]")


def setting_is_off(setting: str) -> Instead:
    """A setting of Inductor's counts as off."""
    return Instead(f"lambda name: name != {setting!r} and original(name)")


def sizes_checked_as(function: str) -> Instead:
    """A problem's sizes are checked as what a function of each and of 1 gives."""
    checked = f"original.__func__(cls, *fields[:4], *({function}(size, 1) for size in fields[4:]), **more)"
    return Instead(f"classmethod(lambda cls, *fields, **more: {checked}._replace(**dict(zip('bmnk', fields[4:]))))")


KERNEL_GUARDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "diode_lut.hook.choices": {
        "decompose-k-unbacked": (
            "free_unbacked_symbols",
            FALSE,
            DYNAMIC + "test_a_size_that_only_the_data_tell_is_not_cut",
        ),
        "even-k": ("_choice_of", parameters("EVEN_K=True"), TIMED + "test_even_k_is_derived"),
        "accumulator-type": (
            "_choice_of",
            parameters("ACC_TYPE='tl.float16'"),
            KERNELS + "test_reduced_precision_reduction",
            TIMED + "test_kernels_add_up_in_float32",
        ),
        "tf32": ("allows_tf32", TRUE, KERNELS + "test_precision_switches", TIMED + "test_tf32_wherever_it_is_allowed"),
        "settings-of-timings": (
            "require_settings_of_timings",
            NONE,
            TIMED + "test_accumulation_in_float16_of_the_library",
            TIMED + "test_tritons_own_precision",
            TIMED + "test_a_precision_that_changes_within_a_compile",
        ),
        "carve-out": ("require_templates", Without("carveout"), TIMED + "test_fewer_sms"),
        "int8-blocks": ("_require_blocks_of_bytes", NONE, INT8 + "test_refused"),
        "blocks-as-they-are": ("_triton", Without("should_scale_configs"), HOOK + "test_row_becomes_the_kernel"),
        "prologue": ("_choice_of", Without("allowed_prologue_inps"), HOOK + "test_prologue_is_not_fused"),
        "shared-memory": (
            "_require_room",
            Without("memory"),
            HOOK + "test_unlaunchable_config_gives_way",
            KERNELS + "test_tma_that_would_not_fit_with_its_epilogue_is_refused",
        ),
        "registers": (
            "register_complaints",
            Instead("lambda *_: iter(())"),
            HOOK + "test_unlaunchable_config_gives_way",
            KERNELS + "test_accumulator_that_takes_all_registers",
        ),
        "stages-and-waves-on-rocm": (
            "_as_written",
            Instead("lambda config, make, **values: make(**values)"),
            "tests/hook/test_rocm.py::test_a_kernel_has_the_tunables_of_its_config",
        ),
        "batch-over-65535": ("_batch_fits_grid", TRUE, KERNELS + "test_batch_over_65535"),
        "batch-that-may-grow": (
            "_batch_fits_grid",
            Instead("lambda inputs: not V.graph.sizevars.statically_known_gt(inputs.shapes_symbolic()[-1][0], 65535)"),
            KERNELS + "test_batch_over_65535",
        ),
        "batch-invariance": ("is_on", setting_is_off("batch_invariant"), KERNELS + "test_batch_invariance"),
        "epilogues-that-load-with-tma": (
            "is_on",
            setting_is_off("triton.enable_tma_load_for_template_epilogue"),
            KERNELS + "test_epilogues_that_load_with_tma",
        ),
        "factor-of-zero": ("_require_factors", NONE, HOOK + "test_what_no_row_can_serve_is_left_alone"),
        "factor-that-may-change": (
            "_require_factors",
            Without("free_symbols"),
            KERNELS + "test_factors_that_may_change",
        ),
        "indices-of-32-bits": ("_fits_32_bits", TRUE, KERNELS + "test_more_elements_than_32_bits_index"),
        "triton-allowed": ("_offers_triton", TRUE, HOOK + "test_triton_backend_switched_off_is_respected"),
        "template-of-another-op": (
            "UIDS",
            Instead("dict.fromkeys(original, ('mm', 'addmm', 'bmm', 'baddbmm'))"),
            HOOK + "test_unlaunchable_config_gives_way",
        ),
        "equal-parts-of-k": ("_decompose_k", Without("k_split"), HOOK + "test_unlaunchable_config_gives_way"),
        "aot-inductor": ("_decompose_k", Without("aot_mode"), KERNELS + "test_kernels_that_aot_inductor_cannot_have"),
        "cpp-wrapper": ("_decompose_k", Without("cpp_wrapper"), KERNELS + "test_kernels_that_aot_inductor_cannot_have"),
        "sizes-of-subgraphs": ("_sizes_stay_dynamic", TRUE, KERNELS + "test_parts_of_k_with_dynamic_sizes"),
        "padded-results": ("_returns_its_layout", TRUE, KERNELS + "test_parts_of_k_where_results_are_padded"),
        "bias-of-aten": (
            "with_fixed_layouts",
            Instead(
                "lambda given, op: [made := original(given, op), given.nodes().__setitem__(slice(3), made.nodes())][0]"
            ),
            HOOK + "test_aten_beside_triton_has_the_bias_of_its_own",
        ),
        "tma-rows-are-apart": ("_rows_are_apart", TRUE, HOOK + "test_tma_is_refused_where_illegal"),
        "tma-legal": ("use_triton_tma_template", TRUE, HOOK + "test_tma_is_refused_where_illegal"),
        "tma-order": ("_order_is_plain", TRUE, HOOK + "test_tma_is_refused_where_illegal"),
        "tma-rows-stay-aligned": (
            "_stays_aligned",
            Instead("lambda node: node.get_layout().offset * node.get_dtype().itemsize % _DESCRIPTOR_BYTES == 0"),
            KERNELS + "test_tma_where_rows_may_become_unaligned",
        ),
        "tma-memory-in-threads": (
            "with_memory_in_any_thread",
            Instead("lambda choice: choice"),
            KERNELS + "test_descriptors_get_memory_in_every_call",
        ),
        "short-code": (
            "_with_short_code",
            Instead("lambda choice: choice"),
            KERNELS + "test_the_loop_along_k_is_not_unrolled",
        ),
        "shared-blocks": ("_but_for_its_width", Without("block_n"), SHARED + "test_which_widths_share"),
        "rendered-for-benchmarks": (
            "_may_run_codes",
            Instead("lambda: False"),
            SHARED + "test_choices_of_many_widths_have_one_code",
            STANDALONE + "test_each_width_has_a_kernel_of_its_own",
        ),
        "shared-multiples": ("_MULTIPLE", Instead("1"), SHARED + "test_which_widths_share"),
        "shared-in-cpp": ("_results_of_shared_kernels", Without("can_branch"), SHARED + WRAPPERS),
        "shared-while-autotuning": (
            "_results_of_shared_kernels",
            Without("autotune_at_compile_time"),
            SHARED + WRAPPERS,
        ),
        "tma-scratch-in-cpp": (
            "tma_legal",
            Without("cpp_wrappers_have_scratch"),
            KERNELS + "test_tensor_descriptors_in_cpp",
        ),
        "tma-view-is-aligned": (
            "_stays_aligned",
            Instead("lambda node: original(node) or node.get_layout().offset != 0"),
            KERNELS + "test_tma_of_a_view",
        ),
        "float8-options": ("scaling_options", Instead("lambda *_: {}"), SCALED + "test_row_makes_the_plain_kernel"),
        "float8-precision": ("is_precise", TRUE, SCALED + "test_refused"),
        "frozen-layouts": (
            "fix_layout",
            Without("freeze_layout"),
            HOOK + "test_flexible_input_keeps_the_layout_it_was_looked_up_by",
        ),
        "few-rows": ("require_fit", NONE, FEW_ROWS + "test_more_rows_are_the_librarys"),
        "gpu-that-is-too-small": ("is_big_enough", TRUE, SMALL_GPUS + "test_a_model_is_no_evidence"),
    },
    "diode_lut.templates.together": {
        "few-rows-constants": (
            "FewRows.constants",
            Instead("lambda self, layout: ''"),
            FEW_ROWS + "test_sizes_that_may_change",
        ),
    },
    "diode_lut.hook.joined": {
        "joined-a": ("_identity", Instead("lambda argument: 0"), JOINED + "test_others_stay_apart"),
        "joined-b": ("_are_ready", TRUE, JOINED + "test_others_stay_apart"),
        "joined-bias": ("product_of", Without("bias"), JOINED + "test_others_stay_apart"),
        "joined-factors": ("product_of", Without("_SETTINGS"), JOINED + "test_others_stay_apart"),
        "joined-scales": (
            "_scaling",
            Instead("lambda *tensors: 'row-bfloat16-fast'"),
            JOINED + "test_other_float8_stays_apart",
        ),
        "joined-concatenation": ("is_concatenated", FALSE, JOINED + "test_others_stay_apart"),
        "joined-sizes-change": ("product_of", Without("numbers"), JOINED + "test_sizes_that_may_change_stay_apart"),
        "joined-in-place": (
            "_with_the_same_a",
            Without("writes"),
            JOINED + "test_nothing_moves_over_what_is_written_in_place",
        ),
        "joined-epilogues": ("may_be_followed", FALSE, JOINED + "test_many_rows_keep_their_epilogues"),
        "joined-casts": ("is_on", setting_is_off("emulate_precision_casts"), JOINED + "test_casts_that_are_emulated"),
        "joined-settings": ("require_templates", NONE, JOINED + "test_inductors_settings_win"),
        "joined-cpp": ("join", Without("cpp_wrapper"), JOINED + "test_inductors_settings_win"),
        "joined-verify": ("join", Without("policy"), JOINED + "test_our_settings_win"),
        "joined-off": ("in_force", TRUE, JOINED + "test_our_settings_win"),
        "joined-room": ("require_fit", NONE, JOINED + "test_config_that_cannot_run_is_skipped"),
        "fused-fit": ("require_fit", NONE, FUSED + "test_rows_that_are_not_aligned"),
        "joined-precision": ("require_settings_of_timings", NONE, JOINED + "test_precision_of_timings"),
        "joined-errors": ("leave", RAISES, JOINED + "test_a_kernel_that_fails_leaves_them_apart"),
    },
    "diode_lut.hook.fused": {
        "fused-alone": ("takes_place", TRUE, LEFT),
        "fused-other": ("_is_like", TRUE, LEFT),
        "fused-own": ("_is_like", Without("inside"), LEFT),
        "fused-aligned": ("_is_aligned", TRUE, LEFT),
        "fused-domain": ("_works", Without("domain"), LEFT),
        "fused-concatenation": ("is_concatenated", FALSE, LEFT),
        "fused-in-place": ("_works", Without("is_impure"), FUSED + "test_nothing_moves_over_what_is_written_in_place"),
        "fused-gates": ("fuse", Without("isdisjoint"), FUSED + "test_a_gate_is_activated_where_it_is_multiplied"),
        "fused-gpus": ("_chosen", Without("templates_for"), FUSED + "test_other_gpus_are_not_asked_about"),
        "fused-cpp": ("fuse", Without("cpp_wrapper"), FUSED + "test_inductors_settings_win"),
        "fused-verify": ("fuse", Without("policy"), FUSED + "test_our_settings_win"),
    },
    "diode_lut.hook.epilogues": {
        "joined-alone": ("speedup_by_fusion", Without("ALONE"), JOINED + "test_nothing_is_fused"),
        "parts-that-are-aligned": ("is_written_in_rows", TRUE, CONCAT + "test_parts_that_do_not_begin_at_16_bytes"),
        "parts-of-wide-indices": (
            "_has_narrow_indices",
            TRUE,
            CONCAT + "test_a_whole_of_more_elements_than_32_bits_index",
        ),
    },
    "diode_lut.decide.decide": {
        "constants": (
            "Answers._loses_constants",
            FALSE,
            TIMED + "test_sizes_that_were_constants",
            TIMED + "test_sizes_that_were_constants_behind_an_epilogue",
        )
    },
    "diode_lut.problem": {
        "zero-sizes": (
            "Problem.checked",
            sizes_checked_as("max"),
            KERNELS + "test_zero_sizes",
            HOOK + "test_what_no_row_can_serve_is_left_alone",
        ),
        "enormous-sizes": (
            "Problem.checked",
            sizes_checked_as("min"),
            HOOK + "test_what_no_row_can_serve_is_left_alone",
        ),
        "unit-stride": (
            "Operand.letter",
            Instead('property(lambda self: original.fget(self) or "t")'),
            HOOK + "test_what_no_row_can_serve_is_left_alone",
        ),
        "unaligned-rows": ("Operand.is_aligned", TRUE, KERNELS + "test_rows_for_what_is_aligned"),
    },
    "diode_lut.hook.attention": {
        "attention-blocks": ("_require_divisors", NONE, ATTENTION + "test_refused"),
        "attention-options": ("attention_of", Without("harmless"), ATTENTION + "test_kernel_options_win"),
        "attention-types": ("dtype_of", Instead('lambda *_: "bfloat16"'), ATTENTION + "test_left_to_inductor"),
    },
    "diode_lut.templates.flex_attention": {
        "attention-memory": ("Forward.shared_memory", Instead("lambda *_: 0"), ATTENTION + "test_refused"),
        "attention-registers": ("Flex.registers", Instead("lambda *_: (0, None)"), ATTENTION + "test_refused"),
        "attention-gradients": (
            "Backward.faults",
            Instead("lambda *_: iter(())"),
            ATTENTION + "test_blocks_of_gradients_must_divide_each_other",
        ),
    },
    "diode_lut.hook.generated": {
        "generated-class": ("_why_left", Without("kernel_class"), GENERATED + "test_left_to_inductor"),
        "generated-decided": ("_why_left", Without("decided"), GENERATED + "test_left_to_inductor"),
        "generated-settings": ("_context", Without("setting"), GENERATED + "test_inductors_settings_win"),
        "generated-node": ("_why_left", Without("patches"), GENERATED + "test_settings_for_a_node_win"),
        "generated-order": ("_why_left", Without("order"), GENERATED + "test_order_of_a_sum_wins"),
        "generated-dimensions": ("_why_left", Without("known"), GENERATED + "test_two_dimensions_beside_each_other"),
        "generated-sizes-change": ("_range_of_x", Without("reduction_numel"), GENERATED + "test_left_to_inductor"),
        "generated-index": ("_why_left", Without("select_index_dtype"), GENERATED + "test_left_to_inductor"),
        "generated-tiles-added": (
            "_why_left",
            Without("atomic_add"),
            GENERATED + "test_tiles_unlike_those_that_were_timed",
        ),
        "generated-tiles-float8": (
            "_why_left",
            Instead('lambda *given: "" if (why := original(*given)) == WRITES_FLOAT8 else why'),
            GENERATED + "test_tiles_unlike_those_that_were_timed",
        ),
        "generated-float64": ("_why_left", Without("float64"), GENERATED + "test_left_to_inductor"),
        "generated-rocm": ("_context", Without("hip"), GENERATED + "test_rocm_is_left_to_inductor"),
        "generated-verify": ("_context", Without("policy"), GENERATED + "test_nothing_verifies_it"),
        "generated-persistent": ("_fixed", Without("allowed"), GENERATED + "test_persistent_reductions_are_off"),
        "generated-form": (
            "_configs_of_form",
            Instead("lambda decision, *_: decision.configs"),
            GENERATED + "test_several_reductions_keep_the_form",
        ),
        "generated-tiles": ("_fixed_for", Without("variant"), GENERATED + "test_config_that_cannot_run_gives_way"),
        "generated-float8": ("_require_room", Without("least"), GENERATED + "test_config_that_cannot_run_gives_way"),
        "generated-grid": (
            "_AtLeastTwo.__getitem__",
            Instead("lambda self, item: self.config[item]"),
            GENERATED + "test_grid_along_y_is_masked",
            GENERATED + "test_one_row_of_a_persistent_reduction_keeps_x",
        ),
        "split-scans": ("_SCAN", Instead('re.compile("none")'), SPLITS + "test_scans_are_inductors"),
        "split-sizes-change": (
            "parts_of",
            Without("var_to_range"),
            SPLITS + "test_sizes_that_may_change_are_inductors",
        ),
        "split-settings": ("parts_of", Without("why"), SPLITS + "test_inductors_settings_win"),
        "generated-memory": ("_require_room", Without("needed"), GENERATED + "test_shared_memory_of_a_small_gpu"),
    },
    "diode_lut.decide.sources": {
        "generated-range": (
            "Source.ask_over",
            Instead("lambda self, problem, low, *rest: self.ask(problem._replace(x=low), rest[-1], padding=False)"),
            GENERATED + "test_rows_for_parts_of_a_range",
            GENERATED + "test_rows_that_lose_in_a_part_of_a_range",
        ),
    },
    "diode_lut.templates.generated": {
        "split-parts": (
            "SplitReduction.faults_on",
            Instead("lambda *_: iter(())"),
            SPLITS + "test_parts_that_are_too_short_are_skipped",
        ),
        "generated-registers": (
            "Generated.faults_on",
            Instead("lambda *_: iter(())"),
            GENERATED + "test_config_that_cannot_run_gives_way",
        ),
        "generated-steps": (
            "Generated.faults_on",
            Without("step"),
            GENERATED + "test_config_that_cannot_run_gives_way",
        ),
    },
    "diode_lut.hook.unasked": {
        "grouped-sizes-change": ("is_plain", TRUE, GROUPED + "test_sizes_that_change_are_inductors"),
        "grouped-settings": ("require_templates", NONE, GROUPED + "test_inductors_settings_are_kept"),
        "grouped-cpp": ("_require_kernel", Without("cpp_wrapper"), GROUPED + "test_cpp_wrappers_have_the_library"),
        "grouped-alignment": ("_require_kernel", Without("align"), GROUPED + "test_refused"),
        "grouped-overlap": ("_apart", TRUE, GROUPED + "test_refused"),
        "grouped-index": ("_require_kernel", Without("can_use_32bit_indexing"), GROUPED + "test_refused"),
        "candidates-without-a-layout": (
            "answer_on_cpu",
            Without("layout"),
            CPU + "test_frozen_linear_with_several_candidates",
        ),
        "convolution-window": ("as_matmul", Without("given"), CONVOLUTIONS + STAYS),
        "convolution-transposed": ("as_matmul", Without("transposed"), CONVOLUTIONS + STAYS),
        "convolution-sizes-change": ("is_plain", TRUE, CONVOLUTIONS + STAYS),
        "convolution-precision": ("as_matmul", Without("_OF_IMAGES"), CONVOLUTIONS + STAYS),
        "convolution-followed": ("epilogue_ahead", Instead("lambda node: 'light'"), CONVOLUTIONS + STAYS),
        "convolution-layout": ("_is_channels_last", TRUE, CONVOLUTIONS + STAYS),
        "convolution-training": ("as_matmul", Without("is_inference"), CONVOLUTIONS + "test_training"),
        "convolution-inputs": ("as_matmul", Without("realize"), CONVOLUTIONS + "test_inputs_are_computed_once"),
        "convolution-settings": ("as_matmul", Without("policy"), CONVOLUTIONS + "test_settings"),
        "convolution-choices": ("as_matmul", Without("top_k"), CONVOLUTIONS + "test_settings"),
        "convolution-off": (
            "in_force",
            Instead('__import__("diode_lut.hook.snapshot", fromlist=["_"]).snapshot'),
            CONVOLUTIONS + "test_settings",
        ),
        "convolution-epilogues": ("as_matmul", Without("epilogues"), CONVOLUTIONS + "test_settings"),
        "convolution-rows": ("as_matmul", Without("best"), CONVOLUTIONS + "test_rows_that_keep_it"),
        "convolution-models": ("as_matmul", Without("MODEL"), CONVOLUTIONS + "test_a_model_is_no_reason"),
        "convolution-autotuning": ("autotuning", FALSE, CONVOLUTIONS + "test_inductors_settings_win"),
        "convolution-native": ("is_on", FALSE, CONVOLUTIONS + "test_inductors_settings_win"),
    },
    "diode_lut.templates.triton_gemm": {
        "grouped-device": ("GroupedMm.runs_on", TRUE, GROUPED + "test_other_devices_have_no_kernel"),
        "grouped-memory": ("GroupedMm.shared_memory", Instead("lambda *_: 0"), GROUPED + "test_refused"),
        "grouped-registers": ("register_complaints", Instead("lambda *_: iter(())"), GROUPED + "test_refused"),
    },
    "diode_lut.hook.problems": {
        "unbounded-sizes": ("lacks_a_range", FALSE, DYNAMIC + "test_a_size_that_nothing_bounds"),
        "mixed-types": (
            "dtype_of",
            Instead("lambda kinds, device: original(kinds, device) or max(map(str, map(_DTYPES.get, kinds)))"),
            KERNELS + "test_mixed_types",
        ),
        "precision": (
            "dtype_of",
            Instead('lambda kinds, device: "float32" if torch.float32 in kinds else original(kinds, device)'),
            KERNELS + "test_precision_switches",
            HOOK + "test_tf32_is_another_dtype",
        ),
        "int8-types": ("_dtype_of", Instead("lambda inputs, op: INT8"), INT8 + "test_unsigned_bytes"),
        "padding-by-others": ("_is_inductors", TRUE, PADDING + "test_padding_that_a_program_does_itself"),
        "unaligned-input": (
            "stays_aligned",
            Instead("lambda node: original(node) or node.get_layout().offset == 0"),
            KERNELS + "test_rows_for_what_is_aligned",
        ),
        "unaligned-view": (
            "stays_aligned",
            Instead("lambda node: original(node) or node.get_layout().offset != 0"),
            KERNELS + "test_rows_for_what_is_aligned",
        ),
        "freezing": ("is_packed_linear", FALSE, CPU + "test_row_decides_frozen_linear"),
        "freezing-after-something-fused": (
            "realize_inputs",
            Instead("lambda node: node"),
            CPU + "test_linear_after_something_fused",
        ),
    },
    "diode_lut.hook.handler": {
        "padding-of-dynamic-rows": ("_stay_aligned", TRUE, PADDING + "test_a_row_whose_size_changes_is_not_padded"),
        "grouped-handler": (
            "filter_choices",
            Without("DiodeChoices"),
            GROUPED + "test_another_handler_is_not_answered",
        ),
        "candidates-of-others": (
            "MARK",
            Instead('"a mark that nothing has"'),
            HOOK + "test_what_others_add_is_left_out",
        ),
    },
}
"""For each module its guards, as BY_MODULE in ``guards.py`` has them."""
