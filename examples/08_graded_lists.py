"""Learn to rank graded lists, write the rankings as TREC runs, and test which is better, with trec_eval's metrics.

There are 200 queries of 30 items with grades from 0 to 3, as in web search or a shop, and 200 more for the test. A network
scores an item by 20 features. Trained with `SmoothNDCG`, which sees only the order, it has a higher NDCG@10 on new queries than
trained to predict the grades, which also depend on how demanding a query is. The paired test says that this is no chance.

    $ python examples/08_graded_lists.py    # suprank; 10 seconds on a CPU
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from suprank.evaluation import Qrels, Run, evaluate_run
from suprank.losses import SmoothNDCG

torch.manual_seed(0)
torch.set_num_threads(1)  # enough for a small network, and the numbers do not depend on how many cores there are

# A grade depends on the features of the item, on chance, and on how demanding the query is.
features = torch.randn(400, 30, 20)
quality = torch.tanh(features[..., :4]).sum(-1) + features[..., 4] * features[..., 5]
demands = 3 * torch.rand(400, 1)
grades = (quality + 0.5 * torch.randn(400, 30) - demands).round().clamp(0, 3).long()


def trained(loss):
    """Scores [200, 30] of the test lists, by a network that was trained with this loss of scores and grades."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
    for _ in range(150):
        optimizer.zero_grad()
        loss(model(features[:200]).squeeze(-1), grades[:200]).backward()
        optimizer.step()
    return model(features[200:]).squeeze(-1).detach()


def lists(values):
    """{query: {item: value}}: a run if the values are scores, judgments if they are grades."""
    return {f"q{query}": {f"item{item}": value for item, value in enumerate(row)} for query, row in enumerate(values.tolist())}


runs = {
    "smooth-ndcg": trained(SmoothNDCG(k=10, tau=1.0).from_scores),  # tau is in units of the scores
    "regression": trained(lambda scores, wanted: (scores - wanted).square().mean()),
}
with TemporaryDirectory() as temporary:
    folder = Path(temporary)
    Qrels.from_dict(lists(grades[200:])).save(folder / "qrels.trec")
    for name, scores in runs.items():
        Run.from_dict(lists(scores)).save(folder / f"{name}.trec", tag=name)

    # On the command line: suprank evaluate smooth-ndcg.trec --truth qrels.trec --against regression.trec
    metrics = ["NDCG@10", "NDCG-linear@10", "AP", "MRR"]
    listwise, regression = (
        evaluate_run(folder / f"{name}.trec", folder / "qrels.trec", metrics, per_query=True) for name in runs
    )
print("mine: smooth-ndcg, other: regression;", listwise.compare(regression).table(holm=True))
