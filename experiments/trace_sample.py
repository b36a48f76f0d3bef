"""A sample of a trace that a smaller cache serves as the whole trace is served: spatial sampling of prefixes.

SHARDS (Waldspurger et al., FAST '15) replays the references whose hash lies below a threshold through a cache
that is as much smaller. Prefixes are not references: what a request can hit is the path above it. So the unit
is a family, the requests that part from the common texts at the same place, nearly always a session's turns;
and the common texts, which every sample needs whole, are told apart.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.endless_tree import EndlessTree
from hybridcache.experiments.stack_distance import stack_distances
from hybridcache.experiments.traces.request import Trace, TraceRequest
from hybridcache.node import Node
from hybridcache.spec import ModelSpec

MOST_GROUP = 12
"""Families of which one is kept, at most."""
LEAST_SESSIONS = 150
"""Sessions that are kept, where there are so many: fewer say too little."""
SHARED_BY = 16
"""Times the group: what so many sessions begin with is common. The sample has it from as many as this."""
NUM_DEALS = 16
MOST_HELD = 64_000_000
"""Tokens of a whole trace that are held, to spare the second pass."""
BALANCE = 0.2
"""Points of hit rate that a hand is charged for each point that its load is off."""
_GRID = np.linspace(0.025, 0.975, 39)  # of what is hit in the whole trace: where curves are compared

Floats = NDArray[np.float64]


class TraceSample(NamedTuple):
    """Requests in order of arrival, and how they stand to the whole trace."""

    requests: Sequence[TraceRequest]
    common: NDArray[np.int64]
    """[n] tokens: of each request's input, what it begins with in common with many sessions."""
    rate: float
    """Input tokens beyond the common texts, of the sample per token of the trace."""
    own_scale: float
    """Tokens that an endless cache hits beyond the common texts, as a part of all input: the trace's share
    over the sample's."""
    common_scale: float
    """The same within the common texts: each of them is new once, which weighs more in a sample."""
    common_tokens: int
    """Of all common texts."""
    common_checkpoints: int
    num_sessions: int
    num_sampled: int
    """Sessions of which the sample has requests."""

    @property
    def whole(self) -> bool:
        """Whether nothing was left out."""
        return self.num_sampled == self.num_sessions and self.rate == 1.0


class _Facts(NamedTuple):
    """One number a request, in order of arrival."""

    session: NDArray[np.int64]
    family: NDArray[np.int64]
    """From 0, by first request."""
    input: Floats
    """Tokens of the input; the other counts are tokens too."""
    common: Floats
    hit: Floats
    """By an endless cache."""
    length: Floats
    """Input and output."""

    @property
    def own_hit(self) -> Floats:
        return np.maximum(self.hit - self.common, 0.0)

    @property
    def own_input(self) -> Floats:
        return self.input - self.common

    def share(self, tokens: Floats) -> float:
        """The part of all input that ``tokens`` [n] are."""
        return float(tokens.sum() / max(self.input.sum(), 1.0))

    def of(self, chosen: NDArray[np.int64]) -> "_Facts":
        """Those at the places ``chosen`` [k]."""
        columns = (self.input, self.common, self.hit, self.length)
        return _Facts(self.session[chosen], self.family[chosen], *(column[chosen] for column in columns))


def sample_trace(trace: Trace, spec: ModelSpec, group: int | None = None, seed: int = 0) -> TraceSample:
    """One family in ``group`` (None: as many as leave enough sessions; 1: all), in two passes at most.

    Families are dealt into ``group`` hands, each of which so has the trace's load at all times; of
    ``NUM_DEALS`` deals the hand stays that stands best for all: its curve of hits under LRU is near the mean
    of all hands, and so are its load and its reuse. Holds the trace's distinct chunks (see EndlessTree), some
    numbers a request, and the sample; of a short trace (``MOST_HELD``) all, for a time.
    """
    tree = EndlessTree(spec.checkpoint_bytes > 0, SHARED_BY * max(group or 1, MOST_GROUP))
    ends: list[Node] = []
    numbers = array("q")  # session, input tokens, hit and length of each request
    held: list[TraceRequest] = []
    num_tokens = 0
    for request in trace:
        hit, end = tree.add(request)
        ends.append(end)
        numbers.extend((request.session, request.num_prompt, hit, len(request.tokens)))
        num_tokens += len(request.tokens)
        if num_tokens <= MOST_HELD:
            held.append(request)
        else:
            held.clear()
    if group is None:
        group = min(max(tree.num_sessions // LEAST_SESSIONS, 1), MOST_GROUP)
    facts = _facts(tree, ends, np.frombuffer(numbers, np.int64).reshape(-1, 4), SHARED_BY * group)
    tokens, checkpoints = tree.shared(SHARED_BY * group)
    del tree, ends
    chosen = np.arange(len(facts.input)) if group == 1 else _typical_hand(facts, spec, group, seed)
    kept = np.zeros(len(facts.input), bool)
    kept[chosen] = True
    requests = [request for request, keep in zip(held or trace, kept.tolist(), strict=True) if keep]
    sampled = facts.of(chosen)
    again = EndlessTree(spec.checkpoint_bytes > 0)
    alone = sampled._replace(hit=np.array([again.add(request).hit for request in requests], np.float64))
    return TraceSample(
        requests,
        sampled.common.astype(np.int64),
        _rate(sampled, facts),
        _ratio(facts.share(facts.own_hit), alone.share(alone.own_hit)),
        _ratio(facts.share(facts.hit - facts.own_hit), alone.share(alone.hit - alone.own_hit)),
        tokens,
        checkpoints,
        len(np.unique(facts.session)),
        len(np.unique(sampled.session)),
    )


def _facts(tree: EndlessTree, ends: Sequence[Node], numbers: NDArray[np.int64], least: int) -> _Facts:
    """``numbers`` [n, 4]: session, input tokens, hit and length; common is what ``least`` sessions have."""
    families: dict[Node | int, int] = {}
    family, common = array("q"), array("q")
    for end, session in zip(ends, numbers[:, 0].tolist(), strict=True):
        shared, below = tree.part(end, least)
        # A request that is common from end to end has no place of its own: it goes with its session.
        family.append(families.setdefault(session if below is None else below, len(families)))
        common.append(shared)
    inputs, hits, lengths = numbers[:, 1:].astype(np.float64).T
    shared_tokens = np.minimum(np.array(common, np.float64), inputs - 1.0)
    return _Facts(numbers[:, 0], np.array(family), inputs, shared_tokens, hits, lengths)


def _typical_hand(facts: _Facts, spec: ModelSpec, group: int, seed: int) -> NDArray[np.int64]:
    """Places [k] of the requests that stay, ascending."""
    distances = _distances(facts, spec)
    order = np.argsort(distances)
    hits = np.cumsum(facts.own_hit[order])
    grid = distances[order][np.searchsorted(hits, _GRID * hits[-1])]
    hands, curves, loads = [], [], []
    generator = np.random.default_rng(seed)
    for _ in range(NUM_DEALS):
        hand = _deal(int(facts.family.max()) + 1, group, generator)[facts.family]
        for places in (np.flatnonzero(hand == number) for number in range(group)):
            if len(places):
                held = facts.of(places)
                hands.append(places)
                curves.append(_lru_curve(held, spec, _rate(held, facts) * grid))
                loads.append(_loads(held, spec))
    curve_errors = np.array(curves) - np.mean(curves, axis=0)
    load_errors = np.array(loads) / np.maximum(np.mean(loads, axis=0), 1.0) - 1.0
    errors = np.square(curve_errors).mean(axis=1) + BALANCE**2 * np.square(load_errors).mean(axis=1)
    return hands[int(np.argmin(errors))]


def _deal(num_families: int, group: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """The hand [families] of each family: of ``group`` that begin one after the other each hand gets one."""
    hands = [generator.permutation(group) for _ in range(-(-num_families // group))]
    return np.concatenate(hands)[:num_families]


def _loads(facts: _Facts, spec: ModelSpec) -> tuple[float, ...]:
    """Requests; input tokens beyond the common texts, and those of them that an endless cache hits; bytes."""
    return (
        float(len(facts.input)),
        float(facts.own_input.sum()),
        float(facts.own_hit.sum()),
        float(_new_bytes(facts, spec).sum()),
    )


def _lru_curve(facts: _Facts, spec: ModelSpec, budgets: Floats) -> Floats:
    """Of the input, what LRU would hit beyond the common texts with each of ``budgets`` (bytes)."""
    distances = _distances(facts, spec)
    order = np.argsort(distances)
    hits = np.concatenate(([0.0], np.cumsum(facts.own_hit[order])))
    rates: Floats = hits[np.searchsorted(distances[order], budgets, side="right")] / facts.input.sum()
    return rates


def _rate(sampled: _Facts, facts: _Facts) -> float:
    """Input tokens beyond the common texts, of ``sampled`` per token of all."""
    return float(sampled.own_input.sum() / facts.own_input.sum())


def _distances(facts: _Facts, spec: ModelSpec) -> Floats:
    """Stack distances [n] of the requests' families, bytes beyond the common texts."""
    sizes, held = array("d"), [0.0] * (int(facts.family.max()) + 1)
    items = facts.family.tolist()
    for item, new in zip(items, _new_bytes(facts, spec).tolist(), strict=True):
        held[item] += new
        sizes.append(held[item])
    return stack_distances(items, sizes)


def _new_bytes(facts: _Facts, spec: ModelSpec) -> Floats:
    """What each request [n] adds to an endless cache beyond the common texts: KV and a checkpoint."""
    tokens: Floats = np.maximum(facts.length - np.maximum(facts.hit, facts.common), 0.0)
    return tokens * float(spec.kv_bytes_per_token) + float(spec.checkpoint_bytes)


def _ratio(share: float, of_sample: float) -> float:
    """1 where the sample has none."""
    return share / of_sample if of_sample else 1.0
