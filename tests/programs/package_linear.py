"""Packs a linear layer on the GPU with AOTInductor, and runs the package: ``python package_linear.py FILE.pt2``.

Prints the result's relative error and whether the package has a kernel from a Triton template, as JSON.
"""

import json
import sys
import zipfile

import torch

import diode_lut  # noqa: F401 - arms the hook


def main(path: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(1024, 256, bias=False, device="cuda", dtype=torch.float16)
    x = torch.randn(512, 1024, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(torch.export.export(model, (x,)), package_path=path)
        result = torch._inductor.aoti_load_package(package)(x)
        expected = x.double() @ model.weight.double().T
    with zipfile.ZipFile(package) as contents:
        template = any(b"triton_tem_fused" in contents.read(name) for name in contents.namelist())
    error = ((result - expected).norm() / expected.norm()).item()
    print(json.dumps({"error": error, "template": template}))


if __name__ == "__main__":
    main(sys.argv[1])
