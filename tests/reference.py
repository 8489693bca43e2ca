"""The paper's equations as slow Python loops, one query at a time: what the tests compare `suprank` with.

Nothing here imports `suprank` or torch. A query's list is two sequences of one length: `scores`, and `level`, which is
above 0 for a positive, 0 for a negative and below 0 for an item that is not in the list. Steps are functions of one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Numbers = Sequence[float]
Step = Callable[[float], float]


# Steps


def heaviside(t: float) -> float:
    """H(t) = 1 if t ≥ 0, 0 otherwise (after eq:definition_rank)."""
    return 1.0 if t >= 0 else 0.0


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def smooth(tau: float = 0.01) -> Step:
    return lambda t: sigmoid(t / tau)


def h_minus(
    tau: float = 0.01, rho: float = 100.0, delta: float = 0.05, jump: float = 0.5, value_at_delta: float | None = None
) -> Step:
    """H⁻ (eq:h_minus), the middle branch taken at t = 0 and at t = δ."""

    def step(t: float) -> float:
        if t < 0:
            return sigmoid(t / tau)
        if t <= delta:
            return sigmoid(t / tau) + jump
        start = sigmoid(delta / tau) + jump if value_at_delta is None else value_at_delta
        return rho * (t - delta) + start

    return step


def authors_h_minus(value_at_delta: float = 1.44) -> Step:
    """H⁻ as the authors published it: `t > 0` opens the middle branch, so a tie counts ½ and the bound fails there."""
    ours = h_minus(value_at_delta=value_at_delta)
    return lambda t: 0.5 if t == 0 else ours(t)


# Labels, levels and relevance


def common_level(labels: Sequence[int], other: Sequence[int]) -> int:
    """Depth of the closest common ancestor of two rows of labels, finest first; −1 is no label, which nothing shares."""
    depth = 0
    for mine, theirs in zip(reversed(labels), reversed(other), strict=True):
        if mine != theirs or mine == -1:
            break
        depth += 1
    return depth


def tree_relevance(level: Numbers, decay: float = 1.0, depth: int | None = None) -> list[float]:
    """rel(k) = (l/L)^decay / |Ω^(l)| for k ∈ Ω^(l) (eq:hierarchy_relevance)."""
    finest = max([*level, 1]) if depth is None else depth
    return [(own / finest) ** decay / sum(other == own for other in level) if own > 0 else 0.0 for own in level]


def weighted_ap_relevance(level: Numbers, weights: Numbers) -> list[float]:
    """rel(k) = Σ_{p=1..l} w_p / |Ω^{+,p}| for k ∈ Ω^(l) (Property 1); the weights are w_L, ..., w_1, finest level first."""
    at_least = {p: sum(other >= p for other in level) for p in range(1, len(weights) + 1)}
    return [sum(weights[len(weights) - p] / at_least[p] for p in range(1, int(own) + 1)) for own in level]


# Ranks of one positive k


def rank_plus(k: int, scores: Numbers, level: Numbers, step: Step = heaviside) -> float:
    """rank⁺(k) = 1 + Σ_{j≠k, level_j ≥ level_k} H(s_j − s_k) (eq:definition_rank)."""
    return 1 + sum(step(scores[j] - scores[k]) for j in range(len(scores)) if j != k and level[j] >= level[k])


def rank_minus(k: int, scores: Numbers, level: Numbers, step: Step = heaviside) -> float:
    """rank⁻(k) = Σ_{0 ≤ level_j < level_k} H⁻(s_j − s_k) (eq:rank_minus)."""
    return sum(step(scores[j] - scores[k]) for j in range(len(scores)) if 0 <= level[j] < level[k])


def h_rank(k: int, scores: Numbers, level: Numbers, relevance: Numbers, step: Step = heaviside) -> float:
    """H-rank⁺(k) = rel(k) + Σ_{j∈Ω⁺, j≠k} min(rel_j, rel_k)·H(s_j − s_k) (eq:hierarchical_rank)."""
    others = [j for j in range(len(scores)) if j != k and level[j] > 0]
    return relevance[k] + sum(min(relevance[j], relevance[k]) * step(scores[j] - scores[k]) for j in others)


def rank(k: int, scores: Numbers, level: Numbers, plus: Step = heaviside, minus: Step = heaviside) -> float:
    return rank_plus(k, scores, level, plus) + rank_minus(k, scores, level, minus)


def positives(level: Numbers) -> list[int]:
    return [k for k, own in enumerate(level) if own > 0]


def binary(level: Numbers, lowest: float) -> list[int]:
    """1 from level `lowest` on, 0 below, −1 still out of the list."""
    return [-1 if own < 0 else int(own >= lowest) for own in level]


# Measures of one query; NaN without positives


def average_precision(scores: Numbers, level: Numbers, plus: Step = heaviside, minus: Step = heaviside) -> float:
    """AP = 1/|Ω⁺| Σ_{k∈Ω⁺} rank⁺(k) / rank(k) (eq:ap_definition)."""
    wanted = positives(level)
    total = sum(rank_plus(k, scores, level, plus) / rank(k, scores, level, plus, minus) for k in wanted)
    return total / len(wanted) if wanted else math.nan


def average_precision_at(scores: Numbers, level: Numbers, cut: int) -> float:
    """AP@k = 1/min(k, |Ω⁺|) Σ_{p∈Ω⁺, rank(p) ≤ k} rank⁺(p) / rank(p)."""
    wanted = positives(level)
    found = [k for k in wanted if rank(k, scores, level) <= cut]
    total = sum(rank_plus(k, scores, level) / rank(k, scores, level) for k in found)
    return total / min(cut, len(wanted)) if wanted else math.nan


def recall_at(
    scores: Numbers, level: Numbers, cut: int, plus: Step = heaviside, minus: Step = heaviside, inside: Step = heaviside
) -> float:
    """TR@k = 1/min(|Ω⁺|, k) Σ_{p∈Ω⁺} H(k − rank(p)) (eq:def_recall; eq:def_recall_loss with smooth steps)."""
    wanted = positives(level)
    total = sum(inside(cut - rank(k, scores, level, plus, minus)) for k in wanted)
    return total / min(cut, len(wanted)) if wanted else math.nan


def mean_recall(scores: Numbers, level: Numbers, cuts: Sequence[int], plus: Step, minus: Step, rank_tau: float = 1.0) -> float:
    """The mean over k ∈ K of eq:def_recall_loss's smooth recall."""
    inside = smooth(rank_tau)
    return sum(recall_at(scores, level, cut, plus, minus, inside) for cut in cuts) / len(cuts)


def reciprocal_rank(scores: Numbers, level: Numbers, plus: Step = heaviside, minus: Step = heaviside) -> float:
    """One over the lowest rank of a positive."""
    return 1 / min((rank(k, scores, level, plus, minus) for k in positives(level)), default=math.nan)


def hit_rate_at(scores: Numbers, level: Numbers, cut: int) -> float:
    """R@k = 1 if a positive is in the top k (sec:recall_loss)."""
    wanted = positives(level)
    return float(any(rank(k, scores, level) <= cut for k in wanted)) if wanted else math.nan


def h_average_precision(
    scores: Numbers, level: Numbers, relevance: Numbers, plus: Step = heaviside, minus: Step = heaviside
) -> float:
    """H-AP = 1/Σ_{k∈Ω⁺} rel(k) · Σ_{k∈Ω⁺} H-rank⁺(k) / rank(k) (eq:def_hap)."""
    wanted = positives(level)
    weight = sum(relevance[k] for k in wanted)
    total = sum(h_rank(k, scores, level, relevance, plus) / rank(k, scores, level, plus, minus) for k in wanted)
    return total / weight if weight > 0 else math.nan


def in_order(scores: Numbers, level: Numbers) -> list[int]:
    """The list from the top: score descending, on equal scores the lower level first."""
    listed = [j for j, own in enumerate(level) if own >= 0]
    return sorted(listed, key=lambda j: (-scores[j], level[j]))


def h_recall_at(scores: Numbers, level: Numbers, relevance: Numbers, cut: int) -> float:
    """H-R@k = Σ_{j=1..k} rel(j) / Σ_{j∈Ω⁺} rel(j), items numbered from the top (eq:hierarchical_recall)."""
    order = in_order(scores, level)
    weight = sum(relevance[j] for j in order)
    return sum(relevance[j] for j in order[:cut]) / weight if weight > 0 else math.nan


def h_precision_at(scores: Numbers, level: Numbers, relevance: Numbers, cut: int) -> float:
    """H-P@k = Σ_{j=1..k} min(rel(j), rel(k)) / (k·rel(k)) (eq:hierarchical_precision), its limit where rel(k) = 0."""
    order = in_order(scores, level)
    own = relevance[order[cut - 1]]
    if own == 0:
        return sum(relevance[j] > 0 for j in order[:cut]) / cut
    return sum(min(relevance[j], own) for j in order[:cut]) / (cut * own)


def ndcg(scores: Numbers, level: Numbers, gain: Numbers, plus: Step = heaviside, minus: Step = heaviside) -> float:
    """NDCG = DCG/iDCG, DCG = Σ_{k∈Ω⁺} gain(k) / log2(1 + rank(k)) (sec:ndcg)."""
    wanted = positives(level)
    dcg = sum(gain[k] / math.log2(1 + rank(k, scores, level, plus, minus)) for k in wanted)
    ideal = sorted((gain[k] for k in wanted), reverse=True)
    best = sum(value / math.log2(1 + place) for place, value in enumerate(ideal, start=1))
    return dcg / best if best > 0 else math.nan


def exponential_gain(level: Numbers) -> list[float]:
    return [2.0**own - 1 if own > 0 else 0.0 for own in level]


def average_precision_at_level(scores: Numbers, level: Numbers, lowest: int) -> float:
    """AP^(l): the AP whose positives are the items of level l or deeper (eq:sup_ap_level)."""
    return average_precision(scores, binary(level, lowest))


# Losses of one batch


def cosine(one: Numbers, other: Numbers) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(a * a for a in one)) / math.sqrt(sum(b * b for b in other))


def batch_lists(
    embeddings: Sequence[Numbers], labels: Sequence[Sequence[int]], *, include_self: bool = False
) -> list[tuple[list[float], list[int]]]:
    """The scores and levels of every query of a batch; the query's own item is out of its list unless included."""
    lists = []
    for i in range(len(embeddings)):
        scores = [cosine(embeddings[i], other) for other in embeddings]
        level = [common_level(labels[i], other) for other in labels]
        if not include_self:
            level[i] = -1
        lists.append((scores, level))
    return lists


def mean_loss(values: Numbers) -> float:
    """1 − the mean over the queries that have a value (eq:optimizing_M); 0 when none has."""
    known = [value for value in values if not math.isnan(value)]
    return 1 - sum(known) / len(known) if known else 0.0


def pair_calibration(lists: Sequence[tuple[Numbers, Numbers]], floor: float = 0.9, ceiling: float = 0.6) -> float:
    """L_DG (eq:labs): for each query the mean over positives plus the mean over negatives; queries without are left out."""
    far, close = [], []
    for scores, level in lists:
        too_far = [max(0.0, floor - s) for s, own in zip(scores, level, strict=True) if own > 0]
        too_close = [max(0.0, s - ceiling) for s, own in zip(scores, level, strict=True) if own == 0]
        far += [sum(too_far) / len(too_far)] if too_far else []
        close += [sum(too_close) / len(too_close)] if too_close else []
    return (sum(far) / len(far) if far else 0.0) + (sum(close) / len(close) if close else 0.0)


def proxy_softmax(
    embeddings: Sequence[Numbers], classes: Sequence[int], proxies: Sequence[Numbers], temperature: float = 0.05
) -> float:
    """L*_DG (eq:cluster_loss), mean over the batch."""
    total = 0.0
    for embedding, own in zip(embeddings, classes, strict=True):
        logits = [cosine(embedding, proxy) / temperature for proxy in proxies]
        highest = max(logits)
        total += highest + math.log(sum(math.exp(logit - highest) for logit in logits)) - logits[own]
    return total / len(embeddings)


# Evaluation: measures of one query's list, given as the levels of its items from the top (`from_the_top`)


def known_level(labels: Sequence[int], other: Sequence[int]) -> int:
    """`common_level` where −1 stands for no label, which nobody shares, nor anything finer."""
    depth = 0
    for mine, theirs in zip(reversed(labels), reversed(other), strict=True):
        if mine != theirs or mine < 0:
            break
        depth += 1
    return depth


def from_the_top(scores: Numbers, level: Sequence[int]) -> list[int]:
    """The levels in the total order of evaluation; items below level 0 are not in the list."""
    return [level[j] for j in in_order(scores, level)]


def flat(levels: Sequence[int], lowest: int) -> list[bool]:
    return [own >= lowest for own in levels]


def listed_precision(hits: Sequence[bool], cut: int) -> float:
    """P@k: the share of positives in the first k places; places beyond the list hold no positive."""
    return sum(hits[:cut]) / cut


def listed_ap(hits: Sequence[bool], cut: int | None = None) -> float:
    """AP@k: the sum of P@n over the places n ≤ k of positives, over what it could be; AP without a cut."""
    cut = len(hits) if cut is None else cut
    total = sum(listed_precision(hits, place) for place, hit in enumerate(hits, start=1) if hit and place <= cut)
    return total / min(cut, sum(hits))


def listed_reciprocal_rank(hits: Sequence[bool]) -> float:
    return 1 / (1 + list(hits).index(True))


def listed_intersection(levels: Sequence[int]) -> float:
    """ASI (sec:sup_asi): the mean over n = 1..N of the share of levels that the first n places share with the ideal list."""
    ideal = sorted(levels, reverse=True)
    number = sum(own > 0 for own in levels)
    total = 0.0
    for n in range(1, number + 1):
        left = ideal[:n]
        for own in levels[:n]:
            if own in left:
                left.remove(own)
        total += (n - len(left)) / n
    return total / number


def listed_h_ap(relevance: Numbers) -> float:
    """H-AP = 1/Σ rel · Σ_k H-rank⁺(k) / rank(k), where H-rank⁺(k) adds up min(rel_j, rel_k) down to the item k itself."""
    total = 0.0
    for place, own in enumerate(relevance, start=1):
        total += sum(min(own, above) for above in relevance[:place]) / place
    return total / sum(relevance)


def listed_h_precision(relevance: Numbers, cut: int) -> float:
    """H-P@k, and the share of positives where the item of rank k is a negative or there is none."""
    own = relevance[cut - 1] if cut <= len(relevance) else 0
    if own == 0:
        return sum(rel > 0 for rel in relevance[:cut]) / cut
    return sum(min(rel, own) for rel in relevance[:cut]) / (cut * own)


def listed_ndcg(levels: Sequence[int], cut: int | None = None, *, linear: bool = False) -> float:
    """NDCG of the first `cut` items; the gain of level l is 2^l − 1, or l."""

    def dcg(order: Sequence[int]) -> float:
        gains = [own if linear else 2.0**own - 1 for own in order[:cut]]
        return sum(gain / math.log2(1 + place) for place, gain in enumerate(gains, start=1))

    return dcg(levels) / dcg(sorted(levels, reverse=True))


def listed_metrics(
    levels: Sequence[int], names: Sequence[str], ks: Sequence[int], decay: float = 1.0, weights: Numbers | None = None
) -> dict[str, float]:
    """Every metric of one query by its key; names and weights of levels stand finest first. NaN without positives."""
    depth = len(names)
    numbers = {name: depth - column for column, name in enumerate(names)}
    measures: dict[str, Callable[[Sequence[bool]], float]] = {
        "AP": listed_ap,
        "mAP@R": lambda hits: listed_ap(hits, sum(hits)),
        "R-P": lambda hits: listed_precision(hits, sum(hits)),
        "MRR": listed_reciprocal_rank,
        "ASI": lambda hits: listed_intersection([int(hit) for hit in hits]),
    }
    for k in ks:
        measures[f"recall-all@{k}"] = lambda hits, k=k: sum(hits[:k]) / sum(hits)
        measures[f"AP-all@{k}"] = lambda hits, k=k: listed_ap(hits, k) * min(k, sum(hits)) / sum(hits)
        measures[f"MRR@{k}"] = lambda hits, k=k: listed_reciprocal_rank(hits) if any(hits[:k]) else 0.0
        measures[f"R@{k}"] = lambda hits, k=k: float(any(hits[:k]))
        measures[f"TR@{k}"] = lambda hits, k=k: sum(hits[:k]) / min(k, sum(hits))
        measures[f"P@{k}"] = lambda hits, k=k: listed_precision(hits, k)
        measures[f"mAP@{k}"] = lambda hits, k=k: listed_ap(hits, k)
    found = {}
    present = [name for name in names if any(flat(levels, numbers[name]))]
    for key, measure in measures.items():
        for name in names:
            found[f"{key}/{name}"] = measure(flat(levels, numbers[name])) if name in present else math.nan
        found[key] = found[f"{key}/{names[0]}"]
        found[f"{key}/overall"] = sum(found[f"{key}/{name}"] for name in present) / len(present) if present else math.nan
    weight = dict(zip(names, weights or [1] * depth, strict=True))
    divisor = sum(weight[name] for name in present)
    found["wAP"] = sum(weight[name] * found[f"AP/{name}"] for name in present) / divisor if divisor else math.nan
    relevance = tree_relevance(levels, decay, depth)
    found["H-AP"] = listed_h_ap(relevance) if present else math.nan
    found["NDCG"] = listed_ndcg(levels) if present else math.nan
    found["NDCG-linear"] = listed_ndcg(levels, linear=True) if present else math.nan
    found["ASI"] = listed_intersection(levels) if present else math.nan
    for k in ks:
        found[f"NDCG@{k}"] = listed_ndcg(levels, k) if present else math.nan
        found[f"NDCG-linear@{k}"] = listed_ndcg(levels, k, linear=True) if present else math.nan
        found[f"H-P@{k}"] = listed_h_precision(relevance, k) if present else math.nan
        found[f"H-R@{k}"] = sum(relevance[:k]) / sum(relevance) if present else math.nan
    return found
