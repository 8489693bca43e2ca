"""Cars196 in small, in both layouts, and the body types of all 196 models."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from suprank.data.importers.base import split_counts
from suprank.data.importers.cars import BODY_TYPES, CARS, body_type
from tests.data.miniatures import cars, cars_devkit

MODELS = tuple((Path(__file__).parents[1] / "car_models.txt").read_text().splitlines())  # all classes, in their order
CLASSES = (1, 98, 99, 174, 196, 1)


def saved(root, **variables):
    from scipy.io import savemat

    savemat(root / "cars_annos.mat", variables)
    return root


def test_models_stand_under_body_types_and_split_after_class_98(tmp_path):
    found = CARS(cars(tmp_path, MODELS, CLASSES)).manifests[""]

    assert found.levels == ("model", "body_type")
    assert found.splits == {"train": 3, "test": 3}
    assert found.paths.to_pylist()[:2] == ["car_ims/000001.jpg", "car_ims/000002.jpg"]
    assert found.table.drop_columns(["path"]).to_pylist()[:4] == [
        {"split": "train", "label_model": "AM General Hummer SUV 2000", "label_body_type": "SUV"},
        {"split": "train", "label_model": "Eagle Talon Hatchback 1998", "label_body_type": "Hatchback"},
        {"split": "test", "label_model": "FIAT 500 Abarth 2012", "label_body_type": "Coupe"},
        {"split": "test", "label_model": "Ram C/V Cargo Van Minivan 2012", "label_body_type": "Minivan"},
    ]
    assert found.two_parents() == []


def test_all_196_models_have_one_of_nine_body_types_as_published():
    found = Counter(body_type(name) for name in MODELS)

    assert len(MODELS) == 196
    assert set(found) == set(BODY_TYPES)
    assert found == {
        "Sedan": 50,
        "SUV": 35,
        "Coupe": 34,
        "Convertible": 26,
        "Pickup": 18,
        "Hatchback": 13,
        "Minivan": 7,
        "Wagon": 7,
        "Van": 6,
    }


def test_classes_of_each_split_are_as_published(tmp_path):
    found = split_counts(CARS(cars(tmp_path, MODELS, tuple(range(1, 197)))).manifests[""])

    for split, expected in CARS.published.items():
        assert found[split] == expected | {"images": 98}


def test_the_later_layout_gives_the_same_labels(tmp_path):
    found = CARS(cars_devkit(tmp_path, MODELS, train=(1, 99), test=(98, 196, 1))).manifests[""]

    assert dict(zip(found.paths.to_pylist(), found.table["label_model"].to_pylist(), strict=True)) == {
        "cars_train/00001.jpg": MODELS[0],
        "cars_train/00002.jpg": MODELS[98],
        "cars_test/00001.jpg": MODELS[97],
        "cars_test/00002.jpg": MODELS[195],
        "cars_test/00003.jpg": MODELS[0],
    }
    assert found.table["split"].to_pylist() == ["train", "test", "train", "test", "train"]


def test_test_labels_may_lie_in_devkit_too(tmp_path):
    cars_devkit(tmp_path, MODELS, train=(1,), test=(98,))
    (tmp_path / "cars_test_annos_withlabels.mat").rename(tmp_path / "devkit/cars_test_annos_withlabels.mat")

    assert len(CARS(tmp_path).manifests[""]) == 2


def test_counts_stand_beside_the_published_ones(tmp_path):
    sentences = CARS(cars(tmp_path, MODELS, CLASSES)).sentences

    assert sentences[0] == "train: 3 images, 2 model, 2 body_type; published: 8,054 images, 98 model, 9 body_type"


def test_a_missing_file_says_what_is_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cars_annos\.mat does not exist; cars expects(.|\n)*devkit"):
        CARS(tmp_path)
    cars_devkit(tmp_path, MODELS, train=(1,), test=(98,))
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(FileNotFoundError, match=r"cars_test_annos_withlabels\.mat does not exist; cars expects"):
        CARS(tmp_path)


@pytest.mark.parametrize("number", [0, 197])
def test_a_class_that_has_no_name_is_refused_with_its_image(tmp_path, number):
    with pytest.raises(ValueError, match=rf"car_ims/000002\.jpg has class {number}, but .* names classes 1 to 196"):
        CARS(cars(tmp_path, MODELS, (1, number)))


def test_a_name_without_a_body_type_is_refused():
    with pytest.raises(ValueError, match="'Trabant 601 1964' does not end in a known body type.*another dataset"):
        body_type("Trabant 601 1964")


def test_names_that_repeat_are_refused(tmp_path):
    with pytest.raises(ValueError, match="2 class names, 1 of them distinct"):
        CARS(cars(tmp_path, (MODELS[0], MODELS[0]), (1, 2)))


def test_files_that_are_not_what_they_are_called_are_refused(tmp_path):
    whole = (cars(tmp_path, MODELS, CLASSES) / "cars_annos.mat").read_bytes()
    for content in (b"<html>not found</html>", whole[: len(whole) // 2], b""):
        (tmp_path / "cars_annos.mat").write_bytes(content)
        with pytest.raises(ValueError, match=r"cars_annos\.mat is not a readable MATLAB file.*download it again"):
            CARS(tmp_path)
    with pytest.raises(ValueError, match=r"cars_annos\.mat has no variable 'annotations'"):
        CARS(saved(tmp_path, class_names=np.array(MODELS, object)))
    unlabeled = np.array([("car_ims/000001.jpg",)], dtype=[("relative_im_path", object)])
    with pytest.raises(ValueError, match=r"annotations have the fields \('relative_im_path',\), but 'class' is needed"):
        CARS(saved(tmp_path, annotations=unlabeled, class_names=np.array(MODELS, object)))
