"""Generated graphs: several GEMMs with pointwise operations, reductions and views around them, and several outputs."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from random import Random
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from tests.fake_cuda import Input
from tests.fuzzing.operands import Operand, Sizes, draw_operand

SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 100, 127, 128, 129, 200, 256, 257)
BATCHES = (1, 2, 3, 4, 7)
BASE = "bmnkj"  # Dimensions whose sizes are drawn. Capitals are made of others, as ``Graph.made`` says
MOST_WORK = 2**23  # multiplications of one GEMM: Triton's interpreter has to do them

MOST_STEPS = 16
MOST_RESULTS = 4

MOST_SIZE = 600  # of a dimension that is made of others

SMOOTH = ("functional.gelu({0})", "functional.silu({0})", "{0}.sigmoid()", "{0}.tanh()", "{0} * 0.5", "-{0}", "{0} + 1")
KINKED = ("{0}.relu()", "{0}.abs()", "{0}.clamp(-0.5, 1)", "torch.where({0} > 0, {0}, {0} * 0.25)")
CASTS = ("({0}.to(wide) * 1.5).to(low)", "functional.gelu({0}.to(wide)).to(low)")
PAIRS = ("{0} + {1}", "{0} - {1}", "{0} * {1}")
ROWS = (
    "{0}.softmax(-1)",
    "functional.layer_norm({0}, {0}.shape[-1:])",
    "{0} * torch.rsqrt({0}.square().mean(-1, keepdim=True) + 0.25)",
    "{0} - {0}.mean(-1, keepdim=True)",
    "{0} + {0}.sum(-1, keepdim=True) * 0.0625",
)
REDUCTIONS = ("{0}.sum({1})", "{0}.mean({1})")
PEAKS = ("{0}.amax({1})",)


class Value(NamedTuple):
    """A variable of a graph's function, and its dimensions."""

    name: str
    dims: str


@dataclass(frozen=True)
class Graph:
    """A function of some tensors, as source, and what it is called with.

    ``scales``: standard deviation of each operand. ``dynamic`` names the dimensions that may change, ``again`` has
    further sizes of all. ``bounds``: the least and the largest size of those that change within bounds. ``backward``:
    gradients for all operands are computed as well. ``frozen``: all operands but the first are a module's constants.
    """

    source: str
    dtype: torch.dtype
    operands: tuple[Operand, ...]
    scales: tuple[float, ...]
    made: dict[str, str]
    sizes: Sizes
    again: tuple[Sizes, ...] = ()
    dynamic: str = ""
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    tf32: bool = False
    backward: bool = False
    frozen: bool = False

    def inputs(self, sizes: Sizes) -> list[Input]:
        """What the function is given."""
        every = all_sizes(sizes, self.made)
        changing = self.dynamic + "".join(dim for dim, text in self.made.items() if set(text) & set(self.dynamic))
        return [operand.input(every, self.dtype, changing) for operand in self.operands]

    def bounds_of(self, place: int) -> dict[int, tuple[int, int]]:
        """The bounds of an operand's dimensions, as the function is given it."""
        dims = self.operands[place].given_dims()
        return {index: self.bounds[dim] for index, dim in enumerate(dims) if dim in self.bounds}

    def function(self, low: torch.dtype | None = None) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function, whose values have the graph's type, or ``low`` everywhere."""
        names: dict[str, Any] = {
            "torch": torch,
            "functional": functional,
            "low": low or self.dtype,
            "wide": low or torch.float32,
        }
        exec(self.source, names)
        body: Any = names["graph"]

        def compute(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            pairs = zip(self.operands, tensors, strict=True)
            result: tuple[torch.Tensor, ...] = body(
                *(each.prepared(tensor, low or self.dtype) for each, tensor in pairs)
            )
            return result

        return compute

    def __str__(self) -> str:
        how = [name for name in ("tf32", "backward", "frozen") if getattr(self, name)]
        called = [f"{each.dims} {each.storage} {each.before} {each.amount}" for each in self.operands]
        sizes = f"sizes {self.sizes}, then {self.again}, dynamic {self.dynamic!r} {self.bounds}, made {self.made}"
        return f"{self.dtype} {' '.join(how)}\n  operands {called}\n  {sizes}\n{self.source}"


def all_sizes(sizes: Sizes, made: dict[str, str]) -> Sizes:
    """The sizes of the dimensions that are drawn and of those made of them, in order."""
    every = dict(sizes)
    for dim, text in made.items():
        every[dim] = int(eval(text, {}, every))
    return every


def draw_graph(random: Random) -> Graph:
    """A graph of two to five GEMMs, whose values stay near 1."""
    backward = random.random() < 0.3
    sizes = {"1": 1, "b": random.choice(BATCHES), **{dim: random.choice(SIZES) for dim in BASE[1:]}}
    builder = _Builder(random, sizes, smooth=backward)
    builder.begin()
    gemms = random.choice([2, 2, 3, 4, 5] if not backward else [1, 2, 2, 3])
    for _ in range(MOST_STEPS):
        if builder.gemms < gemms:
            builder.step(gemm=random.random() < 0.45)
    for _ in range(random.choice([0, 1, 2])):
        builder.step(gemm=False)
    dynamic = "".join(dim for dim in BASE if sizes[dim] > 1 and random.random() < 0.4) if random.random() < 0.3 else ""
    again = tuple(builder.other_sizes(dynamic) for _ in range(random.choice([1, 2]) if dynamic else 0))
    dtype = random.choice([torch.float16, torch.bfloat16, torch.bfloat16, torch.float32])
    return Graph(
        source=builder.source(),
        dtype=dtype,
        operands=tuple(builder.operands),
        scales=tuple(builder.scales),
        made=builder.made,
        sizes=sizes,
        again=again,
        dynamic=dynamic,
        tf32=dtype == torch.float32 and random.random() < 0.3,
        backward=backward,
        frozen=not backward and not dynamic and random.random() < 0.15,
    )


def bounded(random: Random, graph: Graph) -> Graph:
    """The graph with one or two sizes that change within bounds, and more sizes between them; itself where none can."""
    known = {dim for operand in graph.operands for dim in operand.given_dims()}
    able = [dim for dim in BASE if dim in known and graph.sizes[dim] > 1]
    dims = random.sample(able, min(len(able), random.choice([1, 1, 1, 2])))
    if not dims or graph.frozen:
        return graph
    bounds = {dim: (random.choice([2, min(graph.sizes[dim], 9)]), _largest(random, graph.sizes[dim])) for dim in dims}
    again = []
    for _ in range(8):
        drawn = {dim: _within(random, bounds[dim], graph.sizes[dim]) for dim in dims}
        sizes = {**graph.sizes, **drawn}
        if all(size > 1 for dim, size in all_sizes(sizes, graph.made).items() if dim in graph.made):
            again.append(sizes)
    return replace(graph, dynamic="".join(dims), bounds=bounds, again=tuple(again[:3]))


def _largest(random: Random, size: int) -> int:
    return random.choice([2 * size, 2 * size, 512, 8192])


def _within(random: Random, bounds: tuple[int, int], size: int) -> int:
    """A size between the bounds, often one of them; Triton's interpreter has no time for far more than ``size``."""
    low, high = bounds[0], min(bounds[1], 2 * size)
    return random.choice([low, high, *(each for each in SIZES if low <= each <= high)])


@dataclass
class _Builder:
    random: Random
    sizes: Sizes
    smooth: bool  # whether gradients are computed: a kink's depends on which side of it a rounded value is
    operands: list[Operand] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    gemms: int = 0

    def begin(self) -> None:
        """The activations that a graph begins with."""
        self.values.append(self._operand(self.random.choice(["mk", "mk", "bmk"]), 1.0))

    def step(self, *, gemm: bool) -> None:
        """Add one operation on a value that there is; the latest is the most likely."""
        value = self.values[-1] if self.random.random() < 0.6 else self.random.choice(self.values)
        steps = _GEMMS if gemm else self.random.choice([_POINTWISE, _POINTWISE, _SHAPES, _ACROSS])
        self.random.choice(steps)(self, value)

    def source(self) -> str:
        """The function; it returns most of what it does not use itself, and at times something that it does."""
        used = set(re.findall(r"\bv\d+", "\n".join(line.partition("=")[2] for line in self.lines)))
        computed = [each.name for each in self.values if each.name.startswith("v")]
        names = [name for name in computed if name not in used][-MOST_RESULTS:]
        if self.random.random() < 0.3:
            names = [*dict.fromkeys([self.random.choice(computed), *names])]
        returned = "".join(f"{name}, " for name in names)
        arguments = ", ".join(f"t{place}" for place in range(len(self.operands)))
        return "\n".join(
            [f"def graph({arguments}):", *(f"    {line}" for line in self.lines), f"    return ({returned})"]
        )

    def other_sizes(self, dynamic: str) -> Sizes:
        """Sizes that differ in the dimensions that may change, and are not larger than twice those of the graph."""
        for _ in range(8):
            sizes = {
                dim: self.random.choice([each for each in SIZES[1:] if each <= 2 * size]) if dim in dynamic else size
                for dim, size in self.sizes.items()
            }
            if all(size > 1 for dim, size in all_sizes(sizes, self.made).items() if dim in self.made):
                return sizes
        return self.sizes

    def _operand(self, dims: str, scale: float) -> Value:
        self.operands.append(draw_operand(self.random, dims))
        self.scales.append(scale)
        return Value(f"t{len(self.operands) - 1}", dims)

    def _weight(self, dims: str, inner: str) -> str:
        """An operand with which a GEMM over a dimension keeps values near 1."""
        return self._operand(dims, self._size(inner) ** -0.5).name

    def _size(self, dims: str) -> int:
        every = all_sizes(self.sizes, self.made)
        return prod(every[dim] for dim in dims)

    def _make(self, text: str) -> str | None:
        """The dimension that is made of others so; None where its size would be 0 or large."""
        size = eval(text, {}, all_sizes(self.sizes, self.made))
        if not 1 <= size <= MOST_SIZE:
            return None
        known = [dim for dim, other in self.made.items() if other == text]
        if not known:
            known = [chr(ord("A") + len(self.made))]
            self.made[known[0]] = text
        return known[0]

    def _add(self, text: str, dims: str) -> Value:
        value = Value(f"v{len(self.lines)}", dims)
        self.lines.append(f"{value.name} = {text}")
        self.values.append(value)
        return value

    def _output(self, value: Value) -> str | None:
        """The new last dimension of a GEMM of a value, whose work is bounded; None where there is no such GEMM."""
        fitting = [dim for dim in BASE[1:] if self._size(value.dims + dim) <= MOST_WORK]
        return self.random.choice(fitting) if fitting and len(value.dims) > 1 else None

    # ---- GEMMs

    def _linear(self, value: Value) -> None:
        if out := self._output(value):
            weight = self._weight(out + value.dims[-1], value.dims[-1])
            bias = f", {self._weight(out, '1')}" if self.random.random() < 0.6 else ""
            self._gemm(f"functional.linear({value.name}, {weight}{bias})", value.dims[:-1] + out)

    def _matmul(self, value: Value) -> None:
        if out := self._output(value):
            batched = len(value.dims) == 3 and self.random.random() < 0.6
            batch = value.dims[:1] if batched else ""
            weight = self._weight(batch + value.dims[-1] + out, value.dims[-1])
            self._gemm(f"{value.name} @ {weight}", value.dims[:-1] + out)

    def _biased(self, value: Value) -> None:
        """An addmm or baddbmm; the bias has all dimensions of the result, or is a row of it."""
        if out := self._output(value):
            rows, batch = value.dims[-2], value.dims[:-2]
            weight = self._weight(batch + value.dims[-1] + out, value.dims[-1])
            shapes = [batch + rows + out, "1" + out if not batch else "1" + rows + out]
            bias = self._weight(self.random.choice([*shapes, out]), "1")
            scales = self.random.choice(["", "", "", ", alpha=0.5", ", beta=0.5, alpha=2"])
            name = "torch.baddbmm" if batch else "torch.addmm"
            self._gemm(f"{name}({bias}, {value.name}, {weight}{scales})", value.dims[:-1] + out)

    def _inner(self, value: Value) -> None:
        """A GEMM of two values of the graph, over the last dimension or the one before it."""
        same = [each for each in self.values if len(each.dims) == len(value.dims) > 1]
        first = [each for each in same if (each.dims[:-2], each.dims[-1]) == (value.dims[:-2], value.dims[-1])]
        second = [each for each in same if each.dims[:-1] == value.dims[:-1]]
        over_last = self.random.random() < 0.5
        other = self.random.choice(first if over_last else second) if same else None
        if other is None or self._size(value.dims + other.dims[-2 if over_last else -1]) > MOST_WORK:
            return
        if over_last:
            scale = f"{self._size(value.dims[-1]) ** -0.5:.3g}"
            self._gemm(f"({value.name} @ {other.name}.transpose(-1, -2)) * {scale}", value.dims[:-1] + other.dims[-2])
        else:
            scale = f"{self._size(value.dims[-2]) ** -0.5:.3g}"
            dims = value.dims[:-2] + value.dims[-1] + other.dims[-1]
            self._gemm(f"({value.name}.transpose(-1, -2) @ {other.name}) * {scale}", dims)

    def _attention(self, value: Value) -> None:
        """Attention: softmax(q k) v, each a projection of the value."""
        if len(value.dims) < 2 or self._size(value.dims + value.dims[-1] + value.dims[-2]) > MOST_WORK:
            return
        projected = []
        for _ in range(3):
            weight = self._weight(value.dims[-1] * 2, value.dims[-1])
            projected.append(self._gemm(f"{value.name} @ {weight}", value.dims).name)
        query, key, content = projected
        scale = f"{self._size(value.dims[-1]) ** -0.5:.3g}"
        weights = f"({query} @ {key}.transpose(-1, -2) * {scale}).softmax(-1)"
        self._gemm(f"{weights} @ {content}", value.dims)

    def _siblings(self, value: Value) -> None:
        """Two or three linear layers of the value, or an activation of one times the other."""
        outs = [self._output(value) for _ in range(self.random.choice([2, 2, 3]))]
        gated = len(outs) == 2 and self.random.random() < 0.6
        products = []
        for out in outs[:1] * 2 if gated else outs:
            if out is not None:
                weight = self._weight(out + value.dims[-1], value.dims[-1])
                bias = f", {self._weight(out, '1')}" if self.random.random() < 0.3 else ""
                products.append(self._gemm(f"functional.linear({value.name}, {weight}{bias})", value.dims[:-1] + out))
        if gated and products:
            text = self.random.choice(["functional.silu({0})", "functional.gelu({0}, approximate='tanh')"])
            gate, up = (each.name for each in products)
            self._add(f"{text.format(gate)} * {up}", products[0].dims)

    def _convolved(self, value: Value) -> None:
        """A 1x1 convolution of the value as images of one row, channels last, mostly with work that a GEMM may fuse."""
        if self.smooth or not (out := self._output(value)):  # with gradients it stays a convolution
            return
        weight = f"{self._weight(out + value.dims[-1], value.dims[-1])}[..., None, None]"
        bias = f", {self._weight(out, '1')}" if self.random.random() < 0.5 else ""
        images = f"{value.name}[{':, None' if len(value.dims) == 3 else 'None, None'}].movedim(-1, 1)"
        text = self.random.choice(["{0}", "{0}.relu()", *SMOOTH]).format(f"functional.conv2d({images}, {weight}{bias})")
        back = "squeeze(2)" if len(value.dims) == 3 else "squeeze(2).squeeze(0)"
        self._gemm(f"({text}).{back}.movedim(-2, -1)", value.dims[:-1] + out)

    def _gemm(self, text: str, dims: str) -> Value:
        self.gemms += 1
        return self._add(text, dims)

    # ---- Pointwise operations

    def _pointwise(self, value: Value) -> None:
        texts = SMOOTH + CASTS + (() if self.smooth else KINKED)
        self._add(self.random.choice(texts).format(value.name), value.dims)

    def _pair(self, value: Value) -> None:
        other = self.random.choice([each for each in self.values if each.dims == value.dims])
        pairs = [each for each in PAIRS if other is not value or "-" not in each]  # v - v is all rounding, with an FMA
        self._add(f"({self.random.choice(pairs).format(value.name, other.name)}) * 0.5", value.dims)

    def _with_operand(self, value: Value) -> None:
        """With a tensor of all its dimensions, such as a residual, or with a row of it, such as a bias."""
        dims = value.dims if self.random.random() < 0.5 else value.dims[-1]
        other = self._operand(dims, 1.0)
        self._add(self.random.choice(PAIRS).format(value.name, other.name), value.dims)

    def _gated(self, value: Value) -> None:
        """One half of the last dimension times an activation of the other."""
        if half := self._make(f"{value.dims[-1]} // 2"):
            size = f"{value.name}.shape[-1] // 2"
            left, right = f"{value.name}.narrow(-1, 0, {size})", f"{value.name}.narrow(-1, {size}, {size})"
            self._add(f"functional.silu({left}) * {right}", value.dims[:-1] + half)

    # ---- Reductions

    def _rows(self, value: Value) -> None:
        self._add(self.random.choice(ROWS).format(value.name), value.dims)

    def _reduced(self, value: Value) -> None:
        if len(value.dims) > 1:
            place = self.random.randrange(len(value.dims))
            texts = REDUCTIONS + (() if self.smooth else PEAKS)
            scale = f"{self._size(value.dims[place]) ** -0.5:.3g}"
            text = self.random.choice(texts).format(value.name, place)
            self._add(f"{text} * {scale}", value.dims[:place] + value.dims[place + 1 :])

    # ---- Views and copies

    def _transposed(self, value: Value) -> None:
        if len(value.dims) > 1:
            first, second = self.random.sample(range(len(value.dims)), 2)
            dims = list(value.dims)
            dims[first], dims[second] = dims[second], dims[first]
            end = self.random.choice(["", "", ".contiguous()"])
            self._add(f"{value.name}.transpose({first}, {second}){end}", "".join(dims))

    def _sliced(self, value: Value) -> None:
        place = self.random.randrange(len(value.dims))
        dim = value.dims[place]
        start, text = self.random.choice([(0, f"{dim} // 2"), (1, f"{dim} - 1"), (3, f"{dim} - 8")])
        if new := self._make(text):
            length = text.replace(dim, f"{value.name}.shape[{place}]")
            self._add(
                f"{value.name}.narrow({place}, {start}, {length})", value.dims[:place] + new + value.dims[place + 1 :]
            )

    def _joined(self, value: Value) -> None:
        """Join it with another value, along the last dimension or the first."""
        place = self.random.choice([0, len(value.dims) - 1])
        rest = value.dims[:place] + value.dims[place + 1 :]
        others = [
            each
            for each in self.values
            if len(each.dims) == len(value.dims) and each.dims[:place] + each.dims[place + 1 :] == rest
        ]
        other = self.random.choice(others)
        if new := self._make(f"{value.dims[place]} + {other.dims[place]}"):
            self._add(
                f"torch.cat([{value.name}, {other.name}], {place})", value.dims[:place] + new + value.dims[place + 1 :]
            )

    def _flattened(self, value: Value) -> None:
        if len(value.dims) == 3 and (rows := self._make(f"{value.dims[0]} * {value.dims[1]}")):
            self._add(f"{value.name}.reshape(-1, {value.name}.shape[-1])", rows + value.dims[-1])

    def _padded(self, value: Value) -> None:
        amount = self.random.choice([1, 3, 8])
        if new := self._make(f"{value.dims[-1]} + {amount}"):
            self._add(f"functional.pad({value.name}, (0, {amount}))", value.dims[:-1] + new)

    def _repeated(self, value: Value) -> None:
        """The same matrix for each of a batch."""
        if len(value.dims) == 2:
            batch = self.sizes["b"]
            self._add(f"{value.name}.expand({batch}, -1, -1)", f"{self._make(str(batch))}{value.dims}")


_GEMMS = (
    *(_Builder._linear, _Builder._matmul, _Builder._biased, _Builder._inner, _Builder._attention),
    *(_Builder._siblings, _Builder._convolved),
)
_POINTWISE = (_Builder._pointwise, _Builder._pointwise, _Builder._pair, _Builder._with_operand, _Builder._gated)
_ACROSS = (_Builder._rows, _Builder._rows, _Builder._reduced)
_SHAPES = (
    *(_Builder._transposed, _Builder._sliced, _Builder._joined, _Builder._flattened, _Builder._padded),
    _Builder._repeated,
)
