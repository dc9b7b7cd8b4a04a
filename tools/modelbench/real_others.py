"""Programs of other fields: a recommender, graph networks, physics, time series, and quantization with torchao."""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from modelbench.real_programs import Given, Program, Run, inference, training
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, dropout, mse_loss


class DLRM(nn.Module):
    """The recommender of Naumov et al.: embedding tables, dot products between features, and two MLPs."""

    def __init__(self, rows: int, width: int = 128, tables: int = 26) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = _mlp((13, 512, 256, width))
        pairs = (tables + 1) * tables // 2
        self.top = _mlp((pairs + width, 1024, 1024, 512, 256, 1))
        self.pairs: Tensor
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        features = self.bottom(dense).relu()
        found = [features, *(table(sparse[index]) for index, table in enumerate(self.tables))]
        stacked = torch.stack(found, 1)
        dots = torch.bmm(stacked, stacked.mT)[:, self.pairs[0], self.pairs[1]]
        result: Tensor = self.top(torch.cat((features, dots), 1)).squeeze(1)
        return result


def _mlp(sizes: tuple[int, ...], act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [layer for before, after in pairwise(sizes) for layer in (nn.Linear(before, after), act())]
    return nn.Sequential(*layers[:-1])


def recommend(given: Given, *, trains: bool) -> Run:
    """DLRM on 8,192 users, with 26 tables of 100,000 rows."""
    rows, batch = (100, 16) if given.tiny else (100_000, 8192)
    model = given.made(lambda: DLRM(rows))
    compiled = torch.compile(model)
    dense, sparse = given.normal(batch, 13), given.integers(rows, 26, batch, 2)
    target = given.put(given.integers(2, batch).float())
    if not trains:
        return inference(lambda: [compiled(dense, sparse)])

    def loss_of() -> Tensor:
        with given.autocast():
            return binary_cross_entropy_with_logits(compiled(dense, sparse), target)

    return training(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_of)


def learn_graph(given: Given, layer: str) -> Run:
    """Three layers of torch_geometric on a graph of 25,000 nodes and 250,000 edges, as its examples train it."""
    from torch_geometric import nn as graph

    nodes, edges = (50, 200) if given.tiny else (25_000, 250_000)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make, heads = getattr(graph, layer), {"heads": 2, "concat": False} if layer in _WITH_HEADS else {}
            self.layers = nn.ModuleList(make(before, after, **heads) for before, after in pairwise((128, 128, 128, 47)))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for each in self.layers[:-1]:
                x = dropout(each(x, edge_index).relu(), 0.0)
            result: Tensor = self.layers[-1](x, edge_index)
            return result

    model = given.made(Net)
    compiled = torch.compile(model)
    x, edge_index, target = given.normal(nodes, 128), given.integers(nodes, 2, edges), given.integers(47, nodes)
    return training(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
        lambda: cross_entropy(compiled(x, edge_index), target),
    )


_WITH_HEADS = ("GATConv", "TransformerConv")


def solve(given: Given) -> Run:
    """A network that learns Burgers' equation: its derivatives by torch.func, at 20,000 points."""
    from torch.func import functional_call, grad, vmap

    model = given.made(lambda: _mlp((2, *[128] * 6, 1), nn.Tanh))
    points = given.normal(64 if given.tiny else 20_000, 2)

    def residual(weights: dict[str, Tensor], points: Tensor) -> Tensor:
        def value(point: Tensor) -> Tensor:
            result: Tensor = functional_call(model, weights, (point,))[0]
            return result

        def equation(point: Tensor) -> Any:
            u, slopes = value(point), grad(value)(point)
            u_xx = grad(lambda at: grad(value)(at)[0])(point)[0]
            return slopes[1] + u * slopes[0] - 0.01 / torch.pi * u_xx

        loss: Tensor = vmap(equation)(points).square().mean()
        return loss

    compiled = torch.compile(residual)
    weights = dict(model.named_parameters())
    return training(model, torch.optim.Adam(model.parameters(), lr=1e-3), lambda: compiled(weights, points))


def fit_series(given: Given) -> Run:
    """An LSTM of two layers that predicts the next value of 256 series of 128 steps."""
    width, steps, batch = (16, 8, 4) if given.tiny else (512, 128, 256)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(32, width, num_layers=2, batch_first=True)
            self.head = _mlp((width, width, 32))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.lstm(x)[0])
            return result

    model = given.made(Net)
    compiled = torch.compile(model)
    x = given.normal(batch, steps, 32)
    target = given.normal(batch, steps, 32)
    return training(
        model, torch.optim.Adam(model.parameters(), lr=1e-3), lambda: mse_loss(compiled(x), target), clip=True
    )


def render(given: Given) -> Run:
    """The MLP of NeRF on 65,536 samples: positions encoded by sines, eight layers of 256 with a skip."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = _mlp((63, *[256] * 5)), _mlp((256 + 63, *[256] * 4))
            self.density, self.colour = nn.Linear(256, 1), _mlp((256, 128, 3))

        def forward(self, x: Tensor) -> Tensor:
            angles = x[:, None, :] * 2.0 ** torch.arange(10, device=x.device, dtype=x.dtype)[:, None]
            encoded = torch.cat((x, angles.sin().flatten(1), angles.cos().flatten(1)), 1)
            features = self.second(torch.cat((self.first(encoded).relu(), encoded), 1)).relu()
            return torch.cat((self.colour(features).sigmoid(), self.density(features).relu()), 1)

    compiled = torch.compile(given.made(Net))
    x = given.normal(64 if given.tiny else 65_536, 3)
    return inference(lambda: [compiled(x)])


def quantize(given: Given, recipe: str, batch: int) -> Run:
    """Llama's layers with torchao: weights, or weights and activations, in int8."""
    from modelbench.networks import LlamaLayers
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    width, hidden, layers, batch = (64, 96, 1, 8) if given.tiny else (2048, 8192, 4, batch)
    model = given.made(lambda: LlamaLayers(width, hidden, (width // 64, max(width // 256, 1)), layers)).eval()
    if not given.exact:
        quantize_(model, Int8WeightOnlyConfig() if recipe == "weights" else Int8DynamicActivationInt8WeightConfig())
    compiled = torch.compile(model)
    x = given.normal(batch, width)
    return inference(lambda: [compiled(x)])


def train_float8(given: Given) -> Run:
    """Llama's layers, trained with torchao's recipe of dynamic float8."""
    from modelbench.networks import LlamaLayers
    from torchao.float8 import convert_to_float8_training

    width, hidden, layers, tokens = (64, 96, 1, 16) if given.tiny else (2048, 8192, 2, 4096)
    model = given.made(lambda: LlamaLayers(width, hidden, (width // 64, max(width // 256, 1)), layers))
    if not given.exact:
        convert_to_float8_training(model)
    compiled = torch.compile(model)
    x, target = given.normal(tokens, width), given.normal(tokens, width)
    return training(
        model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda: mse_loss(compiled(x).float(), target.float())
    )


OTHERS: dict[str, Program] = {
    "train-dlrm": Program("DLRM with 26 tables, training, 8,192 users", partial(recommend, trains=True), torch.float32),
    "dlrm": Program("DLRM with 26 tables, 8,192 users", partial(recommend, trains=False)),
    "pinn-float32": Program("PINN for Burgers' equation, float32", solve, torch.float32),
    "pinn-float64": Program("PINN for Burgers' equation, float64", solve, torch.float64),
    "graph-sage": Program(
        "GraphSAGE, training, 25,000 nodes", partial(learn_graph, layer="SAGEConv"), torch.float32, ("torch_geometric",)
    ),
    "graph-gat": Program(
        "GAT, training, 25,000 nodes", partial(learn_graph, layer="GATConv"), torch.float32, ("torch_geometric",)
    ),
    "graph-transformer": Program(
        "Graph transformer, training, 25,000 nodes",
        partial(learn_graph, layer="TransformerConv"),
        torch.float32,
        ("torch_geometric",),
    ),
    "graph-gcn": Program(
        "GCN, training, 25,000 nodes", partial(learn_graph, layer="GCNConv"), torch.float32, ("torch_geometric",)
    ),
    "lstm": Program("LSTM of 2 layers, training, 256 series", fit_series, torch.float32),
    "nerf": Program("NeRF's MLP, 65,536 samples", render),
    "int8-weights": Program(
        "Llama's layers, int8 weights with torchao, 16 tokens",
        partial(quantize, recipe="weights", batch=16),
        torch.bfloat16,
        ("torchao",),
    ),
    "int8-dynamic": Program(
        "Llama's layers, dynamic int8 with torchao, 2,048 tokens",
        partial(quantize, recipe="dynamic", batch=2048),
        torch.bfloat16,
        ("torchao",),
    ),
    "train-float8": Program(
        "Llama's layers, float8 training with torchao, 4,096 tokens", train_float8, torch.bfloat16, ("torchao",)
    ),
}
