# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # What a hybrid cache stores, and why hits are lost
#
# A language model reads a prompt token by token and keeps what it may need later. An attention layer keeps a
# key and a value for every token; whoever sends the same beginning again can use as many of them as agree. A
# recurrent layer keeps one state, written over at every token. It can be taken up again only where somebody
# made a copy: at a *checkpoint*. This notebook follows a few chats through a cache that has to live with
# both.

# %%
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.trace_command import model_of
from hybridcache.experiments.traces.open import open_trace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache

spec = model_of("nvidia_hybrid_7b")
print(f"one token's KV: {spec.kv_bytes_per_token:,} bytes")
worth = spec.checkpoint_bytes / spec.kv_bytes_per_token
print(f"one checkpoint: {spec.checkpoint_bytes:,} bytes, as much as {worth:.0f} tokens")

# %% [markdown]
# A checkpoint is heavy, so one cannot be kept everywhere. The rule `branch_and_final` keeps one where a
# request ends, for the next turn of its chat, and one where a prompt leaves a path that is known already, for
# others that will leave it there too.
#
# ## One number hides five stories
# Let us replay 300 requests of the built-in chat workload under five budgets, and ask of every input token
# what became of it.


# %%
def replayed(kind: str, budget_gb: float, admission: str = "branch_and_final") -> RequestRows:
    """The rows of a replay through a cache of so many gigabytes."""
    cache = PrefixCache(
        spec,
        budget_bytes=int(budget_gb * 1e9),
        eviction=build_eviction("age_density"),
        admission=build_admission(admission),
    )
    rows = RequestRows(None)
    replay_cache(open_trace(kind, limit=300), cache, spec, rows)
    rows.close()
    cache.check()
    return rows


budgets = (1.0, 2.0, 4.0, 8.0, 16.0)
runs = [replayed("chat", budget) for budget in budgets]
for budget, run in zip(budgets, runs, strict=True):
    print(f"{budget:4g} GB: {100 * run.totals.token_hit_rate:.1f}% of the tokens hit")

# %%
parts: dict[str, Sequence[float]] = {"hit": [run.totals.hit_tokens for run in runs]}
for reason in runs[0].totals.lost_tokens:
    parts[reason] = [run.totals.lost_tokens[reason] for run in runs]
total = runs[0].totals.input_tokens
base = np.zeros(len(budgets))
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, tokens in parts.items():
    share = 100 * np.array(tokens) / total
    if share.max() > 0.1:
        axes.bar([f"{budget:g}" for budget in budgets], share, bottom=base, label=name)
        base += share
axes.set_xlabel("budget (GB)")
axes.set_ylabel("% of input tokens")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
plt.show()

# %% [markdown]
# The grey top is text that nobody had said before: no cache can hit it. Everything between it and the hits is
# the cache's doing. In a small cache most of it is `kv_evicted`: the chat went on after its history had gone.
# As memory grows that part melts away, and what is left is the price of the recurrent layers: tokens whose KV
# is there, but no checkpoint (`no_checkpoint`).
#
# ## Where checkpoints are taken matters as well
# With memory to spare, only admission decides. `final_only` keeps none where prompts part.

# %%
rules = ("final_only", "branch_and_final", "branch_final_prompt")
for kind in ("chat", "few_shot"):
    for rule in rules:
        totals = replayed(kind, 200.0, admission=rule).totals
        lacking = totals.lost_tokens["no_checkpoint"]
        print(f"{kind:9} {rule:20} {100 * totals.token_hit_rate:5.1f}% hit, {lacking:8,} lack a checkpoint")

# %% [markdown]
# Chats lose the instructions that they share, and little else, for a chat goes on where it ended. Few-shot
# prompts live on what others began: without a checkpoint at the branch point nothing of their shared examples
# can be used, although all of it lies in memory.
#
# **What to keep in mind.** A hybrid cache answers three questions where a plain one answers one: which KV to
# keep, where to take checkpoints, and which of the two to give up next. Ask *why* tokens were lost before
# buying memory: only `kv_evicted` and `checkpoint_evicted` are cured by it.
