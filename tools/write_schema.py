"""Write the JSON Schemas: of tables, from the types in ``table/format.py``, and of receipts.

The schema of receipts keeps its structure and gets the names that the code has. Run after a change of a template, a
tunable, a tier, a limit or a text: ``python tools/write_schema.py``.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from diode_lut.problem import (
    ALIGNS,
    ATTENTION,
    ATTENTION_ONLY,
    ATTENTION_SIZES,
    BATCHED,
    DOMAINS,
    DTYPES,
    EPILOGUES,
    GENERATED,
    LAYOUTS,
    NAMED_VARIANTS,
    NO_EPILOGUE,
    NO_VARIANT,
    OF_KERNELS,
    OP_SIZES,
    OPS,
    VARIANTS,
    Domain,
)
from diode_lut.receipts import VERSION as RECEIPT_VERSION
from diode_lut.settings import TIERS
from diode_lut.table import format as table_format
from diode_lut.table.format import CONFIGS, SCHEMA_VERSION, SIZES

SCHEMAS = Path(__file__).parents[1] / "schemas"
PATH = SCHEMAS / f"table.v{SCHEMA_VERSION}.schema.json"
RECEIPT = SCHEMAS / f"receipt.v{RECEIPT_VERSION}.schema.json"

Schema = dict[str, Any]

DEFINITIONS = {
    "size": table_format.SIZE,
    "range": table_format.RANGE,
    "hardware": table_format.HARDWARE,
    "provenance": table_format.PROVENANCE,
    "entry": table_format.ROW,
    "config": table_format.CONFIG,
    **CONFIGS,
    "gain_permille": table_format.GAIN,
}
"""The types that the schema of tables has once, by name."""

LIMITS = {"ge": "minimum", "le": "maximum", "min_length": "minLength"}
LIMITS_OF_LISTS = {"min_length": "minItems", "max_length": "maxItems"}  # JSON Schema's names for limits

OF_TIERS = {
    "user": "a table of the user's own",
    "device": "a shipped one for this device",
    "same_arch": "one for another device with the same architecture and SM count",
    "chooser": "a function of the user's",
    "model": "a model",
}


def main() -> None:
    """Replace the files."""
    PATH.write_text(text(table()), encoding="utf-8")
    RECEIPT.write_text(text(receipt()), encoding="utf-8")


def text(schema: Schema) -> str:
    """Return the text of a schema's file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def table() -> Schema:
    """Return the schema of tables."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": table_format.SCHEMA_NAME,
        **schema_of(table_format.TABLE),
        "$defs": {name: definition(kind) for name, kind in DEFINITIONS.items()},
    }


def schema_of(kind: Any) -> Schema:
    """Return the schema of a type; a reference if it is one of DEFINITIONS."""
    name = next((name for name, known in DEFINITIONS.items() if known == kind), None)
    return definition(kind) if name is None else {"$ref": f"#/$defs/{name}"}


def definition(kind: Any) -> Schema:
    """Return the schema of a type, written out."""
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        base, *inner, meta = arguments
        schema = schema_of(Annotated[(base, *inner)] if inner else base)
        names = LIMITS_OF_LISTS if schema.get("type") == "array" else LIMITS
        limits = {name: limit for field, name in names.items() if (limit := getattr(meta, field)) is not None}
        texts = {} if meta.title is None else {"title": meta.title, "description": meta.description}
        return {**texts, **schema, **limits}
    if get_origin(kind) is Literal:
        of_numbers = isinstance(arguments[0], int)
        allowed = {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        return {"type": "integer" if of_numbers else "string", **allowed}
    if get_origin(kind) is Union:
        # Programs that validate explain a wrong config better if its template decides how it is validated.
        return {
            "type": "object",
            "required": ["template"],
            "properties": {"template": schema_of(table_format.TEMPLATE)},
            "allOf": [
                {"if": {"properties": {"template": {"const": name}}, "required": ["template"]}, "then": schema_of(each)}
                for name, each in CONFIGS.items()
            ],
        }
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        tag = kind.__struct_config__.tag_field
        required = [*([tag] if tag else ()), *(field.encode_name for field in fields if field.required)]
        return {
            **described(kind.__name__, kind.__doc__ or ""),
            "type": "object",
            "additionalProperties": False,
            **({"required": required} if required else {}),
            "properties": {
                **({tag: True} if tag else {}),
                **{field.encode_name: schema_of(field.type) for field in fields},
            },
        }
    if arguments:  # list[item], tuple[item, ...] or tuple[item, item]
        fixed = {} if arguments[-1] is ... or len(arguments) == 1 else dict.fromkeys(("minItems", "maxItems"), 2)
        return {"type": "array", "items": schema_of(arguments[0]), **fixed}
    return {"type": {int: "integer", str: "string"}[kind]}


def receipt() -> Schema:
    """The schema of receipts: as it is, with the names of tiers and of problems' values that the code has."""
    schema: Schema = json.loads(RECEIPT.read_text(encoding="utf-8"))
    tiers = "; ".join(f"{name}: {OF_TIERS[name]}" for name in TIERS)
    schema["$defs"]["tier"] = {**described("Tier", f"{tiers}."), "type": "string", "enum": list(TIERS)}
    classes = [name for name in EPILOGUES if name != NO_EPILOGUE]
    ops = [op for op in OPS if op not in GENERATED]
    values = {"op": ops, "dtype": DTYPES, "layout": LAYOUTS, "align": ALIGNS, "epilogue": classes}
    values["variant"] = NAMED_VARIANTS
    for of_problem in ("hit", "miss", "skip", "no_choice", "unfused", "apart"):
        for name, allowed in values.items():
            schema["$defs"][of_problem]["properties"][name]["enum"] = list(allowed)
        schema["$defs"][of_problem]["if"]["properties"]["op"]["enum"] = [op for op in ops if op not in BATCHED]
        properties = schema["$defs"][of_problem]["properties"]
        more = {name.upper(): {**described(*SIZES[name]), "$ref": "#/$defs/size"} for name in ATTENTION_ONLY}
        names = dict.fromkeys(("op", "dtype", "layout", "align", *map(str.upper, ATTENTION_SIZES)))
        schema["$defs"][of_problem]["properties"] = {
            name: {**properties, **more}[name] for name in {**names, **properties}
        }
        domains = dict.fromkeys(DOMAINS[op] for op in ops)
        schema["$defs"][of_problem]["anyOf"] = list(map(of_domain, domains))
    generated = schema["$defs"]["generated"]
    generated["properties"]["op"]["enum"] = list(GENERATED)
    generated["properties"]["variant"]["enum"] = [variant for op in GENERATED for variant in VARIANTS[op]]
    for name in OF_KERNELS:
        generated["properties"][name.upper()] = {**described(*SIZES[name]), "$ref": "#/$defs/size"}
    generated["anyOf"] = [of_generated(op) for op in GENERATED]
    return schema


def of_generated(op: str) -> Schema:
    """The values that go together: what a generated kernel of the op has."""
    sizes = [name.upper() for name in OP_SIZES[op]]
    absent: Schema = {name: False for name in map(str.upper, OF_KERNELS) if name not in sizes}
    rules = {"op": {"const": op}, "variant": {"enum": list(VARIANTS[op])}, **absent}
    return {"properties": rules, "required": sizes}


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


def described(title: str, description: str) -> Schema:
    """Return the texts that editors show."""
    return {"title": title, "description": description}


if __name__ == "__main__":
    main()
