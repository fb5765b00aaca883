"""The desk model's tokenizer: byte-level BPE in which numbers to 199, and the world's words, are single tokens.

Text is cut into pieces first (a number; a word with its leading space; an operator with both spaces), so a number is
one token wherever it stands. Pieces that the world uses often are tokens of their own (`ignore_merges`); any other
text falls back to bytes, so every text comes back exactly.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIAL = (PAD, START, END)
SIZE = 900
"""Tokens in all: 3 special, 256 bytes, 190 numbers of two and three digits, the rest frequent pieces."""

PIECES = (
    r"\\boxed\{"
    r"|\d+"
    r"| [+*/=-] (?=[\d\\])"
    r"| ?\p{L}+(?: \$?(?=\d)|:?\n|: ?\$?(?=\d)|:)?"
    r"|[^\s\p{L}\d]+(?:\n| (?=\d))?"
    r"|\s+"
)
"""A word or mark takes the space (or " $") before a number with it, so that the number stands bare."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, as Qwen2.5 writes it, without a default system message."""


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Cuts into pieces, then maps bytes to printable characters."""
    cut = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def number_merges() -> list[tuple[str, str]]:
    """Merges that build 10..199 from digits.

    Order matters: 11 first (or "110" would start with "10"), then the other 1x, so that "1ab" starts from its left."""
    tens = [11, *(n for n in range(10, 20) if n != 11), *range(20, 100)]
    pairs = [(str(n)[0], str(n)[1]) for n in tens]
    return pairs + [(str(n)[:2], str(n)[2]) for n in range(100, 200)]


def build(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose free places go to the most frequent pieces of `texts` (ties: alphabetical)."""
    cut, counts = pre_tokenizer(), Counter()
    for text in texts:
        counts.update(piece for piece, _ in cut.pre_tokenize_str(text))
    merges = number_merges()
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    taken = set(words) | set(SPECIAL)
    frequent = sorted((piece for piece in counts if piece not in taken), key=lambda piece: (-counts[piece], piece))
    words = [*SPECIAL, *words, *frequent][:SIZE]
    model = models.BPE({word: i for i, word in enumerate(words)}, merges, ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = cut, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD,
                                   additional_special_tokens=[START], clean_up_tokenization_spaces=False,
                                   model_max_length=512, padding_side="left")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes tokenizer.json and its configuration, the chat template within it."""
    tokenizer.save_pretrained(folder, save_jinja_files=False)
