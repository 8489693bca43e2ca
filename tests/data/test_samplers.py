"""Which images meet in a batch."""

import subprocess
import sys
from collections import Counter
from itertools import chain, combinations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pytorch_metric_learning import samplers as pml

from suprank.data.samplers import BalancedBatchSampler, HierarchicalBatchSampler


def class_sets(labels, batches):
    return [frozenset(labels[batch].tolist()) for batch in batches]


def tree(fine_per_coarse, images_per_fine):
    """Labels of coarse classes with so many fine classes, of so many images each."""
    coarse = np.repeat(np.arange(len(fine_per_coarse)), fine_per_coarse)
    return np.repeat(np.stack([np.arange(len(coarse)), coarse], axis=1), images_per_fine, axis=0)


SOP = tree([15, 20, 9, 12, 30, 8, 8, 8, 25, 10, 11, 16], 5)  # 12 categories in small; of batches of 64, each half is 8 products


# M per class


def test_an_epoch_deals_every_image_in_groups_of_its_class():
    labels = np.array([0] * 4 + [1] * 2 + [2] * 3)
    batches = list(BalancedBatchSampler(labels, batch_size=4, images_per_class=2))
    # 2 + 1 + 2 groups of two; a sixth fills the third batch
    assert len(batches) == 3
    assert set(chain(*batches)) == set(range(9))
    for batch in batches:
        assert labels[batch].tolist()[::2] == labels[batch].tolist()[1::2]
        assert len(set(labels[batch].tolist())) == 2


@st.composite
def m_per_class(draw):
    sizes = draw(st.lists(st.one_of(st.integers(1, 9), st.integers(1, 60)), min_size=1, max_size=20))
    m = draw(st.integers(1, 5))
    groups = draw(st.integers(1, len(sizes)))
    ids = draw(st.permutations(range(len(sizes))))
    labels = np.repeat(np.array(ids) * 3, sizes)
    return np.random.default_rng(0).permutation(labels), groups * m, m


@given(m_per_class(), st.integers(0, 1000), st.integers(0, 5))
def test_laws_of_m_per_class(case, seed, epoch):
    labels, batch_size, m = case
    sampler = BalancedBatchSampler(labels, batch_size, m, seed=seed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    sizes = Counter(labels.tolist())
    groups = {label: -(-size // m) for label, size in sizes.items()}
    assert len(batches) == len(sampler) == max(-(-sum(groups.values()) * m // batch_size), max(groups.values()))
    assert {row for batch in batches for row in batch} == set(range(len(labels)))
    for batch in batches:
        assert len(batch) == batch_size
        assert set(Counter(labels[batch].tolist()).values()) == {m}
        for row, times in Counter(batch).items():
            assert times <= -(-m // sizes[labels[row]])  # once, unless its class is smaller than m; then as few times as can be


@given(m_per_class(), st.integers(1, 4))
def test_an_epoch_takes_at_most_so_many_images_of_a_class(case, times):
    labels, batch_size, m = case
    sampler = BalancedBatchSampler(labels, batch_size, m, max_images_per_class=times * m)
    groups = [min(-(-size // m), times) for size in Counter(labels.tolist()).values()]
    assert len(sampler) == max(-(-sum(groups) * m // batch_size), max(groups))
    assume(sum(groups) * m == len(sampler) * batch_size)  # no batch had to be filled
    rows = {row for batch in sampler for row in batch}
    assert Counter(labels[list(rows)].tolist()) == {c: min(n, times * m) for c, n in Counter(labels.tolist()).items()}


def test_other_images_have_their_turn_in_other_epochs():
    sampler = BalancedBatchSampler(np.repeat([0, 1], 100), 16, 8, max_images_per_class=16)
    one, two = ({row for batch in sampler for row in batch} for _ in range(2))
    assert len(one) == len(two) == 32
    assert len(one & two) < 16


def test_batches_meet_in_other_company_each_time():
    labels = np.repeat(np.arange(200), 20)
    sampler = BalancedBatchSampler(labels, 256)  # the authors' code makes 15 batches of these, with 3 different sets of classes
    first, second = list(sampler), list(sampler)
    assert len(first) == 16
    assert len(set(class_sets(labels, first + second))) == 32
    shared = [len(one & two) for one, two in combinations(class_sets(labels, first), 2)]
    assert max(shared) < 32  # of 64 classes; chance has it at 18


def test_a_class_that_dominates_is_spread_over_the_epoch_and_the_others_repeat():
    labels = np.repeat(np.arange(9), [400] + [8] * 8)
    batches = list(BalancedBatchSampler(labels, 16))
    assert len(batches) == 100
    assert all(0 in classes for classes in class_sets(labels, batches))
    repeats = Counter(label for classes in class_sets(labels, batches) for label in classes if label)
    assert max(repeats.values()) - min(repeats.values()) <= 1  # 300 groups of 8 classes
    assert len(set(class_sets(labels, batches))) > 40  # of the 56 that there are


def test_fixed_numbers_of_batches_go_on_where_the_last_epoch_ended():
    labels = np.repeat(np.arange(10), 12)
    whole = BalancedBatchSampler(labels, 8)
    cut = BalancedBatchSampler(labels, 8, batches=7)
    assert (len(whole), len(cut)) == (15, 7)
    long = [batch for _ in range(3) for batch in whole]
    assert [batch for _ in range(5) for batch in cut] == long[:35]
    cut.set_epoch(4)
    assert list(cut) == long[28:35]
    assert list(BalancedBatchSampler(labels, 8, batches=40)) == long[:40]


def test_structure_agrees_with_pytorch_metric_learning():
    labels = np.repeat(np.arange(30), 9)
    theirs = np.array(list(pml.MPerClassSampler(labels, 4, batch_size=40, length_before_new_iter=400))).reshape(-1, 40)
    for batches in (theirs, np.array(list(BalancedBatchSampler(labels, 40)))):
        assert all(sorted(Counter(labels[batch].tolist()).values()) == [4] * 10 for batch in batches)


def test_the_finest_of_several_levels_is_used_and_tensors_are_taken():
    mine = list(BalancedBatchSampler(torch.from_numpy(SOP), 32))
    assert mine == list(BalancedBatchSampler(SOP[:, 0].tolist(), 32))


# Hierarchical


def test_every_pair_of_categories_makes_five_batches_half_and_half():
    sampler = HierarchicalBatchSampler(SOP, 64)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 330
    pairs = Counter()
    for batch in batches:
        coarse = Counter(SOP[batch, 1].tolist())
        assert list(coarse.values()) == [32, 32]
        assert set(Counter(SOP[batch, 0].tolist()).values()) == {4}
        assert len(set(batch)) == 64
        pairs[frozenset(coarse)] += 1
    assert len(pairs) == 66
    assert set(pairs.values()) == {5}
    assert len(set(class_sets(SOP[:, 0], batches))) > 310  # but not 330: the pairs of the three categories of 8 must repeat


def test_the_structure_of_hierarchical_batches_agrees_with_pytorch_metric_learning():
    ours = list(HierarchicalBatchSampler(SOP, 64))
    theirs = list(pml.HierarchicalSampler(SOP, 64, 4, batches_per_super_tuple=5))

    def structure(batches):
        return sorted(sorted(Counter(SOP[batch, 1].tolist()).items()) for batch in batches)

    assert structure(ours) == structure(theirs)


@st.composite
def hierarchical(draw):
    fine = draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))
    images = draw(st.lists(st.integers(1, 9), min_size=sum(fine), max_size=sum(fine)))
    labels = np.repeat(tree(fine, 1), images, axis=0)
    m = draw(st.integers(1, 4))
    per_batch = draw(st.integers(1, len(fine)))
    batch_size = m * draw(st.integers(per_batch, 12))
    return labels, batch_size, m, per_batch, draw(st.one_of(st.none(), st.integers(1, 40)))


@given(hierarchical(), st.integers(0, 1000))
def test_laws_of_hierarchical(case, seed):
    labels, batch_size, m, per_batch, batches = case
    sampler = HierarchicalBatchSampler(
        labels, batch_size, m, coarse_per_batch=per_batch, batches_per_combination=2, batches=batches, seed=seed
    )
    coarse_of = dict(labels.tolist())
    images, fines = Counter(labels[:, 0].tolist()), Counter(coarse_of.values())
    turns = Counter()
    made = list(sampler)
    assert len(made) == len(sampler)
    for batch in made:
        assert len(batch) == batch_size
        coarse = set(labels[batch, 1].tolist())
        assert len(coarse) == per_batch
        turns.update(coarse)
        fine = Counter(labels[batch, 0].tolist())
        enough = sum(fines[which] for which in coarse) * m >= batch_size
        assert not enough or set(fine.values()) == {m}
        assert all(count % m == 0 for count in fine.values())
        for row, times in Counter(batch).items():
            asked = fine[int(labels[row, 0])]
            assert times <= -(-asked // images[int(labels[row, 0])])
    assert max(turns.values()) - min(turns[which] for which in fines) <= 1


def test_fine_classes_and_images_come_in_turns():
    batches = list(HierarchicalBatchSampler(SOP, 64))
    of_class, of_row = Counter(SOP[list(chain(*batches)), 0].tolist()), Counter(chain(*batches))
    for coarse in range(12):
        turns = [of_class[fine] // 4 for fine in np.unique(SOP[SOP[:, 1] == coarse, 0]).tolist()]
        assert max(turns) - min(turns) <= 1
    for fine in np.unique(SOP[:, 0]):
        turns = [of_row[row] for row in np.flatnonzero(SOP[:, 0] == fine).tolist()]
        assert max(turns) - min(turns) <= 1


def test_a_small_coarse_class_gives_all_it_has_and_the_other_fills_the_batch():
    labels = tree([2, 30], 6)
    for batch in HierarchicalBatchSampler(labels, 64):
        assert Counter(labels[batch, 1].tolist()) == {0: 8, 1: 56}
        assert set(Counter(labels[batch, 0].tolist()).values()) == {4}


def test_too_few_classes_give_several_groups_of_different_images():
    labels = tree([2, 3], 20)  # five classes for a batch of ten groups: pytorch-metric-learning makes a batch of half the size
    for batch in HierarchicalBatchSampler(labels, 40):
        assert set(Counter(labels[batch, 0].tolist()).values()) == {8}
        assert len(set(batch)) == 40


def test_any_level_and_number_of_coarse_classes():
    fine = np.arange(240) // 5
    labels = np.stack([fine, fine // 4, fine // 16], axis=1)  # 48 classes, 12 groups, 3 at the top
    for batch in HierarchicalBatchSampler(labels, 48, level=1, coarse_per_batch=4, batches=30):
        assert set(Counter(labels[batch, 1].tolist()).values()) == {12}
    for batch in HierarchicalBatchSampler(labels, 48, level=2, coarse_per_batch=3):
        assert set(Counter(labels[batch, 2].tolist()).values()) == {16}


# Epochs, processes, resuming: the same for both


def m_per_class_sampler(**settings):
    return BalancedBatchSampler(SOP, 64, 4, **settings)


def hierarchical_sampler(**settings):
    return HierarchicalBatchSampler(SOP, 64, 4, batches_per_combination=1, **settings)


BOTH = pytest.mark.parametrize("made", [m_per_class_sampler, hierarchical_sampler])


@BOTH
def test_batches_depend_on_seed_and_epoch_alone(made):
    one, two = made(seed=3), made(seed=3)
    first, second = list(one), list(one)
    assert first != second
    assert [list(two), list(two)] == [first, second]
    two.set_epoch(0)
    assert list(two) == first
    assert list(made(seed=4)) != first


@BOTH
@pytest.mark.parametrize("world_size", [2, 4, 16])
def test_processes_part_one_global_batch_in_whole_groups(made, world_size):
    parts = zip(*(made(rank=rank, world_size=world_size) for rank in range(world_size)), strict=True)
    for whole, shared in zip(made(), parts, strict=True):
        assert list(chain(*shared)) == whole
        assert all(set(Counter(SOP[part, 0].tolist()).values()) == {4} for part in shared)


@BOTH
@pytest.mark.parametrize("batches", [None, 9])
def test_a_resumed_epoch_yields_exactly_what_was_left_and_then_the_next(made, batches):
    first, second = (lambda whole: (list(whole), list(whole)))(made(batches=batches))
    stopped = made(batches=batches)
    for _ in zip(range(4), stopped, strict=False):
        pass
    state = stopped.state_dict(3)  # the fourth was fetched, but not consumed
    assert all(isinstance(value, int | str | None) for value in state.values())
    resumed = made(batches=batches)
    resumed.load_state_dict(state)
    assert (resumed.epoch, len(resumed)) == (0, len(first))
    assert list(resumed) == first[3:]
    assert list(resumed) == second


@BOTH
def test_resuming_twice_and_on_other_numbers_of_processes(made):
    whole = list(made())
    once = made()
    once.load_state_dict(made().state_dict(5))
    next(iter(once))
    assert once.state_dict()["consumed"] == 6  # counted from the beginning of the epoch
    parts = [made(rank=rank, world_size=2) for rank in range(2)]
    for part in parts:
        part.load_state_dict(once.state_dict())
    assert [one + two for one, two in zip(*parts, strict=True)] == whole[6:]


@BOTH
def test_after_a_whole_epoch_stands_the_next(made):
    sampler = made()
    batches = list(sampler)
    for state in (sampler.state_dict(), sampler.state_dict(len(batches))):
        assert (state["epoch"], state["consumed"]) == (1, 0)
    resumed = made()
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == list(sampler)


def test_an_abandoned_epoch_is_not_repeated():
    sampler, other = m_per_class_sampler(), m_per_class_sampler()
    next(iter(sampler))
    iter(sampler)  # never asked for a batch: as if it had not been
    other.set_epoch(1)
    assert list(sampler) == list(other)


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_take_them(workers):
    sampler, alone = m_per_class_sampler(), m_per_class_sampler()
    loader = torch.utils.data.DataLoader(
        range(len(SOP)), batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )
    assert len(loader) == len(alone)
    for _ in range(2):
        for step, (batch, expected) in enumerate(zip(loader, alone, strict=True), start=1):
            assert batch.tolist() == expected
            resumed = m_per_class_sampler()
            resumed.load_state_dict(sampler.state_dict(step))
            assert resumed.state_dict()["consumed"] == step % len(alone)


def test_a_state_of_other_labels_or_settings_is_refused():
    state = m_per_class_sampler(seed=1).state_dict()
    with pytest.raises(ValueError, match="saved by a sampler with other settings: seed was 1 and is 2"):
        m_per_class_sampler(seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match="labels was '[0-9a-f]+' and is '[0-9a-f]+'"):
        BalancedBatchSampler(SOP[::-1], 64, seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="sampler was 'BalancedBatchSampler' and is 'HierarchicalBatchSampler'"):
        hierarchical_sampler(seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="consumed=40 must be between 0 and the"):
        m_per_class_sampler().state_dict(40)


FEW = np.repeat(np.arange(50), 10)
TWO = np.stack([FEW, FEW // 10], axis=1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"batch_size": 256},
            "needs 64 classes of .*=4, but there are 50; the largest batch is 200, or try images_per_class=8",
        ),
        ({"batch_size": 256, "world_size": 4, "rank": 3}, "the largest batch is 192, or try images_per_class=8"),
        ({"batch_size": 254}, "must be a multiple of images_per_class=4, .*; try 252 or 256"),
        ({"batch_size": 40, "world_size": 3}, "images_per_class=4 × world_size=3 = 12, .*; try 36 or 48"),
        ({"batch_size": 40, "world_size": 2, "rank": 2}, "rank=2 must be one of 0 to world_size - 1 = 1"),
        ({"batch_size": 40, "max_images_per_class": 6}, "must be a multiple of images_per_class=4, .* try 4 or 8"),
        ({"batch_size": 0}, "batch_size=0 must be 1 or more"),
        ({"batch_size": 40, "batches": 0}, "batches=0 must be 1 or more"),
        ({"batch_size": 40, "seed": -1}, "seed=-1 must be 0 or more"),
        ({"batch_size": 40, "labels": FEW - 1}, "10 of 500 images, first in row 0, are unlabeled"),
        ({"batch_size": 40, "labels": []}, r"shape \[0\], but must be \[N\], \[N, L\] or \[N, L, M\]"),
    ],
)
def test_impossible_requests_say_what_is_possible(settings, says):
    with pytest.raises(ValueError, match=says):
        BalancedBatchSampler(**{"labels": FEW, **settings})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"labels": FEW}, "level=1 must be a column .* and they have 1; use BalancedBatchSampler for labels of one level"),
        ({"level": 2}, "level=2 must be a column .* and they have 2; try 1"),
        ({"coarse_per_batch": 6}, "coarse_per_batch=6 must be between 1 and 5: level 1 has 5 classes"),
        ({"batch_size": 8, "coarse_per_batch": 3}, "must be between 1 and 2: .* batch_size=8 has room for 2 of 4 images each"),
        ({"batches_per_combination": 0}, "batches_per_combination=0 must be 1 or more"),
        ({"labels": TWO[:, [0, 0]] // [1, 2] * [0, 1]}, "fine class 0 is under the coarse classes 0 and 1"),
        (
            {"labels": np.stack([np.arange(400)] * 2, 1), "coarse_per_batch": 3},
            "10,586,800 combinations, .* with batches=1000",
        ),
    ],
)
def test_impossible_hierarchies_say_what_is_possible(settings, says):
    with pytest.raises(ValueError, match=says):
        HierarchicalBatchSampler(**{"labels": TWO, "batch_size": 40, **settings})


def test_labels_that_are_no_ids_are_refused():
    with pytest.raises(TypeError, match="labels are float64, but must be integers"):
        BalancedBatchSampler(FEW / 2, 40)


def test_the_samplers_need_torch_and_numpy_alone():
    """In another process, where every other package that torch does not import itself is missing."""
    script = """
import sys, torch, numpy
before = {name.partition(".")[0] for name in sys.modules}
class Missing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in before | sys.stdlib_module_names | {"suprank"}:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
sys.meta_path.insert(0, Missing())
from suprank.data import BalancedBatchSampler, HierarchicalBatchSampler
print(len(list(BalancedBatchSampler([0, 0, 1, 1, 2, 2], 4, 2))))
try:
    from suprank.data import Manifest
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == '2\nsuprank.data needs pyarrow, which is not installed; pip install "suprank[vision]"\n'
