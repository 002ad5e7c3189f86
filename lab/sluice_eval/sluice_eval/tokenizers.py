# SPDX-License-Identifier: Apache-2.0
"""Tokenizers, which decide how long a prompt is, and recipes as a model's tool reads them."""
from __future__ import annotations

import hashlib
import json
import pathlib
import urllib.parse
from typing import Any, Callable, Optional, Protocol

from .errors import RefusedError, UsageError
from .process import SluiceProcess


class Tokenizer(Protocol):
    """Encodes prompts. `fingerprint` identifies the tokenizer; answers to other tokens must not be mixed."""

    fingerprint: str
    max_positions: int  # of the model; 0: unknown

    def encode(self, text: str) -> list[int]:
        """Returns the tokens, with the model's begin token first."""


class SluiceTokenizer:
    """The tokenizer of a model folder, read by `sluice`."""

    def __init__(self, process: SluiceProcess) -> None:
        self._process = process
        self.fingerprint = process.model["tokenizer"]
        self.max_positions = process.model["max_model_len"]

    def encode(self, text: str) -> list[int]:
        reply = self._process.ask({"operation": "tokenize", "prompt": text})
        if "error" in reply:
            raise RefusedError(reply["error"]["message"])
        return reply["tokens"]


class FileTokenizer:
    """A Hugging Face folder's tokenizer.json, read by the package `tokenizers`."""

    def __init__(self, folder: str) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise UsageError("--tokenizer needs the `sluice` tool (--sluice PATH) or the package `tokenizers`") from error
        path = pathlib.Path(folder) / "tokenizer.json"
        try:
            data = path.read_bytes()
            self._tokenizer = tokenizers.Tokenizer.from_str(data.decode())
            config = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--tokenizer {folder}: {error}") from error
        self.fingerprint = hashlib.sha256(data).hexdigest()[:16]
        self.max_positions = int(config.get("max_position_embeddings", 0))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids


class ServerTokenizer:
    """The /tokenize of a vLLM server, beside its /v1."""

    def __init__(self, url: str, model: str, post: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
        parts = urllib.parse.urlsplit(url)
        self._url = urllib.parse.urlunsplit((parts.scheme, parts.netloc, "/tokenize", "", ""))
        self._model, self._post = model, post
        self.fingerprint = "server"
        try:
            self.max_positions = int(self._ask("x").get("max_model_len", 0))
        except RefusedError as error:
            raise UsageError(f"{self._url}: {error}; the server counts no tokens: give --tokenizer DIR") from error

    def _ask(self, text: str) -> dict[str, Any]:
        return self._post(self._url, {"model": self._model, "prompt": text})

    def encode(self, text: str) -> list[int]:
        return self._ask(text)["tokens"]


class Recipes:
    """What a plan must know about its recipes. Without a `sluice` tool a recipe is its own canonical text."""

    def __init__(self, process: Optional[SluiceProcess] = None) -> None:
        self._process = process
        self._known: dict[str, dict[str, Any]] = {}

    def _describe(self, recipe: str) -> dict[str, Any]:
        if self._process is None:
            return {"recipe": recipe, "evicts": False, "names_budget": "budget=" in recipe, "offloads": None}
        if recipe not in self._known:
            self._known[recipe] = self._process.ask({"operation": "recipe", "recipe": recipe})
        return self._known[recipe]

    def canonical(self, recipe: str) -> str:
        described = self._describe(recipe)
        if "error" in described:
            raise UsageError(f"{recipe[:100]}: {described['error']['message']}")
        return described["recipe"]

    def takes_budget(self, recipe: str) -> bool:
        """Returns whether --budget applies: the recipe has {budget}, or evicts and names no budget."""
        if "{budget}" in recipe:
            return True
        described = self._describe(recipe)
        return bool(described.get("evicts")) and not described.get("names_budget")

    def offloads(self, recipe: str) -> Optional[bool]:
        """Returns whether the recipe leaves layers in stores; None: unknown."""
        return self._describe(recipe).get("offloads")

    def presets(self) -> list[str]:
        if self._process is None:
            raise UsageError("--recipe presets needs the `sluice` tool and --tokenizer DIR")
        return self._process.model["presets"]

    def planned_offload(self, recipe: str, n_tokens: int) -> int:
        """Returns the bytes that stores get of a prompt if they have none of it; 0: unknown."""
        if self._process is None:
            return 0
        return self._process.ask({"operation": "recipe", "recipe": recipe, "tokens": n_tokens}).get("offloaded_bytes", 0)
