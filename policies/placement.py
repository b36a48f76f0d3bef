"""Where on a path a few checkpoints save the most recomputation."""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate


def least_recompute(
    positions: Sequence[int], leaves: Sequence[float], anchor: int, most: int, price: float
) -> list[int]:
    """At most ``most`` of ``positions`` such that the least is expected to be computed again; ascending.

    ``positions`` [n] (tokens, ascending) lie beyond ``anchor`` (tokens), the last checkpoint there is;
    ``leaves`` [n] says how many prompts are expected to leave the path at each. One that leaves at x computes
    the tokens from the last checkpoint at or before x. A further checkpoint is taken only if it saves more
    than ``price`` (tokens). O(n most).

    The task is that of arXiv 2605.05219. Let W_j and M_j be the sums of leaves, and of leaves x position,
    over the positions before the j-th. From a checkpoint at i, prompts that leave in [i, j) compute
    M_j - M_i - x_i (W_j - W_i) tokens; so the best last checkpoint before j is the lowest at W_j of lines of
    slope -x_i. Slopes fall with i and W_j grows with j: one walk along the lower hull of the lines finds a
    layer of the dynamic programme. These costs are Monge, hence no checkpoint saves more than the one before
    it, and the first that is not worth its price ends the search.
    """
    weights = [0.0, *accumulate(leaves)]
    moments = [0.0, *accumulate(leave * at for leave, at in zip(leaves, positions, strict=True))]
    costs = [moment - anchor * weight for weight, moment in zip(weights, moments, strict=True)]
    layers: list[list[int]] = []
    while len(layers) < min(most, len(positions)):
        after, last = _one_more(positions, weights, moments, costs)
        if not costs[-1] - after[-1] > price:
            break
        costs = after
        layers.append(last)
    chosen, end = [], len(positions)
    for last in reversed(layers):
        if end == 0:
            break
        end = last[end]
        chosen.append(positions[end])
    return chosen[::-1]


def _one_more(
    positions: Sequence[int], weights: Sequence[float], moments: Sequence[float], costs: Sequence[float]
) -> tuple[list[float], list[int]]:
    """The costs [n + 1] of the prompts that leave before each position, with one checkpoint more than in
    ``costs``, and the index of the last."""
    after, last = [0.0], [0]
    hull: deque[tuple[int, float]] = deque()
    for j in range(1, len(positions) + 1):
        i = j - 1
        line = i, costs[i] - moments[i] + positions[i] * weights[i]
        while len(hull) > 1 and _meet(positions, hull[-2], line) <= _meet(positions, hull[-2], hull[-1]):
            hull.pop()
        hull.append(line)
        while len(hull) > 1 and _meet(positions, hull[0], hull[1]) <= weights[j]:
            hull.popleft()
        index, height = hull[0]
        after.append(moments[j] + height - positions[index] * weights[j])
        last.append(index)
    return after, last


def _meet(positions: Sequence[int], upper: tuple[int, float], lower: tuple[int, float]) -> float:
    """From where on the line of the later position is the lower one."""
    return (lower[1] - upper[1]) / (positions[lower[0]] - positions[upper[0]])
