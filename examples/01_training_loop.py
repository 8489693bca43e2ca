"""Train a network with a rank loss in a plain PyTorch loop, and evaluate it on classes that it has never seen.

The images are letters in many fonts, which suprank draws. A class is a letter, and the test letters are not trained on.
R@1 and AP of the test letters are printed after each epoch, and rise from 14 and 4 % to about 60 and 35 %.

    $ python examples/01_training_loop.py    # suprank[train]; 15 seconds on a CPU
"""

# %%
import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from suprank.data import BalancedBatchSampler, ImageDataset
from suprank.data.importers import glyphs
from suprank.evaluation import evaluate, top_k
from suprank.losses import SupAP


def load(split):
    manifest = glyphs.read(size=32).split(split)
    manifest = manifest.take(np.flatnonzero(np.isin(manifest.table["label_script"], ["Cyrillic", "Greek", "Latin"])))
    images = np.stack([np.asarray(item.image.convert("L")) for item in ImageDataset(manifest)])
    return torch.from_numpy(images)[:, None] / 255, torch.from_numpy(manifest.labels[:, 0])


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def test(when):
    model.eval()
    with torch.no_grad():
        embeddings = torch.cat([model(part) for part in test_images.split(256)])
    report = evaluate(embeddings, test_labels)  # for each test image, all others are ranked
    print(f"{when}: R@1 {report['R@1']:.0%}, AP {report['AP']:.0%}")
    return top_k(embeddings, k=8).rows


# %% [markdown]
# Any network will do: the loss takes its output, and normalizes it. A batch has 32 letters with four images each.

# %%
torch.manual_seed(0)
torch.set_num_threads(1)  # enough for a small network, and the numbers do not depend on how many cores there are
train, (test_images, test_labels) = TensorDataset(*load("train")), load("test")
model = nn.Sequential(block(1, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Linear(128 * 4 * 4, 64))
criterion = SupAP()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sampler = BalancedBatchSampler(train.tensors[1], batch_size=128, images_per_class=4)

before = test("untrained")
for epoch in range(1, 5):
    model.train()
    for images, labels in DataLoader(train, batch_sampler=sampler):
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
    after = test(f"epoch {epoch}")

# %% [markdown]
# Six test images, and the eight that are nearest to each: green frames are the same letter.


# %%
def framed(item, query):
    color = [0.7, 0.7, 0.7] if item == query else [0, 0.7, 0] if test_labels[item] == test_labels[query] else [0.9, 0, 0]
    return np.stack([np.pad(test_images[item, 0], 3, constant_values=value) for value in color], axis=-1)


queries = np.random.default_rng(0).choice(len(test_images), 6, replace=False)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for axis, title, found in zip(axes, ["untrained", "trained"], [before, after], strict=True):
    axis.imshow(np.vstack([np.hstack([framed(item, query) for item in [query, *found[query]]]) for query in queries]))
    axis.set(title=title, xticks=[], yticks=[])
figure.savefig("01_training_loop.png")
