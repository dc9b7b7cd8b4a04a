"""Measuring kernels: methods and their stages, and the shipped sets of problems. Here the command line lists them."""

METHODS = {"autotune": ("autotune",), "sweep": ("sweep", "final")}  # stages, each for all problems, in order

MEASURERS = {
    "autotune": "diode_lut.measure.autotune:measure",
    "sweep": "diode_lut.measure.stages:sweep",
    "final": "diode_lut.measure.stages:final",
}
"""The Measurer of each stage, imported when it is measured."""

SETS = {
    "models": "GEMMs of model suites in float16 and of language models in bfloat16, then some of them with epilogues",
    "llm": "those in bfloat16, of language models",
    "quick": "the first 128 of models",
    "fp8": "linear layers of language models in float8: scaled_mm, forward and backward, up to 8,192 rows",
    "int8": "linear layers of language models in int8: int_mm, alone and with scales after it, 17 to 8,192 rows",
    "attention": "flex attention, forward, backward and decoding: head dimensions from 64 to 256, lengths to 32,768",
    "grouped": "grouped matmuls of the experts of six public models: 64 to 16,384 rows",
}
"""The shipped sets of problems by name. The first three begin with the largest gains over aten on an H200."""
