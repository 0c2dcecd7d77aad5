"""The ``Trainer`` of Hugging Face with a custom loss, exact under gradient accumulation and on several processes.

A small transformer, built from a configuration without a download, reads lines of Python code as characters and labels
each one as part of a space, a name, an operator, a number, a string or a comment. Names are frequent, numbers rare.
Lines are padded to the same length; padding has the label -100 and is ignored.

``compute_loss_func`` sets the loss. The trainer passes the number of labels of an optimiser step, over all its batches
and all processes, as ``num_items_in_batch``. With this number as ``normalizer`` the gradient equals that of a single
large batch, although the batches have different numbers of labels. ``LossSchedule`` moves gamma from 2 to 0.

    python examples/hugging_face.py
    python examples/hugging_face.py --steps 300
    torchrun --nproc-per-node 2 examples/hugging_face.py --batch-size 4 --accumulate 4
"""

from __future__ import annotations

import argparse
import inspect
import io
import textwrap
import tokenize
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments, set_seed

import equipoise
from equipoise.integrations.transformers import LossSchedule
from equipoise.metrics import Accuracy
from equipoise.schedules import Linear
from equipoise.weights import square_root

KINDS = ("space", "name", "operator", "number", "string", "comment")
TOKENS = {tokenize.NAME: 1, tokenize.OP: 2, tokenize.NUMBER: 3, tokenize.STRING: 4, tokenize.COMMENT: 5}
PADDING, IGNORED = 0, -100


def lines_of(module: ModuleType) -> list[dict[str, list[int]]]:
    """Each line of code of a module: its characters and the kind of each."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    kinds = [[0] * len(line) for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (row, start), (last_row, end) = token.start, token.end
        if token.type in TOKENS and row == last_row:
            kinds[row - 1][start:end] = [TOKENS[token.type]] * (end - start)
    return [
        {"input_ids": [min(ord(letter), 127) for letter in line], "labels": kind}
        for line, kind in zip(lines, kinds, strict=True)
        if any(kind)
    ]


def collate(lines: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """A batch of lines, padded to the longest one."""
    letters = pad_sequence([torch.tensor(line["input_ids"]) for line in lines], True, PADDING)
    labels = pad_sequence([torch.tensor(line["labels"]) for line in lines], True, IGNORED)
    return {"input_ids": letters, "attention_mask": (letters != PADDING).long(), "labels": labels}


def main() -> None:
    """Train on one module of the standard library, test on another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of the optimiser")
    parser.add_argument("--batch-size", type=int, default=8, help="lines of a process at a time")
    parser.add_argument("--accumulate", type=int, default=2, help="batches of a step")
    parser.add_argument("--out", default="runs/hugging_face", help="folder for checkpoints")
    options = parser.parse_args()

    set_seed(0)
    train, test = lines_of(argparse), lines_of(textwrap)
    counts = torch.bincount(torch.cat([torch.tensor(line["labels"]) for line in train]), minlength=len(KINDS))
    model = BertForTokenClassification(
        BertConfig(
            vocab_size=128,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=len(KINDS),
        )
    )
    loss = equipoise.FocalLoss(Linear(2.0, 0.0), weight=square_root(counts), reduction="valid_mean")  # (1)

    def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:  # noqa: ANN401
        return loss(outputs.logits.transpose(1, 2), labels, normalizer=num_items_in_batch)  # (2) classes in dimension 1

    def compute_metrics(predictions: Any) -> dict[str, float]:  # noqa: ANN401
        logits, labels = torch.from_numpy(predictions.predictions), torch.from_numpy(predictions.label_ids)
        scores = Accuracy(len(KINDS), top_k=(1,))(logits[labels != IGNORED], labels[labels != IGNORED])
        return dict(zip(KINDS, scores["per_class"].tolist(), strict=True))

    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=options.out,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=64,
            gradient_accumulation_steps=options.accumulate,
            learning_rate=3e-3,
            max_grad_norm=0.0,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            use_cpu=not torch.cuda.is_available(),  # required to connect processes on CPUs
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
        ),
        data_collator=collate,
        train_dataset=train,
        eval_dataset=test,
        compute_loss_func=compute_loss,
        compute_metrics=compute_metrics,
        callbacks=[LossSchedule(loss, every="step")],  # (3)
    )
    trainer.train()
    scores = trainer.evaluate()
    if trainer.is_world_process_zero():
        print("characters that are recognised:", *(f"{kind} {scores[f'eval_{kind}']:.1%}" for kind in KINDS))


if __name__ == "__main__":
    main()
