"""2 and 3 processes with a part of the batch each take the steps of one process with the whole of it."""

from pathlib import Path

import pytest
import torch
import torch.distributed

from tests.models import tiny
from tests.ports import free_port
from tests.training import worker

ROOT = Path(__file__).parents[2]
WORLDS = (2, 3)

pytestmark = [
    pytest.mark.xdist_group("processes"),  # started once, and not by every worker of pytest
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="needs torch.distributed with gloo",
    ),
]


@pytest.fixture(scope="module")
def together(forked, tmp_path_factory):
    """What each of 2 and each of 3 processes found, by their number."""
    folder = tmp_path_factory.mktemp("processes")
    variables = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    worlds = [f"{world}:{free_port()}" for world in WORLDS]
    started = forked.start(folder, *worlds, cwd=ROOT, call="tests.training.worker:command_line", variables=variables)
    started.succeed(timeout=240)
    return {world: [torch.load(folder / f"{world}.{rank}.pt") for rank in range(world)] for world in WORLDS}


@pytest.fixture(scope="module")
def alone():
    return worker.alone()


def check_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(("world", "case"), [(world, case) for world in WORLDS for case in worker.cases(world)])
def test_processes_find_the_losses_of_one_process_and_all_end_with_the_same_bits(alone, together, world, case):
    first, *others = (found["trained"][case] for found in together[world])
    assert [found["world"] for found in together[world]] == world * [world]
    for values, expected in zip(first["values"], alone[case]["values"], strict=True):
        assert values.keys() == expected.keys()
        for name, value in expected.items():  # a norm of gradients, which are steep, loses two digits more
            assert values[name] == pytest.approx(value, rel=1e-4 if name == "gradient norm" else 1e-6, abs=1e-6), name
    for other in others:
        check_same(other["after"], first["after"])
        assert other["values"] == first["values"]


@pytest.mark.parametrize(("world", "case"), [(world, case) for world in WORLDS for case in worker.cases(world)])
def test_processes_end_with_the_network_proxies_and_memory_of_one_process(alone, together, world, case):
    before, expected = alone[case]["before"], alone[case]["after"]
    found = together[world][0]["trained"][case]
    check_same(found["before"], before)
    difference, change = torch.zeros(()), torch.zeros(())
    for name, value in expected.items():
        if value.is_floating_point():
            torch.testing.assert_close(
                found["after"][name], value, rtol=1e-6, atol=1e-6, msg=lambda message, name=name: f"{name}: {message}"
            )
            if name.endswith(("weight", "proxies")):
                difference += (found["after"][name] - value).square().sum()
                change += (value - before[name]).square().sum()
        else:
            assert torch.equal(found["after"][name], value), name
    assert change.sqrt() > 1e-3, "something was learned"
    assert difference.sqrt() < 1e-3 * change.sqrt(), "and the same"


@pytest.mark.parametrize("world", WORLDS)
def test_processes_average_broadcast_and_agree(together, world):
    for found in (found["exchanged"] for found in together[world]):
        assert found["world"] == world
        middle = (world - 1) / 2
        torch.testing.assert_close(found["mean"][0], torch.arange(4.0).view(2, 2) + 10 * middle + 0.5)
        torch.testing.assert_close(found["mean"][1], torch.full((3,), middle))
        assert torch.equal(found["first"], torch.arange(4).view(2, 2))
        assert found["agreed"] == [1, 0, 5 * (world - 1)]


@pytest.mark.parametrize("name", worker.SHARDED_NETWORKS)
@pytest.mark.parametrize("world", [2])
def test_a_network_whose_weights_are_spread_embeds_and_learns_as_a_whole_one(together, world, name):
    embedder = tiny.embedder(name, **worker.SHARDED_NETWORKS[name]).train()
    before, after = worker.embeddings_around_a_step(embedder)
    assert (after - before).norm() > 1e-2
    whole = sum(value.numel() for value in embedder.parameters())
    for found in (found["sharded"][name] for found in together[world]):
        assert found["parts"] > 2, "the whole, and parts of it on their own"
        assert found["held"] < 0.6 * whole
        torch.testing.assert_close(found["embeddings"], torch.stack([before, after]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world", [2])
def test_what_is_no_number_in_one_process_stops_all_of_them(together, world):
    part = worker.BATCH // world
    for found in together[world]:
        assert found["refusals"] == {
            f"{place}, {name}": output
            for name in ("in the batch", "in chunks")
            for place, output in (
                ("images", f"the embeddings of {part} of {worker.BATCH} images are not finite"),
                ("gradient", found["refusals"][f"gradient, {name}"]),
            )
        }
        assert all(output.startswith("the gradient norm is ") for key, output in found["refusals"].items() if "gradient" in key)


@pytest.mark.parametrize("world", [2])
def test_all_processes_evaluate_the_network_of_the_first_with_any_number_of_batches(together, world):
    first, *others = (found["evaluated"] for found in together[world])
    check_same(first["shared"], first["own"])
    for other in others:
        assert any(not torch.equal(other["own"][name], value) for name, value in first["own"].items()), "each saw other images"
        check_same(other["shared"], first["own"])
        check_same(other["after"], first["after"])
        assert torch.equal(other["embeddings"], first["embeddings"])
