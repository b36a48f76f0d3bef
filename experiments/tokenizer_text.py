"""Seeded text to train the tokenizer of the presets on: prose, chat, code, JSON and Markdown from word lists.

The text means nothing. What counts is that common English words, their endings, identifiers, numbers and
punctuation occur about as often as in chats, so that ordinary prompts do not fall apart into bytes.
"""

import random
from collections.abc import Iterator

_FUNCTION_WORDS = """
the of and to a in is it you that he was for on are with as I his they be at one have this from or had by
hot but some what there we can out other were all your when up use word how said an each she which do their
time if will way about many then them would write like so these her long make thing see him two has look
more day could go come did my no most who over know than call first people may down side been now find any
new work part take get place made where after back little only round man year came show every good me give
our under very through just form much great think say help low line before turn cause same mean differ move
right boy old too does tell sentence set three want air well also play small end put home read hand port
large spell add even land here must big high such follow act why ask men change went light kind off need
house picture try us again animal point mother world near build self
"""
_CONTENT_WORDS = """
account action address advice agent airport amount answer article author average balance bank base battery
benefit block board book booking bottle branch bridge budget building business buffer button byte cache
camera cancel card case category center chance channel chapter charge chart check child choice choose circle
city class clean clear client clock close cloud code coffee color column command comment common community
company compare complete compute computer condition confirm connect consider contact contain content context
continue control convert cook copy core correct cost count country course cover create credit current
customer cycle data database date deal decide decode deep default define delay delete deliver demand depend
describe design detail develop device direct discount discuss distance document dollar door double draft
draw dream drive driver early earth easy economy edge edit effect effort element email employee empty enable
energy engine enjoy enter error escape estimate event example except exchange exist expect expensive
experience explain express extend extra factor fail fair family farm fast father feature field figure file
fill filter final fine finish fire fix flight floor flow food force forest format forward free fresh friend
front full function future game garden general gift glass global goal gold government graph green ground
group grow guess guide half happen happy hard hardware head health hear heart heat heavy history hold
holiday hope hospital hotel hour human idea image important improve include increase index industry inform
initial input insert inside instance instead interest internal internet into invoice island issue item join
journey judge jump keep key kitchen knowledge language last late later latency laugh layer lead learn least
leave left legal length lesson letter level library life limit link list listen load local location lock log
loop lose love machine main manage manager market match material matter measure medium meet meeting member
memory mention menu message method middle minute mirror miss mix mobile mode model modern module moment
money month morning mountain mouth music name nation nature network never next night node noise normal north
note nothing notice number object offer office often open operation option order origin output outside owner
page paint pair paper parent park pass password path pattern pay payment perfect perform person phone photo
phrase piece plan plane plant plate please pocket policy popular position possible power practice prefer
prefix prepare present press pretty price print private problem process product program project prompt
protect prove provide public purchase purpose push quality query question queue quick quiet quite random
range rate rather reach ready real reason receive recent recipe record reduce refer refund region register
regular relate release remain remember remove repeat replace reply report request require reserve reset
resource response rest result resume return review rich ride river road role room root route rule run safe
sale salt sample save scale scan schedule school science score screen search season seat second secret
section secure seem select send sense separate sequence series serve server service session several shape
share ship shop short should shoulder sign signal silver similar simple since single site size skill sleep
slot slow smart smile snow social software soil solve song sort sound source south space speak special speed
spend spring square stable staff stage stand standard star start state station status stay steel step stick
still stone stop storage store story straight strange stream street strong student study style subject
succeed success sugar suggest summer supply support sure surface surprise switch system table talk target
task teach teacher team technology temperature test text thank theory ticket title today together token
tomorrow tool topic total touch toward town track trade traffic train training transfer travel tree trip
trouble true trust truth type understand union unit until update upgrade upload upon usage user usual valid
value vector version video view village visit voice volume wait walk wall warm watch water wave weather week
weight welcome west wheel while white whole window winter wish within without woman wonder wood worker worth
write wrong yesterday young zero zone
"""
_ENDINGS = ("", "", "", "", "", "s", "s", "ed", "ing", "er", "ly", "ment", "'s")
_CODE_WORDS = """
self None True False int str float bool list dict tuple range len print import from return raise assert
class def for in if elif else while with yield lambda try except async await const let var function null
true false void public static struct args kwargs config index value key result data name path size shape
dtype batch state node root head tail
"""
_STOPS = (".", ".", ".", ".", "?", "!", ":", ";", "...")


def training_text(seed: int = 0, *, num_pieces: int = 12_000) -> Iterator[str]:
    """Yields `num_pieces` short pieces of text; the same ones for the same seed."""
    writer = _Writer(random.Random(seed))
    kinds = (writer.paragraph, writer.paragraph, writer.code, writer.json, writer.markdown)
    for piece in range(num_pieces):
        yield kinds[piece % len(kinds)]()


class _Writer:
    """Draws words by rank (the more frequent the earlier in its list) and puts them into shapes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._function = _FUNCTION_WORDS.split()
        self._content = _CONTENT_WORDS.split()
        self._code = _CODE_WORDS.split()
        rng.shuffle(self._content)

    def _word(self) -> str:
        rng = self._rng
        if rng.random() < 0.5:
            return self._function[int(len(self._function) * rng.random() ** 2)]
        return self._content[int(len(self._content) * rng.random() ** 1.2)] + rng.choice(_ENDINGS)

    def _number(self) -> str:
        rng = self._rng
        digits = rng.choice((1, 1, 2, 2, 3, 4, 5))
        whole = rng.randrange(10**digits)
        return rng.choice(
            (f"{whole}", f"{whole:,}", f"{whole}.{rng.randrange(100):02}", f"${whole}", f"{whole}%")
        )

    def _sentence(self) -> str:
        rng = self._rng
        words = [self._word() for _ in range(rng.randrange(4, 18))]
        words[0] = words[0].capitalize()
        if rng.random() < 0.3:
            words.insert(rng.randrange(1, len(words)), self._number())
        if rng.random() < 0.4:
            place = rng.randrange(len(words) - 1)
            words[place] += rng.choice((",", ",", " -", '"'))
        return " ".join(words) + rng.choice(_STOPS)

    def paragraph(self) -> str:
        """A few sentences."""
        return " ".join(self._sentence() for _ in range(self._rng.randrange(1, 5))) + "\n"

    def _identifier(self) -> str:
        rng = self._rng
        first, second = rng.choice(self._content), rng.choice(self._content)
        return rng.choice(
            (first, f"{first}_{second}", f"{first}{second.capitalize()}", rng.choice(self._code))
        )

    def code(self) -> str:
        """A function in something like Python, a few lines."""
        rng = self._rng
        lines = [f"def {self._identifier()}({self._identifier()}, {self._identifier()}=None):"]
        for _ in range(rng.randrange(2, 8)):
            indent = "    " * rng.randrange(1, 4)
            name, other = self._identifier(), self._identifier()
            statement = rng.choice(
                (
                    f"{name} = {other}[{rng.randrange(16)}]",
                    f"if {name} == {self._number()}:",
                    f"for {name} in range(len({other})):",
                    f"return {name}.{other}({self._identifier()})",
                    f'raise ValueError(f"{name} is {{{other}}}")',
                    f"{name} += {other} * {rng.randrange(100)}  # {self._word()} {self._word()}",
                    f"self.{name} = {{'{other}': {rng.choice(('True', 'False', 'None'))}}}",
                )
            )
            lines.append(indent + statement)
        return "\n".join(lines) + "\n\n"

    def json(self) -> str:
        """An object as a tool call or its answer has it."""
        rng = self._rng
        fields = [
            f'"{self._identifier()}": '
            + rng.choice((f'"{self._word()} {self._word()}"', str(rng.randrange(1000)), "null", "true", "[]"))
            for _ in range(rng.randrange(1, 6))
        ]
        return '{"name": "' + self._identifier() + '", "arguments": {' + ", ".join(fields) + "}}\n"

    def markdown(self) -> str:
        """A heading, a list, an address."""
        rng = self._rng
        items = [f"{rng.choice(('-', '*', '1.'))} **{self._word()}**: {self._sentence()}" for _ in range(3)]
        path = "/".join(self._identifier() for _ in range(rng.randrange(1, 4)))
        return f"## {self._sentence()}\n\n" + "\n".join(items) + f"\n\n`{path}.py`\n"
