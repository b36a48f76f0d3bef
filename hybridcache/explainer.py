"""Explains prompts: the cache says where a prefix was lost, the prompts of before say why."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from hybridcache.cause import Cause, find_cause
from hybridcache.divergence import Decode, Divergence
from hybridcache.explanation import EXPIRED, FIXABLE, FORGOTTEN, Explanation, TemplateTotals
from hybridcache.hardware import HardwareProfile
from hybridcache.prices import Prices
from hybridcache.prompt_log import PromptLog, PromptRecord, common_tokens
from hybridcache.spec import ModelSpec

TEMPLATE_TOKENS = 24
"""Prompts that begin with so many equal tokens are taken to be of one template."""
_MOST_TEMPLATES = 1_000
_TEXT_TOKENS = 16


class Explainer:
    """Remembers prompts, explains one against those before it, and adds up what it explained.

    ``decode`` turns tokens into text (None: causes that show in text alone are not named); ``hardware`` and
    ``prices`` turn tokens into seconds and money. Not thread-safe. Raises ValueError for what is neither.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        decode: Decode | None = None,
        hardware: HardwareProfile | None = None,
        prices: Prices | None = None,
        log: PromptLog | None = None,
    ) -> None:
        for name, value, kind in (("hardware", hardware, HardwareProfile), ("prices", prices, Prices)):
            if not isinstance(value, kind | None):
                raise ValueError(f"{name}={value!r}: give a {kind.__name__}, or None")
        self._spec = spec
        self._decode = decode
        self._hardware, self._prices = hardware, prices
        self._log = PromptLog() if log is None else log
        self._templates: WeakKeyDictionary[PromptRecord, int] = WeakKeyDictionary()
        self._num_templates = 0
        self._totals: dict[tuple[str, int], TemplateTotals] = {}

    def add(self, record: PromptRecord) -> Explanation:
        """Explain a prompt that was sent, count it, and remember it."""
        explanation = self.explain(record)
        if explanation.template == self._num_templates:
            self._num_templates += 1
        salt, template = record.namespace.salt, explanation.template
        totals = self._totals.get((salt, template))
        if totals is None:
            totals = TemplateTotals(salt, template, self._text(record.tokens[: 2 * _TEXT_TOKENS].tolist()))
            if len(self._totals) < _MOST_TEMPLATES:
                self._totals[salt, template] = totals
        totals.add(explanation)
        self._templates[record] = template
        self._log.add(record)
        return explanation

    def explain(self, record: PromptRecord) -> Explanation:
        """Explain a prompt; remembers nothing."""
        near = self._log.nearest(record.tokens, record.namespace)
        cause, broken = self._cause(record, near)
        template = self._template(record, near if broken is None else [broken, *near])
        unseen = record.lost.get("diverged", 0) + record.lost.get("new", 0)
        lost_by_cache = sum(record.lost.get(reason, 0) for reason in FIXABLE)
        forgotten, forgotten_reason = self._forgotten(record, near)
        avoidable = min(cause.avoidable_tokens, unseen) if cause else 0
        if not avoidable:
            cause, avoidable = None, lost_by_cache + forgotten
        seconds = money = None
        if self._hardware is not None:
            start = record.hit
            seconds = self._spec.flops(start, start + avoidable) / self._hardware.flops_per_second
        if self._prices is not None:
            long_enough = len(record.tokens) >= self._prices.least_tokens
            money = self._prices.of_missed(avoidable, seconds) if long_enough else 0.0
        return Explanation(
            len(record.tokens),
            record.hit,
            record.matched,
            record.lost,
            cause,
            self._around(record),
            forgotten,
            forgotten_reason,
            avoidable,
            seconds,
            money,
            None if self._prices is None else self._prices.currency,
            template,
        )

    @property
    def totals(self) -> list[TemplateTotals]:
        """Of all prompts added, by namespace and template; what lost most comes first."""

        def avoidable(totals: TemplateTotals) -> int:
            return sum(cause.avoidable_tokens for cause in totals.causes.values())

        return sorted(self._totals.values(), key=lambda totals: (-avoidable(totals), totals.template))

    def _cause(
        self, record: PromptRecord, near: Sequence[PromptRecord]
    ) -> tuple[Cause | None, PromptRecord | None]:
        """The cause and the prompt that shows it."""
        for reference in near:
            found = Divergence(record, reference, self._decode)
            if found.continues:
                return None, None
            cause = find_cause(found)
            if cause is not None:
                return cause, reference
        return None, None

    @staticmethod
    def _forgotten(record: PromptRecord, near: Sequence[PromptRecord]) -> tuple[int, str]:
        """Tokens beyond what the cache knows, or remembers, that an earlier prompt begins with too; and why.

        The cache remembers the ends of paths that went, and nothing of a prompt that left one in between.
        """
        unseen = record.lost.get("diverged", 0) + record.lost.get("new", 0)
        known = len(record.tokens) - unseen
        shared = [
            (min(common_tokens(record.tokens, reference.tokens), len(record.tokens) - 1), reference)
            for reference in near
        ]
        beyond = [reference for size, reference in shared if size > known]
        expired = bool(beyond) and all(reference.expires_at <= record.looked_at for reference in beyond)
        most = max((size for size, _ in shared), default=0)
        return max(most - known, 0), EXPIRED if expired else FORGOTTEN

    def _template(self, record: PromptRecord, near: Sequence[PromptRecord]) -> int:
        """The number of the template, the next one for a new one."""
        for place, reference in enumerate(near):
            shared = common_tokens(record.tokens, reference.tokens)
            whole = shared == min(len(record.tokens), len(reference.tokens))
            broken = place == 0 and reference in near[1:]
            if (shared >= TEMPLATE_TOKENS or whole or broken) and reference in self._templates:
                return self._templates[reference]
        return self._num_templates

    def _around(self, record: PromptRecord) -> str:
        at = record.matched
        if at >= len(record.tokens):
            return ""
        before = self._text(record.tokens[max(at - _TEXT_TOKENS, 0) : at].tolist())
        return f"{before}|{self._text(record.tokens[at : at + _TEXT_TOKENS].tolist())}"

    def _text(self, tokens: Sequence[int]) -> str:
        return self._decode(tokens) if self._decode else " ".join(map(str, tokens))
