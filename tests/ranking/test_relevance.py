"""Labels to levels to relevance: the paper's tree by hand, its equations, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.ranking import IGNORED, common_level, exponential_gain, ignoring, tree_relevance, weighted_ap_relevance
from suprank.ranking.relevance import listed_level
from tests import reference
from tests.ranking.random_rankings import PLENTY, SOME, rankings

LADA_2, OTHER_LADA, FIAT, TRUCK = [2, 0, 0], [1, 0, 0], [5, 1, 0], [9, 4, 1]
INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def test_levels_of_the_papers_tree_count_shared_ancestors_from_the_root():
    items = torch.tensor([LADA_2, OTHER_LADA, FIAT, TRUCK])
    assert common_level(torch.tensor([LADA_2]), items).tolist() == [[3, 2, 1, 0]]
    assert common_level(torch.tensor([TRUCK, FIAT]), items).tolist() == [[0, 0, 0, 3], [1, 1, 3, 0]]


def test_a_fine_id_under_two_parents_is_not_shared():
    same_id_elsewhere = torch.tensor([[7, 0], [7, 1]])
    assert common_level(same_id_elsewhere).tolist() == [[2, 0], [0, 2]]


def test_an_inner_match_below_a_difference_does_not_count():
    assert common_level(torch.tensor([[1, 5, 0, 3]]), torch.tensor([[1, 5, 2, 3]])).tolist() == [[1]]


def test_flat_labels_have_one_level_and_queries_rank_each_other_by_default():
    assert common_level(torch.tensor([4, 4, 9])).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


@SOME
@given(data=st.data(), depth=st.integers(1, 4), queries=st.integers(1, 5), items=st.integers(1, 6))
def test_levels_equal_the_reference(data, depth, queries, items):
    def rows(count):
        row = st.lists(st.integers(0, 2), min_size=depth, max_size=depth)
        return data.draw(st.lists(row, min_size=count, max_size=count))

    mine, theirs = rows(queries), rows(items)
    expected = [[reference.common_level(one, other) for other in theirs] for one in mine]
    assert common_level(torch.tensor(mine), torch.tensor(theirs)).tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_labels_of_any_integer_dtype_give_the_same_levels(dtype):
    labels = torch.tensor([LADA_2, OTHER_LADA, FIAT, TRUCK])
    assert torch.equal(common_level(labels.to(dtype)), common_level(labels))


def test_ids_that_float32_would_merge_stay_apart():
    big = torch.tensor([2**24, 2**24 + 1, 2**62, 2**62 + 1])
    assert torch.equal(common_level(big), torch.eye(4, dtype=torch.int8))


def test_other_integer_dtypes_of_references_compare_by_value():
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.uint64):
        assert common_level(torch.tensor([4, 3]), torch.tensor([3, 4], dtype=dtype)).tolist() == [[0, 1], [1, 0]]


def test_minus_one_is_no_label_and_shared_by_nobody():
    labels = torch.tensor([[0, 0], [-1, 0], [-1, 0], [-1, -1], [-1, -1]])
    assert common_level(labels).tolist() == [[2, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0] * 5, [0] * 5]
    assert torch.equal(listed_level(labels, labels, fine=True), (common_level(labels) == 2).to(torch.int8))


@pytest.mark.parametrize(
    ("labels", "fragments"),
    [
        (torch.tensor([0, -2]), ["labels hold -2 in row 1", "−1 for no label"]),
        (torch.tensor([[0, 0], [3, -(2**62)]]), [f"labels hold {-(2**62)} in row 1"]),
        (torch.tensor([1, 2**63], dtype=torch.uint64), [f"labels hold {2**63} in row 1", "below 2^63"]),
        (torch.tensor([1, 2**64 - 1], dtype=torch.uint64), [f"labels hold {2**64 - 1} in row 1", "int64", "renumber"]),
    ],
)
def test_labels_below_minus_one_or_beyond_int64_are_refused(labels, fragments):
    with pytest.raises(ValueError, match=r"labels") as raised:
        common_level(labels)
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)


def test_ignoring_takes_one_item_out_of_each_list_and_minus_one_none():
    level = torch.tensor([[2, 1, 0], [0, 2, 1], [1, 0, 2]], dtype=torch.int8)
    found = ignoring(level, torch.tensor([0, 2, -1]))
    assert found.tolist() == [[IGNORED, 1, 0], [0, 2, IGNORED], [1, 0, 2]]
    assert found.dtype == level.dtype
    assert level[0, 0] == 2, "the argument was edited in place"


def test_ignoring_works_on_graded_relevance():
    assert ignoring(torch.tensor([[0.5, 0.25]]), torch.tensor([1])).tolist() == [[0.5, -1.0]]


def test_relevance_shares_each_levels_weight_among_its_items():
    level = torch.tensor([[3, 3, 2, 1, 1, 1, 0, -1]])
    expected = [1 / 2, 1 / 2, 2 / 3, 1 / 9, 1 / 9, 1 / 9, 0, 0]
    assert tree_relevance(level)[0].tolist() == pytest.approx(expected)
    assert tree_relevance(level, decay=2.0)[0].tolist() == pytest.approx([1 / 2, 1 / 2, 4 / 9, 1 / 27, 1 / 27, 1 / 27, 0, 0])


def test_the_papers_lada_relevances_are_one_two_thirds_and_one_third():
    assert tree_relevance(torch.tensor([[3, 2, 1, 0]]))[0].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])


def test_an_ignored_query_does_not_count_among_its_own_fine_items():
    assert tree_relevance(torch.tensor([[-1, 1, 1]])).tolist() == [[0.0, 0.5, 0.5]]


def test_a_deeper_level_with_many_items_can_weigh_less_an_item():
    relevance = tree_relevance(torch.tensor([[2] * 20 + [1] * 3]))
    assert relevance[0, 0].item() == pytest.approx(1 / 20)
    assert relevance[0, -1].item() == pytest.approx(0.5 / 3)


def test_decay_shifts_weight_to_the_fine_level_and_zero_decay_levels_it():
    level = torch.tensor([[3, 2, 1]])
    assert tree_relevance(level, decay=0.0).tolist() == [[1.0, 1.0, 1.0]]
    shares = [(r / r.sum())[0].item() for r in (tree_relevance(level, decay)[0] for decay in (0.5, 1.0, 3.0, 5.0))]
    assert shares == sorted(shares)
    assert shares[-1] > 0.88


def test_depth_names_the_finest_level_of_the_tree_where_no_item_reaches_it():
    level = torch.tensor([[1, 0]])
    assert tree_relevance(level, depth=4).tolist() == [[0.25, 0.0]]
    assert tree_relevance(level).tolist() == [[1.0, 0.0]]


@PLENTY
@given(drawn=rankings(), decay=st.sampled_from([0.0, 0.5, 1.0, 3.0]), depth=st.none() | st.just(4))
def test_tree_relevance_equals_the_reference(drawn, decay, depth):
    deepest = max(int(drawn.level.max()), 1) if depth is None else depth
    found = tree_relevance(drawn.level, decay, depth=depth, dtype=torch.float64)
    expected = [reference.tree_relevance(row, decay, deepest) for row in drawn.level.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@PLENTY
@given(drawn=rankings())
def test_the_relevance_of_a_level_sums_to_its_weight(drawn):
    relevance = tree_relevance(drawn.level, depth=4, dtype=torch.float64)
    for current in range(1, 5):
        members = drawn.level == current
        expected = torch.where(members.any(-1), current / 4, 0.0).double()
        torch.testing.assert_close(relevance.where(members, 0).sum(-1), expected)


def test_weighted_ap_relevance_adds_up_the_shares_of_all_coarser_levels():
    level = torch.tensor([[2, 1, 1, 0, -1]])  # one fine item; three items share the coarse level
    found = weighted_ap_relevance(level, [0.7, 0.3])  # finest first
    assert found[0].tolist() == pytest.approx([0.1 + 0.7, 0.1, 0.1, 0, 0])


@PLENTY
@given(drawn=rankings(), weights=st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any))
def test_weighted_ap_relevance_equals_the_reference(drawn, weights):
    found = weighted_ap_relevance(drawn.level, weights, dtype=torch.float64)
    expected = [reference.weighted_ap_relevance(row, weights) for row in drawn.level.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_exponential_gain_doubles_with_each_level():
    assert exponential_gain(torch.tensor([[4, 3, 2, 1, 0, -1]])).tolist() == [[15, 7, 3, 1, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level_dtype", [torch.uint8, torch.int8, torch.int64], ids=str)
def test_relevance_comes_in_the_dtype_asked_for(dtype, level_dtype):
    level = torch.tensor([[2, 1, 0]], dtype=level_dtype)
    for relevance in (tree_relevance, exponential_gain):
        assert relevance(level, dtype=dtype).dtype == dtype
    assert weighted_ap_relevance(level, [1, 1], dtype=dtype).dtype == dtype


def test_a_list_without_positives_has_no_relevance():
    level = torch.tensor([[0, 0, -1]])
    for relevance in (tree_relevance(level), exponential_gain(level), weighted_ap_relevance(level, [1.0])):
        assert relevance.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("call", "error", "fragments"),
    [
        (lambda: common_level(torch.zeros(2)), TypeError, ["labels", "float32", "labels.long()"]),
        (lambda: common_level(torch.zeros(2, dtype=torch.bool)), TypeError, ["labels", "bool", "integers"]),
        (lambda: common_level(torch.tensor([0]), torch.zeros(2)), TypeError, ["ref_labels", "float32"]),
        (
            lambda: common_level(torch.zeros(2, 2, 2, 2, dtype=torch.long)),
            ValueError,
            ["(2, 2, 2, 2)", "[N, L]", "finest first"],
        ),
        (lambda: common_level(torch.zeros(2, 0, dtype=torch.long)), ValueError, ["(2, 0)", "1 to 127"]),
        (lambda: common_level(torch.zeros(2, 200, dtype=torch.long)), ValueError, ["(2, 200)", "1 to 127"]),
        (
            lambda: common_level(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2, dtype=torch.long)),
            ValueError,
            ["3 level", "2", "same columns"],
        ),
        (lambda: tree_relevance(torch.tensor([[1]]), decay=-1.0), ValueError, ["decay=-1.0", "0 or more", "uses 1"]),
        (lambda: tree_relevance(torch.tensor([[1.0]])), TypeError, ["level", "float32", "integers"]),
        (lambda: tree_relevance(torch.tensor([[3, 1]]), depth=2), ValueError, ["depth=2", "3"]),
        (lambda: tree_relevance(torch.tensor([[0, 0]]), depth=0), ValueError, ["depth=0"]),
        (lambda: weighted_ap_relevance(torch.tensor([[1]]), []), ValueError, ["weights=[]", "above 0", "[1/L] * L"]),
        (lambda: weighted_ap_relevance(torch.tensor([[1]]), [-1.0, 2.0]), ValueError, ["weights=[-1.0, 2.0]", "0 or more"]),
        (lambda: weighted_ap_relevance(torch.tensor([[1]]), [0.0]), ValueError, ["weights=[0.0]", "above 0"]),
        (lambda: weighted_ap_relevance(torch.tensor([[1]]), [float("nan")]), ValueError, ["weights=[nan]"]),
        (lambda: weighted_ap_relevance(torch.tensor([[1]]), [float("inf")]), ValueError, ["weights=[inf]"]),
        (
            lambda: weighted_ap_relevance(torch.tensor([[3]]), [1.0, 1.0]),
            ValueError,
            ["reaches 3", "2 weights", "finest first"],
        ),
        (lambda: exponential_gain(torch.tensor([[0.5]])), TypeError, ["level", "float32"]),
    ],
)
def test_what_is_refused_is_named_with_the_rule_and_the_way_out(call, error, fragments):
    with pytest.raises(error) as raised:
        call()
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)
