"""Evaluate two models exactly, test whether their difference is more than chance, and draw where they differ.

All you need are labels, and the embeddings of the same images by both models. Here the images are letters that suprank draws,
and the models are plain features: pixels of the blurred image, and its edges. In R@1 they differ by half a point, which may be
chance. In AP the edges are better by 0.7, which is not. The picture says for which scripts, and shows where either model fails.

    $ python examples/03_compare_models.py    # suprank[train]; 10 seconds on a CPU
"""

# %%
import numpy as np
from matplotlib import pyplot as plt
from scipy.ndimage import gaussian_filter

from suprank.data import ImageDataset
from suprank.data.importers import glyphs
from suprank.evaluation import evaluate, top_k

manifest = glyphs.read(size=32).split("test")
scripts = ["Arabic", "Armenian", "Canadian syllabics", "Cyrillic", "Georgian", "Greek", "Hebrew", "Lao"]
manifest = manifest.take(np.flatnonzero(np.isin(manifest.table["label_script"], scripts)))
images = np.stack([np.asarray(item.image.convert("L")) for item in ImageDataset(manifest)]) / 255
labels = manifest.labels  # [N, 3]: character, group, script

# %% [markdown]
# Embeddings are arrays, tensors, or files such as `edges.npy`, which may be larger than memory. Every image is ranked for every
# other one, and every metric is exact.

# %%
blurred = gaussian_filter(images, (0, 1.5, 1.5))
pixels = (blurred - blurred.mean(axis=(1, 2), keepdims=True)).reshape(len(images), -1)
edges = np.stack(np.gradient(gaussian_filter(images, (0, 2, 2)), axis=(1, 2)), axis=1).reshape(len(images), -1)
options = {"levels": manifest.levels, "metrics": ["R@1", "AP", "H-AP"], "per_query": True}
reports = {"edges": evaluate(edges, labels, **options), "pixels": evaluate(pixels, labels, **options)}
print("mine: edges, other: pixels;", reports["edges"].compare(reports["pixels"]).table(holm=True))

# %% [markdown]
# Where do they differ? On the left by script, with the standard error over queries. On the right, the two queries for which the
# edges are better by most, and the two for which the pixels are. Green frames are the same letter.

# %%
found = {"edges": top_k(edges, k=8).rows, "pixels": top_k(pixels, k=8).rows}
difference = reports["edges"].per_query["AP"] - reports["pixels"].per_query["AP"]
order = np.argsort(difference)


def framed(item, query):
    color = [0.7, 0.7, 0.7] if item == query else [0, 0.7, 0] if labels[item, 0] == labels[query, 0] else [0.9, 0, 0]
    return np.stack([np.pad(images[item], 3, constant_values=value) for value in color], axis=-1)


figure, (bars, hits) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for script in scripts:
    values = 100 * difference[labels[:, 2] == manifest.names["script"].index(script)]
    bars.barh(script, values.mean(), xerr=values.std() / len(values) ** 0.5, color="tab:blue")
bars.set(title="AP of edges − AP of pixels, points")
bars.invert_yaxis()
rows = [(model, query) for query in [*order[-2:], *order[:2]] for model in found]
hits.imshow(np.vstack([np.hstack([framed(item, query) for item in [query, *found[model][query]]]) for model, query in rows]))
hits.set(title="the largest differences", xticks=[], yticks=38 * np.arange(8) + 19)
hits.set_yticklabels([model for model, _ in rows])
figure.savefig("03_compare_models.png")
