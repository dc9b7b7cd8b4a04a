"""What Triton's interpreter lacks for kernels of Inductor: bfloat16, functions of libdevice, TMA's loops, and speed."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, interpreter
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    InterpreterBuilder,
    ReduceOps,
    TensorHandle,
    interpreter_builder,
)

from tests.fake_cuda import H200


@contextmanager
def complete_triton() -> Iterator[None]:
    """Triton's interpreter computes what a GPU would, and takes tensors of the device as they are."""
    with ExitStack() as stack:
        for owner, name, value in (
            (InterpreterBuilder, "cast_impl", _cast),
            (InterpreterBuilder, "create_fp_to_fp", _round),
            (InterpreterBuilder, "create_dot", _dot),
            (ReduceOps, "generic_reduce", _reduce_by_halves),
            # The device's memory is the host's: a kernel gets addresses, nothing is copied there and back.
            (GridExecutor, "_init_args_hst", lambda _self, args, kwargs: (args, kwargs)),
            (GridExecutor, "_restore_args_dev", lambda *_: None),
            # Each addition of integers would be done a second time, to see whether it overflows.
            (interpreter_builder, "options", dataclasses.replace(interpreter_builder.options, sanitize_overflow=False)),
            # Kernels take these names from the module when they are loaded, and its functions when they are called.
            (triton_helpers, "libdevice", LIBDEVICE),
            # Kernels make the driver theirs when they are loaded.
            (triton_helpers, "set_driver_to_gpu", lambda: driver.set_active(_DRIVER)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        # Functions that Triton compiles have their source.
        source = property(lambda function: inspect.getsource(function.fn))
        stack.enter_context(mock.patch.object(InterpretedFunction, "src", source, create=True))
        stack.enter_context(_interpreted_language())
        driver.set_active(_DRIVER)
        yield


_DRIVER: Any = SimpleNamespace(
    get_current_device=lambda: 0,
    get_current_target=lambda: GPUTarget("cuda", 10 * H200.major + H200.minor, H200.warp_size),
    utils=SimpleNamespace(
        get_device_properties=lambda _: {
            "max_shared_mem": H200.shared_memory_per_block_optin,
            "multiprocessor_count": H200.multi_processor_count,
        }
    ),
)
"""What Inductor asks Triton's driver for; the real one looks for libcuda.so."""


@contextmanager
def _interpreted_language() -> Iterator[None]:
    """Triton's language is the interpreter's for as long as this lasts, which replaces hundreds of functions."""
    both = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    scope = interpreter._patch_lang(both)
    nothing = SimpleNamespace(restore=lambda: None)
    ranges = (mock.patch.object(module, "range", _range) for module in (tl, tl.core))
    with ExitStack() as stack:
        if scope is not None:
            stack.callback(scope.restore)
        for each in ranges:
            stack.enter_context(each)
        stack.enter_context(mock.patch.object(interpreter, "_patch_lang", return_value=nothing))
        yield


def _range(*limits: Any, **_: Any) -> Iterator[Any]:
    """The numbers of a loop as Triton's, which have the method ``to``; the interpreter gives Python's."""
    for number in range(*map(int, (getattr(limit, "value", limit) for limit in limits))):
        yield interpreter.interpreter_semantic.to_tensor(number, False)


def _cast(_self: Any, value: TensorHandle, target: Any) -> TensorHandle:
    """The interpreter stores bfloat16 as uint16: it truncates to it, and takes its bits for integers in other casts."""
    source, target = value.dtype.scalar, target.scalar
    if target == source == tl.bfloat16:
        return TensorHandle(value.data, target)
    if target == tl.bfloat16:
        return TensorHandle(_to_bfloat16(value.data), target)
    with np.errstate(all="ignore"):  # overflow to infinity is no mistake
        return TensorHandle(_widened(value).astype(interpreter._get_np_dtype(target)), target)


def _round(self: Any, value: TensorHandle, target: Any, mode: Any) -> TensorHandle:
    """The interpreter truncates to float8."""
    if target.scalar not in _OF_TORCH:
        return _CONVERT(self, value, target, mode)
    numbers = np.array(_widened(value), dtype=np.float32, order="C")
    rounded = torch.from_numpy(numbers).to(_OF_TORCH[target.scalar]).view(torch.uint8)
    return TensorHandle(rounded.numpy().reshape(np.shape(value.data)), target.scalar)


_CONVERT = InterpreterBuilder.create_fp_to_fp
_OF_TORCH = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
_FLOAT8 = {kind: torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy() for kind, dtype in _OF_TORCH.items()}
"""By type, the numbers that bytes stand for."""


def _widened(value: TensorHandle) -> Any:
    """A handle's numbers, those of bfloat16 and float8 as float32."""
    if value.dtype.scalar in _FLOAT8:
        return _FLOAT8[value.dtype.scalar][value.data]
    if value.dtype.scalar != tl.bfloat16:
        return value.data
    return (value.data.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(data: Any) -> Any:
    """The bits of numbers rounded to the nearest bfloat16."""
    numbers = np.array(data, dtype=np.float32, order="C")
    return torch.from_numpy(numbers).bfloat16().view(torch.uint16).numpy().reshape(np.shape(data))


def _dot(_self: Any, a: TensorHandle, b: TensorHandle, total: TensorHandle, *_: Any) -> TensorHandle:
    """The interpreter multiplies bfloat16's bits as integers, and float16, float8 and int8 without BLAS."""
    kind = np.float64 if total.dtype.scalar == tl.int32 else np.float32  # in which sums of integers are exact
    left, right = _widened(a).astype(kind), _widened(b).astype(kind)
    with np.errstate(all="ignore"):
        return TensorHandle(np.matmul(left, right).astype(total.data.dtype) + total.data, total.dtype.scalar)


def _reduce_by_halves(self: Any, inputs: Any) -> Any:
    """The interpreter combines two numbers at a time, in minutes; extents are powers of two, so halves are combined."""
    blocks, axis = self.unravel(inputs, self.axis)
    data = [np.moveaxis(block.handle.data, axis, 0) for block in blocks]
    types = [block.dtype for block in blocks]
    while len(data[0]) > 1:
        half = len(data[0]) // 2
        first = [_block(each[:half], kind) for each, kind in zip(data, types, strict=True)]
        second = [_block(each[half:], kind) for each, kind in zip(data, types, strict=True)]
        combined = self.combine_fn(*first, *second)
        data = [each.handle.data for each in (combined if isinstance(combined, tuple) else (combined,))]
    results = [each[0] for each in data]
    if self.keep_dims:
        rank = len(inputs[0].handle.data.shape)
        results = [
            np.reshape(each, (1,) * rank) if self.axis is None else np.expand_dims(each, axis) for each in results
        ]
    return [self.to_tensor(each, kind) for each, kind in zip(results, types, strict=True)]


def _block(data: Any, dtype: Any) -> tl.tensor:
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


def _elementwise(function: Callable[..., Any]) -> Callable[..., tl.tensor]:
    """A function of libdevice, computed by numpy in the type of its first argument."""

    def apply(first: Any, *others: Any) -> tl.tensor:
        tensor = interpreter.interpreter_semantic.to_tensor(first, False)
        rest = [each.handle.data if isinstance(each, tl.tensor) else each for each in others]
        with np.errstate(all="ignore"):
            result = np.asarray(function(tensor.handle.data, *rest))
        kind = tl.int1 if result.dtype == bool else tensor.dtype
        handle = TensorHandle(result.astype(interpreter._get_np_dtype(kind)), kind)
        return tl.tensor(handle, tl.block_type(kind, list(result.shape)) if tensor.type.is_block() else kind)

    return apply


_erf = np.vectorize(math.erf, otypes=[np.float64])

_NUMPY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("abs", "ceil", "cos", "cosh", "exp", "exp2", "expm1", "floor", "fmod")},
    **{name: getattr(np, name) for name in ("isinf", "isnan", "log", "log10", "log1p", "log2", "signbit", "sin")},
    **{name: getattr(np, name) for name in ("sinh", "sqrt", "tan", "tanh", "trunc", "hypot", "copysign")},
    "erf": _erf,
    "erfc": lambda x: 1 - _erf(x),
    "fast_tanhf": np.tanh,
    "nearbyint": np.rint,
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt_rn": np.sqrt,
    "div_rn": np.divide,
    "fma": lambda x, y, z: x * y + z,
}

LIBDEVICE = SimpleNamespace(**{name: _elementwise(function) for name, function in _NUMPY.items()})
"""In place of ``triton.language.extra.libdevice``, whose functions are code for a GPU."""
