#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what a document file holds, and checks its digests (docs/CAPSULE.md has the format).

    read_document.py FILE [--text]      --text: print the text and nothing else

Exit codes: 0 whole, 1 damaged, edited or cut short, 2 no document, or of another version.
"""
import hashlib
import struct
import sys

VERSION = 2  # with the offloaded layers of a document; without, 1
FIXED = struct.Struct("<8sIIQQQQQII32s32s")
SEGMENT_BYTES = 88  # of a segment's head, which ends with the bytes of its pages
CHAT, HAS_TEXT = 1, 2
BLOCK = 1 << 20


class Refused(Exception):
    def __init__(self, code, why):
        super().__init__(why)
        self.code = code


class Reader:
    """Reads a file part by part. After each part stands the SHA-256 of all bytes before it."""

    def __init__(self, file):
        self.file, self.sha = file, hashlib.sha256()

    def take(self, n, part):
        """Yields the n bytes of a part, in blocks."""
        while n > 0:
            block = self.file.read(min(n, BLOCK))
            if not block:
                raise Refused(1, f"cut short: it ends in its {part}")
            self.sha.update(block)
            n -= len(block)
            yield block

    def end(self, part):
        expected = self.sha.digest()
        if b"".join(self.take(32, part)) != expected:
            raise Refused(1, f"damaged or edited: its {part} fails its digest")


def read(path):
    """Returns the fields of the head, and the text or None. Raises Refused."""
    with open(path, "rb") as file:
        reader = Reader(file)
        fixed = b"".join(reader.take(FIXED.size, "head"))
        (magic, version, flags, model, tokens, text_bytes, header_bytes, body_bytes, recipe_bytes, _, text_sha256,
         tokens_sha256) = FIXED.unpack(fixed)
        if magic != b"SLUICEDC":
            raise Refused(2, "not a document")
        if not 1 <= version <= VERSION:
            raise Refused(2, f"version {version} of document files; this program reads 1 to {VERSION}")
        layers_bytes = struct.unpack("<Q", b"".join(reader.take(8, "head")))[0] if version > 1 else 0
        recipe = b"".join(reader.take(recipe_bytes, "head"))
        reader.end("head")
        text = None
        if flags & HAS_TEXT:
            text = b"".join(reader.take(text_bytes, "text"))
            reader.end("text")
            if hashlib.sha256(text).digest() != text_sha256:
                raise Refused(1, "damaged or edited: its text is not the one of its head")
        for n, part in ((header_bytes, "capsule header"), (body_bytes, "capsule body")):
            for _ in reader.take(n, part):
                pass
            reader.end(part)
        segments, left = 0, layers_bytes
        while left > 0:
            head = b"".join(reader.take(SEGMENT_BYTES, "segment head"))
            reader.end("segment head")
            pages = int.from_bytes(head[-8:], "little")
            left -= SEGMENT_BYTES + 32 + pages + 32
            if pages < 1 or left < 0:
                raise Refused(1, f"damaged: a segment with {pages} bytes of pages in {layers_bytes} bytes of offloaded layers")
            for _ in reader.take(pages, "segment pages"):
                pass
            reader.end("segment pages")
            segments += 1
        if file.read(1):
            raise Refused(1, "damaged: bytes follow its end")
    return {"version": version, "model": f"{model:016x}", "recipe": recipe.decode(), "read as": "a user's message" if flags & CHAT else "text",
            "tokens": tokens, "text": f"{text_bytes} bytes" + ("" if text is not None else ", not in the file"), "sha256": text_sha256.hex(),
            "token ids": tokens_sha256.hex(), "capsule header": f"{header_bytes} bytes", "capsule body": f"{body_bytes} bytes",
            "layers": f"{layers_bytes} bytes, {segments} segments"}, text


def main(arguments):
    if "--help" in arguments or "-h" in arguments:
        print(__doc__.strip())
        return 0
    paths = [word for word in arguments if not word.startswith("--")]
    if len(paths) != 1 or set(arguments) - {paths[0], "--text"}:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        fields, text = read(paths[0])
    except (Refused, OSError) as error:
        print(f"{paths[0]}: {error}", file=sys.stderr)
        return getattr(error, "code", 2)
    if "--text" in arguments:
        sys.stdout.buffer.write(text or b"")
        return 0
    for name, value in fields.items():
        print(f"{name:<15} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
