"""GLDv2's score: DELF's own test vectors, its rules one by one, and its files."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.evaluation.landmarks import landmark_map, landmark_map_from_files, read_predictions, read_solution
from suprank.evaluation.runs import Run
from suprank.ranking import average_precision_at, heaviside, ranks

# The data of DELF's metrics_test.py (tensorflow/models, Apache-2.0): four queries, the first without a prediction.
DELF_SOLUTION = {
    "0123456789abcdef": ["fedcba9876543210", "fedcba9876543220"],
    "0223456789abcdef": ["fedcba9876543210"],
    "0323456789abcdef": ["fedcba9876543230", "fedcba9876543240", "fedcba9876543250"],
    "0423456789abcdef": ["fedcba9876543230"],
}
DELF_PREDICTIONS = {
    "0223456789abcdef": ["fedcba9876543200", "fedcba9876543210"],
    "0323456789abcdef": ["fedcba9876543240"],
    "0423456789abcdef": ["fedcba9876543230", "fedcba9876543240"],
}

SOLUTION = """\
id,images,Usage
q1,None,Ignored
q2,a b,Public
q3,b,Private
q4,c,Private
q5,None,Ignored
"""


def mean(report):
    (value,) = report.values()
    return value


def by_query(report):
    (values,) = report.per_query.values()
    return dict(zip(report.query_ids.tolist(), values.tolist(), strict=True))


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


# Worked examples


def test_delfs_own_vectors():
    report = landmark_map(DELF_PREDICTIONS, DELF_SOLUTION)
    assert report["mAP@100"] == pytest.approx(0.458333, abs=1e-6)  # (0 + 1/2 + 1/3 + 1) / 4
    assert report.per_query["mAP@100"].tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1])
    assert report.query_ids.tolist() == list(DELF_SOLUTION)
    assert report.settings["unanswered"] == 1
    assert report.n_items == 6, (
        "the solution names five images; of the predictions, the first of the second query is another one"
    )
    assert landmark_map(DELF_PREDICTIONS, DELF_SOLUTION, k=1)["mAP@1"] == pytest.approx(0.5)  # (0 + 0 + 1 + 1) / 4
    assert report.compare(landmark_map(DELF_PREDICTIONS, DELF_SOLUTION))["mAP@100"].difference == 0


def test_a_repeated_prediction_scores_nothing_but_uses_up_its_place():
    assert mean(landmark_map({"q": ["a", "a", "b"]}, {"q": {"a", "b"}})) == pytest.approx((1 + 2 / 3) / 2)
    assert mean(landmark_map({"q": ["a", "a", "b"]}, {"q": {"a", "b"}}, k=2)) == pytest.approx(1 / 2)


def test_a_query_without_prediction_counts_zero_whether_it_is_missing_or_empty():
    solution = {"q": ["a"], "r": ["a"]}
    for predictions in ({"q": ["a"]}, {"q": ["a"], "r": []}, Run.from_dict({"q": {"a": 1.0}})):
        score = landmark_map(predictions, solution)
        assert (mean(score), by_query(score), score.settings["unanswered"]) == (0.5, {"q": 1.0, "r": 0.0}, 1)
    assert mean(landmark_map({}, solution)) == 0


def test_the_divisor_is_the_smaller_of_k_and_the_number_of_relevant_images():
    assert mean(landmark_map({"q": ["a", "b"]}, {"q": list("abcd")}, k=2)) == 1
    assert mean(landmark_map({"q": ["a", "b"]}, {"q": list("abcd")}, k=3)) == pytest.approx(2 / 3)
    assert mean(landmark_map({"q": ["a", "b"]}, {"q": list("abcd")})) == 1 / 2


# Agreement


@pytest.mark.parametrize("k", [1, 3, 10, 100])
def test_it_is_average_precision_at_k_of_the_ranks(k):
    generator = torch.Generator().manual_seed(k)
    scores = torch.rand(20, 40, generator=generator, dtype=torch.float64)
    positive = torch.rand(20, 40, generator=generator) < 0.2
    assert positive.any(-1).all()
    expected = average_precision_at(ranks(scores, positive.int(), minus=heaviside), positive, k)
    order = scores.argsort(descending=True)
    solution = {query: row.nonzero()[:, 0].tolist() for query, row in enumerate(positive)}
    found = landmark_map(dict(enumerate(order)), solution, k)  # rows of a tensor
    assert list(by_query(found).values()) == pytest.approx(expected.tolist())
    run = Run(np.arange(20).repeat(40), order.flatten().numpy(), scores.gather(1, order).flatten().numpy())
    texts = {str(query): [*map(str, items)] for query, items in solution.items()}
    assert list(by_query(landmark_map(run, texts, k)).values()) == list(by_query(found).values())


# Laws

QUERIES = st.dictionaries(st.sampled_from("qrstu"), st.sets(st.integers(0, 9), min_size=1), min_size=1)


@given(QUERIES, st.data(), st.integers(1, 12))
def test_only_the_relevant_first_in_full_score_one_and_the_mean_is_over_the_solution(solution, data, k):
    ideal = {query: sorted(items) for query, items in solution.items()}
    assert mean(landmark_map(ideal, solution, k)) == pytest.approx(1)
    predictions = {query: data.draw(st.lists(st.integers(0, 9), max_size=12)) for query in solution}
    score = landmark_map(predictions, solution, k)
    assert all(0 <= value <= 1 for value in by_query(score).values())
    assert mean(score) == pytest.approx(np.mean([by_query(score)[query] for query in solution]))
    without_repetition = {query: list(dict.fromkeys(items)) for query, items in predictions.items()}
    assert mean(landmark_map(without_repetition, solution, k)) >= mean(score) - 1e-12
    assert mean(landmark_map({query: items[:k] for query, items in predictions.items()}, solution, k)) == mean(score)


# Files


def test_a_solution_is_read_by_usage_without_the_ignored(tmp_path):
    path = written(tmp_path, "solution.csv", SOLUTION)
    assert read_solution(path, "Public") == {"q2": ["a", "b"]}
    assert read_solution(path, "Private") == {"q3": ["b"], "q4": ["c"]}
    assert read_solution(path) == {"q2": ["a", "b"], "q3": ["b"], "q4": ["c"]}
    assert read_solution(written(tmp_path, "none.csv", SOLUTION + "q6,None,Public\n")) == read_solution(path)


def test_predictions_are_read_as_kaggle_read_them(tmp_path):
    path = written(tmp_path, "predictions.csv", "id,images\nq1,a \nq4,c\nq2,b a x a\n\nq5,\n")
    assert read_predictions(path) == {"q1": ["a"], "q4": ["c"], "q2": ["b", "a", "x", "a"]}


def test_files_are_scored_by_usage_and_ignored_predictions_cost_nothing(tmp_path):
    predictions = written(tmp_path, "predictions.csv", "id,images\nq1,a \nq4,x c\nq2,b x a\nq5,\n")
    solution = written(tmp_path, "solution.csv", SOLUTION)
    public = landmark_map_from_files(predictions, solution, usage="Public")
    assert (mean(public), public.settings["unanswered"]) == (pytest.approx((1 + 2 / 3) / 2), 0)
    private = landmark_map_from_files(predictions, solution, usage="Private")
    assert by_query(private) == {"q3": 0.0, "q4": 0.5}
    assert by_query(landmark_map_from_files(predictions, solution)).keys() == {"q2", "q3", "q4"}
    assert mean(landmark_map_from_files(predictions, solution, k=1)) == pytest.approx(1 / 3)
    stranger = written(tmp_path, "stranger.csv", "id,images\nq9,a\n")
    with pytest.raises(ValueError, match="stranger.csv: query 'q9' is not in"):
        landmark_map_from_files(stranger, solution)


def test_a_run_saved_as_csv_is_a_prediction_file(tmp_path):
    run = Run.from_dict({"q2": {"x": 0.1, "a": 0.9}, "q4": {"c": 0.2}})
    run.save(tmp_path / "a.csv")
    assert read_predictions(tmp_path / "a.csv") == {"q2": ["a", "x"], "q4": ["c"]}


# What is refused


@pytest.mark.parametrize(
    ("predictions", "solution", "error", "complaint"),
    [
        ({"r": ["a"]}, {"q": ["a"]}, ValueError, "query 'r' is predicted but not in the solution"),
        ({"q": ["a"]}, {"q": []}, ValueError, "query 'q' has 0 images"),
        ({"q": ["a"]}, {"q": ["a", "a"]}, ValueError, "2 images, 1 of them distinct"),
        ({"q": ["a"]}, {}, ValueError, "no queries"),
        ({"q": "a b"}, {"q": ["a"]}, TypeError, "the prediction for 'q' is the text 'a b'"),
        ({"q": ["a"]}, {"q": "a b"}, TypeError, "the solution of 'q' is the text 'a b'"),
        ({"q": [7]}, {"q": ["a"]}, TypeError, "predicted ids look like 7 and those of the solution like 'a'"),
        (Run(["q"], ["7"], [0.5]), {"q": [7]}, TypeError, "none can match; write both as text"),
        ([("q", ["a"])], {"q": ["a"]}, TypeError, "must be a Run or a mapping"),
    ],
)
def test_what_cannot_be_scored_is_refused(predictions, solution, error, complaint):
    with pytest.raises(error, match=complaint):
        landmark_map(predictions, solution)


def test_k_starts_at_one():
    with pytest.raises(ValueError, match="k=0 must be 1 or more"):
        landmark_map({"q": ["a"]}, {"q": ["a"]}, k=0)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("q,a,Secret", "has Usage 'Secret'"),
        ("q,,Public", "has 0 relevant images"),
        ("q,a a,Public", "has 2 relevant images, 1 of them distinct"),
        ("q,a  b,Public", "blank too many"),
        ("q2,a,Public", "query 'q2' is repeated"),
        ("q5,a,Public", "query 'q5' is repeated"),
        ("q,a", "has 2 cells"),
    ],
)
def test_a_bad_row_of_a_solution_is_named(tmp_path, row, complaint):
    with pytest.raises(ValueError, match=rf"solution.csv:7: .*{complaint}"):
        read_solution(written(tmp_path, "solution.csv", f"{SOLUTION}{row}\n"))


def test_a_solution_needs_its_header_and_a_known_usage(tmp_path):
    with pytest.raises(ValueError, match="solution.csv:1: the header is 'q2,a,Public"):
        read_solution(written(tmp_path, "solution.csv", "q2,a,Public\n"))
    with pytest.raises(ValueError, match="usage='Ignored' must be"):
        read_solution(written(tmp_path, "solution.csv", SOLUTION), "Ignored")


def test_a_query_predicted_twice_is_refused_even_when_it_was_empty_before(tmp_path):
    with pytest.raises(ValueError, match="p.csv:3: query 'q' is repeated"):
        read_predictions(written(tmp_path, "p.csv", "id,images\nq,\nq,a\n"))
