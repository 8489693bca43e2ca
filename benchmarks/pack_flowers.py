"""Pack Flowers-102 for `benchmarks/photographs.py`: a zip of WebP images with a short side of 288 pixels, and a manifest.csv.

    git clone https://github.com/3ba2ii/Flower-Classifier
    python benchmarks/pack_flowers.py Flower-Classifier flowers.zip      # 8,189 images, 73 MB

Classes 1 to 51 are to train on, the others to test.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import zipfile
from pathlib import Path

from PIL import Image

SIDE, TRAINED = 288, 51


def main(folder: Path, out: Path) -> None:
    names = json.loads((folder / "cat_to_name.json").read_text(encoding="utf-8"))
    files = sorted((folder / "flowers").glob("*/*/*.jpg"), key=lambda file: (int(file.parent.name), file.name))
    rows = []
    with zipfile.ZipFile(out, "w") as pack:
        for file in files:
            number = file.parent.name
            path = f"images/{int(number):03d}/{file.stem}.webp"
            pack.writestr(path, _small(file))
            rows.append({"path": path, "label_flower": names[number], "split": "train" if int(number) <= TRAINED else "test"})
        table = io.StringIO()
        writer = csv.DictWriter(table, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        pack.writestr("manifest.csv", table.getvalue())
    print(f"{out}: {len(rows):,} images, {out.stat().st_size / 1e6:.0f} MB")


def _small(file: Path) -> bytes:
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    scale = SIDE / min(picture.size)
    content = io.BytesIO()
    size = round(scale * picture.width), round(scale * picture.height)
    picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=3).save(content, "WEBP", quality=50, method=4)
    return content.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python benchmarks/pack_flowers.py FOLDER OUT.zip")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
