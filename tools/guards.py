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

from typing import Any

from kernel_guards import (
    CACHE,
    CHANGES,
    HOOK,
    INSTALL,
    KERNEL_GUARDS,
    KERNELS,
    ON_CPU,
    RUNTIME,
    SETTINGS,
    STATISTICS,
    TRANSIENT,
)
from source_changes import FALSE, NONE, RAISES, TRUE, UNREGISTERED, Guard, Instead, Without

PROVENANCE = "tests/hook/test_provenance.py::"
CHOOSER = "tests/test_chooser.py::"
HANDED_OVER = "tests/hook/test_handed_over.py::"
SERVED = "test_graphs_of_another_process_are_served_if_they_are_what_their_keys_stand_for"

BY_MODULE: dict[str, dict[str, tuple[Any, ...]]] = {
    **KERNEL_GUARDS,
    "diode_lut.hook.handler": {
        **KERNEL_GUARDS["diode_lut.hook.handler"],
        "failure-in-the-hook": (
            "leave",
            RAISES,
            HOOK + "test_failure_inside_inductor_is_a_warning",
            INSTALL + "test_inductor_has_moved_on",
        ),
        "addmm-asked-for-again": (
            "_MatmulLowering._answered_before",
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
    "diode_lut.hook.switch": {
        "graph-without-its-answers": (
            "is_answered",
            TRUE,
            TRANSIENT + "test_graph_in_which_an_answer_failed_is_not_cached",
            TRANSIENT + "test_graph_during_which_the_hook_went_off_is_not_cached",
            PROVENANCE + "test_graphs_compiled_after_a_fault_are_not_kept",
        ),
        "tables-of-another-process": ("follow", NONE, HANDED_OVER + SERVED),
    },
    "diode_lut.hook.snapshot": {
        "code-in-keys": ("code_digest", NONE, RUNTIME + "test_cache_identity_follows_the_code"),
        "code-replaced-on-the-disk": (
            "is_code_as_imported",
            TRUE,
            TRANSIENT + "test_graph_is_not_cached_once_diode_lut_was_replaced",
        ),
        "one-snapshot-for-a-compile": (
            "snapshot",
            Instead("lambda: _handed_over or InductorSnapshot()"),
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
            "InductorSnapshot.float32",
            Instead('lambda self, device_type: original(self, device_type) or "tf32"'),
            ON_CPU + "test_precision_on_the_cpu",
        ),
        "precision-on-the-cpu": (
            "InductorSnapshot.float32",
            Instead('lambda self, _: original(self, "cuda")'),
            ON_CPU + "test_precision_on_the_cpu",
        ),
        "precision-in-the-keys": (
            "InductorSnapshot.identity",
            Instead("property(lambda self: original.func(self)[: -len(self.matmul)])"),
            CHANGES + "test_precision_is_part_of_the_keys",
        ),
    },
    "diode_lut.hook.graphs": {
        "mark-of-a-package": (
            "load_package",
            Instead("lambda load, function: load(function)"),
            CHANGES + "test_packages_are_served_to_those_who_would_make_the_same",
        ),
        "package-without-a-mark": (
            "read_package",
            Instead("lambda read, path: read(path)"),
            CHANGES + "test_packages_of_a_process_without_the_hook",
        ),
        "kept-with-graphs": ("_keep", NONE, PROVENANCE + "test_compiling_again_counts_once_more"),
        "told-of-cached-graphs": ("_tell", NONE, PROVENANCE + "test_compiling_again_counts_once_more"),
        "graph-without-its-answers-in-another-process": ("compiles_for_another", FALSE, HANDED_OVER + SERVED),
    },
    "diode_lut.hook.patches": {
        "failure-in-the-factory": ("_inductors_own", RAISES, INSTALL + "test_inductor_has_moved_on"),
        "earlier-factory": ("set_factory", Without("previous"), INSTALL + "test_earlier_handlers_stay_below_ours"),
        "earlier-handler": (
            "take_over_this_thread",
            Instead("lambda _: lambda: None"),
            INSTALL + "test_earlier_handlers_stay_below_ours",
            INSTALL + "test_every_order_of_imports",
        ),
        "installed-twice": ("is_in_place", FALSE, INSTALL + "test_reload_changes_nothing"),
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
    "diode_lut.hook.versions": {
        "another-inductor": ("require_same_parameters", NONE, INSTALL + "test_inductor_has_moved_on"),
        "new-threads": (
            "set_choices_factory",
            Without("default"),
            KERNELS + "test_new_thread",
            INSTALL + "test_every_order_of_imports",
        ),
    },
    "diode_lut.decide.catalog": {
        "threads-at-once": (
            "sources_for",
            Instead("lambda hardware, by, choosers: _open_sources(hardware, by.tables, by.tiers, choosers)"),
            RUNTIME + "test_threads_share_the_sources",
        ),
        "fork-while-tables-are-read": (
            "in_forked_children",
            UNREGISTERED,
            RUNTIME + "test_a_child_forked_while_tables_are_read_reads_them_itself",
        ),
    },
    "diode_lut.decide.choosers": {
        "nonsense-of-a-function": (
            "_checked",
            Instead("lambda config: config"),
            CHOOSER + "test_what_goes_wrong_is_a_miss_with_one_warning",
        ),
        "unidentified-function": (
            "Chooser.is_identified",
            Instead("property(lambda self: True)"),
            CHOOSER + "test_answers_without_an_identity_are_not_kept",
        ),
        "function-in-the-keys": (
            "ChooserSource.identity",
            Instead('property(lambda self: "")'),
            CHOOSER + "test_digest_stands_for_the_chooser",
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
    "diode_lut.receipts.recorder": {
        "fork-while-counting": (
            "in_forked_children",
            UNREGISTERED,
            STATISTICS + "test_a_forked_process_counts_its_own",
        ),
        "fork-and-receipt": (
            "in_forked_children",
            UNREGISTERED,
            "tests/receipts/test_receipt_file.py::test_a_child_adds_its_number",
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
