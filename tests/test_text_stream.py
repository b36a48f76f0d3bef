"""Text while its tokens come."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from hybridcache.models.chat_tokens import TOKENIZER_FOLDER
from hybridcache.stop_texts import StopTexts
from hybridcache.text_stream import TextStream


def decode(token_ids: Sequence[int]) -> str:
    """Token ids below 256 are bytes; 256 is a special token, which has no text."""
    return bytes(token for token in token_ids if token < 256).decode("utf-8", "replace")


def decode_words(token_ids: Sequence[int]) -> str:
    """As tokenizers that mark the beginnings of words do: the first one's space goes."""
    return "".join((" one", " two", "ly", " £")[token] for token in token_ids).removeprefix(" ")


def byte_fallback() -> Tokenizer:
    """As Llama's, Mistral's and Jamba's: what has no token of its own is written in bytes, a token each.

    A byte that is no text makes its decoder give up the whole run of bytes that it is in.
    """
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdé日.", "▁a", "ab"]
    vocab = {word: index for index, word in enumerate(words)}
    found = Tokenizer(models.BPE(vocab, [("▁", "a"), ("a", "b")], unk_token="<unk>", byte_fallback=True))
    found.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    found.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    found.add_special_tokens(["<s>", "</s>"])
    return found


def read(stream: TextStream, token_ids: Sequence[int]) -> list[str]:
    """What the client had after each token, and after the end."""
    had = []
    for token in token_ids:
        stopped = stream.read(token)
        had.append(stream.text())
        if stopped:
            break
    stream.close()
    return [*had, stream.text()]


@given(st.lists(st.integers(0, 256), max_size=60))
@settings(max_examples=100, deadline=None)
def test_bytes_in_any_order_give_the_text_of_all(token_ids: list[int]) -> None:
    stream = TextStream(decode)
    had = read(stream, token_ids)
    assert had[-1] == decode(token_ids)
    assert stream.num_given == len(token_ids)
    for before, after in pairwise(had):
        assert after.startswith(before)


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_the_text_is_cut_at_the_stop_that_comes_first(text: str, stop: list[str]) -> None:
    # One byte a token: of stops that end at different places the first to end is found.
    stream = TextStream(decode, stop)
    had = read(stream, list(text.encode()))
    ends = [text.index(each) + len(each) for each in stop if each in text]
    if not ends:
        assert stream.stopped_at is None and had[-1] == text
        return
    shortest = text[: min(ends)]
    assert had[-1] == shortest[: min(shortest.index(each) for each in stop if each in shortest)]
    assert all(had[-1].startswith(before) for before in had)


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    st.text("abc", max_size=30),
    st.sets(st.integers(1, 29), max_size=6),
)
def test_stops_are_found_as_by_looking_at_everything_again(
    stops: list[str], text: str, cuts: set[int]
) -> None:
    stops_found, had = StopTexts(stops), 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        seen = text[:cut]
        ended = [s for s in stops if any(seen[:end].endswith(s) for end in range(had + 1, cut + 1))]
        found = stops_found.read(text[had:cut])
        begins = {
            s: next(i for i in range(cut) if i + len(s) > had and seen.startswith(s, i)) for s in ended
        }
        if ended:
            assert found is not None and found.at == min(begins.values())
            assert len(found.stop) == max(len(s) for s in ended if begins[s] == found.at)
        else:
            assert found is None
        held = [n for s in stops for n in range(1, len(s)) if seen.endswith(s[:n])]
        assert stops_found.num_begun == max(held, default=0)
        had = cut


@given(st.lists(st.sampled_from(b"ab"), max_size=30))
def test_what_was_given_is_never_taken_back(token_ids: list[int]) -> None:
    stream = TextStream(decode, ("abab", "bbb"))
    given_tokens = [0]
    for token in token_ids:
        if stream.read(token):
            break
        given_tokens.append(stream.num_given)
    assert given_tokens == sorted(given_tokens)
    assert stream.num_given >= given_tokens[-1]
    if stream.stopped_at is not None:
        assert decode(token_ids[: stream.num_given]) == stream.text()


@given(
    st.text("ab é日本語🎉👩\u200d\n\x00", max_size=20),
    st.lists(st.text("a本🎉\n", min_size=1, max_size=2), max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_bytes_that_are_tokens_become_characters(text: str, stops: list[str]) -> None:
    tokenizer = byte_fallback()
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokens) == text
    stream = TextStream(tokenizer.decode)
    had = read(stream, tokens)
    assert had[-1] == text and stream.num_given == len(tokens)
    assert all(text.startswith(each) for each in had)
    cut = read(TextStream(tokenizer.decode, stops), tokens)[-1]
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        shortest = text[: min(ends)]
        assert cut == shortest[: min(shortest.index(stop) for stop in stops if stop in shortest)]
    else:
        assert cut == text


@given(st.lists(st.integers(3, 258), max_size=40))
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_text_end(token_ids: list[int]) -> None:
    """What they are is told soon, and never changes."""
    decode = byte_fallback().decode
    stream, had = TextStream(decode), [""]
    for number, token in enumerate(token_ids, 1):
        stream.read(token)
        had.append(stream.text())
        assert had[-1].startswith(had[-2]) and stream.num_given >= number - 3
    stream.close()
    assert stream.text().startswith(had[-1]) and stream.num_given == len(token_ids)
    assert "\N{REPLACEMENT CHARACTER}" in (decoded := decode(token_ids)) or stream.text() == decoded


def test_a_character_that_runs_into_the_next_is_told_once() -> None:
    """The last token ends a character and begins another; no part of it is given up before it is whole."""
    pieces = (b"\xf1", b"\x97", b"\xb4", b"\x8e\x89", b"\x18", b"i")

    def decode_pieces(token_ids: Sequence[int]) -> str:
        return b"".join(pieces[token] for token in token_ids).decode("utf-8", "replace")

    assert read(TextStream(decode_pieces), range(6))[-1] == decode_pieces(range(6))


def test_an_answer_goes_on_from_its_prompt() -> None:
    """The space before the first word is part of the text, unless the answer begins anew."""
    tokenizer = byte_fallback()
    ids = tokenizer.get_vocab()
    word, inner = [ids["▁a"], ids["b"]], [ids["ab"], ids["▁a"]]
    for before in ("a", "▁a", "日", "<0x0A>"):
        for tokens, text in ((word, " ab"), (inner, "ab a")):
            stream = TextStream(tokenizer.decode, before=ids[before])
            assert read(stream, tokens)[-1] == text and stream.num_given == 2
    # Behind a special token, or within a character, it begins anew; as without a prompt.
    for hidden in (ids["<s>"], ids["<0xE6>"], None):
        stream = TextStream(tokenizer.decode, before=hidden)
        assert read(stream, word)[-1] == "ab" and stream.num_given == 2
    stream = TextStream(tokenizer.decode, [" a"], min_tokens=3, before=ids["a"])
    assert read(stream, word * 2)[-1] == " ab" and stream.num_given == 2


def test_the_real_tokenizer() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FOLDER / "tokenizer.json"))
    for text in ("naïve café 日本語 🙂🙂 fine", "a\n\n  b\t", "<|user|>hi<|end|>there"):
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        assert read(TextStream(tokenizer.decode), tokens)[-1] == tokenizer.decode(tokens)


def test_a_tokenizer_that_strips_the_first_space() -> None:
    tokens = [0, 1, 2, 3, 0, 0] * 10
    assert read(TextStream(decode_words), tokens)[-1] == decode_words(tokens)


def test_a_character_is_given_when_it_is_whole() -> None:
    euro = "€".encode()
    stream = TextStream(decode)
    assert read(stream, [*b"a", *euro]) == ["a", "a", "a", "a€", "a€"]


def test_tokens_of_an_incomplete_character_are_not_given() -> None:
    stream = TextStream(decode)
    for token in (*b"a", *"€".encode()[:2]):
        stream.read(token)
    assert (stream.text(), stream.num_given) == ("a", 1)
    stream.close()
    assert (stream.text(), stream.num_given) == ("a\N{REPLACEMENT CHARACTER}", 3)


def test_a_possible_stop_is_held_back() -> None:
    assert read(TextStream(decode, ["xyz"]), list(b"axyaxy")) == [
        "a",
        "a",
        "a",
        "axya",
        "axya",
        "axya",
        "axyaxy",
    ]


def test_of_overlapping_stops_the_longest_possible_beginning_is_held_back() -> None:
    assert read(TextStream(decode, ["bcd", "abce"]), list(b"abcf")) == ["", "", "", "abcf", "abcf"]


def test_a_stop_within_a_token() -> None:
    words = {0: "one ", 1: "two. Three", 2: " four"}
    stream = TextStream(lambda ids: "".join(words[i] for i in ids), [". "])
    assert read(stream, [2, 0, 1])[-1] == " fourone two"
    # The token that holds the stop is cut in two: nobody can send it back.
    assert (stream.stopped_at, stream.num_given) == (". ", 2)


def test_a_stop_spread_over_tokens() -> None:
    words = {0: "one", 1: "##", 2: "#two"}
    stream = TextStream(lambda ids: "".join(words[i] for i in ids), ["###"])
    assert read(stream, [0, 1, 2]) == ["one", "one", "one", "one"]
    assert stream.num_given == 1


def test_stops_before_min_tokens_do_not_count() -> None:
    stream = TextStream(decode, ["b"], min_tokens=4)
    assert read(stream, list(b"abbcab"))[-1] == "abbca"


def test_text_from_a_character_on() -> None:
    stream = TextStream(decode)
    read(stream, list(b"abcdef"))
    assert stream.text(4) == "ef"


def test_reading_on_after_the_end_is_a_mistake() -> None:
    stream = TextStream(decode)
    stream.close()
    with pytest.raises(AssertionError, match="ended"):
        stream.read(97)
