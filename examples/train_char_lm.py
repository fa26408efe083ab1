"""Trains a character-level language model on real prose, with the standard library alone.

The text is the Python language reference that every Python ships (`pydoc_data.topics`), or the standard library's own
source where that was left out. The model is a small neural network in the manner of Bengio et al. (2003): the last
characters, each as a learned vector, through one hidden layer, to a probability for every next character. It is
trained by stochastic gradient descent (Adagrad), prints its loss as it goes, writes a checkpoint, and ends with a
sample of what it has learnt to write. Everything is seeded: the same Python gives the same checkpoint.

Environment: STEPS (default 3000), CHECKPOINT (default checkpoint.json.gz in the current directory).
"""

import gzip
import hashlib
import json
import math
import os
import pathlib
import random
import sys
import time
from operator import mul

CONTEXT = 5
EMBEDDING = 6
HIDDEN = 24
BATCH = 8
LEARNING_RATE = 0.12
TEXT_LENGTH = 400_000
REPORTS = 20


def read_text():
    """Real prose, reduced to lower case and single spaces so that a small model has a chance."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        library = pathlib.Path(os.__file__).parent
        source = "the sources of the standard library"
        text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(library.glob("*.py"))[:60])
    else:
        source = "the Python language reference (pydoc_data.topics)"
        text = "\n".join(topics[name] for name in sorted(topics))
    kept = " .,'()\n"
    lower = "".join(c if "a" <= c <= "z" or c in kept else " " for c in text.lower())
    return source, " ".join(lower.split())[:TEXT_LENGTH]


class Model:
    """Weights are lists of rows; `squares` holds Adagrad's sums, in the same shapes."""

    def __init__(self, vocabulary, rng):
        self.vocabulary = vocabulary
        self.embedding = matrix(len(vocabulary), EMBEDDING, 0.3, rng)
        self.hidden = matrix(HIDDEN, CONTEXT * EMBEDDING, 1 / math.sqrt(CONTEXT * EMBEDDING), rng)
        self.hidden_bias = [0.0] * HIDDEN
        self.output = matrix(len(vocabulary), HIDDEN, 1 / math.sqrt(HIDDEN), rng)
        self.output_bias = [0.0] * len(vocabulary)
        self.squares = {name: zeros(value) for name, value in self.weights().items()}

    def weights(self):
        names = ("embedding", "hidden", "hidden_bias", "output", "output_bias")
        return {name: getattr(self, name) for name in names}

    def forward(self, context):
        """Input, hidden activations and the probabilities of the next character."""
        inputs = [value for character in context for value in self.embedding[character]]
        pairs = zip(self.hidden, self.hidden_bias, strict=True)
        active = [math.tanh(sum(map(mul, row, inputs)) + bias) for row, bias in pairs]
        pairs = zip(self.output, self.output_bias, strict=True)
        scores = [sum(map(mul, row, active)) + bias for row, bias in pairs]
        highest = max(scores)
        powers = [math.exp(score - highest) for score in scores]
        total = sum(powers)
        return inputs, active, [power / total for power in powers]

    def loss(self, context, target):
        """Cross-entropy in nats."""
        return -math.log(max(self.forward(context)[2][target], 1e-12))

    def learn(self, context, target):
        """One step of gradient descent on one example; its loss before the step."""
        inputs, active, probabilities = self.forward(context)
        loss = -math.log(max(probabilities[target], 1e-12))
        errors = probabilities
        errors[target] -= 1.0
        back = [0.0] * HIDDEN
        squares, bias_squares = self.squares["output"], self.squares["output_bias"]
        for index, error in enumerate(errors):
            if -1e-4 < error < 1e-4:
                continue
            row = self.output[index]
            back = [b + error * weight for b, weight in zip(back, row, strict=True)]
            descend(row, squares[index], [error * value for value in active])
            bias_squares[index] += error * error
            self.output_bias[index] -= LEARNING_RATE * error / (math.sqrt(bias_squares[index]) + 1e-8)
        slopes = [b * (1 - value * value) for b, value in zip(back, active, strict=True)]
        into = [0.0] * len(inputs)
        squares, bias_squares = self.squares["hidden"], self.squares["hidden_bias"]
        for index, slope in enumerate(slopes):
            row = self.hidden[index]
            into = [i + slope * weight for i, weight in zip(into, row, strict=True)]
            descend(row, squares[index], [slope * value for value in inputs])
            bias_squares[index] += slope * slope
            self.hidden_bias[index] -= LEARNING_RATE * slope / (math.sqrt(bias_squares[index]) + 1e-8)
        squares = self.squares["embedding"]
        for position, character in enumerate(context):
            gradient = into[position * EMBEDDING : (position + 1) * EMBEDDING]
            descend(self.embedding[character], squares[character], gradient)
        return loss

    def write(self, length, rng):
        """Text that the model makes up, character by character."""
        index = {character: number for number, character in enumerate(self.vocabulary)}
        context = [index[" "]] * CONTEXT
        written = []
        for _ in range(length):
            probabilities = self.forward(context)[2]
            sharper = [p**1.4 for p in probabilities]
            character = rng.choices(range(len(sharper)), sharper)[0]
            written.append(self.vocabulary[character])
            context = [*context[1:], character]
        return "".join(written)


def matrix(rows, columns, scale, rng):
    return [[rng.uniform(-scale, scale) for _ in range(columns)] for _ in range(rows)]


def zeros(weights):
    return [zeros(w) if isinstance(w, list) else 0.0 for w in weights]


def descend(row, squares, gradient):
    """Adagrad, in place."""
    for index, slope in enumerate(gradient):
        squares[index] = square = squares[index] + slope * slope
        row[index] -= LEARNING_RATE * slope / (math.sqrt(square) + 1e-8)


def save(model, path, step, loss):
    """The checkpoint's size in bytes and its SHA-256, which depends on the weights alone."""
    content = json.dumps({"step": step, "loss": loss, "vocabulary": model.vocabulary, **model.weights()})
    data = gzip.compress(content.encode(), mtime=0)
    path.write_bytes(data)
    return len(data), hashlib.sha256(data).hexdigest()


def main():
    steps = int(os.environ.get("STEPS", "3000"))
    checkpoint = pathlib.Path(os.environ.get("CHECKPOINT", "checkpoint.json.gz"))
    rng = random.Random(20260)
    source, text = read_text()
    vocabulary = "".join(sorted(set(text)))
    index = {character: number for number, character in enumerate(vocabulary)}
    data = [index[character] for character in text]
    held_out = len(data) * 9 // 10
    model = Model(vocabulary, rng)
    count = sum(len(w) if isinstance(w, list) else 1 for rows in model.weights().values() for w in rows)
    print(f"python {sys.version.split()[0]}: {len(text):,} characters of {source}")
    print(f"{count:,} parameters, {len(vocabulary)} characters, {steps} steps of {BATCH} examples", flush=True)

    def example(low, high):
        start = rng.randrange(low, high - CONTEXT)
        return data[start : start + CONTEXT], data[start + CONTEXT]

    checks = [example(held_out, len(data)) for _ in range(400)]

    def held_out_loss():
        return sum(model.loss(context, target) for context, target in checks) / len(checks)

    began = time.monotonic()
    print(f"step {0:>5}/{steps}  held-out loss {held_out_loss():.4f} nats/character", flush=True)
    every = max(1, steps // REPORTS)
    recent = []
    for step in range(1, steps + 1):
        recent += [model.learn(*example(0, held_out)) for _ in range(BATCH)]
        if step % every == 0 or step == steps:
            mean = sum(recent) / len(recent)
            rate = step * BATCH / (time.monotonic() - began)
            print(f"step {step:>5}/{steps}  loss {mean:.4f}  {rate:,.0f} examples/s", flush=True)
            recent = []
    final = held_out_loss()
    size, digest = save(model, checkpoint, steps, final)
    print(f"trained for {time.monotonic() - began:.1f} s, held-out loss {final:.4f} nats/character")
    print(f"checkpoint {checkpoint}: {size:,} bytes, sha256 {digest}")
    print(f"sample: {model.write(160, rng)}")


if __name__ == "__main__":
    main()
