"""Trains the tokenizer of the presets and writes it to models/tokenizer/.

    python -m hybridcache.experiments.train_tokenizer

A byte-level BPE of 4,096 tokens over generated text (tokenizer_text.py): the same file for the same version
of the `tokenizers` package. Run it again only to change the tokenizer: the presets' cached folders then get
a new key, and every recorded token id is void.
"""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path

from hybridcache.experiments.tokenizer_text import training_text
from hybridcache.models.chat_tokens import SPECIAL_TOKENS, TOKENIZER_FOLDER, VOCAB_SIZE


def train_tokenizer() -> str:
    """The trained tokenizer as the JSON text of a tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    # Without spaces the file is half as large.
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"


def main(folder: Path = TOKENIZER_FOLDER) -> int:
    """Writes `folder`/tokenizer.json; the other files there are written by hand."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(train_tokenizer(), encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} B, {VOCAB_SIZE:,} tokens")
    return 0


if __name__ == "__main__":
    ArgumentParser(prog="python -m hybridcache.experiments.train_tokenizer", description=__doc__).parse_args()
    sys.exit(main())
