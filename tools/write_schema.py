"""Writes the JSON Schemas: of the table format, from the registry of kernels and the limits of the reader, and of
receipts, whose file has the structure and gets the names that the code has.

Run after a change of a template, a tunable, a tier, a limit or a text: ``python tools/write_schema.py``. Version 1 of
the table format is frozen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diode_lut.problem import (
    ALIGNS,
    ATTENTION,
    ATTENTION_ONLY,
    BATCHED,
    DOMAINS,
    DTYPES,
    EPILOGUES,
    LAYOUTS,
    MAX_SIZE,
    NAMED_VARIANTS,
    NO_EPILOGUE,
    NO_VARIANT,
    OPS,
    SIZE_FIELDS,
    Domain,
)
from diode_lut.receipts.receipt import VERSION as RECEIPT_VERSION
from diode_lut.settings import TIERS
from diode_lut.table.format import (
    FORMATS,
    MAX_CONFIGS,
    MAX_ENTRIES,
    MAX_GAIN_PERMILLE,
    PROVENANCE,
    SCHEMA_NAMES,
    SCHEMA_VERSION,
)
from diode_lut.templates.config import TEMPLATES
from diode_lut.templates.template import Parameter, Template

SCHEMAS = Path(__file__).parents[1] / "schemas"
PATH = SCHEMAS / f"table.v{SCHEMA_VERSION}.schema.json"
RECEIPT = SCHEMAS / f"receipt.v{RECEIPT_VERSION}.schema.json"

Schema = dict[str, Any]

OF_PROVENANCE = {
    "torch": ("torch", "Version of PyTorch that measured."),
    "triton": ("Triton", "Version of Triton that compiled the kernels."),
    "cuda": ("CUDA", "Version of CUDA that PyTorch was built with."),
    "driver": ("Driver", "Version of the device's driver."),
    "benchmarker": ("Benchmarker", "The tool that measured the times."),
    "measured_on": ("Date", "When the latest timing was taken: YYYY-MM-DD."),
    "measured_by": ("Measured by", "Who took the timings, as the datasets say."),
    "datasets": ("Datasets", "Digests of the datasets that the table was built from: sha256:..."),
    "pruned_with": ("Pruned with", "The model that rows were left to: its digest, sha256:..., and its thresholds."),
    "diode_lut": ("diode_lut", "Version of diode_lut that built the table."),
}
OF_TIERS = {
    "user": "a table of the user's own",
    "device": "a shipped one for this device",
    "same_arch": "one for another device with the same architecture and SM count",
    "chooser": "a function of the user's",
    "model": "a model",
}
OF_SIZES = {
    "b": ("B", "Number of matrices in a batch, of batches of attention, or of groups; 1 for ops without a batch."),
    "m": ("M", "Rows of A and C, of all groups together; of attention, queries."),
    "n": ("N", "Columns of B and C; of attention, keys."),
    "k": ("K", "Columns of A and rows of B; of attention, the head dimension of queries and keys."),
    "h": ("Heads", "Of attention: heads of queries."),
    "g": ("Group", "Of attention: heads of queries that share a head of keys and values."),
    "v": ("Head dimension of values", "Of attention."),
}


def main() -> None:
    """Replace the files."""
    PATH.write_text(text(table()), encoding="utf-8")
    RECEIPT.write_text(text(receipt()), encoding="utf-8")


def text(schema: Schema) -> str:
    """A schema as its file has it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def receipt() -> Schema:
    """The schema of receipts: as it is, with the names of tiers and of problems' values that the code has."""
    schema: Schema = json.loads(RECEIPT.read_text(encoding="utf-8"))
    tiers = "; ".join(f"{name}: {OF_TIERS[name]}" for name in TIERS)
    schema["$defs"]["tier"] = {**described("Tier", f"{tiers}."), **choice("string", TIERS)}
    classes = [name for name in EPILOGUES if name != NO_EPILOGUE]
    values = {"op": OPS, "dtype": DTYPES, "layout": LAYOUTS, "align": ALIGNS, "epilogue": classes}
    values["variant"] = NAMED_VARIANTS
    for of_problem in ("hit", "miss", "skip", "no_choice", "unfused"):
        for name, allowed in values.items():
            schema["$defs"][of_problem]["properties"][name]["enum"] = list(allowed)
        schema["$defs"][of_problem]["if"]["properties"]["op"]["enum"] = [op for op in OPS if op not in BATCHED]
        properties = schema["$defs"][of_problem]["properties"]
        more = {name.upper(): {**described(*OF_SIZES[name]), **ref("size")} for name in ATTENTION_ONLY}
        names = dict.fromkeys(("op", "dtype", "layout", "align", *map(str.upper, SIZE_FIELDS)))
        schema["$defs"][of_problem]["properties"] = {
            name: {**properties, **more}[name] for name in {**names, **properties}
        }
        schema["$defs"][of_problem]["anyOf"] = [of_domain(domain) for domain in dict.fromkeys(DOMAINS.values())]
    return schema


def of_domain(domain: Domain) -> Schema:
    """The values that go together: what a problem of the ops with these has."""
    values = {"op": [op for op in OPS if DOMAINS[op] == domain], "dtype": domain.dtypes, "layout": domain.layouts}
    with_variants = domain.variants != (NO_VARIANT,)
    rules: Schema = {name: {"enum": list(allowed)} for name, allowed in values.items()}
    if not with_variants:
        rules["variant"] = False
    if not {*values["op"]}.issubset(ATTENTION):
        rules |= dict.fromkeys(map(str.upper, ATTENTION_ONLY), False)
    if domain.epilogues == (NO_EPILOGUE,):
        rules["epilogue"] = False
    return {"properties": rules, **({"required": ["variant"]} if with_variants else {})}


def table() -> Schema:
    """The schema."""
    fields = {
        "$schema": {
            **described(
                "Schema",
                "Path or name of this schema: editors use it to check the file while it is typed.",
            ),
            "type": "string",
        },
        "schema_version": {
            **described("Version", "The version of the format. A reader refuses versions that it does not know."),
            "type": "integer",
            "const": SCHEMA_VERSION,
        },
        "hardware": {**described("Hardware", "The device that the table is for."), **ref("hardware")},
        "provenance": {**described("Provenance", "Where the table comes from."), **ref("provenance")},
        "entries": {
            **described("Entries", "The rows, sorted by key in canonical form; their order has no meaning."),
            "type": "array",
            "maxItems": MAX_ENTRIES,
            "items": ref("entry"),
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_NAMES[SCHEMA_VERSION],
        **closed(
            f"Table of kernel configurations, version {SCHEMA_VERSION}",
            "Which kernel a GEMM gets on one kind of hardware. Of the entries that cover a GEMM, the one that covers "
            "the fewest problems answers for it.",
            fields,
            required=("schema_version", "hardware", "entries"),
        ),
        "$defs": definitions(),
    }


def definitions() -> Schema:
    """What the schema refers to."""
    return {
        "size": {
            **described("Size", "A size in elements; kernels index with 32 bits."),
            **integers(range(1, MAX_SIZE + 1)),
        },
        "range": {
            **described(
                "Range",
                "[lowest, highest], both included, and the lowest not above the highest. [1024, 1024] is just 1024.",
            ),
            "type": "array",
            "items": ref("size"),
            "minItems": 2,
            "maxItems": 2,
        },
        "hardware": hardware(),
        "provenance": provenance(),
        "entry": entry(),
        "config": config(),
        **{template.name: of_template(template) for template in TEMPLATES.values()},
        "gain_permille": {
            **described(
                "Gain",
                "1000 times the time of aten, divided by the time of this config: 1063 is 6.3 % faster than aten. Of "
                "attention, the time of default counts instead. Left out if it was not measured. With an epilogue, the "
                "time of aten includes that of a separate kernel for "
                "the pointwise work.",
            ),
            **integers(range(MAX_GAIN_PERMILLE + 1)),
        },
    }


def hardware() -> Schema:
    """The device."""
    fields = {
        "name": {
            **described("Name", "The marketing name as the driver gives it: NVIDIA H200."),
            "type": "string",
            "minLength": 1,
        },
        "arch": {
            **described("Architecture", "The instruction set: sm_90, gfx942, cpu-avx512."),
            "type": "string",
            "minLength": 1,
        },
        "sm_count": {
            **described("SM count", "Multiprocessors; on a CPU, threads that torch uses."),
            **integers(range(1, MAX_SIZE + 1)),
        },
        "aliases": {**described("Aliases", "Other names of the same hardware."), **strings()},
    }
    return closed("Hardware", "What the table was measured on.", fields, required=("name", "arch", "sm_count"))


def provenance() -> Schema:
    """Where the table comes from."""
    fields = {
        name: {**described(*OF_PROVENANCE[name]), **(strings() if name == "datasets" else {"type": "string"})}
        for name in PROVENANCE
    }
    return closed("Provenance", "Where the table comes from. It does not change what the table answers.", fields)


def entry() -> Schema:
    """A row, its fields in canonical order."""
    ops = (
        "The GEMM: C = A B (mm), C = bias + A B (addmm), both in batches (bmm, baddbmm), and with scales for A and B, "
        "whose types are float8 (scaled_mm); A B of int8 to int32 (int_mm); or attention: forward (flex_attention), "
        "its gradients (flex_attention_backward), and forward with few queries (flex_decoding); or a matmul of rows in "
        "groups, each with a matrix B of its own (grouped_mm). Left out, any GEMM but the latter."
    )
    classes = "; ".join(f"{name}: {meaning}" for name, meaning in EPILOGUES.items())
    fields = {
        "op": {**described("Operation", ops), **choice("string", OPS)},
        "dtype": {
            **described(
                "Type",
                "Type of the elements of A and B; tf32 is float32 with TF32 allowed. float8_e5m2 is that type for one "
                "of A and B, and float8_e4m3fn for the other.",
            ),
            **choice("string", DTYPES),
        },
        "layout": {
            **described("Layout", "A letter for A and one for B: n is row-major, t is column-major."),
            **choice("string", LAYOUTS),
        },
        "align": {
            **described("Alignment", "16 if every row of A and B starts on a 16-byte boundary, else 2."),
            **choice("integer", ALIGNS),
        },
        "epilogue": {
            **described("Epilogue", f"Class of the pointwise work that is fused behind the GEMM. {classes}."),
            **choice("string", EPILOGUES),
        },
        "variant": {
            **described(
                "Variant",
                "Of scaled_mm: whether A and B have a scale each (tensor), or each row of A and column of B (row); "
                "the type of the result; whether there is a bias; whether accumulation is fast, and less precise. Of "
                "attention: its mask (full: none; causal; computed from indices; captured: reads tensors), and what "
                "modifies scores, if anything does (computed; captured: reads tensors).",
            ),
            **choice("string", NAMED_VARIANTS),
        },
        **{name: {**described(*OF_SIZES[name]), **ref("range")} for name in SIZE_FIELDS},
        "problems": {
            **described("Problems", "Number of measured problems that the row is based on."),
            **integers(range(1, MAX_SIZE + 1)),
        },
        "configs": {
            **described("Configs", "Kernels, best first; the first that can run is taken. No two are equal."),
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_CONFIGS,
            "items": ref("config"),
        },
        "note": {**described("Note", "For people. Rows with a note survive rebuilds."), "type": "string"},
    }
    assert fields.keys() == FORMATS[SCHEMA_VERSION].fields.keys()
    about = (
        "A row: a key, which says what problems it covers, and configs. A field of the key that is left out matches "
    )
    return closed("Entry", f"{about}anything.", fields, required=("configs",))


def config() -> Schema:
    """A config of any template."""
    rules = [
        {
            "if": {"properties": {"template": {"const": name}}, "required": ["template"]},
            "then": ref(name),
        }
        for name in TEMPLATES
    ]
    about = (
        "What generates the kernel; aten calls the vendor's library (cuBLAS, rocBLAS, oneDNN), default is Inductor's "
        "own config for attention."
    )
    return {
        **described("Config", "A template and its tunables. What follows from the GEMM is derived and not stored."),
        "type": "object",
        "required": ["template"],
        "properties": {"template": {**described("Template", about), **choice("string", TEMPLATES)}},
        "allOf": rules,
    }


def of_template(template: Template) -> Schema:
    """A config of one template."""
    fields = {
        "template": True,
        **{each.name: tunable(each) for each in template.parameters},
        "gain_permille": ref("gain_permille"),
    }
    required = ("template", *(each.name for each in template.required))
    return closed(template.name, template.about, fields, required=required)


def tunable(parameter: Parameter) -> Schema:
    """A field of a config."""
    values = parameter.values
    kind = integers(values) if isinstance(values, range) else choice("integer", values)
    return {**described(parameter.title, parameter.meaning), **kind}


def described(title: str, description: str) -> Schema:
    """What editors show."""
    return {"title": title, "description": description}


def closed(title: str, description: str, fields: Schema, required: Iterable[str] = ()) -> Schema:
    """An object without other fields."""
    needed = {"required": list(required)} if required else {}
    shape = {"type": "object", "additionalProperties": False}
    return {**described(title, description), **shape, **needed, "properties": fields}


def ref(name: str) -> Schema:
    """A definition of this schema."""
    return {"$ref": f"#/$defs/{name}"}


def integers(values: range) -> Schema:
    """Every integer of a range."""
    return {"type": "integer", "minimum": values[0], "maximum": values[-1]}


def choice(kind: str, values: Iterable[object]) -> Schema:
    """One of these values."""
    return {"type": kind, "enum": list(values)}


def strings() -> Schema:
    """A list of strings."""
    return {"type": "array", "items": {"type": "string"}}


if __name__ == "__main__":
    main()
