"""Validate retrieval in Lightning: a rank loss in the training step, `RetrievalMetrics`, a torchmetrics metric, in validation.

The metric collects the embeddings of all batches and processes, and computes what `evaluate` computes, exactly. The images are
letters that suprank draws, and the validation letters are not trained on; their R@1 rises from 14 to about 53 %. With several
processes, `gather` gives the loss the whole batch; with one it does nothing.

    $ python examples/06_lightning.py    # suprank[train]; 15 seconds on a CPU
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from suprank.data import BalancedBatchSampler, ImageDataset
from suprank.data.importers import glyphs
from suprank.evaluation import RetrievalMetrics
from suprank.losses import gather, roadmap

# isort: split
import lightning  # after suprank, which makes a torchvision importable that does not fit torch (docs/install.md)


def load(split):
    manifest = glyphs.read(size=32).split(split)
    manifest = manifest.take(np.flatnonzero(np.isin(manifest.table["label_script"], ["Cyrillic", "Greek", "Latin"])))
    images = np.stack([np.asarray(item.image.convert("L")) for item in ImageDataset(manifest)])
    return torch.from_numpy(images)[:, None] / 255, torch.from_numpy(manifest.labels[:, 0]), torch.arange(len(images))


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class Retrieval(lightning.LightningModule):
    def __init__(self, num_classes):
        super().__init__()
        self.model = nn.Sequential(block(1, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Linear(128 * 4 * 4, 64))
        self.criterion = roadmap(num_classes=num_classes, embedding_size=64)
        self.metrics = RetrievalMetrics(metrics=["R@1", "AP"])

    def training_step(self, batch):
        images, labels, _ = batch
        embeddings, labels = gather(self.model(images), labels)
        return self.criterion(embeddings, labels)

    def validation_step(self, batch):
        images, labels, ids = batch
        self.metrics.update(self.model(images), labels, ids)

    def on_validation_epoch_end(self):
        values = self.metrics.compute()
        self.log_dict(values)
        print(f"step {self.global_step}: R@1 {values['R@1']:.0%}, AP {values['AP']:.0%}")
        self.metrics.reset()

    def configure_optimizers(self):
        proxies = {"params": self.criterion.parameters(), "lr": 1e-2}
        return torch.optim.AdamW([{"params": self.model.parameters()}, proxies], lr=1e-3)


lightning.seed_everything(0, verbose=False)
torch.set_num_threads(1)  # enough for a small network, and the numbers do not depend on how many cores there are
train, test = TensorDataset(*load("train")), TensorDataset(*load("test"))
sampler = BalancedBatchSampler(train.tensors[1], batch_size=128, images_per_class=4)
retrieval = Retrieval(num_classes=int(train.tensors[1].max()) + 1)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", num_sanity_val_steps=0, **quiet)
validation = DataLoader(test, batch_size=256)
trainer.validate(retrieval, validation, verbose=False)
trainer.fit(retrieval, DataLoader(train, batch_sampler=sampler), validation)
