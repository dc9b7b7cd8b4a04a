"""The guards of the hook: the code that keeps a row from doing harm, and the tests that fail without it.

``break_guards.py`` takes them away one by one. Some of what could go wrong needs no code of ours; tests see to it that
this stays so:

- autocast: Inductor sees the casts before the product, so a row for the type after them answers (test_autocast);
- deterministic mode: a single kernel is never timed, and gives the same bits twice (test_deterministic_mode);
- an epilogue in shared memory: Triton needs no more for it than for the product's blocks, except with TMA, where
  Inductor's own reckoning includes it (test_fused_epilogue_fits_shared_memory);
- freezing on a GPU: the frozen weight is an input like any other (tests/gpu/test_guards.py::test_freezing);
- AOTInductor: but for decompose_k, its packages have kernels as all compiled code has (test_aot_inductor);
- spawned processes, and those in which Inductor compiles whole graphs, import diode_lut again, and get handlers as
  "pickled-handler" has it (test_forked_and_spawned_processes, test_subprocess_compile_workers);
- another library's handler that is set after ours: Inductor asks the last (test_handler_of_another_library_after_ours);
- CUDA graphs, and backward passes, compiled in autograd's threads (tests/gpu/test_hook.py): see "new-threads".
"""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """Part of a module, as it is written there, and ``without``: what is in its place where the guard is taken away.

    At least one of the tests, which need no GPU, fails then.
    """

    module: str
    text: str
    without: str
    tests: tuple[str, ...]

    def taken_from(self, source: str) -> str:
        """The module's source without it; ValueError if it is not there exactly once."""
        if (found := source.count(self.text)) != 1:
            raise ValueError(f"{self.module}: expected once, found {found} times: {self.text}")
        return source.replace(self.text, self.without)


HOOK, KERNELS = "tests/inductor/test_hook.py::", "tests/inductor/test_guards.py::"
ON_CPU, CPU = "tests/inductor/test_guards_on_cpu.py::", "tests/inductor/test_cpu.py::"
INSTALL, CACHE = "tests/inductor/test_install.py::", "tests/inductor/test_cache.py::"
CHANGES = "tests/inductor/test_snapshot.py::"
SETTINGS = "tests/test_settings.py::"
RUNTIME, STATISTICS = "tests/test_runtime.py::", "tests/test_statistics.py::"

MADE = "        if params is None:\n"
"""Where build_choice.py has the parameters that Inductor derives for a kernel."""

BY_MODULE: dict[str, dict[str, tuple[str, ...]]] = {
    "inductor/build_choice.py": {
        # Inductor derives these two: taken away, they are as a table might have them.
        "even-k": (
            MADE,
            f"        params and params.kwargs.update(EVEN_K=True)\n{MADE}",
            HOOK + "test_even_k_is_derived",
        ),
        "accumulator-type": (
            MADE,
            f"        params and params.kwargs.update(ACC_TYPE='tl.float16')\n{MADE}",
            KERNELS + "test_reduced_precision_reduction",
        ),
        "blocks-as-they-are": (
            "    heuristic.should_scale_configs = False\n",
            "",
            HOOK + "test_row_becomes_the_kernel",
        ),
        "frozen-layouts": (
            "            node.freeze_layout()",
            "            pass",
            HOOK + "test_flexible_input_keeps_the_layout_it_was_looked_up_by",
        ),
        "prologue": (
            "        choice.allowed_prologue_inps = type(choice.allowed_prologue_inps)()",
            "        pass",
            HOOK + "test_prologue_is_not_fused",
        ),
        "tma-legal": (
            "            return False\n    return all(_order",
            "            pass\n    return all(_order",
            HOOK + "test_tma_is_refused_where_illegal",
        ),
        "tma-order": (
            "all(_order_is_plain(node) and _stays",
            "all(_stays",
            HOOK + "test_tma_is_refused_where_illegal",
        ),
        "tma-rows-stay-aligned": (
            "(node.get_layout().offset, *steps)",
            "(node.get_layout().offset,)",
            KERNELS + "test_tma_where_rows_may_become_unaligned",
        ),
        "tma-view-is-aligned": (
            "(node.get_layout().offset, *steps)",
            "steps",
            KERNELS + "test_tma_of_a_view",
        ),
        "shared-memory": (
            "        max_autotune_prune_choices_based_on_shared_mem=True,\n",
            "",
            HOOK + "test_unlaunchable_config_gives_way",
            KERNELS + "test_tma_that_would_not_fit_with_its_epilogue_is_refused",
        ),
        "registers": (
            "if limit is not None and accumulator_registers(tiles, device.warp_size) >= limit:",
            "if False:",
            HOOK + "test_unlaunchable_config_gives_way",
            KERNELS + "test_accumulator_that_takes_all_registers",
        ),
        "batch-over-65535": (
            "op in BATCHED and not splits_large_batches() and not _batch_fits_grid(inputs)",
            "False",
            KERNELS + "test_batch_over_65535",
        ),
        "batch-that-may-grow": (
            "return bool(V.graph.sizevars.statically_known_true(batch <= _MAX_GRID_Y))",
            "return not V.graph.sizevars.statically_known_true(batch > _MAX_GRID_Y)",
            KERNELS + "test_batch_over_65535",
        ),
        "batch-invariance": (
            "if is_batch_invariant():",
            "if False:",
            KERNELS + "test_batch_invariance",
        ),
        "factor-of-zero": (
            "        if factor == 0:",
            "        if False:",
            HOOK + "test_what_no_row_can_serve_is_left_alone",
        ),
        "factor-that-may-change": (
            'if any(getattr(factor, "free_symbols", None) for factor in factors.values()):',
            "if False:",
            KERNELS + "test_factors_that_may_change",
        ),
        "indices-of-32-bits": (
            "if not indexes_in_64_bits() and not _fits_32_bits(inputs):",
            "if False:",
            KERNELS + "test_more_elements_than_32_bits_index",
        ),
        "tma-rows-are-apart": (
            " and _rows_are_apart(node)",
            "",
            HOOK + "test_tma_is_refused_where_illegal",
        ),
        "triton-allowed": (
            "if not use_triton_template(inputs.output_layout(flexible=False), check_max_autotune=False):",
            "if False:",
            HOOK + "test_triton_backend_switched_off_is_respected",
        ),
        "template-of-another-op": (
            "op not in UIDS[config.template] or config",
            "config",
            HOOK + "test_unlaunchable_config_gives_way",
        ),
        "equal-parts-of-k": (
            "if not V.graph.sizevars.statically_known_multiple_of(k, config.k_split):",
            "if False:",
            HOOK + "test_unlaunchable_config_gives_way",
        ),
        "aot-inductor": (
            "V.graph.aot_mode or V.graph.cpp_wrapper",
            "V.graph.cpp_wrapper",
            KERNELS + "test_kernels_that_aot_inductor_cannot_have",
        ),
        "cpp-wrapper": (
            "V.graph.aot_mode or V.graph.cpp_wrapper",
            "V.graph.aot_mode",
            KERNELS + "test_kernels_that_aot_inductor_cannot_have",
        ),
        "padded-results": (
            "if not _returns_its_layout(choice):",
            "if False:",
            KERNELS + "test_parts_of_k_where_results_are_padded",
        ),
        "bias-of-aten": (
            "    nodes = list(inputs.nodes())\n",
            "    nodes = inputs.nodes()\n",
            HOOK + "test_aten_beside_triton_has_the_bias_of_its_own",
        ),
    },
    "domain/problem.py": {
        "zero-sizes": (
            "not 1 <= size <= MAX_SIZE",
            "not 0 <= size <= MAX_SIZE",
            KERNELS + "test_zero_sizes",
            HOOK + "test_what_no_row_can_serve_is_left_alone",
        ),
        "enormous-sizes": (
            "not 1 <= size <= MAX_SIZE",
            "not 1 <= size",
            HOOK + "test_what_no_row_can_serve_is_left_alone",
        ),
        "unit-stride": (
            '"t" if self.strides[-2] == 1 else None',
            '"t"',
            HOOK + "test_what_no_row_can_serve_is_left_alone",
        ),
        "unaligned-rows": ("align=16 if aligned else 2", "align=16", KERNELS + "test_rows_for_what_is_aligned"),
    },
    "inductor/problems.py": {
        "unbacked-sizes": (
            "    if free_unbacked_symbols([*shapes, *strides]):\n        return None\n",
            "",
            ON_CPU + "test_unbacked_size_is_left_to_inductor",
        ),
        "mixed-types": (
            "_DTYPES.get(kinds.pop()) if len(kinds) == 1 else None",
            "_DTYPES.get(inputs.dtype())",
            KERNELS + "test_mixed_types",
        ),
        "precision": (
            'snapshot().float32(inputs.device_type) if name == "float32" else name',
            "name",
            KERNELS + "test_precision_switches",
            HOOK + "test_tf32_is_another_dtype",
        ),
        "unaligned-input": (
            "return node.get_name() not in graph.unaligned_buffers or",
            "return True or",
            KERNELS + "test_rows_for_what_is_aligned",
        ),
        "unaligned-view": (
            "    if offset != 0 and not",
            "    if False and not",
            KERNELS + "test_rows_for_what_is_aligned",
        ),
    },
    "inductor/choices.py": {
        "freezing": ("return ATEN if is_packed_linear(choice) else", "return", CPU + "test_row_decides_frozen_linear"),
        "freezing-after-something-fused": (
            "    x = realize_inputs(x)  #",
            "    #",
            CPU + "test_linear_after_something_fused",
        ),
    },
    "inductor/choice_filter.py": {
        "candidates-without-a-layout": (
            "found is None or _can_be_timed(choices)",
            "True",
            CPU + "test_frozen_linear_with_several_candidates",
        ),
        "candidates-of-others": (
            "    if marked:\n        return marked\n",
            "",
            HOOK + "test_what_others_add_is_left_out",
        ),
        "failure-in-the-filter": (
            '    except Exception as error:\n        leave("a matmul", error)\n        return choices\n',
            "",
            INSTALL + "test_inductor_has_moved_on",
        ),
    },
    "inductor/hook.py": {
        "failure-in-the-hook": (
            "        except Exception as error:\n            leave(op_name, error)\n            choices = None\n",
            "",
            HOOK + "test_failure_inside_inductor_is_a_warning",
        ),
        "addmm-asked-for-again": (
            "return [] if self._answered_before() else None",
            "return None",
            HOOK + "test_answered_addmm_has_nothing_else_made_for_it",
        ),
        "pickled-handler": ("def __reduce__", "def _reduce", INSTALL + "test_earlier_handlers_stay_below_ours"),
        "what-an-earlier-handler-holds": (
            "    vars(composed).update(vars(handler))\n",
            "",
            INSTALL + "test_earlier_handlers_stay_below_ours",
        ),
        "handler-that-is-ours": (
            "    if isinstance(handler, DiodeChoices):\n        return handler\n",
            "",
            HOOK + "test_handler_of_another_library_stays_in_force",
        ),
        "cache-identity": (
            '("diode_lut", cache_identity(), ',
            '("diode_lut", ',
            CACHE + "test_caches_follow_what_the_answers_depend_on",
        ),
        "cache-identity-of-an-earlier-handler": (
            ", uuid_of(super()))",
            ", None)",
            HOOK + "test_handler_of_another_library_stays_in_force",
        ),
    },
    "inductor/snapshot.py": {
        "one-snapshot-for-a-compile": (
            "    return _taken.get(compilation) or _taken.setdefault(compilation, Snapshot())",
            "    return Snapshot()",
            CHANGES + "test_backward_pass_sees_what_the_forward_pass_saw",
            CHANGES + "test_settings_changed_while_a_graph_is_compiled",
        ),
        "one-snapshot-without-dynamo": (
            "CompileContext.try_get() or TracingContext.try_get()",
            "CompileContext.try_get()",
            CHANGES + "test_settings_changed_while_a_graph_is_compiled",
        ),
        "snapshot-of-another-process": (
            "        _handed_over = taken\n",
            "        pass\n",
            ON_CPU + "test_subprocess_compile_workers",
        ),
        "precision-without-a-name": (
            "_DTYPES.get(cpu.fp32_precision)",
            '_DTYPES.get(cpu.fp32_precision, "tf32")',
            ON_CPU + "test_precision_on_the_cpu",
        ),
        "precision-on-the-cpu": (
            "= torch.backends.mkldnn.matmul, ",
            "= torch.backends.cuda.matmul, ",
            ON_CPU + "test_precision_on_the_cpu",
        ),
        "precision-in-the-keys": (
            "(*super().identity, *self._float32.values())",
            "super().identity",
            CHANGES + "test_precision_is_part_of_the_keys",
        ),
    },
    "inductor/precompile.py": {
        "mark-of-a-package": (
            "return getattr(artifact, _MARK, None) == repr(cache_identity())",
            "return True",
            CHANGES + "test_packages_are_served_to_those_who_would_make_the_same",
        ),
        "package-without-a-mark": (
            "            vars(artifact).setdefault(_MARK, None)  # made by a process without the hook\n",
            "            pass\n",
            CHANGES + "test_packages_of_a_process_without_the_hook",
        ),
    },
    "inductor/install.py": {
        "failure-in-the-factory": (
            "            turn_off(error)\n            return _inductors_own()",
            "            raise\n            return _inductors_own()",
            INSTALL + "test_inductor_has_moved_on",
        ),
        "earlier-factory": (
            "    FACTORY.previous = config.inductor_choices_class\n",
            "",
            INSTALL + "test_earlier_handlers_stay_below_ours",
        ),
        "earlier-handler": (
            "        _take_over_this_thread()\n",
            "",
            INSTALL + "test_earlier_handlers_stay_below_ours",
            INSTALL + "test_every_order_of_imports",
        ),
        "installed-twice": (
            "if config.inductor_choices_class is FACTORY:",
            "if False:",
            INSTALL + "test_reload_changes_nothing",
        ),
        "cache-identity-in-the-pickle": (
            "return _restore, (self.previous, cache_identity())",
            "return _restore, (self.previous,)",
            INSTALL + "test_factory_stays_itself",
        ),
        "copied-factory": ("def __deepcopy__", "def _deepcopy", INSTALL + "test_factory_stays_itself"),
        "factory-in-repro-scripts": (
            '    __name__ = "FACTORY"',
            "   ",
            INSTALL + "test_repro_script_names_the_factory",
        ),
    },
    "inductor/versions.py": {
        "another-inductor": ("if known != found:", "if False:", INSTALL + "test_inductor_has_moved_on"),
        "new-threads": (
            '    config._config["inductor_choices_class"].default = factory\n',
            "",
            KERNELS + "test_new_thread",
            INSTALL + "test_every_order_of_imports",
        ),
    },
    "runtime/snapshot.py": {
        "code-in-keys": (
            "return (__version__, code_digest(), ",
            "return (__version__, ",
            RUNTIME + "test_cache_identity_follows_the_code",
        ),
        "threads-at-once": (
            "    with _lock:\n        return _build_selector(",
            "    if True:\n        return _build_selector(",
            RUNTIME + "test_threads_share_one_selector",
        ),
        "fork-while-tables-are-read": (
            "@in_forked_children\ndef _free_lock",
            "def _free_lock",
            RUNTIME + "test_a_child_forked_while_tables_are_read_reads_them_itself",
        ),
    },
    "settings.py": {
        "blocks-in-several-threads": (
            "self._keep(lambda other: other is not layer)",
            "self._layers.pop()",
            SETTINGS + "test_overlapping_patches_in_threads",
        ),
        "blocks-of-threads-that-did-not-fork": (
            "    config.forget_other_threads()\n",
            "",
            SETTINGS + "test_a_forked_process_keeps_the_blocks_of_its_own_thread",
        ),
    },
    "runtime/recorder.py": {
        "fork-while-counting": (
            "    _lock = threading.RLock()\n    _counting[0] = Counts()\n",
            "    _counting[0] = Counts()\n",
            STATISTICS + "test_a_forked_process_counts_its_own",
        ),
        "fork-and-receipt": (
            "@in_forked_children\ndef _begin_again",
            "def _begin_again",
            "tests/runtime/test_at_exit.py::test_a_child_adds_its_number",
        ),
    },
}
"""For each module of diode_lut its guards, by names that ``break_guards.py`` takes: text, without, and tests."""

GUARDS = {
    name: Guard(f"diode_lut/{module}", text, without, tuple(tests))
    for module, guards in BY_MODULE.items()
    for name, (text, without, *tests) in guards.items()
}
"""All of them by name."""
