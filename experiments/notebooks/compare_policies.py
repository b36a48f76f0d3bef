# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Compare eviction policies on your own trace
#
# Every paper on caches has a figure in which its policy is the highest line. The figure is true, of the
# requests that the paper replayed. Yours come at other times, share other texts and end after other numbers
# of turns, and the order of the lines depends on all three. The only figure to trust is the one drawn from
# your own requests. This notebook draws it, and then asks the question that is asked too seldom: would it
# look the same tomorrow?

# %%
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.describe import as_text, describe
from hybridcache.experiments.policy_style import policy_styles
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.trace_command import model_of
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import Trace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache

spec = model_of("nvidia_hybrid_7b")
trace = open_trace("chat", limit=300)  # yours: open_trace("npz", path="mine.npz")
print(as_text(describe(trace, spec, build_admission("branch_and_final"))))

# %% [markdown]
# Read this before any figure. It says how much there is to win at all: *bound* is what a cache would hit
# that never forgets. And it says where the contest takes place: with more memory than *everything* takes,
# all policies are alike, and so are they with next to none. Budgets worth comparing lie in between.
#
# ## The figure
# A replay runs every request of the trace through the same cache that serves real models, without a model.
# We keep a row a request.


# %%
def replayed(trace: Trace, eviction: str, budget_gb: float) -> dict[str, NDArray[Any]]:
    """The columns of requests.parquet, of a replay through a cache of so many gigabytes."""
    cache = PrefixCache(
        spec,
        budget_bytes=budget_gb * 1e9,
        eviction=build_eviction(eviction),
        admission=build_admission("branch_and_final"),
    )
    parts: list[dict[str, NDArray[Any]]] = []
    rows = RequestRows(None, parts.append)
    replay_cache(trace, cache, spec, rows)
    rows.close()
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def hit_rate(rows: dict[str, NDArray[Any]]) -> float:
    """Percent of the input tokens that need not be computed."""
    return 100 * float(rows["hit_tokens"].sum() / rows["prompt_tokens"].sum())


policies = ("lru", "gdsf", "age_density", "reuse_rate")
budgets = (1.0, 2.0, 4.0, 8.0)
runs = {(policy, budget): replayed(trace, policy, budget) for policy in policies for budget in budgets}
bound = hit_rate(replayed(trace, "lru", float("inf")))

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for policy, style in policy_styles(list(policies)).items():
    rates = [hit_rate(runs[policy, budget]) for budget in budgets]
    axes.plot(budgets, rates, color=style.color, marker=style.marker, linestyle=style.line, label=policy)
axes.axhline(bound, color="grey", linewidth=1, label="infinite cache")
axes.set_xscale("log", base=2)
axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
axes.set_xlabel("budget (GB, log scale)")
axes.set_ylabel("token hit rate (%)")
axes.set_ylim(0, 1.05 * bound)
axes.legend(frameon=False)
plt.show()
leaders = {budget: max(policies, key=lambda policy: hit_rate(runs[policy, budget])) for budget in budgets}
for budget, leader in leaders.items():
    print(f"{budget:g} GB: {leader} leads with {hit_rate(runs[leader, budget]):.1f}%")

# %% [markdown]
# The highest line is not yet the answer. How far is it above the next one, and how much of that distance is
# the luck of these sessions?
#
# ## Would it look the same tomorrow?
# Tomorrow brings other sessions of the same kind. We cannot have them, but we can imitate them: draw as
# many sessions as there are, with replacement, from those we have, and compute the difference between two
# policies on them; do that a thousand times (Efron's bootstrap). We draw whole sessions, since the requests
# of one belong together, and take both policies on the same draw, since a session that is hard for one is
# hard for the other.


# %%
def lead(first: dict[str, NDArray[Any]], second: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The 2.5th, 50th and 97.5th percentile of how many points ``first`` is above ``second``."""
    _, session = np.unique(first["session"], return_inverse=True)
    tokens = np.bincount(session, first["prompt_tokens"])
    more = np.bincount(session, first["hit_tokens"] - second["hit_tokens"])
    draws = np.random.default_rng(0).integers(len(tokens), size=(1_000, len(tokens)))
    points: NDArray[np.float64] = np.percentile(
        100 * more[draws].sum(axis=1) / tokens[draws].sum(axis=1), [2.5, 50, 97.5]
    )
    return points


budget = 4.0
leader = leaders[budget]
others = [policy for policy in policies if policy != leader]
leads = np.array([lead(runs[leader, budget], runs[policy, budget]) for policy in others])

# %%
figure, axes = plt.subplots(figsize=(6.4, 1.8), layout="constrained")
middle = leads[:, 1]
spread = [middle - leads[:, 0], leads[:, 2] - middle]
axes.errorbar(middle, range(len(others)), xerr=spread, fmt="o", capsize=4)
axes.axvline(0, color="grey", linewidth=1)
axes.set_yticks(range(len(others)), others)
axes.set_ylim(-0.5, len(others) - 0.5)
axes.set_xlabel(f"points that {leader} is above, at {budget:g} GB (95% interval)")
plt.show()
for policy, (low, _, high) in zip(others, leads, strict=True):
    verdict = "ahead" if low > 0 else "not told apart on this trace"
    print(f"{leader} against {policy}: {low:+.1f} to {high:+.1f} points, {verdict}")

# %% [markdown]
# Where an interval holds zero, the trace cannot tell the two apart, whatever the figure above suggests:
# take the simpler policy, or a longer trace. Two things the intervals leave out: sessions share the cache,
# so they are not quite independent; and the leader was picked on these very sessions, which flatters it a
# little. A second trace from another day is the better judge. Here the generator can make one.

# %%
for seed in (1, 2):
    other_day = open_trace("chat", limit=300, seed=seed)
    found = {policy: hit_rate(replayed(other_day, policy, budget)) for policy in policies}
    order = ", ".join(f"{policy} {found[policy]:.1f}%" for policy in sorted(found, key=lambda p: -found[p]))
    print(f"day {seed}: {order}")

# %% [markdown]
# ## Who gets the difference?
# A mean hides whom it is made of. Let us split the requests by their turn in the conversation, and set the
# leader beside the policy at the other end.

# %%
last = min(policies, key=lambda policy: hit_rate(runs[policy, budget]))
turns = np.arange(6)
figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for offset, policy, hatch in ((-0.2, leader, ""), (0.2, last, "//")):
    rows = runs[policy, budget]
    turn = np.minimum(rows["turn"], turns[-1])
    hit, tokens = (np.bincount(turn, rows[name], len(turns)) for name in ("hit_tokens", "prompt_tokens"))
    axes.bar(
        turns + offset,
        100 * hit / np.maximum(tokens, 1),
        width=0.4,
        label=policy,
        hatch=hatch,
        edgecolor="white",
    )
axes.set_xticks(turns, [*(str(turn + 1) for turn in turns[:-1]), f"{turns[-1] + 1} and later"])
axes.set_xlabel("turn of the conversation")
axes.set_ylabel("token hit rate (%)")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# First turns can hit only what sessions share; all later ones live on whether their own past is still
# there. Two policies with one mean can serve quite different people: one may keep a few long conversations
# whole, the other a little of each.
#
# The same comparison, from the command line and on all cores, with a folder for each run and a report:
#
# ```bash
# python -m hybridcache.experiments.replay -m trace=npz trace.path=mine.npz budget_gb=1,2,4,8 \
#     eviction=lru,gdsf,age_density,reuse_rate hydra.sweep.dir=outputs/mine
# python -m hybridcache.experiments.report outputs/mine
# ```
#
# **What to keep in mind.** Compare on your own requests, at budgets where there is something to decide, and
# give every difference its interval before you believe it.
