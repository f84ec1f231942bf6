"""Tokens of an emulated model: each is drawn by a hash of all ids before it, and together they are sentences.

An answer resumed from wrong ids, or with one id lost or doubled, differs from there on, so that a test which
compares tokens finds it.

A sentence is `Every busy engine serves a long request because some agent waits.` A word is chosen by the kind
of the word before it, so that the last bytes of a text alone decide which bytes may follow.
"""

import string
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from qlm.domain.byte_tokens import EOS_ID

_MASK: Final = (1 << 64) - 1
_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_SUBSTITUTES: Final = b"etaoinshrdlcumwfgypbvk"
"""Taken in this order in place of forbidden ids."""

_SPACE: Final = 32

_OBJECTS: Final = "request token prompt group answer deadline block batch letter poem song question"

_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "first": "The Each Every This Some One My Your",
        "which": "each every this some my your",
        "kind": "busy calm quick quiet patient clever old new careful modest",
        "subject": "engine agent planner gateway queue server model reader clerk robot teacher writer",
        "verb": "serves answers orders reads moves keeps finds counts sends holds wants likes",
        "what": "a the its another no one",
        "sort": "long short late warm small plain green fine bright simple",
        "object": _OBJECTS,
        "end": _OBJECTS.replace(" ", ". ") + ".",
        "because": "because while before after and until so",
    }
)
"""Words by kind; no word is of two kinds."""

_AFTER: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "": ("first",),
        "first": ("kind", "subject"),
        "which": ("kind", "subject"),
        "kind": ("subject",),
        "subject": ("verb",),
        "verb": ("what",),
        "what": ("sort", "object", "end"),
        "sort": ("object", "end"),
        "object": ("because",),
        "end": ("first",),
        "because": ("which",),
    }
)
"""Kinds of the words that may follow a word of a kind, or the beginning."""

_LETTERS: Final = frozenset((string.ascii_letters + ".").encode())
_UNKNOWN: Final = -1
"""Letters that begin no word."""

TAIL_IDS: Final = 2 * max(len(word) for words in _WORDS.values() for word in words.split()) + 4
"""Ids at the end of a text that decide what may follow it: a word, a blank, and another word that goes on."""


class _Vocabulary:
    """The words as a tree of letters, and for each kind before a word the letters that lead to words."""

    def __init__(self) -> None:
        self.child: dict[int, int] = {}
        self.kind: dict[int, str] = {}
        self.following: dict[tuple[str, int], bytes] = {}
        for kind, words in _WORDS.items():
            for word in words.split():
                *_, last = self._path(word)
                self.kind[last] = kind
        for before, kinds in _AFTER.items():
            for word in (word for kind in kinds for word in _WORDS[kind].split()):
                for node, byte in zip((0, *self._path(word)), (*word.encode(), _SPACE), strict=True):
                    self.following[before, node] = self.following.get((before, node), b"") + bytes((byte,))

    def _path(self, word: str) -> Sequence[int]:
        """Return the node of each letter of a word, made if it is new."""
        path, node = [], 0
        for byte in word.encode():
            node = self.child.setdefault(node << 8 | byte, len(self.child) + 1)
            path.append(node)
        return path


_VOCABULARY: Final = _Vocabulary()
_CHILD: Final = _VOCABULARY.child
_KIND: Final = _VOCABULARY.kind
_FOLLOWING: Final = _VOCABULARY.following
_BLANK: Final = bytes((_SPACE,))


class Sentences:
    """A place in a text."""

    __slots__ = ("_before", "_node")

    def __init__(self, tail: Sequence[int]) -> None:
        """Stand at the end of a text, of which the last `TAIL_IDS` ids are enough."""
        self._before = ""
        # The first of them may be in the middle of a word.
        self._node = _UNKNOWN if len(tail) >= TAIL_IDS else 0
        for token_id in tail[-TAIL_IDS:]:
            self.add(token_id)

    def next_bytes(self) -> bytes:
        """Return the bytes that may follow, each as often as words are reached by it."""
        return _FOLLOWING.get((self._before, self._node), _BLANK)

    def add(self, token_id: int) -> None:
        """Go on to the place after one more id."""
        if token_id in _LETTERS:
            self._node = _CHILD.get(self._node << 8 | token_id, _UNKNOWN)
        else:
            self._before = _KIND.get(self._node, "")
            self._node = 0


def fold(digest: int, token_id: int) -> int:
    """Append one id to a digest: a step of the 64-bit FNV-1a hash, with whole ids in place of bytes."""
    return ((digest ^ (token_id + 1)) * _PRIME) & _MASK


class TokenChain:
    """Sentences, ended by EOS with probability 1/mean at each token."""

    __slots__ = ("_eos_below", "_sentences", "digest")

    def __init__(self, digest: int, token_ids: Sequence[int], mean_output_tokens: float) -> None:
        """Continue after the ids of a digest.

        Args:
            digest: See `digests`.
            token_ids: The ids.
            mean_output_tokens: Average length of an answer, EOS included; 1 or more.
        """
        self.digest = digest
        self._sentences = Sentences(token_ids)
        self._eos_below = int((1 << 24) / mean_output_tokens)

    def next_id(self, forbidden: Iterable[int] = ()) -> int:
        """Return the next token, which depends only on the ids so far and `forbidden`."""
        bits = _mix(self.digest)
        token_id = (
            EOS_ID
            if bits & 0xFFFFFF < self._eos_below and EOS_ID not in forbidden
            else self._byte(bits >> 24)
        )
        if token_id in forbidden:
            token_id = next((byte for byte in _SUBSTITUTES if byte not in forbidden), token_id)
        self._sentences.add(token_id)
        self.digest = fold(self.digest, token_id)
        return token_id

    def _byte(self, bits: int) -> int:
        following = self._sentences.next_bytes()
        return following[bits % len(following)]


_NO_TOKEN: Final = 1 << 32
"""Larger than all ids of tokens: what a digest takes in beside tokens cannot be taken for one."""


def digests(token_ids: Iterable[int], every: int, adapter: str = "") -> list[int]:
    """Return the digests after each `every` ids, and last the digest of all ids.

    The first ones name the full KV blocks of a prompt: equal digests mean equal prefixes under one adapter.
    """
    digest = _OFFSET
    for byte in adapter.encode():
        digest = fold(digest, _NO_TOKEN + byte)
    marks: list[int] = []
    for count, token_id in enumerate(token_ids, 1):
        digest = ((digest ^ (token_id + 1)) * _PRIME) & _MASK  # `fold`, for every prompt token
        if count % every == 0:
            marks.append(digest)
    marks.append(digest)
    return marks


def _mix(bits: int) -> int:
    """Mix a digest over all 64 bits (the finalizer of SplitMix64), since FNV's low bits are weak."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
