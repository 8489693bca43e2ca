from suprank.hierarchy.wikimedia.item_types import EntityGraph, sorted_qids
from tests.hierarchy.wikimedia.worlds import project_of

CATEGORY = {"Q4167836": "P301"}


def entity_graph(tmp_path, statements, entities=()):
    project = project_of(tmp_path / "p", ["Category:A"])
    with project.transaction() as db:
        qids = {qid for qid, *_ in statements}
        rows = [(qid, "item", "ok", None) for qid in sorted(qids)] + [(qid, "item", *rest) for qid, *rest in entities]
        db.executemany("INSERT INTO entity (qid, kind, state, merged_into) VALUES (?, ?, ?, ?)", rows)
        db.executemany(
            "INSERT INTO statement VALUES (?, ?, ?, ?, 'normal', ?, 1)",
            [(qid, name, place, value, ended) for place, (qid, name, value, ended) in enumerate(statements)],
        )
    with project.snapshot() as db:
        return EntityGraph(db, CATEGORY)


def test_the_way_ends_where_types_count(tmp_path):
    chain = [(f"Q{n}", "P31", "Q4167836", 0) for n in range(1, 6)] + [(f"Q{n}", "P301", f"Q{n + 1}", 0) for n in range(1, 6)]
    found = entity_graph(
        tmp_path,
        [*chain, ("Q6", "P31", "Q100", 0), ("Q70", "P279", "Q1", 0)],
        [("Q50", "ok", "Q6"), ("Q60", "missing", None), ("Q61", "failed", None)],
    )
    assert found.resolve("Q6") == ("Q6", None)
    assert found.resolve("Q50") == ("Q6", None)
    assert found.resolve("Q3") == ("Q6", None)  # three steps: Q4, Q5, Q6
    assert found.resolve("Q2").reason == "topic_loop"  # four
    assert found.resolve("Q60").reason == "item_missing"
    assert found.resolve("Q61").reason == "failed"
    assert found.resolve("Q70").reason == "no_type"
    assert found.resolve("Q99") == ("Q99", "pending")


def test_a_type_given_twice_has_ended_where_both_have(tmp_path):
    given = [("Q5", 1), ("Q6", 1), ("Q7", 0), ("Q5", 0), ("Q6", 1), ("Q7", 1)]
    found = entity_graph(tmp_path, [("Q1", "P31", value, ended) for value, ended in given])
    assert list(found.types("Q1").items()) == [("Q5", False), ("Q6", True), ("Q7", False)]


def test_items_are_in_order_of_their_numbers():
    assert sorted_qids({"Q10", "Q9", "Q100"}) == ["Q9", "Q10", "Q100"]
