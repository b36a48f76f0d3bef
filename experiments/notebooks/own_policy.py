# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Write a policy in ten lines, and rank it
#
# When a cache is full, something has to go. An eviction policy is an opinion about what: it looks at
# everything that could go and gives each a number, and the lowest number goes. Nothing else is asked of it.
# Trees, blocks, reference counts and pins are the cache's business, so that an idea of an afternoon can be
# tried in an afternoon. In this notebook we have one, write it down in ten lines, and find out whether it
# is any good.
#
# ## What a policy sees
# One row for each thing that could go, one column for each fact. Three things lie in this small cache:

# %%
from collections.abc import Mapping, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.policy_style import policy_styles
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.trace_command import model_of
from hybridcache.experiments.traces.open import open_trace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.prefix_cache import PrefixCache

names = ("a short chat", "a long document", "instructions of all chats")
last_used = np.array([95.0, 90.0, 60.0])  # seconds: when a request last resumed here
three = replace(
    Columns.blank(3),
    accessed=last_used,
    path_accessed=last_used,  # the same, of all that ever lay below
    hits=np.array([0, 0, 40]),  # requests that resumed here so far
    flops_saved=np.array([5e12, 300e12, 20e12]),  # that a request saves by resuming here
    bytes_freed=np.array([50e6, 1000e6, 60e6]),  # that evicting it gives back
)
lru = build_eviction("lru")
for name, score in zip(names, lru.score(three, now=100.0), strict=True):
    print(f"{score:6.1f}  {name}")

# %% [markdown]
# `lru` looks at the time of the last use alone, and so the instructions that forty requests shared are the
# first to go. The other columns (`hybridcache/policies/columns.py` explains them all) know better.
#
# ## The idea
# What a request saves by resuming somewhere, in FLOPs, is the gain; the bytes it occupies are the price;
# and what was used often and lately will probably be used again soon. So: gain per byte, times the uses so
# far, divided by the time since the last one.


# %%
class FrequentValue(EvictionPolicy):
    """FLOPs saved per byte, times uses, by the seconds since the last one."""

    name = "frequent_value"

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        worth = columns.flops_saved / columns.bytes_freed
        uses = 1.0 + columns.hits
        age = 30.0 + now - columns.accessed
        return worth * uses / age


for name, score in zip(names, FrequentValue().score(three, now=100.0), strict=True):
    print(f"{score:10.0f}  {name}")

# %% [markdown]
# That is the policy, all of it. Now the chat goes first and the instructions last, as they should. But
# three rows that we made up prove nothing.
#
# ## The contest
# Six built-in workloads, from chats to tree search, each through a cache that is too small for it. A policy
# is passed to the cache as an object.

# %%
spec = model_of("nvidia_hybrid_7b")
workloads = ("chat", "agent", "few_shot", "rag", "tree_search", "scan")
traces = {kind: list(open_trace(kind, limit=200)) for kind in workloads}


def hit_rates(policy: EvictionPolicy, budget_gb: float = 2.0) -> list[float]:
    """Token hit rate, percent, on each workload."""
    rates = []
    for kind in workloads:
        policy.reset()
        cache = PrefixCache(
            spec, budget_bytes=budget_gb * 1e9, eviction=policy, admission=build_admission("branch_and_final")
        )
        rows = RequestRows(None)
        replay_cache(traces[kind], cache, spec, rows)
        rows.close()
        rates.append(100 * rows.totals.token_hit_rate)
    return rates


def ranking(found: Mapping[str, Sequence[float]]) -> list[tuple[float, str]]:
    """Points behind the best of all on each workload, in the mean; the best policy first."""
    rates = np.array(list(found.values()))
    behind = (rates.max(axis=0) - rates).mean(axis=1)
    return sorted(zip(behind.tolist(), found, strict=True))


contest = {name: hit_rates(build_eviction(name)) for name in ("lru", "gdsf", "age_density", "reuse_rate")}
contest[FrequentValue.name] = hit_rates(FrequentValue())

# %%
best = np.max(list(contest.values()), axis=0)
figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for shift, (policy, style) in enumerate(policy_styles(list(contest)).items()):
    places = np.arange(len(workloads)) + 0.12 * (shift - 2)
    axes.plot(best - contest[policy], places, style.marker, color=style.color, label=policy)
axes.set_yticks(range(len(workloads)), workloads)
axes.invert_yaxis()
axes.grid(axis="x", color="#e4e4e4")
axes.set_xlabel("points behind the best, in 2 GB")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()
for place, (behind, policy) in enumerate(ranking(contest), start=1):
    hit = np.mean(contest[policy])
    print(f"{place}. {policy:15} {hit:4.1f}% hit, {behind:4.1f} points behind the best, in the mean")

# %% [markdown]
# Two habits of honest contests are in these lines. The measure is the distance to the best on *each*
# workload, so that the easy ones do not drown the hard ones; and `reset` makes the policy forget between
# workloads, so that nobody profits from having been there before.
#
# ## Which of the three is it?
# Our score has three factors. Before we are proud of it, let us take away one at a time. If what is left is
# as good, the policy that says less is the better one.


# %%
class Without(FrequentValue):
    """The same without one of its factors."""

    name = "without"

    def __init__(self, factor: str) -> None:
        self.factor = factor

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        same = Columns.blank(len(columns.hits))
        if self.factor == "worth":
            columns = replace(columns, flops_saved=1.0 + same.flops_saved, bytes_freed=same.bytes_freed)
        if self.factor == "uses":
            columns = replace(columns, hits=same.hits)
        if self.factor == "age":
            columns = replace(columns, accessed=now + same.accessed)
        return super().score(columns, now)


ablation = {"all three": contest[FrequentValue.name]}
ablation |= {f"without {factor}": hit_rates(Without(factor)) for factor in ("worth", "uses", "age")}
whole = np.mean(ablation.pop("all three"))
change = {name: float(np.mean(rates) - whole) for name, rates in ablation.items()}

# %%
figure, axes = plt.subplots(figsize=(6.4, 1.8), layout="constrained")
axes.barh(list(change), list(change.values()), height=0.6)
axes.axvline(0, color="black", linewidth=1)
axes.invert_yaxis()
axes.set_xlabel("points of token hit rate, mean of six workloads, against all three factors")
plt.show()
for name, points in change.items():
    print(f"{name}: {points:+.1f} points")
print(f"the factor that carries most: {min(change, key=lambda name: change[name]).removeprefix('without ')}")

# %% [markdown]
# ## From here to a command
# Save the class in a file, `my_policies.py`, and every command knows it by its import path, in sweeps and
# reports too, beside the policies that come with the package:
#
# ```bash
# python -m hybridcache.experiments.replay -m trace=agent budget_gb=2,4,8 \
#     eviction.name=lru,reuse_rate,my_policies:FrequentValue hydra.sweep.dir=outputs/mine
# python -m hybridcache.experiments.report outputs/mine
# ```
#
# A policy may also learn. The cache tells it of every hit and every eviction (`on_hit`, `on_evict`), and of
# positions that come back after they went (`on_return`): `hybridcache/policies/hit_density.py` counts the
# first two, and `reuse_rate.py` all three.
#
# **What to keep in mind.** A policy is a function of columns. Write it in an afternoon, rank it on
# workloads that differ, and take it apart before you believe in it.
