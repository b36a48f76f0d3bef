"""What `hybridcache explain` found, for a terminal."""

from collections.abc import Mapping
from typing import Any

from hybridcache.cause import REMEDIES, Kind


def prompt_text(found: Mapping[str, Any], hardware: str) -> str:
    """One prompt: `Explanation.as_dict`."""
    lost = ", ".join(f"{tokens:,} {reason}" for reason, tokens in found["lost_tokens"].items())
    lines = [
        f"{found['num_prompt_tokens']:,} tokens: {found['num_cached_tokens']:,} cached; lost: {lost}",
        f"known up to |: ...{_one_line(found['text'])}...",
    ]
    cause = found["cause"]
    if cause is not None:
        lines += [
            f"cause: {cause['kind']}",
            f"  before: ...{_one_line(cause['before'])}...",
            f"  now:    ...{_one_line(cause['after'])}...",
            f"  remedy: {cause['remedy']}",
        ]
    elif found["forgotten_tokens"]:
        lines.append(
            f"cause: {found['forgotten_reason']}, {found['forgotten_tokens']:,} tokens of an earlier prompt"
        )
    lines.append(f"avoidable: {_cost(found, found['currency'], hardware)}")
    return "\n".join(lines)


def traffic_text(found: Mapping[str, Any], top: int) -> str:
    """All prompts, by template; ``top`` templates are shown."""
    prompt_tokens, currency, hardware = found["prompt_tokens"], found["currency"], found["hardware"]
    causes = [cause for template in found["templates"] for cause in template["causes"]]
    total = {key: sum(cause[key] for cause in causes) for key in ("avoidable_tokens", "seconds", "money")}
    share = 100 / max(prompt_tokens, 1)
    prices = f" at {found['prices']}'s prices" if found["prices"] else ""
    if found["least_tokens"]:
        prices += f" (which cache no prompt shorter than {found['least_tokens']:,} tokens)"
    lines = [
        f"{found['trace']}, {found['model']}: {found['requests']:,} prompts, {prompt_tokens:,} tokens",
        f"{share * found['cached_tokens']:.1f}% cached; avoidable: {share * total['avoidable_tokens']:.1f}%, "
        f"{_cost(total, currency, hardware)}{prices}",
    ]
    for template in found["templates"][:top]:
        lines += ["", *_template_lines(template, currency, hardware)]
    left = len(found["templates"]) - top
    if left > 0:
        lines += ["", f"and {left} more templates (--top {len(found['templates'])})"]
    return "\n".join(lines)


def _template_lines(template: Mapping[str, Any], currency: str | None, hardware: str) -> list[str]:
    rate = 100 * template["cached_tokens"] / max(template["prompt_tokens"], 1)
    name = f"template {template['template']}" + (f", salt {template['salt']}" if template["salt"] else "")
    lines = [
        f"{name}: {template['requests']:,} prompts, {template['prompt_tokens']:,} tokens, {rate:.1f}% cached",
        f"  begins: {_one_line(template['text'])}...",
    ]
    for cause in template["causes"]:
        kind = cause["kind"]
        lines.append(f"  {kind}: {cause['requests']:,} prompts, {_cost(cause, currency, hardware)}")
        if kind in set(Kind):
            lines += [
                f"    before: ...{_one_line(cause['before'])}...",
                f"    now:    ...{_one_line(cause['after'])}...",
                f"    remedy: {REMEDIES[Kind(kind)]}",
            ]
    return lines


def _cost(found: Mapping[str, Any], currency: str | None, hardware: str) -> str:
    money = "" if currency is None else f", {found['money']:.4g} {currency}"
    return f"{found['avoidable_tokens']:,} tokens, {found['seconds']:.3g} s of {hardware}{money}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
