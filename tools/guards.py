"""The guards of the hook: the code that keeps a row from doing harm, and the tests that fail without it.

``break_guards.py`` takes them away one by one. Some of what could go wrong needs no code of ours; tests see to it that
this stays so:

- autocast: Inductor sees the casts before the GEMM, so a row for the type after them answers (test_autocast);
- deterministic mode: a single kernel is never timed, and gives the same bits twice (test_deterministic_mode);
- an epilogue in shared memory: Triton needs no more for it than for the GEMM's blocks, except with TMA, where
  Inductor's own reckoning includes it (test_fused_epilogue_fits_shared_memory);
- freezing on a GPU: the frozen weight is an input like any other (tests/gpu/test_guards.py::test_freezing);
- AOTInductor: but for decompose_k, its packages have kernels as all compiled code has (test_aot_inductor);
- spawned processes, and those in which Inductor compiles whole graphs, import diode_lut again, and get handlers as
  "pickled-handler" has it (test_forked_and_spawned_processes, test_subprocess_compile_workers);
- another library's handler that is set after ours: Inductor asks the last (test_handler_of_another_library_after_ours);
- CUDA graphs, and backward passes, compiled in autograd's threads (tests/gpu/test_hook.py): see "new-threads".
"""

from __future__ import annotations

from typing import Any

from source_changes import Guard, Instead, Without

HOOK, KERNELS = "tests/inductor/test_hook.py::", "tests/inductor/test_guards.py::"
ON_CPU, CPU = "tests/inductor/test_guards_on_cpu.py::", "tests/inductor/test_cpu.py::"
INSTALL, CACHE = "tests/inductor/test_install.py::", "tests/inductor/test_cache.py::"
PADDING = "tests/inductor/test_padding.py::"
CHANGES = "tests/inductor/test_snapshot.py::"
SETTINGS = "tests/test_settings.py::"
RUNTIME, STATISTICS = "tests/test_runtime.py::", "tests/test_statistics.py::"

TRUE, FALSE, NONE = (Instead(f"lambda *_, **__: {value}") for value in (True, False, None))
RAISES = Instead("lambda *given: (_ for _ in ()).throw(given[-1] if given else RuntimeError())")
"""Raises the last argument where that is an error, else a RuntimeError."""
UNREGISTERED = Instead("lambda function: function")
"""Replaces a decorator that registers a function."""


def parameters(more: str) -> Instead:
    """A template's kernel gets these parameters, whatever Inductor derives."""
    changed = f"params.kwargs.update({more})"
    return Instead(f"lambda template, params, *others: ({changed}, original(template, params, *others))[1]")


def sizes_checked_as(function: str) -> Instead:
    """A problem's sizes are checked as what a function of each and of 1 gives."""
    checked = f"original.__func__(cls, *fields[:4], *({function}(size, 1) for size in fields[4:]))"
    return Instead(f"classmethod(lambda cls, *fields: {checked}._replace(**dict(zip('bmnk', fields[4:]))))")


BY_MODULE: dict[str, dict[str, tuple[Any, ...]]] = {
    "diode_lut.inductor.build_choice": {
        "even-k": ("_choice_of", parameters("EVEN_K=True"), HOOK + "test_even_k_is_derived"),
        "accumulator-type": (
            "_choice_of",
            parameters("ACC_TYPE='tl.float16'"),
            KERNELS + "test_reduced_precision_reduction",
        ),
        "blocks-as-they-are": ("_triton", Without("should_scale_configs"), HOOK + "test_row_becomes_the_kernel"),
        "frozen-layouts": (
            "_with_fixed_layouts",
            Without("freeze_layout"),
            HOOK + "test_flexible_input_keeps_the_layout_it_was_looked_up_by",
        ),
        "prologue": ("_triton", Without("allowed_prologue_inps"), HOOK + "test_prologue_is_not_fused"),
        "tma-legal": ("use_triton_tma_template", TRUE, HOOK + "test_tma_is_refused_where_illegal"),
        "tma-order": ("_order_is_plain", TRUE, HOOK + "test_tma_is_refused_where_illegal"),
        "tma-rows-stay-aligned": (
            "_stays_aligned",
            Instead("lambda node: node.get_layout().offset * node.get_dtype().itemsize % _DESCRIPTOR_BYTES == 0"),
            KERNELS + "test_tma_where_rows_may_become_unaligned",
        ),
        "tma-view-is-aligned": (
            "_stays_aligned",
            Instead("lambda node: original(node) or node.get_layout().offset != 0"),
            KERNELS + "test_tma_of_a_view",
        ),
        "shared-memory": (
            "_triton",
            Without("max_autotune_prune_choices_based_on_shared_mem"),
            HOOK + "test_unlaunchable_config_gives_way",
            KERNELS + "test_tma_that_would_not_fit_with_its_epilogue_is_refused",
        ),
        "registers": (
            "accumulator_registers",
            Instead("lambda *_: 0"),
            HOOK + "test_unlaunchable_config_gives_way",
            KERNELS + "test_accumulator_that_takes_all_registers",
        ),
        "batch-over-65535": ("_batch_fits_grid", TRUE, KERNELS + "test_batch_over_65535"),
        "batch-that-may-grow": (
            "_batch_fits_grid",
            Instead("lambda inputs: not V.graph.sizevars.statically_known_gt(inputs.shapes_symbolic()[-1][0], 65535)"),
            KERNELS + "test_batch_over_65535",
        ),
        "batch-invariance": ("is_batch_invariant", FALSE, KERNELS + "test_batch_invariance"),
        "factor-of-zero": ("_require_factors", NONE, HOOK + "test_what_no_row_can_serve_is_left_alone"),
        "factor-that-may-change": (
            "_require_factors",
            Without("free_symbols"),
            KERNELS + "test_factors_that_may_change",
        ),
        "indices-of-32-bits": ("_fits_32_bits", TRUE, KERNELS + "test_more_elements_than_32_bits_index"),
        "tma-rows-are-apart": ("_rows_are_apart", TRUE, HOOK + "test_tma_is_refused_where_illegal"),
        "triton-allowed": ("use_triton_template", TRUE, HOOK + "test_triton_backend_switched_off_is_respected"),
        "template-of-another-op": (
            "UIDS",
            Instead("dict.fromkeys(original, ('mm', 'addmm', 'bmm', 'baddbmm'))"),
            HOOK + "test_unlaunchable_config_gives_way",
        ),
        "equal-parts-of-k": ("_decompose_k", Without("k_split"), HOOK + "test_unlaunchable_config_gives_way"),
        "aot-inductor": ("_decompose_k", Without("aot_mode"), KERNELS + "test_kernels_that_aot_inductor_cannot_have"),
        "cpp-wrapper": ("_decompose_k", Without("cpp_wrapper"), KERNELS + "test_kernels_that_aot_inductor_cannot_have"),
        "padded-results": ("_returns_its_layout", TRUE, KERNELS + "test_parts_of_k_where_results_are_padded"),
        "bias-of-aten": (
            "_with_fixed_layouts",
            Instead(
                "lambda given, op: [made := original(given, op), given.nodes().__setitem__(slice(3), made.nodes())][0]"
            ),
            HOOK + "test_aten_beside_triton_has_the_bias_of_its_own",
        ),
    },
    "diode_lut.domain.problem": {
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
    "diode_lut.inductor.problems": {
        "unbacked-sizes": ("free_unbacked_symbols", FALSE, ON_CPU + "test_unbacked_size_is_left_to_inductor"),
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
        "unaligned-input": (
            "_stays_aligned",
            Instead("lambda node: original(node) or node.get_layout().offset == 0"),
            KERNELS + "test_rows_for_what_is_aligned",
        ),
        "unaligned-view": (
            "_stays_aligned",
            Instead("lambda node: original(node) or node.get_layout().offset != 0"),
            KERNELS + "test_rows_for_what_is_aligned",
        ),
    },
    "diode_lut.inductor.choices": {
        "freezing": ("is_packed_linear", FALSE, CPU + "test_row_decides_frozen_linear"),
        "freezing-after-something-fused": (
            "realize_inputs",
            Instead("lambda node: node"),
            CPU + "test_linear_after_something_fused",
        ),
    },
    "diode_lut.inductor.choice_filter": {
        "candidates-without-a-layout": ("_can_be_timed", TRUE, CPU + "test_frozen_linear_with_several_candidates"),
        "candidates-of-others": (
            "MARK",
            Instead('"a mark that nothing has"'),
            HOOK + "test_what_others_add_is_left_out",
        ),
        "failure-in-the-filter": ("leave", RAISES, INSTALL + "test_inductor_has_moved_on"),
    },
    "diode_lut.inductor.hook": {
        "failure-in-the-hook": ("leave", RAISES, HOOK + "test_failure_inside_inductor_is_a_warning"),
        "addmm-asked-for-again": (
            "_Question._answered_before",
            FALSE,
            HOOK + "test_answered_addmm_has_nothing_else_made_for_it",
        ),
        "pickled-handler": (
            "DiodeChoices.__reduce__",
            Instead("object.__reduce__"),
            INSTALL + "test_earlier_handlers_stay_below_ours",
        ),
        "what-an-earlier-handler-holds": (
            "on_top_of",
            Without("update"),
            INSTALL + "test_earlier_handlers_stay_below_ours",
        ),
        "handler-that-is-ours": (
            "on_top_of",
            Without("DiodeChoices"),
            HOOK + "test_handler_of_another_library_stays_in_force",
        ),
        "cache-identity": ("cache_identity", NONE, CACHE + "test_caches_follow_what_the_answers_depend_on"),
        "cache-identity-of-an-earlier-handler": (
            "uuid_of",
            NONE,
            HOOK + "test_handler_of_another_library_stays_in_force",
        ),
    },
    "diode_lut.inductor.snapshot": {
        "one-snapshot-for-a-compile": (
            "snapshot",
            Instead("lambda: _handed_over or Snapshot()"),
            CHANGES + "test_backward_pass_sees_what_the_forward_pass_saw",
            CHANGES + "test_settings_changed_while_a_graph_is_compiled",
        ),
        "one-snapshot-without-dynamo": (
            "TracingContext",
            Instead("CompileContext"),
            CHANGES + "test_settings_changed_while_a_graph_is_compiled",
        ),
        "snapshot-of-another-process": (
            "_taken_over",
            Without("_handed_over"),
            ON_CPU + "test_subprocess_compile_workers",
        ),
        "precision-without-a-name": (
            "Snapshot.float32",
            Instead('lambda self, device_type: original(self, device_type) or "tf32"'),
            ON_CPU + "test_precision_on_the_cpu",
        ),
        "precision-on-the-cpu": (
            "Snapshot.float32",
            Instead('lambda self, _: original(self, "cuda")'),
            ON_CPU + "test_precision_on_the_cpu",
        ),
        "precision-in-the-keys": (
            "Snapshot.identity",
            Instead("property(lambda self: super(Snapshot, self).identity)"),
            CHANGES + "test_precision_is_part_of_the_keys",
        ),
    },
    "diode_lut.inductor.precompile": {
        "mark-of-a-package": (
            "_is_current",
            TRUE,
            CHANGES + "test_packages_are_served_to_those_who_would_make_the_same",
        ),
        "package-without-a-mark": (
            "_reading",
            Instead("lambda read: read"),
            CHANGES + "test_packages_of_a_process_without_the_hook",
        ),
    },
    "diode_lut.inductor.install": {
        "failure-in-the-factory": ("_inductors_own", RAISES, INSTALL + "test_inductor_has_moved_on"),
        "earlier-factory": ("_install_factory", Without("previous"), INSTALL + "test_earlier_handlers_stay_below_ours"),
        "earlier-handler": (
            "_take_over_this_thread",
            NONE,
            INSTALL + "test_earlier_handlers_stay_below_ours",
            INSTALL + "test_every_order_of_imports",
        ),
        "installed-twice": ("install", Without("FACTORY"), INSTALL + "test_reload_changes_nothing"),
        "cache-identity-in-the-pickle": (
            "Factory.__reduce__",
            Instead("lambda self: (_restore, (self.previous,))"),
            INSTALL + "test_factory_stays_itself",
        ),
        "copied-factory": ("Factory.__deepcopy__", Instead("None"), INSTALL + "test_factory_stays_itself"),
        "factory-in-repro-scripts": (
            "Factory.__name__",
            Instead('"the name of nothing"'),
            INSTALL + "test_repro_script_names_the_factory",
        ),
    },
    "diode_lut.inductor.padding": {
        "padding-of-dynamic-rows": ("_stay_aligned", TRUE, PADDING + "test_dynamic_sizes"),
        "padding-by-others": ("_is_inductors", TRUE, PADDING + "test_padding_that_a_program_does_itself"),
    },
    "diode_lut.inductor.versions": {
        "another-inductor": ("require_same_parameters", NONE, INSTALL + "test_inductor_has_moved_on"),
        "new-threads": (
            "set_choices_factory",
            Without("default"),
            KERNELS + "test_new_thread",
            INSTALL + "test_every_order_of_imports",
        ),
    },
    "diode_lut.runtime.snapshot": {
        "code-in-keys": ("code_digest", NONE, RUNTIME + "test_cache_identity_follows_the_code"),
        "threads-at-once": (
            "selector_for",
            Instead("lambda hardware, settings: _build_selector(hardware, settings.tables, settings.tiers)"),
            RUNTIME + "test_threads_share_one_selector",
        ),
        "fork-while-tables-are-read": (
            "in_forked_children",
            UNREGISTERED,
            RUNTIME + "test_a_child_forked_while_tables_are_read_reads_them_itself",
        ),
    },
    "diode_lut.settings": {
        "blocks-in-several-threads": (
            "Settings._keep",
            Instead("lambda self, _: (self._layers.pop(), self._apply())"),
            SETTINGS + "test_overlapping_patches_in_threads",
        ),
        "blocks-of-threads-that-did-not-fork": (
            "Settings.forget_other_threads",
            NONE,
            SETTINGS + "test_a_forked_process_keeps_the_blocks_of_its_own_thread",
        ),
    },
    "diode_lut.runtime.recorder": {
        "fork-while-counting": (
            "in_forked_children",
            UNREGISTERED,
            STATISTICS + "test_a_forked_process_counts_its_own",
        ),
        "fork-and-receipt": (
            "in_forked_children",
            UNREGISTERED,
            "tests/runtime/test_at_exit.py::test_a_child_adds_its_number",
        ),
    },
}
"""For each module its guards, by names that ``break_guards.py`` takes: what is changed, the change, and tests."""

GUARDS = {
    name: Guard(module, changed, change, tuple(tests))
    for module, guards in BY_MODULE.items()
    for name, (changed, change, *tests) in guards.items()
}
"""All of them by name."""
