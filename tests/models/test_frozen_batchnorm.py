import copy
import pickle

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d, convert_sync_batchnorm
from torch import nn
from torch.nn.functional import batch_norm

from suprank.models import frozen_batchnorm
from suprank.models.frozen_batchnorm import frozen_batch_norm, keep_memory_format
from tests.models import tiny


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(frozen_batchnorm, "DEVICE_TYPES", ("cuda", "cpu"))


def arguments(dtype=torch.float32, parameters=None, memory_format=torch.channels_last, device="cpu"):
    """Input, mean, variance, weight and bias of 5 channels, and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, 3, 5, 4, 6, generator=generator).to(device, dtype)
    mean, weight, bias = torch.randn(3, 5, generator=generator).to(device, parameters or dtype)
    var = torch.rand(5, generator=generator).to(device, parameters or dtype) + 0.5
    x, grad = x.to(memory_format=memory_format), grad.to(memory_format=memory_format)
    return x.requires_grad_(), mean, var, weight.requires_grad_(), bias.requires_grad_(), grad


def norm_layer(norm, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for values in (norm.running_mean, norm.running_var, *norm.parameters()):
            nn.init.uniform_(values, 0.5, 1.5)
    return norm.eval()


def gradients_of(embedder, images):
    embedder.zero_grad(set_to_none=True)
    embedder(images)[:, 0].sum().backward()
    return {name: parameter.grad for name, parameter in embedder.named_parameters()}


def count_calls(monkeypatch):
    """The shapes of all inputs that reach `frozen_batch_norm` from now on."""
    shapes, function = [], frozen_batch_norm
    monkeypatch.setattr(frozen_batchnorm, "frozen_batch_norm", lambda x, *rest: shapes.append(x.shape) or function(x, *rest))
    return shapes


def test_a_worked_example():
    x = torch.tensor([[[[7.0]]], [[[3.0]]]], requires_grad=True)
    mean, var = torch.tensor([1.0]), torch.tensor([3.0])
    weight, bias = torch.tensor([10.0], requires_grad=True), torch.tensor([0.5], requires_grad=True)
    y = frozen_batch_norm(x, mean, var, weight, bias, eps=1.0)  # (x − 1) / 2 · 10 + 0.5
    y.backward(torch.tensor([[[[1.0]]], [[[2.0]]]]))
    assert y.flatten().tolist() == [30.5, 10.5]
    assert x.grad.flatten().tolist() == [5.0, 10.0]
    assert weight.grad.item() == 1 * 3 + 2 * 1
    assert bias.grad.item() == 3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    ("dtype", "parameters"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_values_equal_torchs_to_the_bit_and_gradients_agree(dtype, parameters, memory_format, device):
    if (device, memory_format) == ("cuda", torch.contiguous_format) or (device, dtype) == ("cpu", torch.float16):
        pytest.skip("a combination that training does not have")
    x, mean, var, weight, bias, grad = arguments(dtype, parameters, memory_format, device)
    found = frozen_batch_norm(x, mean, var, weight, bias, 1e-3)
    expected = batch_norm(x, mean, var, weight, bias, eps=1e-3)
    assert found.dtype == dtype
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
    found, expected = (torch.autograd.grad(y, (x, weight, bias), grad) for y in (found, expected))
    for a, b, leaf in zip(found, expected, (x, weight, bias), strict=True):
        torch.testing.assert_close(a, b)
        assert a.dtype == leaf.dtype
        assert a.stride() == leaf.stride()


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_gradient_has_the_memory_format_of_the_input_whatever_format_comes_from_above(memory_format):
    x, *parameters, grad = arguments(memory_format=memory_format)
    others = [
        grad.contiguous(),
        grad.to(memory_format=torch.channels_last),
        grad.transpose(2, 3).contiguous().transpose(2, 3),
        grad[:, :, :1, :1].expand_as(grad),
    ]
    for other in others:
        found, *_ = torch.autograd.grad(frozen_batch_norm(x, *parameters, 1e-5), x, other)
        expected, *_ = torch.autograd.grad(batch_norm(x, *parameters), x, other)
        assert found.is_contiguous(memory_format=memory_format)
        torch.testing.assert_close(found, expected)


def test_gradcheck():
    x, mean, var, weight, bias, _ = arguments(torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, weight, bias: frozen_batch_norm(x, mean, var, weight, bias, 1e-5), (x, weight, bias)
    )
    assert torch.autograd.gradcheck(lambda x: frozen_batch_norm(x, mean, var, None, None, 1e-5), (x,))


@pytest.mark.parametrize("trained", [(), ("x",), ("weight",), ("bias",), ("x", "bias"), ("weight", "bias")])
def test_only_what_is_trained_gets_a_gradient(trained):
    x, mean, var, weight, bias, grad = arguments()
    leaves = {"x": x, "weight": weight, "bias": bias}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in trained)
    found, expected = frozen_batch_norm(x, mean, var, weight, bias, 1e-5), batch_norm(x, mean, var, weight, bias)
    assert found.requires_grad == bool(trained)
    if trained:
        found.backward(grad)
        assert {name for name, leaf in leaves.items() if leaf.grad is not None} == set(trained)
        for name, gradient in zip(
            trained, torch.autograd.grad(expected, [leaves[name] for name in trained], grad), strict=True
        ):
            torch.testing.assert_close(leaves[name].grad, gradient)


@pytest.mark.parametrize("affine", [True, False])
def test_the_input_is_not_stored_if_only_its_own_gradient_is_needed(affine):
    x, mean, var, weight, bias, _ = arguments()
    dims = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: dims.append(tensor.ndim) or tensor, lambda tensor: tensor):
        frozen_batch_norm(x, mean, var, *((weight.detach(), bias.detach()) if affine else (None, None)), 1e-5)
    assert dims == [1, 1, 1][: 2 + affine]


def test_a_weight_that_changes_before_backward_is_noticed():
    x, mean, var, weight, bias, grad = arguments()
    y = frozen_batch_norm(x, mean, var, weight, bias, 1e-5)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(grad)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.BatchNorm2d(5),
        lambda: nn.BatchNorm2d(5, affine=False),
        lambda: BatchNormAct2d(5, act_layer=nn.ReLU6),  # in place
        lambda: BatchNormAct2d(5, act_layer="silu", drop_layer=lambda: nn.Dropout(0.5)),
        lambda: BatchNormAct2d(5, apply_act=False),
    ],
)
def test_a_layer_gives_torchs_values_and_gradients(build, on_cpu, monkeypatch):
    plain = norm_layer(build())
    layer = copy.deepcopy(plain)
    keep_memory_format(layer)
    calls = count_calls(monkeypatch)
    x, *_, grad = arguments()
    for norm in (plain, layer):
        getattr(norm, "drop", nn.Identity()).train()
    results = []
    for norm in (plain, layer):
        torch.manual_seed(0)
        y = norm(x)
        results.append((y, *torch.autograd.grad(y, (x, *norm.parameters()), grad)))
    assert len(calls) == 1
    assert torch.equal(results[0][0], results[1][0])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_layer_leaves_everything_else_to_torch(on_cpu, monkeypatch):
    calls = count_calls(monkeypatch)
    x, *_ = arguments()
    for build in (nn.BatchNorm2d, BatchNormAct2d):
        layer = build(5).eval()
        keep_memory_format(layer)
        with torch.no_grad():
            layer(x)
        layer(x[:0])
        layer(x.contiguous())
        layer.train()(x)
        assert layer.num_batches_tracked == 1
        without_statistics = build(5, track_running_stats=False).eval()
        keep_memory_format(without_statistics)
        without_statistics(x)
        with pytest.raises((ValueError, AssertionError), match="expected 4D input"):
            layer.eval()(x[0])
    assert not calls
    monkeypatch.setattr(frozen_batchnorm, "DEVICE_TYPES", ("cuda",))
    layer(x)
    assert not calls


def test_subclasses_that_we_do_not_know_stay_as_they_are():
    class Doubled(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    for module in (Doubled(5), nn.SyncBatchNorm(5), nn.BatchNorm1d(5), nn.Conv2d(3, 5, 1)):
        before = type(module)
        keep_memory_format(module)
        assert type(module) is before


def test_a_layer_is_copied_pickled_and_converted_like_the_one_it_was():
    for build in (nn.BatchNorm2d, BatchNormAct2d):
        plain = norm_layer(build(5))
        layer = copy.deepcopy(plain)
        keep_memory_format(layer)
        keep_memory_format(layer)  # a second time changes nothing
        assert isinstance(layer, build)
        assert list(layer.state_dict()) == list(plain.state_dict())
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert type(other) is type(layer)
            assert other.weight is not layer.weight
            assert torch.equal(other.weight, layer.weight)
        assert type(convert_sync_batchnorm(layer)) is type(convert_sync_batchnorm(plain))
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(layer))[0], nn.SyncBatchNorm)


@pytest.mark.parametrize(
    ("backbone", "layers"), [("test_resnet", None), ("test_efficientnet", None), ("tf_efficientnet_lite0", 49)]
)
def test_an_embedder_has_the_same_gradients(backbone, layers, monkeypatch):
    embedder = tiny.embedder(backbone, freeze_batchnorm=True).train().to(memory_format=torch.channels_last)
    images = tiny.images().to(memory_format=torch.channels_last)
    for module in embedder.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    calls = count_calls(monkeypatch)
    expected = gradients_of(embedder, images)
    assert not calls
    monkeypatch.setattr(frozen_batchnorm, "DEVICE_TYPES", ("cuda", "cpu"))
    found = gradients_of(embedder, images)
    norms = [module for module in embedder.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(calls) == len(norms) == (layers or len(norms))
    for name, gradient in expected.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-3, atol=1e-4 * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_an_exported_program_has_torchs_operator(on_cpu):
    embedder = tiny.embedder("test_efficientnet", freeze_batchnorm=True)
    program = torch.export.export(embedder, (tiny.images(),))
    assert any("batch_norm" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(tiny.images()), embedder(tiny.images()))


def test_a_compiled_layer_leaves_the_backward_to_the_compiler(on_cpu, monkeypatch):
    layer = norm_layer(BatchNormAct2d(5))
    keep_memory_format(layer)
    calls = count_calls(monkeypatch)
    x, *_, grad = arguments()
    expected = torch.autograd.grad(layer(x), (x, *layer.parameters()), grad)
    found = torch.autograd.grad(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), (x, *layer.parameters()), grad)
    assert len(calls) == 1
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
def test_under_autocast_on_a_gpu_gradients_stay_in_channels_last(monkeypatch):
    embedder = tiny.embedder("test_efficientnet", freeze_batchnorm=True).train()
    embedder.to("cuda", memory_format=torch.channels_last)
    images = tiny.images(8).to("cuda", memory_format=torch.channels_last)
    grads = []

    def record(module, inputs):
        if inputs[0].requires_grad:
            inputs[0].register_hook(grads.append)

    norms = [module for module in embedder.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.register_forward_pre_hook(record)
    calls = count_calls(monkeypatch)
    with torch.autocast("cuda", torch.bfloat16):
        found = gradients_of(embedder, images)
    assert len(calls) == len(norms)
    assert len(grads) == len(norms)
    for grad in grads:
        assert grad.dtype == torch.bfloat16
        assert grad.is_contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr(frozen_batchnorm, "DEVICE_TYPES", ())
    with torch.autocast("cuda", torch.bfloat16):
        expected = gradients_of(embedder, images)
    assert len(calls) == len(norms)
    for name, gradient in expected.items():  # every layer rounds to 8 bits
        assert (found[name] - gradient).norm() <= 0.05 * gradient.norm() + 1e-6, name


@pytest.mark.gpu
def test_a_layer_is_captured_in_a_cuda_graph():
    layer = norm_layer(BatchNormAct2d(5)).cuda()
    keep_memory_format(layer)
    x, *_, grad = arguments(torch.bfloat16, torch.float32, device="cuda")

    def step():
        return torch.autograd.grad(layer(x), (x, *layer.parameters()), grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
