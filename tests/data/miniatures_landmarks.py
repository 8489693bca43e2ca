"""Small datasets in the exact formats of the real ones: GLDv2, H-GLDv2, revisited Oxford and Paris, SfM-120k."""

import pickle
from pathlib import Path

import numpy as np

COMMONS = "http://commons.wikimedia.org/wiki/Category:"


def image_id(number: int) -> str:
    """16 hexadecimal digits whose first three differ from image to image, as GLDv2's are."""
    return f"{(number * 2654435761) % 2**32:08x}{number:08x}"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def gldv2(root: Path) -> Path:
    """Train landmarks 7 (3 images), 12 (1) and 30 (2); index landmarks 7 (2), 8 (1) and 40 (1); 3 queries among 5 tests.

    Landmark 7 of train and of index are two places. A query lists images of two landmarks: the first counts.
    """
    image = image_id
    write(
        root / "metadata" / "train_clean.csv",
        f"landmark_id,images\n7,{image(1)} {image(2)} {image(3)}\n12,{image(4)}\n30,{image(5)} {image(6)}\n",
    )
    write(
        root / "metadata" / "index_image_to_landmark.csv",
        f"id,landmark_id\n{image(11)},7\n{image(12)},7\n{image(13)},8\n{image(14)},40\n",
    )
    write(
        root / "ground_truth" / "retrieval_solution_v2.1.csv",
        "id,images,Usage\n"
        f"{image(21)},{image(13)} {image(11)},Public\n"
        f"{image(22)},None,Ignored\n"
        f"{image(23)},{image(12)} {image(11)},Private\n"
        f"{image(24)},{image(14)},Private\n"
        f"{image(25)},None,Ignored\n",
    )
    return root


def categories(root: Path) -> None:
    """Commons categories: not https, percent-encoded, underscores, commas (so quoted), raw apostrophes; 30 and 40 have none."""
    write(
        root / "metadata" / "train_label_to_category.csv",
        f'landmark_id,category\n7,"{COMMONS}Sparkassen-Arena,_G%C3%B6ttingen"\n12,{COMMONS}Lady\'s_Well_(Oxford)\n',
    )
    write(
        root / "metadata" / "index_label_to_category.csv",
        f'landmark_id,category\n7,{COMMONS}Happurger_See\n8,"{COMMONS}St._Mary%E2%80%99s,_Ely"\n',
    )


def hierarchical(root: Path) -> None:
    """The published five columns. Train 30 has a scraped type and no reviewed label, index 40 no row; a stray blank."""
    header = "landmark_id,category,supercategory,hierarchical_label,natural_or_human_made\n"
    write(
        root / "metadata" / "train_label_to_hierarchical.csv",
        f'{header}7,"{COMMONS}Sparkassen-Arena,_G%C3%B6ttingen",multi-purpose hall,sports venue,human-made\n'
        f"12,{COMMONS}Baltic,bay,ocean area ,natural\n30,{COMMONS}Something,taxon,,\n",
    )
    write(
        root / "metadata" / "index_label_to_hierarchical.csv",
        f"{header}7,{COMMONS}Happurger_See,reservoir,lake,natural\n8,{COMMONS}Ely,parish church,church,human-made\n",
    )


def clusters(root: Path) -> None:
    """The same labels in the files that the authors' loader reads."""
    header = "landmark_id,cluster,overall_cluster\n"
    write(
        root / "train_label_to_subcategory_with_clusters.csv",
        f"{header}7,sports venue,human-made\n12,ocean area ,natural\n30,,\n",
    )
    write(root / "index_label_to_subcategory_with_clusters.csv", f"{header}7,lake,natural\n8,church,human-made\n")


def ground_truth() -> dict:
    """What the pickle of a revisited dataset holds: lists of numpy numbers, boxes as floats."""
    return {
        "imlist": ["all_souls_000013", "oxford_002985", "radcliffe_camera_000519"],
        "qimlist": ["all_souls_000006", "magdalen_000058"],
        "gnd": [
            {"bbx": [136.5, 34.1, 648.5, 955.7], "easy": np.array([0]), "hard": [], "junk": np.array([2])},
            {"bbx": np.array([53.1, 2.5, 376.4, 643.6]), "easy": [], "hard": [1, 2], "junk": []},
        ],
    }


def revisited(root: Path, name: str, protocol: int = 2) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / f"gnd_{name}.pkl").write_bytes(pickle.dumps(ground_truth(), protocol=protocol))
    return root


SFM_NAMES = ("0f3c3b9d00fd2a1b5e8d6a7c9e0f1a2b", "c4ca4238a0b923820dcc509a6f75849b", "eccbc87e4b5ce2fe28308fd9f2a7baf3")
SFM_CLUSTERS = (17, 3, 17)
SFM_FILE = "retrieval-SfM-120k-imagenames-clusterids.mat"


def sfm(root: Path) -> Path:
    """A cell array of texts and a row of doubles, up to Matlab 7."""
    from scipy.io import savemat

    root.mkdir(parents=True, exist_ok=True)
    cells = np.empty((1, len(SFM_NAMES)), object)
    cells[0] = SFM_NAMES
    savemat(root / SFM_FILE, {"cids": cells, "cluster": np.array([SFM_CLUSTERS], float)})
    return root


def sfm_of_matlab_7_3(root: Path) -> Path:
    """The same as HDF5: cells are references to arrays of letter codes, rows are columns, and 512 bytes of text come first."""
    import h5py

    root.mkdir(parents=True, exist_ok=True)
    path = root / SFM_FILE
    with h5py.File(path, "w", userblock_size=512) as file:
        letters = [
            file.create_dataset(f"#refs#/{index}", data=np.array([[ord(letter)] for letter in name], np.uint16))
            for index, name in enumerate(SFM_NAMES)
        ]
        cells = file.create_dataset("cids", (len(letters), 1), h5py.ref_dtype)
        for index, letter in enumerate(letters):
            cells[index, 0] = letter.ref
        file["cluster"] = np.array([[cluster] for cluster in SFM_CLUSTERS], float)
    header = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"
    with path.open("r+b") as file:
        file.write(header)
    return root
