"""What people get wrong, over all commands: each message says what, where, and what to do."""

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from diode_lut.cli import COMMANDS
from diode_lut.errors import install_command
from diode_lut.model.weights import write_model
from tests.commands import call
from tests.distill import synthetic
from tests.model.small import model

LEAVE_OUT = "distill d.msgpack -o x.safetensors --leave-out m=9:1"

CASES = [
    ("adopt --budget 1 --problems modles", 2, "modles: no such file, and no shipped set (models, llm, quick, fp8, in"),
    ("build d.msgpack -o x.json --layout nq", 2, "'nq' is not one of"),
    ("build - d.msgpack -o x.json", 1, "error: <stdin>: the file is empty"),
    ("show HEAD:mine.json", 2, "HEAD:mine.json: no such file, and git has none either: fatal: not a git repository"),
    ("show h300", 2, "h300: no such file, and no table of that name (shipped: nvidia-"),
    ("collect --problems d.json --out t.msgpack", 2, "d.json: no such file, and no shipped set (models, llm, quick, f"),
    ("collect --problems shapes.json --out t.msgpack", 1, "shapes.json: not a shape set: expected lists 'shapes'"),
    ("diff - -", 2, "standard input (-) can be read only once"),
    ("diff mine.json nvidia-h20", 2, "(did you mean nvidia-h200?)"),
    ("evaluate nvidia-h200 d.msgpack --against text.json", 1, "text.json:1: not JSON"),
    ("evaluate nvidia-h200 d.msgpack --against problems.json", 1, "problems.json: expected a max-autotune solution of"),
    ("evaluate d.msgpack", 2, "Missing argument 'DATASET...'."),
    ("explain problems.json", 2, "problems.json is a file and no op: write --problems problems.json"),
    ("set mine.json -", 2, "- is a file and no op: write --rows -"),
    ("explain mm 1x 8 8", 2, "'1x' is not a size (such as 1024, or 1k, which is the same)"),
    ("explain reduction 8 8 8", 2, "reduction has --variant and --x --r alone: leave out M"),
    ("explain reduction --x 8 --variant inner", 2, "Missing option '--r' (reduction has the sizes x and r)."),
    ("explain reduction --x 8 --r 8 --hardware h100", 2, "error: variant: reduction needs one (allowed: inner, outer"),
    ("explain pointwise --x 8 --r 8 --variant flat", 2, "error: r: pointwise has no size r, so r is 1, not 8"),
    ("explain reduction --variant innner --x 8 --r 8", 2, "'innner' is no variant of reduction (did you mean inner?)"),
    ("explain split-reduction --variant x --x 8", 2, "'x' is no variant of split_reduction (allowed: inner, outer)"),
    ("explain --variant four joined-mm 8 8 8", 2, "'four' is no variant of joined_mm (allowed: two, three, "),
    ("explain mm 8 8 8 --variant gate", 2, "mm has no variants: leave it out"),
    ("explain joinedmm 8 8 8", 2, "(did you mean joined_mm?)"),
    ("set mine.json joined_mm --variant gate --config aten --note x", 2, "'gate' is no variant of joined_mm (allowed:"),
    (
        "set mine.json split_reduction --variant inner --r 64 --config 'in_parts p64' --note x",
        1,
        "error: mine.json: configs[0].parts: 64 elements in 64 parts (allowed: 32 in each)",
    ),
    ("explain mm 8 8 8 --dtype float64", 2, "no choice in float64: Inductor has only the library's kernel for it"),
    (
        "explain reduction --variant inner --x 8 --r 8 --dynamic r=1:8",
        2,
        "'r=1:8' is not b, m, n, k or x and its range",
    ),
    (
        "set mine.json reduction --variant inner --x 8 --r 8x --config aten --note x",
        2,
        "'8x' is neither a size nor a ra",
    ),
    (
        "set mine.json reduction --m 8 --config 'persistent_reduction x1 w4' --note x",
        2,
        "m: is no size of reduction (allowed: x, r)",
    ),
    ("set mine.json --rows numbers.json --note x", 1, 'numbers.json: [0]: 1 is not {"configs": ...}'),
    ("collect --random 3 --op reduction --out t.msgpack", 2, "reduction has variants, which are not drawn: list its p"),
    ("run --kernels -- python train.py", 2, "-- ends the options: give a name before it"),
    ("diff mine.json other.json --filter 'entries[?op==`\"mm\"`]'", 2, "is a condition on a row, such as op==`"),
    ("import tunableop d.msgpack -o x.msgpack --hardware H200", 1, "d.msgpack: not TunableOp's results: no line begin"),
    ("diff mine.json mine.json --filter 'op=='", 2, "Invalid value for --filter: invalid token: Parse error at column"),
    (
        "set mine.json pointwise --variant tiled --config 'pointwise x16y16 w4' --note x",
        2,
        "'pointwise x16y16 w4' is not a config (expected: pointwise xBLOCK_X wNUM_WARPS[yBLOCK_Y])",
    ),
    ("explain --problems kernels.json --hardware h100", 1, "[0].dtype: not read: reduction has a variant and sizes al"),
    ("import timings reduction.csv -o x.msgpack", 1, "reduction.csv: row 2: no r (add the column)"),
    ("explain mm 8 8 8 --x 8", 2, "--x: mm has no size x; only pointwise, reduction, split_reduction may have"),
    ("explain mm 8 8 8 --hardware nosuch.json", 2, "error: nosuch.json: no such file, and no table of that name"),
    ("explain mm 4g 8 8", 2, "'4g' is not a size"),
    ("explain mm 8 8 8 --dtype fp8", 2, "'float8_e4m3fn' is not for mm (allowed: float16, bfloat16, float32, tf32)"),
    ("explain mm 8 8 8 --hardware h200 --table -", 1, "error: <stdin>: is empty (expected a table, which is a JSON"),
    ("evaluate --model - d.msgpack", 2, "<stdin>: is not in a file: save it first"),
    ("fmt nvidia-h200", 2, "a shipped table, which is not changed by its name (give the path of a file"),
    ("import tunableop text.json -o x.msgpack", 1, "text.json: not TunableOp's results: no line begins like"),
    ("import vllm text.json -o x.json", 1, "text.json: the name does not say N and K, as vLLM's do"),
    ("import inductor-cache nosuch -o x.msgpack", 2, "error: nosuch: No such file or directory"),
    ("import inductor-cache . -o x.msgpack", 1, "not Inductor's cache directory, or without timings"),
    ("query mine.json 'entries[?op==mm]'", 2, "no field is called mm: a text is written"),
    ("query mine.json 'entries[?m[1] > 8]'", 2, "(numbers are written in backquotes: `64`)"),
    ("report mine.json --receipt mine.json -o x.html", 1, "error: mine.json"),
    ("report mine.json --beside other.json d.msgpack -o x.html", 1, "measured on NVIDIA H200 (sm_90, 132 SMs), but ot"),
    ("set mine.json mm --m 8-4-2 --config aten --note x", 2, "'8-4-2' is neither a size nor a range like 513-1024"),
    ("build nosuch.msgpack -o x.json", 2, "error: nosuch.msgpack: No such file or directory"),
    ("build mine.json -o x.json", 1, "error: mine.json: a table, not a dataset"),
    ("build d.msgpack -o nodir/x.json", 2, "error: nodir: no such directory to write to"),
    ("build d.msgpack -o x.json --hardware x100", 2, "describe new hardware as NAME,ARCH,SMS, for example"),
    ("build d.msgpack -o x.json --hardware A100,sm_80", 2, "error: A100,sm_80: is neither a name nor NAME,ARCH,SMS"),
    ("build d.msgpack -o x.json --hardware A100,sm_80,108", 1, "a table is for one kind of hardware"),
    ("build d.msgpack -o x.json --epsilom 1", 2, "Did you mean "),
    ("check inverted.json", 1, "entries[0].m: [512, 1] ends before it begins (allowed: [lowest, highest])"),
    ("check misspelt.json", 1, "entries[0].config: unknown field (known: op, dtype,"),
    ("check d.msgpack", 1, "is not UTF-8 (expected a table, which is JSON; `build` makes one of"),
    ("check cut.safetensors", 1, "cut.safetensors: damaged: "),
    ("check cut.safetensors --compile --format github", 1, "::error file=cut.safetensors::damaged: "),
    ("check single.json", 1, "entries[0].m: 64 is not [lowest, highest] (one size is [64, 64])"),
    ("check single.json", 1, "hardware.arch: '90' is no architecture, such as sm_90, gfx942 or cpu-avx2"),
    ("check comment.json", 1, " (JSON has no comments: say it in the note of a row)"),
    ("check page.json", 1, " (of a web page, download the file itself)"),
    ("check quotes.json", 1, " (texts stand in double quotes)"),
    ("check mark.json", 1, " (save it as UTF-8 without a byte order mark)"),
    ("set mine.json mm --config cublas --note x", 2, "(did you mean aten?)"),
    ("set mine.json mm --config 'triton 64x64x64 g8 s3 w4' --note x", 2, "(did you mean triton_mm?)"),
    ("explain mm 64,64,64", 2, "'64,64,64' are several sizes: write 64 64 64"),
    ("explain sdpa 8 8 8", 2, "unknown op 'sdpa'; use flex_attention, if the program does"),
    ("import timings unit.csv -o x.msgpack --hardware h200", 1, "time_us: '5us' is not a number such as 5.2, without "),
    ("check nosuch.safetensors", 2, "nosuch.safetensors: cannot be read: No such file or directory"),
    ("check model.bin", 1, "model.bin: a model, not a table (names of models end with .safetensors)"),
    ("check nosuch.json", 2, "nosuch.json: cannot be read: No such file or directory"),
    ("collect --problems problems.json --out t.msgpack", 1, "[0].dtype: 'float8_e4m3fn' is not for mm (allowed: "),
    ("collect --kernels . --out t.msgpack", 1, "error: batch.json: is not a kernel that was recorded: remove"),
    ("collect --out t.msgpack", 2, "give either --problems or --random"),
    ("compare -o x.json -- python train.py", 2, "--output x.json: the page is HTML, and the figures go to x.json besi"),
    ("run --table nvidia-h20 -- python train.py", 2, "(did you mean nvidia-h200?)"),
    ("compare --table nosuch.json -- python train.py", 2, "nosuch.json: no such file, and no table of that name"),
    ("diff mine.json text.json", 2, "error: text.json:1:1: not JSON"),
    ("diff mine.json model.bin", 2, "error: model.bin: a model, not a table"),
    ("diff mine.json mine.json --dataset mine.json", 1, "error: mine.json: a table, not a dataset"),
    ("distill d.msgpack -o x.json", 2, "x.json: the name of a model must end with .safetensors"),
    (LEAVE_OUT, 2, "'m=9:1': not a condition such as op=mm, layout=nt"),
    ("distill d.msgpack -o x.safetensors --picture nodir/x.png", 2, "error: nodir: no such directory to write to"),
    ("distill d.msgpack -o x.safetensors --test nan", 2, "'nan' is not a number from 0 to 0.9"),
    ("distill d.msgpack -o x.safetensors --seed 9223372036854775807", 2, "is not in the range 0<=x<=4294967295"),
    ("doctor mine.json", 2, "Got unexpected extra argument (mine.json)"),
    ("evaluate d.msgpack mine.json", 1, "error: d.msgpack:1:1: byte 0x"),
    ("evaluate other.json d.msgpack", 1, "measured on NVIDIA H200 (sm_90, 132 SMs), but other.json is for"),
    ("explain mm 8 8 8 --batch 4 --hardware h200", 2, "error: b: mm has no batch, so b is 1, not 4"),
    ("explain mm 8 8 8 --hardware h200 --table model.bin", 1, "error: model.bin: a model, not a table (names of model"),
    ("explain mm 8 8 8 --hardware h300", 2, "error: h300: no table is for hardware of that name (tables: "),
    ("export inductor-table mine.json -o nodir/x.json", 2, "error: nodir: no such directory to write to"),
    ("export inductor-table mine.json -o x.json --problems modles", 2, "modles: no such file, and no shipped set (mod"),
    ("export timings mine.json -o x.json", 1, "error: mine.json: a table, not a dataset"),
    ("fmt inverted.json", 1, "[512, 1] ends before it begins (allowed: [lowest, highest]) (correct it first)"),
    ("fmt cut.safetensors", 1, "error: cut.safetensors: a model, not a table (names of models end with .safetensors)"),
    ("git-setup", 2, "not a git repository"),
    ("import timings text.json -o x.msgpack", 1, "error: text.json: "),
    ("import inductor-table mine.json -o x.json", 1, "does not say what it was measured on: give --hardware"),
    ("import inductor-table mine.json -o x.json --hardware X,sm_90,1", 1, "mine.json: not Inductor's lookup table: "),
    ("merge mine.json other.json", 1, "error: other.json: hardware: is for NVIDIA A100 (sm_80, 108 SMs), but the"),
    ("merge mine.json", 2, "give two tables, or three: BASE OURS THEIRS"),
    ("pack mine.json -o x.msgpack.zst", 1, "error: mine.json: not a dataset in diode_lut's own format: it begins with"),
    ("query mine.json 'entries[?'", 2, "Invalid value for JMESPATH: Invalid jmespath expression: Incomplete"),
    ("query cut.safetensors entries", 1, "error: cut.safetensors: a model, not a table"),
    ("report cut.safetensors d.msgpack -o x.html", 1, "error: cut.safetensors: a model, not a table"),
    ("report mine.json d.msgpack -o nodir/x.html", 2, "error: nodir: no such directory to write to"),
    ("resolve mine.json", 2, "give --ours, --theirs or --best"),
    ("resolve mine.json --ours --best", 2, "give --ours, --theirs or --best, and only one of them"),
    ("resolve --ours mine.json", 2, "error: mine.json: is not in conflict: in git, no merge of it is waiting"),
    ("set mine.json mm --m 1024-513 --config aten --note x", 2, "error: m: [1024, 513] ends before it begins"),
    ("run --tabel mine.json -- python train.py", 2, "--table"),
    ("run", 2, "Missing argument '[--] PROGRAM [ARGUMENT]...'"),
    (
        "set mine.json mm --config 'triton_mm 96x8x8 g8 s4 w8' --note x",
        2,
        "error: block_m: 96 is not allowed (allowed:",
    ),
    ("show text.json", 1, "error: text.json: neither a table, a model nor a dataset"),
    ("tables mine.json", 2, "Got unexpected extra argument (mine.json)"),
    ("collect --problems batch.json -o t.msgpack", 1, "batch.json: [0].batch: not read: the batch is B"),
    ("collect --problems laoyut.json -o t.msgpack", 1, "laoyut.json: [0].laoyut: not read: did you mean layout?"),
    ("collect --problems inside.json -o t.msgpack", 1, "found one object: leave only its list problems"),
    ("collect --problems layer.json -o t.msgpack", 1, "(linear is addmm, or mm without a bias)"),
    ("check short.json", 1, 'entries[0].dtype: "bf16" is not allowed (allowed: float16, bfloat16, float32, tf32'),
    ("check short.json", 1, "(did you mean bfloat16?)"),
    ("diff HEAD~1 mine.json", 2, "HEAD~1: a revision, not a file: REVISION:PATH is a file in it"),
    ("evaluate h200 d.msgpack --chooser rules:f", 2, "h200: a table; with --model or --chooser only datasets are"),
    ("explain mm 8 8 8 --hardware H200,90,132", 2, "H200,90,132: '90' is no architecture, such as sm_90, gfx942 or"),
    ("explain mm 8 8 8 --hardware gpu", 2, "and no GPU is known by it; cuda is the GPU of this machine, on AMD as"),
    ("explain mm 8 8 8 --hardware ''", 2, "and no GPU is known by it; cuda is the GPU of this machine, on AMD as"),
    ("explain torch.matmul 8 8 8", 2, "unknown op 'torch.matmul'; use mm, or bmm with a batch"),
    ("query mine.json '.entries[]'", 2, "(unlike in jq, an expression begins without a dot: entries[])"),
    ("query mine.json 'entries[?op=`mm`]'", 2, "(a comparison is written ==)"),
    ("query mine.json 'entries.length()'", 2, "(a function has its argument in brackets: length(entries))"),
    ("query mine.json 'SELECT * FROM entries'", 2, "(jmespath.org describes the language)"),
    ("run -- 'python train.py'", 127, "no such program; a program and its arguments are separate words: leave out"),
    ("run -- OMP_NUM_THREADS=1 python train.py", 127, "no such program; set variables before diode-lut, or start the"),
    ("tune --table H200 -- python train.py", 2, "--table H200: is built, so it is a file and no name, such as H200.js"),
    ("tune --table mine.msgpack -- python train.py", 2, "mine.msgpack: a table is JSON, so the name ends with .json"),
    ("tune --budget 0 -- python train.py", 2, "'0' is not a time above zero"),
    ("unset mine.json bmm", 1, "error: mine.json: no row has the key bmm"),
    ("verify mine.json -o nodir/x.json", 2, "error: nodir: no such directory to write to"),
    ("build d.msgpack -o x.json --epsilon nan", 2, "'nan' is not a number from 0 to 1"),
    ("set mine.json mm --m 8 --config aten --note ' '", 2, "--note: is empty; say why"),
    ("run -- ''", 126, "the program's name is empty: a variable may be unset"),
    ("adopt --budget soon", 2, "'soon' is not a time above zero, such as 10, 90s, 10m or 1.5h"),
    ("build d.msgpack -o x.msgpack", 2, "x.msgpack: a table is JSON, so the name ends with .json"),
    ("build 'd*.msgpak' -o x.json", 2, "d*.msgpak: no such file: a shell replaces * and ? only without quotes"),
    ("build . -o x.json", 2, "error: .: Is a directory (name files in it, such as *)"),
    ("collect --problems https://example.com/p.json -o t.msgpack", 2, "p.json: an address, not a file: download it"),
    ('collect --problems \'[{"op": "mm"}]\' -o t.msgpack', 2, "a file is expected, not its contents: save them, or"),
    ("collect --problems one.json -o t.msgpack", 1, "one.json: expected a list of problems, found one object: put it "),
    ("collect --problems small.json -o t.msgpack", 1, "small.json: [0].M: missing (needed: op, dtype, M, N, K; sizes "),
    ("collect --problems lines.json -o t.msgpack", 1, "lines.json:2: not JSON: unexpected content after document (exp"),
    ("collect --problems problems.json -o t.json", 2, "t.json: a dataset is msgpack, so the name ends with .msgpack"),
    ("evaluate nosuch.mlp.safetensors d.msgpack", 2, "nosuch.mlp.safetensors: a model is evaluated by --model nosuch"),
    ("evaluate --model mine.json d.msgpack", 1, "error: mine.json: JSON, such as a table, not a model (names of model"),
    ("evaluate mine.json d.msgpack --against cublas", 2, "--against cublas: no such file, and no config: template: 'c"),
    ("explain linear 8 8 8", 2, "unknown op 'linear'; use addmm, or mm without a bias"),
    ("explain mm 8x16x32 8 8", 2, "'8x16x32' are several sizes: write 8 16 32"),
    ("explain mm 8 8 8 --dynamic m=64:8", 2, "'m=64:8' ends before it begins"),
    ("explain mm 8 8 8 --hardware 'A100 40GB'", 2, "and no GPU is known by it (did you mean A100"),
    ("explain mm 8 8 8 --hardware sm_90", 2, "; sm_90 is an architecture, of H100, H100 PCIe, H100 NVL, H200, H20, H2"),
    ("explain mm 8 8 8 --hardware h200 --chooser rules.py:f", 2, "rules.py:f: a module is named without .py: rules:f"),
    ("explain mm 8 8 8 --hardware h200 --chooser rules:f", 2, "rules:f: cannot be imported: ModuleNotFoundError: No m"),
    ("receipt mine.json", 1, "error: mine.json: a table, not a receipt"),
    ("receipt d.msgpack", 1, "d.msgpack:1:1: neither JSON nor text (expected a receipt)"),
    ("report mine.json -o x.pdf", 2, "x.pdf: the page is HTML, so the name ends with .html"),
    ("run --table mine.json,other.json -- python train.py", 2, "(several tables are separated by ':')"),
    ("run --table '~/mine.json' -- python train.py", 2, "(~ is your home directory only in a shell, and without quote"),
    ("set mine.json mm --m 512- --config aten --note x", 2, "'512-' is neither a size nor a range like 513-1024; for "),
    ("set mine.json matmul --config aten --note x", 2, "unknown op 'matmul'; use mm, or bmm with a batch"),
    ("check timings.csv", 1, " (`import timings` makes a dataset of CSV)"),  # after orjson's own words
    ("receipt timings.csv", 1, " (`import timings` makes a dataset of CSV)"),
    (
        "import timings none.csv -o x.msgpack --hardware h200",
        1,
        "row 2: repetitions: 0 measure nothing (allowed: 1 and",
    ),
    ("pack timings.csv -o x.msgpack.zst", 1, "it begins with b'op;m;n;k;time_us' (`import timings` makes a dataset of"),
    ("build timings.csv -o x.json", 1, "it begins with b'op;m;n;k;time_us' (`import timings` makes a dataset of CSV)"),
    ("import inductor-table table.json -o x.msgpack --hardware H200", 2, "x.msgpack: a table is JSON, so the name end"),
    ("check .", 2, ".: cannot be read: Is a directory (name files in it)"),
    ("explain mm 99999999999999999999 8 8", 2, "'99999999999999999999' is not a size: it is too large"),
    ("import timings timings.csv -o x.msgpack", 1, "row 1: 'op;m;n;k;time_us' is no column (docs/exchange.md lists"),
    ("import timings model.bin -o x.msgpack", 1, "model.bin: not text (expected CSV in UTF-8, as a spreadsheet saves"),
    ("run --table d.msgpack -- true", 1, "is not UTF-8 (expected a table, which is JSON; `build` makes one of a datas"),
    ("tune --stop-after 0 -- python train.py", 2, "'0' is not a time above zero, such as 10, 90s, 10m or 1.5h"),
]
"""What is typed, the exit code, and a part of what is said."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of all sorts."""
    here = tmp_path_factory.mktemp("wrong")
    synthetic.write(here / "d.msgpack", 3)
    assert call("build", here / "d.msgpack", "-o", here / "mine.json").exit_code == 0
    row = '"m": [1, 512], "configs": [{"template": "aten"}]'
    head = '{"schema_version": 2, "hardware": {"name": "NVIDIA A100", "arch": "sm_80", "sm_count": 108}, "entries": '
    (here / "other.json").write_text(f"{head}[{{{row}}}]}}")
    (here / "inverted.json").write_text(f"{head}[{{{row.replace('[1, 512]', '[512, 1]')}}}]}}")
    (here / "misspelt.json").write_text(f"{head}[{{{row.replace('configs', 'config')}}}]}}")
    (here / "shapes.json").write_text('{"shapes": [1]}')
    (here / "numbers.json").write_text("[1]")
    (here / "kernels.json").write_text('[{"op": "reduction", "variant": "inner", "X": 8, "R": 8, "dtype": "float16"}]')
    (here / "reduction.csv").write_text(
        "op,variant,x,r,config,time_us,device\nreduction,inner,8,,default,5,NVIDIA H200\n"
    )
    (here / "text.json").write_text("hello")
    (here / "single.json").write_text(f"{head.replace('sm_80', '90')}[{{{row.replace('[1, 512]', '64')}}}]}}")
    (here / "comment.json").write_text("// mine\n{}")
    (here / "page.json").write_text("<html></html>")
    (here / "quotes.json").write_text("{'schema_version': 2}")
    (here / "mark.json").write_text("{}", encoding="utf-8-sig")
    (here / "none.csv").write_text("op,dtype,m,n,k,layout,config,time_us,repetitions\nmm,bf16,8,8,8,nn,aten,5,0\n")
    (here / "unit.csv").write_text("op,dtype,m,n,k,layout,config,time_us\nmm,bf16,8,8,8,nn,aten,5us\n")
    key = "(('cuda', torch.float16, [8, 8], [8, 1]), ('cuda', torch.float16, [8, 8], [8, 1]))+mm"
    (here / "table.json").write_text(f'{{"{key}": [{{"template_id": "aten::mm"}}]}}')
    (here / "timings.csv").write_text("op;m;n;k;time_us\nmm;8;8;8;1,5\n")
    (here / "short.json").write_text(f'{head}[{{"dtype": "bf16", {row}}}]}}')
    write_model(model(), here / "model.bin")
    (here / "cut.safetensors").write_bytes((here / "model.bin").read_bytes()[:-4])
    problem = '{"op": "mm", "B": 1, "M": 8, "N": 8, "K": 8, "dtype": "fp8", "layout": "nn"}'
    (here / "problems.json").write_text(f"[{problem}]")
    (here / "one.json").write_text(problem)
    (here / "laoyut.json").write_text(f"[{problem.replace('layout', 'laoyut')}]")
    (here / "batch.json").write_text(f"[{problem.replace('B', 'batch')}]")
    (here / "inside.json").write_text(f'{{"problems": [{problem}]}}')
    (here / "layer.json").write_text(f"[{problem.replace('mm', 'linear')}]")
    (here / "lines.json").write_text(f"[{problem}]\n[{problem}]\n")
    (here / "small.json").write_text(f"[{problem.replace('M', 'm')}]")
    return here


@pytest.mark.parametrize("command", COMMANDS)
def test_messages(command: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 1 or 2, never with a traceback, and the message is one line for each fault."""
    cases = [case for case in CASES if case[0].split()[0] == command]
    assert cases, "the command is not tried"
    monkeypatch.chdir(directory)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(directory.parent))
    for typed, code, words in cases:
        if (typed == LEAVE_OUT or command == "adopt") and not find_spec("torch"):
            continue
        result = call(*shlex.split(typed))
        said = result.stdout if command == "check" else result.stderr
        assert result.exit_code == code, (typed, result.output)
        assert words in said, typed
        assert len([line for line in said.splitlines() if line.startswith("error:")]) <= 1, typed


@pytest.mark.parametrize(
    "typed",
    [
        "collect --random 1 --out t.msgpack",
        "distill d.msgpack -o x.safetensors",
        "adopt --budget 1",
        "verify mine.json",
    ],
)
def test_commands_that_need_torch_say_so(typed: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed, the message has the remedy; adopt names all that is missing, also Triton."""
    monkeypatch.chdir(directory)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = call(*shlex.split(typed))
    command = typed.split()[0]
    missing = "torch and triton" if command == "adopt" and find_spec("triton") is None else "torch"
    assert (result.exit_code, result.stderr) == (2, f"error: {command} needs {missing}: {install_command('torch')}\n")


def test_without_torch_the_hardware_has_to_be_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only torch knows this machine's device; the message has the option and the command that installs it."""
    monkeypatch.chdir(directory)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = call("explain", "mm", 8, 8, 8)
    remedy = f"name the hardware, or install torch: {install_command('torch')}"
    assert (result.exit_code, result.stderr.endswith(f": {remedy}\n")) == (2, True)
