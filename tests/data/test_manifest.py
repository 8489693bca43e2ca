"""The manifest: worked examples, what survives a file, and what is refused at the door."""

import json
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data.manifest import Manifest, _read_parquet

BIRDS = {
    "path": ["a.jpg", "b.jpg", "c.jpg", "d.zip::e/f.jpg"],
    "split": ["train", "train", "test", "test"],
    "label_species": ["jay", "crow", "wren", "wren"],
    "label_family": ["Corvidae", "Corvidae", "Troglodytidae", "Troglodytidae"],
}


def birds(**changed):
    return Manifest.from_columns(BIRDS | changed, root="photos")


def test_ids_are_places_in_the_sorted_names_and_stay_in_subsets():
    manifest = birds()
    assert manifest.levels == ("species", "family")
    assert manifest.names == {"species": ("crow", "jay", "wren"), "family": ("Corvidae", "Troglodytidae")}
    assert manifest.labels.tolist() == [[1, 0], [0, 0], [2, 1], [2, 1]]
    test = manifest.split("test")
    assert test.labels.tolist() == [[2, 1], [2, 1]]
    assert test.names == manifest.names
    assert manifest.take([3, 0]).paths.to_pylist() == ["d.zip::e/f.jpg", "a.jpg"]
    assert manifest.take(np.array([False, True, False, False])).paths.to_pylist() == ["b.jpg"]
    assert len(manifest.take([])) == 0


def test_splits_are_counted_in_their_usual_order():
    manifest = birds(split=["gallery", "train", "query", "query"])
    assert list(manifest.splits.items()) == [("train", 1), ("query", 2), ("gallery", 1)]
    assert len(manifest.split("query", "gallery")) == 3
    with pytest.raises(ValueError, match="no split 'test' here; choose from train, query, gallery"):
        manifest.split("test")
    with pytest.raises(ValueError, match="name a split"):
        manifest.split()


@pytest.mark.parametrize("extension", ["parquet", "csv"])
def test_a_saved_manifest_comes_back_whole(tmp_path, extension):
    manifest = Manifest.from_columns(
        BIRDS | {"id": ["1", "2", "3", "3"], "box": [None, [0, 0, 5, 6.5], None, None], "artist": ["x", "y", "ü,\n", '"']},
        root=tmp_path,
    )
    file = tmp_path / "sub" / f"birds.{extension}"
    manifest.save(file)
    again = Manifest.read(file)
    assert again.root.resolve() == tmp_path.resolve()
    assert again.names == manifest.names
    assert (again.labels == manifest.labels).all()
    for column in ("path", "split", "id", "box", "artist"):
        assert again.table[column].to_pylist() == manifest.table[column].to_pylist(), column


@pytest.mark.parametrize("extension", ["parquet", "csv"])
def test_ids_made_once_hold_for_a_subset_that_is_saved(tmp_path, extension):
    birds().split("test").save(tmp_path / f"test.{extension}")
    again = Manifest.read(tmp_path / f"test.{extension}")
    assert again.labels.tolist() == [[2, 1], [2, 1]]
    assert again.names["species"] == ("crow", "jay", "wren")


def test_parquet_keeps_ids_over_many_row_groups_with_unlike_labels(tmp_path):
    import pyarrow.parquet as pq

    manifest = birds()
    manifest.save(tmp_path / "one.parquet")
    whole = pq.read_table(tmp_path / "one.parquet")
    pq.write_table(whole, tmp_path / "many.parquet", row_group_size=1)
    assert (Manifest.read(tmp_path / "many.parquet").labels == manifest.labels).all()


def test_a_moved_manifest_finds_its_images_from_its_own_folder(tmp_path):
    (tmp_path / "old" / "images").mkdir(parents=True)
    Manifest.from_columns(BIRDS, root=tmp_path / "old" / "images").save(tmp_path / "old" / "m.parquet")
    (tmp_path / "old").rename(tmp_path / "new")
    assert Manifest.read(tmp_path / "new" / "m.parquet").root.resolve() == (tmp_path / "new" / "images").resolve()
    assert Manifest.read(tmp_path / "new" / "m.parquet", root="/elsewhere").root.as_posix() == "/elsewhere"


def test_a_csv_of_ones_own_needs_no_json_and_keeps_leading_zeros(tmp_path):
    (tmp_path / "own.csv").write_text("\ufeffpath,split,label_kind\na.jpg,train,007\nb.jpg,test,7\n", encoding="utf-8")
    manifest = Manifest.read(tmp_path / "own.csv")
    assert manifest.names["kind"] == ("007", "7")
    assert manifest.root == tmp_path


def test_levels_may_be_chosen_or_none():
    table = pa.table(BIRDS)
    assert Manifest.from_columns(table, root=".", levels=["family"]).names == {"family": ("Corvidae", "Troglodytidae")}
    unlabeled = Manifest.from_columns({"path": ["a"], "split": ["query"]}, root=".", levels=())
    assert unlabeled.levels == ()
    assert unlabeled.labels.shape == (1, 0)
    with pytest.raises(ValueError, match="no labels"):
        unlabeled.to_tree()


def test_an_unlabeled_manifest_stays_so_in_a_file(tmp_path):
    Manifest.from_columns({"path": ["a"], "split": ["query"]}, root=".", levels=()).save(tmp_path / "q.parquet")
    assert Manifest.read(tmp_path / "q.parquet").levels == ()


def test_distractors_need_no_labels():
    manifest = birds(
        split=["train", "train", "test", "distractor"],
        label_species=["jay", "crow", "wren", ""],
        label_family=["Corvidae", "Corvidae", "Troglodytidae", None],
    )
    assert manifest.labels.tolist() == [[1, 0], [0, 0], [2, 1], [-1, -1]]
    assert manifest.two_parents() == []
    assert manifest.to_tree().images[0].tolist() == [1, 1, 1]


def test_with_columns_replaces_a_split_and_keeps_ids():
    manifest = birds().with_columns(split=["query", "gallery", "query", "gallery"], label_order=["P"] * 4)
    assert manifest.splits == {"query": 2, "gallery": 2}
    assert manifest.levels == ("species", "family", "order")
    assert manifest.names["species"] == ("crow", "jay", "wren")
    with pytest.raises(ValueError, match="split 'valid' is unknown"):
        birds().with_columns(split=["valid"] * 4)


def test_labels_with_two_parents_are_named():
    manifest = birds(label_family=["Corvidae", "Corvidae", "Troglodytidae", "Paridae"])
    assert manifest.two_parents() == ["species 'wren' stands under family 'Paridae' and 'Troglodytidae'"]
    with pytest.raises(ValueError, match="not a tree: species 'wren' stands under family 'Paridae' and 'Troglodytidae'"):
        manifest.to_tree()


def test_many_labels_with_two_parents_are_counted():
    names = [f"s{i}" for i in range(9)] * 2
    manifest = Manifest.from_columns(
        {"path": names, "split": ["train"] * 18, "label_fine": names, "label_coarse": ["x"] * 9 + ["y"] * 9}, root="."
    )
    assert len(manifest.two_parents()) == 6
    assert manifest.two_parents()[-1].startswith("... and 4 more")


def test_the_tree_of_the_labels():
    tree = birds().to_tree()
    assert tree.path(1) == ("jay", "Corvidae")
    assert tree.children(1, 0).tolist() == [0, 1]
    assert tree.images[1].tolist() == [2, 2]
    with pytest.raises(ValueError, match="level 0 has no level below"):
        tree.children(0, 0)
    assert tree.text(most=1).splitlines() == [
        "Corvidae  2 images, 2 species",
        "├── crow  1",
        "└── ... and 1 more",
        "... and 1 more",
    ]


def test_the_tree_of_a_subset_keeps_ids_and_says_what_is_not_there():
    tree = birds().split("test").to_tree()
    assert tree.images[0].tolist() == [0, 0, 2]
    assert tree.parents[0].tolist() == [-1, -1, 1]
    assert tree.path(0) == ("crow",)
    assert "crow" not in tree.text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split": ["train", "train", "test", "valid"]}, "split 'valid' is unknown; a split is one of train, test"),
        ({"split": ["train", "train", "test", None]}, "split None is unknown"),
        ({"path": ["a", "b", "", "d"]}, r"1 of 4 rows \(2\) have no path"),
        ({"path": ["a", "../b", "c", "d"]}, r"path '\.\./b' leads out of the root"),
        ({"path": ["a", "/etc/passwd", "c", "d"]}, "leads out of the root"),
        ({"path": ["a", "b/../../c", "c", "d"]}, "leads out of the root"),
        ({"path": ["a", "b.zip::../c", "c", "d"]}, "leads out of the root"),
        ({"path": ["a", "C:\\x.jpg", "c", "d"]}, "leads out of the root"),
        ({"path": ["a", "..\\x.jpg", "c", "d"]}, "leads out of the root"),
        ({"label_species": ["jay", "", None, "wren"]}, r"row 1: species is blank; fill it in, .* \(and 1 other rows\)"),
        ({"id": ["1", "2", "", "4"]}, r"1 of 4 rows \(2\) have no id"),
        ({"box": [None, [5, 0, 1, 1], None, None]}, r"1 of 4 rows \(1\) have a box that is not x1 < x2"),
        ({"box": [None, [1, 2, 3], None, None]}, r"1 of 4 rows \(1\) have a box that is not four numbers"),
        ({"box": [None, "1 2 3", None, None]}, "row 1 has the box '1 2 3', but a box is four numbers"),
        ({"path": ["a"]}, "columns have different lengths"),
        ({"path": [], "split": [], "label_species": [], "label_family": []}, "has no rows"),
    ],
)
def test_what_a_manifest_refuses(changed, message):
    with pytest.raises(ValueError, match=message):
        birds(**changed)


def test_a_blank_above_a_label_is_refused_even_for_a_distractor():
    with pytest.raises(ValueError, match="row 3: there is a label of species, but none of family"):
        birds(split=["train", "train", "test", "distractor"], label_family=["C", "C", "T", ""])


CATS = {
    "path": ["a", "b", "c", "d", "e"],
    "split": ["train", "train", "test", "test", "distractor"],
    "label_species": ["lynx", "lynx", "puma", "lion", None],
    "label_genus": ["", None, "", "Panthera", None],
    "label_family": ["Felidae", "Felidae", "Felidae", "Felidae", None],
}


def cats(**changed):
    return Manifest.from_columns(CATS | changed, root="photos", fill_gaps=True)


def test_a_gap_gets_a_placeholder_of_its_own_for_every_class_below_it():
    manifest = cats()
    assert manifest.names["genus"] == ("(no genus) Felidae: lynx", "(no genus) Felidae: puma", "Panthera")
    assert manifest.labels.tolist() == [[1, 0, 0], [1, 0, 0], [2, 1, 0], [0, 2, 0], [-1, -1, -1]]
    assert manifest.placeholders() == {"genus": 2}
    assert manifest.split("train").placeholders() == {"genus": 1}
    assert manifest.to_tree().path(1) == ("lynx", "(no genus) Felidae: lynx", "Felidae")


def test_a_filled_manifest_is_read_with_and_without_filling(tmp_path):
    cats().save(tmp_path / "cats.csv")
    for file in ("cats.csv", "cats.parquet"):
        cats().save(tmp_path / file)
        again = Manifest.read(tmp_path / file)
        assert (again.names, again.labels.tolist()) == (cats().names, cats().labels.tolist())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label_species": ["", "lynx", "puma", "lion", None]}, "row 0: species is blank; fill it in"),
        ({"label_family": [*["Felidae"] * 3, None, None]}, "row 3: there is a label of genus, but none of family"),
        (
            {"label_family": ["Felidae", "Canidae", "Felidae", "Felidae", None]},
            "genus '.no genus. Felidae: lynx' stands under family 'Canidae', and under 'Felidae' in the manifest, row 0",
        ),
    ],
)
def test_filling_refuses_blanks_at_the_ends_and_rows_that_disagree(changed, message):
    with pytest.raises(ValueError, match=message):
        cats(**changed)


def test_a_distractor_with_a_gap_is_refused_or_filled():
    columns = CATS | {"label_genus": ["L", "L", "P", "Panthera", None]}
    columns |= {"label_species": ["lynx", "lynx", "puma", "lion", "dog"], "label_family": ["Felidae"] * 4 + ["Canidae"]}
    with pytest.raises(ValueError, match="row 4: genus is blank between two labels; fill it in, or let fill_gaps"):
        Manifest.from_columns(columns, root=".")
    assert "(no genus) Canidae: dog" in Manifest.from_columns(columns, root=".", fill_gaps=True).names["genus"]


def test_floats_are_no_labels():
    with pytest.raises(TypeError, match="column 'label_species' holds double"):
        birds(label_species=[0.5, 1.0, 2.0, 3.0])


def test_whole_numbers_are_labels_by_their_digits():
    assert birds(label_species=[10, 9, 8, 8]).names["species"] == ("10", "8", "9")


@pytest.mark.parametrize(
    ("columns", "levels", "message"),
    [
        ({"path": ["a"], "label_x": ["b"]}, None, "no column 'split'"),
        ({"image": ["a"], "split": ["train"], "label_x": ["b"]}, None, "no column 'path'; it has image, split, label_x"),
        ({"paths": ["a"], "split": ["train"], "label_x": ["b"]}, None, "did you mean 'paths'"),
        ({"path": ["a"], "split": ["train"], "species": ["b"]}, None, "no label column: it has path, split, species"),
        ({"path": ["a"], "split": ["train"], "label_genus": ["b"]}, ["genius"], "did you mean 'label_genus'"),
        ({"path": ["a"], "split": ["train"], "label_genus": ["b"]}, ["genus", "genus"], "is named twice"),
    ],
)
def test_missing_columns_are_named(columns, levels, message):
    with pytest.raises(ValueError, match=message):
        Manifest.from_columns(columns, root=".", levels=levels)


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([["a"], ["train"], ["x"], ["y"]], names=["path", "split", "label_x", "label_x"])
    with pytest.raises(ValueError, match="two columns called 'label_x'"):
        Manifest.from_columns(table, root=".")
    pq.write_table(table, tmp_path / "m.parquet")
    with pytest.raises(ValueError, match="m.parquet has two columns called 'label_x'; rename one"):
        Manifest.read(tmp_path / "m.parquet")


def test_the_names_of_a_row_group_are_read_once(tmp_path):
    rows = 2**17 + 1  # more than `pq.read_table` puts into one chunk, each with all names
    columns = {"path": pa.repeat("a.jpg", rows), "split": pa.repeat("train", rows), "label_x": pa.repeat("x", rows)}
    Manifest.from_columns(columns, root=".").save(tmp_path / "m.parquet")
    assert _read_parquet(tmp_path / "m.parquet")[0]["label_x"].num_chunks == 1


def test_files_that_are_no_manifests(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Manifest.read(tmp_path / "none.parquet")
    with pytest.raises(ValueError, match="a .parquet or .csv file"):
        Manifest.read(tmp_path / "m.json")
    with pytest.raises(ValueError, match="saved as .parquet or .csv"):
        birds().save(tmp_path / "m.xlsx")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        Manifest.read(tmp_path / "cut.parquet")
    (tmp_path / "ragged.csv").write_text("path,split,label_x\na,train\n")
    with pytest.raises(ValueError, match="ragged.csv:2: .* has 2 cells, but there are 3 columns"):
        Manifest.read(tmp_path / "ragged.csv")


def test_a_label_unknown_to_the_saved_ids_is_named(tmp_path):
    birds().save(tmp_path / "m.csv")
    text = (tmp_path / "m.csv").read_text().replace("crow", "raven")
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(ValueError, match="species holds 'raven', which is not among the names"):
        Manifest.read(tmp_path / "m.csv")
    (tmp_path / "m.csv.json").unlink()
    assert Manifest.read(tmp_path / "m.csv").names["species"] == ("jay", "raven", "wren")


def test_a_later_version_is_refused(tmp_path):
    birds().save(tmp_path / "m.csv")
    meta = json.loads((tmp_path / "m.csv.json").read_text())
    (tmp_path / "m.csv.json").write_text(json.dumps(meta | {"version": 99}))
    with pytest.raises(ValueError, match="version 99"):
        Manifest.read(tmp_path / "m.csv")


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    birds().save(tmp_path / "m.parquet")
    before = (tmp_path / "m.parquet").read_bytes()

    def fails(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pyarrow.parquet.write_table", fails)
    with pytest.raises(KeyboardInterrupt):
        birds().split("test").save(tmp_path / "m.parquet")
    assert (tmp_path / "m.parquet").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.parquet"]


NAMES = (
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
    .map(lambda name: unicodedata.normalize("NFC", name).strip())  # the one spelling of labels
    .filter(lambda name: name and not name.startswith("-") and not name.endswith(".0"))
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NAMES, NAMES, st.sampled_from(["train", "test"])), min_size=1, max_size=20), st.randoms())
def test_any_names_survive_both_files_and_any_order_of_rows(tmp_path_factory, rows, random):
    folder = tmp_path_factory.mktemp("m")
    fine, coarse, split = zip(*rows, strict=True)
    columns = {"path": [f"{i}.png" for i in range(len(rows))], "split": split, "label_a": fine, "label_b": coarse}
    manifest = Manifest.from_columns(columns, root=".")
    for extension in ("csv", "parquet"):
        manifest.save(folder / f"m.{extension}")
        again = Manifest.read(folder / f"m.{extension}")
        assert [tuple(again.names[level][i] for level, i in zip("ab", ids, strict=True)) for ids in again.labels] == [
            *zip(fine, coarse, strict=True)
        ]
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = Manifest.from_columns({name: [values[i] for i in order] for name, values in columns.items()}, root=".")
    assert shuffled.names == manifest.names
    assert (shuffled.labels == manifest.labels[order]).all()


@pytest.mark.parametrize(
    "meta",
    [b"{", b"[1]", b"null", b'{"names": [1]}', b'{"names": {"s": "xy"}}', b'{"names": {"s": ["x", "x"]}}', b'{"root": 3}'],
)
def test_damaged_metadata_is_an_error_that_names_the_file(tmp_path, meta):
    table = pa.table({"path": ["a.jpg"], "split": ["train"], "label_s": ["x"]})
    pq.write_table(table.replace_schema_metadata({b"suprank.manifest": meta}), tmp_path / "m.parquet")
    (tmp_path / "m.csv").write_text("path,split,label_s\na.jpg,train,x\n")
    (tmp_path / "m.csv.json").write_bytes(meta)
    for name in ("m.parquet", "m.csv"):
        with pytest.raises(ValueError, match=rf"{name}: the ids, levels and root saved with it are damaged"):
            Manifest.read(tmp_path / name)


def test_a_dictionary_that_repeats_a_name_makes_one_class_of_it(tmp_path):
    labels = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["x", "x", "y"]))
    manifest = Manifest.from_columns({"path": ["a", "b", "c"], "split": ["train"] * 3, "label_s": labels}, root=tmp_path)
    assert manifest.names["s"] == ("x", "y")
    assert manifest.labels[:, 0].tolist() == [0, 0, 1]


def test_boxes_are_the_same_in_csv_and_parquet(tmp_path):
    box = [[1023.456, 0.1, 2000.53, 1234567.0]]
    manifest = Manifest.from_columns({"path": ["a"], "split": ["train"], "label_s": ["x"], "box": box}, root=tmp_path)
    for name in ("m.csv", "m.parquet"):
        manifest.save(tmp_path / name)
        assert Manifest.read(tmp_path / name).table["box"].to_pylist() == manifest.table["box"].to_pylist()


def test_a_mask_of_another_length_is_refused(tmp_path):
    manifest = Manifest.from_columns({"path": ["a", "b"], "split": ["train"] * 2, "label_s": ["x", "y"]}, root=tmp_path)
    with pytest.raises(ValueError, match=r"the mask has shape \[1\], but the manifest has 2 rows"):
        manifest.take(np.array([True]))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_a_csv_end_as_they_like_and_an_inch_is_no_quote(tmp_path, end):
    (tmp_path / "m.csv").write_bytes(end.join(["path,split,label_s", 'a.jpg,train,5" disk', ""]).encode())
    assert Manifest.read(tmp_path / "m.csv").names["s"] == ('5" disk',)


def test_manifests_of_two_roots_join_under_the_folder_of_both(tmp_path):
    one = Manifest.from_columns({"path": ["x.png"], "split": ["test"], "label_kind": ["jay"]}, root=tmp_path / "a/one")
    other = Manifest.from_columns({"path": ["p.zip::y.png"], "split": ["test"], "label_kind": ["crow"]}, root=tmp_path / "b")
    both = one.join(other)
    assert (both.root, both.paths.to_pylist()) == (tmp_path, ["a/one/x.png", "b/p.zip::y.png"])
    assert both.labels.tolist() == [[1], [0]]
