"""Losses on tokens: translation with padding, and the confidence of beam search.

A small transformer learns to write English numbers in German, where the ones precede the tens: "two hundred forty
three" is "zwei hundert drei und vierzig", or "zwei hundert und drei und vierzig", which one third of the writers prefer
and which cannot be predicted. It is trained on 150 numbers, with cross-entropy and with focal loss of gamma 1, which
Mukhoti et al. (2020, section 5.2) used for translation. For each loss, the example prints on other numbers:

* the calibration error of the tokens, before and after a temperature fitted on validation sentences,
* how many sentences greedy search and beam search translate correctly, and the mean probability they assign to them.

Losses, metrics and fits take logits (N, C, length) and targets (N, length); ``ignore_index=PAD`` ignores padding.

    python examples/sequence_to_sequence.py
    python examples/sequence_to_sequence.py --sentences 1000 --steps 1500
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import Tensor, nn

import equipoise
from equipoise.calibration import fit_temperature
from equipoise.metrics import CalibrationError

PAD, START, END = 0, 1, 2
LONGEST = 10  # tokens of a sentence, START and END included

ONES, TENS, EINER, ZEHNER = (
    ["", *line.split()]
    for line in (
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
        " eighteen nineteen",
        "ten twenty thirty forty fifty sixty seventy eighty ninety",
        "ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn"
        " achtzehn neunzehn",
        "zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    )
)
ENGLISH = ["<pad>", "<start>", "<end>", *ONES[1:], *TENS[2:], "hundred", "thousand"]
GERMAN = ["<pad>", "<start>", "<end>", *EINER[1:], *ZEHNER[2:], "und", "hundert", "tausend"]


# --------------------------------------------------------------------------------------------------------------- data


def digits(number: int) -> tuple[int, int, int, int]:
    """Thousands, hundreds, tens and ones, where ten to nineteen count as ones."""
    thousands, hundreds, below = number // 1000, number // 100 % 10, number % 100
    return (thousands, hundreds, *divmod(below, 10)) if below >= 20 else (thousands, hundreds, 0, below)


def english(number: int) -> list[str]:
    """The words of a number from 1 to 9,999."""
    thousands, hundreds, tens, ones = digits(number)
    words = [ONES[thousands], "thousand"] if thousands else []
    words += [ONES[hundreds], "hundred"] if hundreds else []
    return [*words, *filter(None, [TENS[tens], ONES[ones]])]


def german(number: int, more_und: bool) -> list[str]:
    """The same in German, with or without an "und" behind the hundreds."""
    thousands, hundreds, tens, ones = digits(number)
    words = [EINER[thousands], "tausend"] if thousands else []
    words += [EINER[hundreds], "hundert"] if hundreds else []
    words += ["und"] if more_und and words and (tens or ones) else []
    return [*words, *filter(None, [EINER[ones], "und" if tens and ones else "", ZEHNER[tens]])]


def encode(sentences: list[list[str]], vocabulary: list[str]) -> Tensor:
    """Token numbers (N, LONGEST), each row START, the words, END and padding."""
    rows = [[START, *map(vocabulary.index, words), END] for words in sentences]
    return torch.tensor([row + [PAD] * (LONGEST - len(row)) for row in rows])


def make_sentences(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """English and German sentences (count, LONGEST) of numbers that are all different."""
    draw = random.Random(seed)
    numbers: list[int] = []
    while len(numbers) < count:
        number = draw.randrange(1, 10 ** draw.randint(2, 4))
        numbers += [number] if number not in numbers else []
    translations = [german(number, more_und=draw.random() < 1 / 3) for number in numbers]
    return encode([english(number) for number in numbers], ENGLISH), encode(translations, GERMAN)


# -------------------------------------------------------------------------------------------------------------- model


class Translator(nn.Module):
    """A transformer from English tokens to logits of the next German token."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.english, self.german = nn.Embedding(len(ENGLISH), width), nn.Embedding(len(GERMAN), width)
        self.places = nn.Parameter(0.1 * torch.randn(LONGEST, width))
        options = {"dim_feedforward": 2 * width, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, **options), 1, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, 4, **options), 1)
        self.logits = nn.Linear(width, len(GERMAN))

    def encode(self, source: Tensor) -> Tensor:
        """Encoder output for ``source`` (N, L)."""
        return self.encoder(self.english(source) + self.places, src_key_padding_mask=source == PAD)

    def decode(self, memory: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Logits (N, C, L) of the tokens that follow each of ``target`` (N, L)."""
        length = target.shape[1]
        states = self.decoder(
            self.german(target) + self.places[:length],
            memory,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length),
            tgt_is_causal=True,
            memory_key_padding_mask=source == PAD,
        )
        return self.logits(states).transpose(1, 2)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (N, C, L) of the tokens that follow each of ``target`` (N, L)."""
        return self.decode(self.encode(source), source, target)


def train(loss: nn.Module, source: Tensor, target: Tensor, *, steps: int, seed: int = 0) -> Translator:
    """A translator trained with ``loss``, which ignores padding."""
    torch.manual_seed(seed)
    model = Translator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(source), (32,))
        optimizer.zero_grad()
        loss(model(source[rows], target[rows, :-1]), target[rows, 1:]).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


# ------------------------------------------------------------------------------------------------------------- search


@torch.no_grad()
def search(model: Translator, source: Tensor, *, beams: int, temperature: float) -> tuple[Tensor, Tensor]:
    """The most probable translations, (N, LONGEST), and the probability of each, (N,).

    One beam is greedy search.
    """
    count, classes = len(source), len(GERMAN)
    source = source.repeat_interleave(beams, 0)
    memory = model.encode(source)
    tokens = torch.full((count, beams, 1), START)
    scores = torch.full((count, beams), -torch.inf)
    scores[:, 0] = 0.0  # all beams start equal, so one of them is enough
    only_padding = torch.full((classes,), -torch.inf)
    only_padding[PAD] = 0.0
    for _ in range(LONGEST - 1):
        logits = model.decode(memory, source, tokens.flatten(0, 1))[:, :, -1] / temperature
        log_probs = logits.log_softmax(1).view(count, beams, classes)
        ended = (tokens[:, :, -1] == END) | (tokens[:, :, -1] == PAD)
        log_probs = torch.where(ended.unsqueeze(2), only_padding, log_probs)
        scores, best = (scores.unsqueeze(2) + log_probs).flatten(1).topk(beams)
        beam, word = best // classes, best % classes
        kept = tokens.gather(1, beam.unsqueeze(2).expand_as(tokens))
        tokens = torch.cat([kept, word.unsqueeze(2)], dim=2)
    return tokens[:, 0], scores[:, 0].exp()


@torch.no_grad()
def report(name: str, model: Translator, val: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
    """Print the calibration of the tokens, and the results and confidence of each search."""
    fitted = fit_temperature(model(val[0], val[1][:, :-1]), val[1][:, 1:], ignore_index=PAD)
    logits, targets = model(test[0], test[1][:, :-1]), test[1][:, 1:]
    ece = CalibrationError(bins=15, ignore_index=PAD)
    before, after = ece(logits, targets), ece(fitted(logits), targets)
    print(f"{name}: ECE of the tokens {before:.2%}, with temperature {fitted.temperature:.2f} {after:.2%}")
    for beams in (1, 4):
        for temperature in (1.0, fitted.temperature):
            predicted, sure = search(model, test[0], beams=beams, temperature=temperature)
            right = (predicted == test[1]).all(1).float().mean()
            print(f"  beams {beams}, temperature {temperature:.2f}: {right:.1%} right, {sure.mean():.1%} expected")


def main() -> None:
    """Train with both losses and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=150, help="training sentences")
    parser.add_argument("--steps", type=int, default=300, help="training steps for each loss")
    options = parser.parse_args()
    source, target = make_sentences(options.sentences + 500, seed=0)
    n = options.sentences
    val, test = (source[n : n + 250], target[n : n + 250]), (source[n + 250 :], target[n + 250 :])
    losses = {
        "cross-entropy": equipoise.CrossEntropyLoss(ignore_index=PAD),
        "focal, gamma 1": equipoise.FocalLoss(gamma=1.0, ignore_index=PAD),
    }
    for name, loss in losses.items():
        report(name, train(loss, source[:n], target[:n], steps=options.steps), val, test)


if __name__ == "__main__":
    main()
