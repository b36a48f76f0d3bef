# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Choose a cache size
#
# Memory for a prefix cache competes with the batch, and there is never enough. The useful question is not
# *how much hits the most* but *where the curve bends*. This notebook draws the curve for a workload and reads
# the answer off it.

# %%
from functools import partial

import matplotlib.pyplot as plt

from hybridcache.experiments.capacity_curve import Policies, estimate_curve
from hybridcache.experiments.describe import as_text, describe
from hybridcache.experiments.policy_style import policy_styles
from hybridcache.experiments.trace_command import model_of
from hybridcache.experiments.trace_sample import sample_trace
from hybridcache.experiments.traces.open import open_trace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache

spec = model_of("nvidia_hybrid_7b")
trace = open_trace("agent", limit=300)  # yours: open_trace("npz", path="mine.npz")
admission = build_admission("branch_and_final")
print(as_text(describe(trace, spec, admission)))

# %% [markdown]
# Two lines deserve a second look. *Everything* is what a cache would hold that never forgets. The *working
# set* is what a cache would hold that kept only what is used again, and dropped it after its last use: with
# foresight that is all the memory there is any use for. A real policy has no foresight; how close it comes is
# what we measure now.


# %%
def make_policies(eviction: str) -> Policies:
    """New ones, which have learnt nothing yet."""
    return Policies(build_eviction(eviction), build_admission("branch_and_final"))


def make_cache(budget_bytes: float, policies: Policies) -> PrefixCache:
    """A cache of so many bytes."""
    return PrefixCache(
        spec, budget_bytes=int(budget_bytes), eviction=policies.eviction, admission=policies.admission
    )


sample = sample_trace(trace, spec)
budgets = [gb * 1e9 for gb in (2, 4, 8, 16, 32)]
curves = {
    name: estimate_curve(sample, spec, partial(make_policies, name), make_cache, budgets)
    for name in ("lru", "reuse_rate")
}

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for name, style in policy_styles(list(curves)).items():
    rates = [100 * rate for rate in curves[name].rates]
    gigabytes = [budget / 1e9 for budget in curves[name].budgets]
    axes.plot(gigabytes, rates, color=style.color, marker=style.marker, linestyle=style.line, label=name)
axes.axhline(100 * curves["lru"].bound, color="grey", linestyle="--", label="infinite cache")
axes.set_xscale("log", base=2)
axes.set_xticks(gigabytes, [f"{budget:g}" for budget in gigabytes])
axes.set_xlabel("budget (GB, log scale)")
axes.set_ylabel("token hit rate (%)")
axes.legend(frameon=False)
plt.show()
for name, curve in curves.items():
    needed = curve.budget_for(0.8 * curve.bound)
    answer = "more than shown" if needed is None else f"{needed / 1e9:.3g} GB"
    print(f"{name}: {answer} for 80% of the bound")

# %% [markdown]
# Below the bend every gigabyte is felt, above it hardly any. A better policy moves the bend to the left: it
# is memory that you need not buy. On large traces `sample_trace` keeps one session in up to 12 and the
# same curve costs a tenth of the time; `python -m hybridcache.experiments.capacity` does all of this from the
# command line, with the memory that several GPUs leave beside the model's weights.
#
# **What to keep in mind.** Find the bend, stay a little above it, and spend what is left on the batch.
