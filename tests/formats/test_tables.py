"""Tables of other tools: what is written is read back, and what cannot be taken or given is counted."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.errors import ExchangeError
from diode_lut.formats import read, write_table
from diode_lut.formats.content import Facts, Skipped, exact_problems, exact_table
from diode_lut.hardware import Hardware, known_gpu
from diode_lut.problem import DTYPES, Problem
from diode_lut.table import Candidate, Entry, Table
from diode_lut.templates.config import ATEN, Config
from tests.formats.drawing import H200, packed, tables
from tests.strategies import share

A, B = (Config("triton_mm", (64, 64, block_k, 8, 3, 4)) for block_k in (32, 128))
MM = Problem.of("mm", 256, 512, 96, dtype="float16", layout="nn")
drawn = settings(max_examples=share(100))


def exported(name: str, table: Table, **facts: Any) -> tuple[Any, Skipped]:
    left_out = Skipped()
    data, skipped = write_table(name, table, exact_problems(table, left_out), Facts(**facts))
    return json.loads(data), skipped + left_out


def imported(path: Path, name: str, document: Any, **facts: Any) -> tuple[Table, Skipped]:
    path.write_text(json.dumps(document), encoding="utf-8")
    content, skipped = read(name, path, Facts(**{"hardware": H200, **facts}))
    assert isinstance(content, Table)
    return content, skipped


@drawn
@given(tables(packed(dtypes=DTYPES[:3])))
def test_inductors_table_round_trips(tmp_path: Path, table: Table) -> None:
    """Every packed problem, with every config that Inductor's lookup can name, survives."""
    document, skipped = exported("inductor-table", table)
    assert not skipped
    assert imported(tmp_path / "x", "inductor-table", document) == (table, {})


@drawn
@given(tables(packed(layouts=["nt"]), "triton_mm", "triton_bmm"))
def test_torch_diodes_table_round_trips(tmp_path: Path, table: Table) -> None:
    """Every packed problem of one layout, with plain Triton configs, survives, TF32 included."""
    document, skipped = exported("torch-diode-table", table, layout="nt")
    assert not skipped
    assert imported(tmp_path / "x", "torch-diode-table", document, layout="nt") == (table, {})


@pytest.mark.parametrize("name", ["inductor-table", "torch-diode-table"])
def test_even_k_is_that_of_the_problem(name: str) -> None:
    """96 is a multiple of 32 and not of 128: a wrong EVEN_K would read beyond the matrices."""
    document, _ = exported(name, exact_table(H200, {MM: [A, B]}))
    assert [row["EVEN_K"] for row in found(document, "EVEN_K")] == [True, False]


def found(document: Any, field: str) -> list[Any]:
    """All objects that have the field."""
    if isinstance(document, dict):
        here = [document] if field in document else []
        return here + [each for value in document.values() for each in found(value, field)]
    return [each for value in document for each in found(value, field)] if isinstance(document, list) else []


def test_ranges_are_asked_for_given_problems() -> None:
    """A range has no key of its own; what it answers for a problem has. Problems without an answer are counted."""
    row = Entry("mm", "float16", "nn", 16, None, (1, 300), None, None, (Candidate(A),))
    table = Table(H200, [row])
    assert exported("inductor-table", table) == (
        {},
        {"rows for more than one problem (say which problems: --problems)": 1},
    )
    data, skipped = write_table("inductor-table", table, [MM, MM._replace(m=301)], Facts())
    (key,) = json.loads(data)
    assert key == "NVIDIA H200+((torch.float16, [256, 96], [96, 1]), (torch.float16, [96, 512], [512, 1]))+mm"
    assert skipped == {"problems that the table does not cover": 1}


def test_keys_without_a_device_are_for_every_device(tmp_path: Path) -> None:
    """Inductor looks a GEMM up without the device, too; a key of another device is skipped."""
    key = "((torch.float16, [256, 96], [96, 1]), (torch.float16, [96, 512], [512, 1]))+mm"
    rows = [{"template_id": "aten::mm"}]
    document = {key: rows, f"NVIDIA B200+{key}": rows, "nonsense": rows}
    table, skipped = imported(tmp_path / "x", "inductor-table", document)
    assert table == exact_table(H200, {MM: [ATEN]})
    assert skipped == {"device 'NVIDIA B200'": 1, "keys that are not Inductor's": 1}


KEY = "((torch.float16, [256, 96], [96, 1]), (torch.float16, [96, 512], [512, 1]))+mm"


@pytest.mark.parametrize("first", [KEY, f"NVIDIA H200+{KEY}"])
def test_keys_with_the_device_go_first(tmp_path: Path, first: str) -> None:
    """Inductor asks them first, wherever they stand in the file; they also say which GPU it is."""
    keys = {KEY: {"template_id": "aten::mm"}, f"NVIDIA H200+{KEY}": {"template_id": "decompose_k", "k_split": 2}}
    document = {key: [keys[key]] for key in sorted(keys, key=lambda key: key != first)}
    table, skipped = imported(tmp_path / "x", "inductor-table", document, hardware=None)
    assert table == exact_table(known("H200"), {MM: [Config("decompose_k", (2,)), ATEN]})
    assert not skipped


def known(name: str) -> Hardware:
    gpu = known_gpu(name)
    assert gpu is not None
    return gpu


@pytest.mark.parametrize(
    ("device", "name"),
    [("NVIDIA H100", "H100"), ("NVIDIA H100 80GB HBM3", "H100"), ("gfx942:sramecc+:xnack-", "MI300X")],
)
def test_a_gpu_has_several_names(tmp_path: Path, device: str, name: str) -> None:
    """The README of PyTorch has another name than the driver, and AMD's keys only have the architecture."""
    hardware = known(name)._replace(aliases=())
    document = {f"{device}+{KEY}": [{"template_id": "aten::mm"}]}
    table, skipped = imported(tmp_path / "x", "inductor-table", document, hardware=hardware)
    assert (table, skipped) == (exact_table(hardware, {MM: [ATEN]}), {})


def test_the_hardware_of_several_is_named(tmp_path: Path) -> None:
    """One table is of one GPU, and none of several is guessed."""
    document = {f"{name}+{KEY}": [{"template_id": "aten::mm"}] for name in ("NVIDIA H200", "NVIDIA B200")}
    with pytest.raises(ExchangeError, match="is of 'NVIDIA H200', 'NVIDIA B200': give --hardware"):
        imported(tmp_path / "x", "inductor-table", document, hardware=None)


def test_keys_for_amd_gpus_name_no_device() -> None:
    """There Inductor's name of the device has modes of the driver, which a table does not know."""
    document, _ = exported("inductor-table", exact_table(known("MI300X"), {MM: [ATEN]}))
    assert list(document) == [KEY]


@pytest.mark.parametrize(("end", "dtype"), [("+tf32=False", "float32"), ("+tf32=True", "tf32"), ("", "tf32")])
def test_earlier_keys_say_whether_tf32_is_allowed(tmp_path: Path, end: str, dtype: str) -> None:
    """PyTorch's README has such keys; ``--dtype tf32`` is of those that do not say it."""
    key = KEY.replace("float16", "float32").replace("+mm", "+alpha=1&beta=1+addmm") + end
    key = key.replace("((", "((torch.float32, [256, 512], [0, 1]), (")
    table, skipped = imported(tmp_path / "x", "inductor-table", {key: [{"template_id": "aten::addmm"}]}, dtype="tf32")
    assert (table, skipped) == (exact_table(H200, {MM._replace(op="addmm", dtype=dtype): [ATEN]}), {})


@pytest.mark.parametrize("scalars", ["alpha=2&beta=1", "alpha=1&beta=s0", "x=1e"])
def test_scaled_sums_are_skipped(tmp_path: Path, scalars: str) -> None:
    """A key whose scalars are others than 1, or are no numbers, costs itself."""
    key = KEY.replace("+mm", f"+{scalars}+addmm")
    table, skipped = imported(tmp_path / "x", "inductor-table", {key: [{"template_id": "aten::addmm"}]})
    assert (table.entries, skipped) == ((), {"alpha or beta that is not 1": 1})


def test_strides_of_a_batch_count_for_the_alignment(tmp_path: Path) -> None:
    """Matrices of a batch that start an element apart are not aligned, as the hook has it, too."""
    key = "((torch.float16, [8, 512, 1], [1, 8, 1]), (torch.float16, [8, 1, 64], [64, 64, 1]))+bmm"
    table, _ = imported(tmp_path / "x", "inductor-table", {key: [{"template_id": "aten::bmm"}]})
    assert table == exact_table(H200, {Problem("bmm", "float16", "nn", 2, 8, 512, 64, 1): [ATEN]})


def test_templates_that_no_config_names_are_skipped(tmp_path: Path) -> None:
    """The other rows of the same GEMM are imported."""
    document, _ = exported("inductor-table", exact_table(H200, {MM: [A]}))
    (rows,) = document.values()
    rows[:0] = [{"template_id": "triton::blackwell", "BLOCK_M": 1}, {**rows[0], "BLOCK_M": 96}]
    table, skipped = imported(tmp_path / "x", "inductor-table", document)
    assert table == exact_table(H200, {MM: [A]})
    assert len(skipped) == 2


@pytest.mark.parametrize(
    ("name", "problem", "config", "reason"),
    [
        ("inductor-table", MM._replace(align=2), A, "nn align 2"),
        ("inductor-table", MM._replace(dtype="tf32"), A, "tf32"),
        ("inductor-table", MM, Config("cpp_gemm"), "configs that Inductor's table has no name for"),
        ("torch-diode-table", MM._replace(layout="nt"), A, "layout nt"),
        ("torch-diode-table", MM, ATEN, "aten"),
        ("torch-diode-table", MM._replace(align=2), A, "align 2"),
        ("inductor-table", MM, A.padded(8), "pad, which Inductor's table has no name for"),
        ("torch-diode-table", MM, A.padded(8), f"{A} pad8, which torch-diode's table cannot say"),
    ],
)
def test_what_a_format_cannot_say_is_counted(name: str, problem: Problem, config: Config, reason: str) -> None:
    """Nothing is exported under a key that would mean something else."""
    document, skipped = exported(name, exact_table(H200, {problem: [config]}))
    assert not found(document, "EVEN_K")
    assert [count for text, count in skipped.items() if text.startswith(reason)] == [1]


def test_tf32_takes_the_place_of_float32_if_that_is_wanted(tmp_path: Path) -> None:
    """Inductor's keys call both float32, so that a file has one of them."""
    float32, tf32 = (MM._replace(dtype=dtype) for dtype in ("float32", "tf32"))
    document, _ = exported("inductor-table", exact_table(H200, {float32: [A], tf32: [B]}), dtype="tf32")
    table, _ = imported(tmp_path / "x", "inductor-table", document, dtype="tf32")
    assert table == exact_table(H200, {tf32: [B]})


def test_torch_diodes_keys_hold_float32_and_tf32(tmp_path: Path) -> None:
    """Each config says which of the two it is, so that both are under one key."""
    both = exact_table(H200, {MM._replace(dtype=dtype): [A, B] for dtype in ("float32", "tf32")})
    document, _ = exported("torch-diode-table", both)
    assert len(found(document, "ALLOW_TF32")) == 4
    assert imported(tmp_path / "x", "torch-diode-table", document) == (both, {})


def test_torch_diodes_other_hardware_is_skipped(tmp_path: Path) -> None:
    """Only what the hardware in question can use is taken."""
    document, _ = exported("torch-diode-table", exact_table(Hardware("NVIDIA B200", "sm_100", 148), {MM: [A, B]}))
    table, skipped = imported(tmp_path / "x", "torch-diode-table", document)
    assert (table.entries, skipped) == ((), {"hardware 'NVIDIA B200'": 2})


@pytest.mark.parametrize("name", ["inductor-table", "torch-diode-table"])
@pytest.mark.parametrize("document", [[], {"hardware": 1}, {"hardware": {"a": {"operation": []}}}, {"x": 1}])
def test_another_document_is_an_error(tmp_path: Path, name: str, document: Any) -> None:
    """The message names the file."""
    with pytest.raises(ExchangeError, match=r"x: "):
        imported(tmp_path / "x", name, document)


@settings(max_examples=share(50))
@given(st.binary(max_size=20))
def test_damaged_files_are_errors(tmp_path: Path, data: bytes) -> None:
    """Whatever is in the file, there is a message or a table."""
    path = tmp_path / "x"
    path.write_bytes(data)
    for name in ("inductor-table", "torch-diode-table", "timings"):
        with suppress(ExchangeError):
            read(name, path, Facts(H200))


def test_the_hardware_must_be_named(tmp_path: Path) -> None:
    """Inductor's keys have a name at most, a table needs the architecture."""
    with pytest.raises(ExchangeError, match="give --hardware"):
        imported(tmp_path / "x", "inductor-table", {}, hardware=None)


VLLM_DEVICES = """
AMD_Instinct_MI300X AMD_Instinct_MI300XHF_OAM AMD_Instinct_MI308X AMD_Instinct_MI325X AMD_Instinct_MI325_OAM
AMD_Instinct_MI350X AMD_Instinct_MI350_OAM AMD_Instinct_MI355X AMD_Instinct_MI355_OAM AMD_Radeon_8060S AMD_Radeon_R9700
MI308X NVIDIA_A10 NVIDIA_A100-PCIe-40GB NVIDIA_A100-SXM4-40GB NVIDIA_A100-SXM4-80GB NVIDIA_A100_80GB_PCIe
NVIDIA_A800-SXM4-80GB NVIDIA_B200 NVIDIA_B300_SXM6_AC NVIDIA_GB10 NVIDIA_GB200 NVIDIA_GeForce_RTX_2080_Ti
NVIDIA_GeForce_RTX_4090 NVIDIA_GeForce_RTX_4090_D NVIDIA_GeForce_RTX_5090 NVIDIA_H100 NVIDIA_H100_80GB_HBM3
NVIDIA_H100_NVL NVIDIA_H100_PCIe NVIDIA_H20 NVIDIA_H20-3e NVIDIA_H200 NVIDIA_H800 NVIDIA_L20 NVIDIA_L20Y NVIDIA_L4
NVIDIA_L40S NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition NVIDIA_RTX_PRO_6000_Blackwell_Workstation_Edition
Radeon_8060S_Graphics
"""
"""In the names of vLLM's files, but for Intel's GPUs and AMD_Radeon_Graphics, which is none in particular."""


@pytest.mark.parametrize("device", VLLM_DEVICES.split())
def test_vllms_devices_need_no_description(tmp_path: Path, device: str) -> None:
    """The file's name is enough."""
    path = tmp_path / f"N=1536,K=7168,device_name={device},dtype=fp8_w8a8,block_shape=[128,128].json"
    path.write_text(json.dumps({"64": VLLM}))
    table, skipped = read("vllm", path, Facts(dtype="bfloat16"))
    assert isinstance(table, Table)
    assert known_gpu(device) == table.hardware
    assert not skipped


@pytest.mark.parametrize(
    ("device", "row", "config"),
    [
        (
            "AMD_Instinct_MI300X",
            {"kpack": 1, "matrix_instr_nonkdim": 32, "waves_per_eu": 2},
            "s2 w4 mfma32 waves2 kpack1",
        ),
        ("AMD_Instinct_MI308X", {"kpack": 2, "matrix_instr_nonkdim": 16}, "s2 w4 kpack2"),
        ("AMD_Instinct_MI308X", {"num_stages": 3}, "s3 w4"),
        ("NVIDIA_H200", {}, "s3 w4"),
    ],
)
def test_vllms_tunables(tmp_path: Path, device: str, row: dict[str, int], config: str) -> None:
    """AMD's GPUs have more of them; where a file does not name the stages, they are Triton's own."""
    path = tmp_path / f"N=1536,K=7168,device_name={device}.json"
    blocks = {name: value for name, value in VLLM.items() if name != "num_stages"}
    path.write_text(json.dumps({"64": {**blocks, **row}, "128": {**VLLM, "SPLIT_K": 2}}))
    table, skipped = read("vllm", path, Facts(dtype="bfloat16"))
    assert isinstance(table, Table)
    assert [str(each) for entry in table.entries for each in entry.configs] == [f"triton_mm 64x128x128 g8 {config}"]
    assert skipped == {"SPLIT_K, which no config has": 1}


VLLM = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 8,
    "num_warps": 4,
    "num_stages": 3,
}


def test_vllms_configs_of_linear_layers(tmp_path: Path) -> None:
    """The name says N, K and the device, the file a config for each M; the type must be named, as theirs is fp8."""
    path = tmp_path / "N=1536,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    path.write_text(json.dumps({"1": VLLM, "64": VLLM, "128": {**VLLM, "BLOCK_SIZE_M": 7}}))
    table, skipped = read("vllm", path, Facts(dtype="bfloat16"))
    assert isinstance(table, Table)
    assert [(entry.m, entry.n, entry.k, str(entry.configs[0])) for entry in table.entries] == [
        ((m, m), (1536, 1536), (7168, 7168), "triton_mm 64x128x128 g8 s3 w4") for m in (1, 64)
    ]
    assert table.hardware.called("h200")
    assert skipped.total() == 1
    with pytest.raises(ExchangeError, match="its type is fp8_w8a8, which is none that tables have: give "):
        read("vllm", path, Facts())
    experts = path.rename(tmp_path / "E=8,N=3584,device_name=NVIDIA_H200.json")
    with pytest.raises(ExchangeError, match="is for a fused mixture of experts"):
        read("vllm", experts, Facts(dtype="bfloat16"))
