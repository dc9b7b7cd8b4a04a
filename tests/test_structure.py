"""What holds for the repository as a whole."""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from diode_lut.files import schemas_directory
from diode_lut.problem import ALIGNS, DTYPES, LAYOUTS, MAX_SIZE, OPS
from diode_lut.table.format import MAX_CONFIGS, MAX_ENTRIES
from diode_lut.templates.config import TEMPLATES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "diode_lut"
MODULES = sorted(PACKAGE.rglob("*.py"))

RUNTIME = (
    "errors",
    "log",
    "process",
    "problem",
    "hardware",
    "files",
    "settings",
    "templates",
    "table",
    "model",
    "decide",
    "receipts",
    "probe",
    "api",
    "hook",
    "startup",
)
"""The modules and subpackages that run in a user's program."""

LAYERS = (
    *RUNTIME,
    "dataset",
    "build",
    "evaluate",
    "diff",
    "distill",
    "stand_ins",
    "compile_check",
    "doctor",
    "measure",
    "formats",
    "report",
    "contribute",
    "programs",
    "cli",
)
"""All modules and subpackages of diode_lut, from the bottom up: each imports only from those before it."""

TOUCH_TORCH = ("distill", "hook", "measure", "stand_ins")  # they import torch or Triton as they are imported


IMPORTED_AS = {
    "vl-convert-python": "vl_convert",
    "quack-kernels": "quack",
    "nvidia-cutlass-dsl": "cutlass",
    "apache-tvm-ffi": "tvm_ffi",
}
"""What packages of another name are imported as."""
PART_OF_TORCH = "sympy"  # sizes in Inductor are its expressions, so torch says which release it must be

WRITING = {"write_text", "write_bytes", "tofile", "savetxt", "save_file", "rename", "mkstemp", "NamedTemporaryFile"}
"""Methods and functions that write files, besides ``open``; ``savefig`` draws into memory."""
READING = {"'rb'", "path", "name", "os.O_RDONLY", "os.devnull", "os.O_WRONLY", "flags | _NEVER_WAITING"}
READING |= {"os.O_RDONLY | getattr(os, 'O_NONBLOCK', 0)"}
"""The arguments of ``open`` outside of files.py: it is for reading, or of the null device."""

RECORDS = {"problem", "entry", "kind", "candidate", "candidates", "layout", "box", "params", "fault", "TIERS"}
"""Names of records and of their parts: code says ``entry.best``, not ``entry.candidates[0]``."""
PARTS = {"key", "sizes"}  # names of parts of records, ``problem.m``, or of a shape
OF_RECORDS = ("diode_lut/problem.py", "diode_lut/templates/template.py", "diode_lut/table/row.py")
"""The modules that define them."""

RUNNING = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "np.load", "np.fromfile"}
RUNNING_MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "code", "codeop"}
RUNNING_KEYWORDS = {"shell", "allow_pickle", "ext_hook", "object_hook"}
CALLING_THE_USERS = "diode_lut/decide/choosers.py"  # what calls a user's function, which may raise anything
FOR_ALL_FAMILIES = {"__init__", "config", "template"}  # modules that are not about one family of templates
FAMILIES = {path.stem for path in (PACKAGE / "templates").glob("*.py")} - FOR_ALL_FAMILIES
NAMING_TEMPLATES = {
    "diode_lut/hook/versions.py": "what Inductor calls each template, for all modules",
    "diode_lut/model/features.py": "names of features, which weights files have",
}
"""The modules outside of ``templates`` in which a template's name stands, and why."""
COMMON_WORDS = {"default", "pointwise"}  # templates that are called like other things, such as a search space and an op

CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today", "time.localtime", "time.gmtime"}


def name_of(path: Path) -> str:
    """How messages and test names call a file."""
    return path.relative_to(ROOT).as_posix()


def layer_of(path: Path) -> str:
    """The module or subpackage of diode_lut that a file belongs to; empty for the package's own two files."""
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if part in ("__init__", "__main__") else part


def imports(nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[str]:
    """The full names of all that is imported, as ``from package import name`` writes them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def everywhere_but(*layers: str) -> list[Path]:
    """The modules of diode_lut outside these layers."""
    return [path for path in MODULES if layer_of(path) not in layers]


def breaches(modules: list[Path], check: Callable[[Path], object]) -> dict[str, object]:
    """What ``check`` finds, for each module in which it finds anything."""
    return {name_of(path): found for path in modules if (found := check(path))}


def test_every_module_has_its_place() -> None:
    """LAYERS lists what is there, and nothing else."""
    assert {layer_of(path) for path in MODULES} - {""} == set(LAYERS)


def test_imports_point_downwards() -> None:
    """A module imports only from its own subpackage and from lower layers; an entry point may call the command line."""

    def imported_from_above(path: Path) -> set[str]:
        names = [name.split(".") for name in imports(list(ast.walk(parse(path)))) if name.startswith("diode_lut.")]
        imported = {parts[1] for parts in names} & set(LAYERS)
        allowed = set(LAYERS[: LAYERS.index(layer_of(path)) + 1]) | ({"cli"} if path.stem == "__main__" else set())
        return imported - allowed

    assert breaches(everywhere_but(""), imported_from_above) == {}


def test_no_cycles_between_modules() -> None:
    """No module imports itself by way of others; an import inside a function counts, and so does one in a string."""
    assert cycles({name: reached - {name} for name, reached in module_graph().items()}) == []


def module_graph() -> dict[str, set[str]]:
    """For each module of diode_lut, those that it imports.

    A string counts if it is a module's name, or ``package.module:name``. ``from package import module`` imports the
    module, not the package.
    """
    names = {name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path for path in MODULES}

    def module_of(name: str) -> str:
        return name if name in names else name.rpartition(".")[0]

    graph = {}
    for name, path in names.items():
        nodes = list(ast.walk(parse(path)))
        strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        written = {string.partition(":")[0] for string in strings if "." in string}
        graph[name] = ({module_of(each) for each in imports(nodes)} | written) & names.keys()
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    remaining = dict(graph)
    while free := [node for node, reached in remaining.items() if not reached & remaining.keys()]:
        for node in free:
            del remaining[node]

    def reachable(node: str) -> set[str]:
        found, new = set[str](), remaining[node] & remaining.keys()
        while new:
            found |= new
            new = {each for other in new for each in remaining[other] if each in remaining} - found
        return found

    reaching = {node: reachable(node) for node in remaining}
    groups = {frozenset(each for each in reaching[node] if node in reaching[each]) for node in remaining}
    return sorted(sorted(group) for group in groups if group)


def test_submodules_are_imported_where_they_are_used() -> None:
    """``package.module`` needs an import of the module: that of the package does not bring it along."""

    def not_imported(path: Path) -> set[str]:
        nodes = list(ast.walk(parse(path)))
        froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        packages = {
            alias.asname or alias.name: f"{node.module}.{alias.name}".replace(".", "/")
            for node in froms
            for alias in node.names
            if (ROOT / f"{node.module}.{alias.name}".replace(".", "/") / "__init__.py").exists()
        }
        used = {
            f"{packages[node.value.id]}/{node.attr}"
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages
        }
        return {name for name in used if (ROOT / f"{name}.py").exists()}

    assert breaches(MODULES, not_imported) == {}


def test_torch_is_imported_where_it_is_used() -> None:
    """Outside the subpackages that are about torch, importing a module does not import it."""

    def imported_at_import(path: Path) -> set[str]:
        return {name.split(".")[0] for name in imports(parse(path).body)} & {"torch", "triton"}

    assert breaches(everywhere_but(*TOUCH_TORCH), imported_at_import) == {}


def test_what_is_imported_is_declared() -> None:
    """Each package that is imported is named in pyproject.toml: it need not come along with another one."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.findall(r'"([\w-]+)>=', text.partition("[dependency-groups]")[0])
    known = {IMPORTED_AS.get(name, name) for name in declared} | {"diode_lut", PART_OF_TORCH} | sys.stdlib_module_names

    def undeclared(path: Path) -> set[str]:
        return {name.split(".")[0] for name in imports(list(ast.walk(parse(path))))} - known

    assert breaches(MODULES, undeclared) == {}


UNTESTED = {"torch", "triton", "nvidia-matmul-heuristics", "quack-kernels", "nvidia-cutlass-dsl", "apache-tvm-ffi"}
"""Packages that are not in make test-lowest."""


def test_lowest_releases_are_those_declared() -> None:
    """``make test-lowest`` tests the lowest release of each package that users may have, except those in UNTESTED."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project]")[2]
    declared = dict(re.findall(r'"([\w-]+)>=([\d.]+)', text.partition("[dependency-groups]")[0]))
    lowest = (ROOT / "requirements" / "lowest.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w-]+)==(\d+\.\d+(?:\.[1-9]\d*)?)(?:\.0)?$", lowest, flags=re.MULTILINE))
    assert pinned == {name: release for name, release in declared.items() if name not in UNTESTED}


def test_exceptions_are_caught_by_name() -> None:
    """Only around Inductor and a user's function may everything be caught: elsewhere it would hide our own mistakes."""

    def caught_without_a_name(path: Path) -> list[int]:
        handlers = [node for node in ast.walk(parse(path)) if isinstance(node, ast.ExceptHandler)]
        return [node.lineno for node in handlers if node.type is None or "Exception" in names_in(node.type)]

    modules = [path for path in everywhere_but("hook", "measure") if name_of(path) != CALLING_THE_USERS]
    assert breaches(modules, caught_without_a_name) == {}


def test_parts_of_records_have_names() -> None:
    """No part of a problem, a row, a config or a fault is taken by its number outside of its module, and no tier is."""

    def taken_by_number(path: Path) -> set[str]:
        found = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Subscript)]
        return {ast.unparse(node) for node in found if is_record(node.value) and is_number(node.slice)}

    modules = [path for path in MODULES if name_of(path) not in OF_RECORDS]
    assert breaches(modules, taken_by_number) == {}


def test_only_the_registry_knows_templates() -> None:
    """Other modules ask a template for what it is like: they neither have its name nor import its family's module."""

    def named(path: Path) -> set[str]:
        nodes = list(ast.walk(parse(path)))
        strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        parts = [name.split(".") for name in imports(nodes) if name.startswith("diode_lut.templates.")]
        return strings & (TEMPLATES.keys() - COMMON_WORDS) | {part[2] for part in parts if part[2] in FAMILIES}

    found = breaches(everywhere_but("templates"), named)
    assert {name: names for name, names in found.items() if name not in NAMING_TEMPLATES} == {}
    assert set(found) == set(NAMING_TEMPLATES)


def test_a_name_means_one_thing() -> None:
    """No two modules of diode_lut give a class, or an alias of a type, the same name, private names included."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) or (isinstance(node, (ast.Assign, ast.AnnAssign)) and is_alias(node)):
                name = node.name if isinstance(node, ast.ClassDef) else ast.unparse(targets(node)[0])
                places.setdefault(name.removeprefix("_"), []).append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether a statement gives a type another name: it is written as classes are, and holds no call."""
    name = ast.unparse(targets(node)[0])
    is_named_so = re.fullmatch(r"_?[A-Z][a-z]\w*", name) is not None and not name.isupper()
    return is_named_so and not isinstance(node.value, (ast.Constant, ast.Dict, ast.Tuple))


def is_record(node: ast.expr) -> bool:
    """Whether an expression is called as a record or as a part of one is."""
    return last_name(node) in RECORDS or (isinstance(node, ast.Attribute) and node.attr in PARTS)


def last_name(node: ast.expr) -> str:
    """``kind`` of ``row.kind`` and of ``kind``; empty for what has no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_number(node: ast.expr) -> bool:
    """Whether an index, or a bound of a slice, is written as a number."""
    if isinstance(node, ast.Slice):
        return any(bound is not None and is_number(bound) for bound in (node.lower, node.upper))
    return isinstance(node, (ast.Constant, ast.UnaryOp)) and isinstance(ast.literal_eval(node), int)


def names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_files_are_written_in_one_place() -> None:
    """Only files.py writes files, so that what it promises holds for all of them."""

    def written(path: Path) -> set[str]:
        calls = [(name.rpartition(".")[2], arguments) for name, arguments in called(path)]
        opened = {argument for name, arguments in calls if name == "open" for argument in arguments}
        return {name for name, _ in calls} & WRITING | opened - READING

    modules = [path for path in MODULES if path != PACKAGE / "files.py"]
    assert breaches(modules, written) == {}


def test_nothing_that_is_read_is_run() -> None:
    """No module can make code of data: there is no eval, no YAML, no shell, and no pickle."""

    def run(path: Path) -> set[str]:
        tree = parse(path)
        keywords = {str(word.arg) for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords}
        modules = RUNNING_MODULES.intersection(name.split(".")[0] for name in imports(list(ast.walk(tree))))
        return modules | RUNNING.intersection(name for name, _ in called(path)) | RUNNING_KEYWORDS & keywords

    assert breaches(MODULES, run) == {}


def test_only_a_header_has_the_date() -> None:
    """Nothing depends on the system's clock, which may jump or be wrong, but what a dataset says of its day."""
    using = [(name_of(path), name) for path in MODULES for name, _ in called(path) if name in CLOCKS]
    assert using == [("diode_lut/measure/tasks.py", "date.today")]


@cache
def called(path: Path) -> list[tuple[str, list[str]]]:
    """What is called, and with which arguments, as they are written."""
    calls = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
    return [(ast.unparse(call.func), list(map(ast.unparse, call.args))) for call in calls]


def test_schema_allows_what_the_code_allows() -> None:
    """The names and limits in the schema are those in problem.py."""
    schema = json.loads((schemas_directory() / "table.v2.schema.json").read_text(encoding="utf-8"))
    enums = [tuple(enum) for enum in found(schema, "enum") if isinstance(enum, list)]
    for allowed in (OPS, DTYPES, LAYOUTS, ALIGNS):
        assert allowed in enums
    templates = {*(name for enum in enums for name in enum), *found(schema, "const")}
    assert set(TEMPLATES) <= templates
    assert MAX_SIZE in found(schema, "maximum")
    assert {MAX_ENTRIES, MAX_CONFIGS} <= set(found(schema, "maxItems"))
    for template, parameter in ((name, each) for name, known in TEMPLATES.items() for each in known.parameters):
        for rule in found(schema["$defs"][template], parameter.name):
            assert isinstance(rule, dict)
            if isinstance(parameter.values, range):
                assert (rule["minimum"], rule["maximum"]) == (parameter.values[0], parameter.values[-1])
            else:
                assert tuple(rule["enum"]) == parameter.values


def found(document: object, key: str) -> list[object]:
    """Every value that has this key, at any depth."""
    if isinstance(document, list):
        return [value for part in document for value in found(part, key)]
    if not isinstance(document, dict):
        return []
    here = [document[key]] if key in document else []
    return here + [value for part in document.values() for value in found(part, key)]
