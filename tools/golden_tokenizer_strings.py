# SPDX-License-Identifier: Apache-2.0
"""Difficult strings, and steps of pipelines, that the recorders of golden tokenizer data share."""
import unicodedata

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

HAND_WRITTEN = [
    "", " ", "  ", "\n", "\r\n", "\t", "\0", "a\0b", "\0\0\0", "a", " a", "a ", "Hello, world!", "don't we'll I'M they'Re it'S",
    "'s't're've'm'll'd", "'S'T'RE'VE'M'LL'D", "'\u017f", "it'\u017f fine", "3.14159 1,000,000 0x7fff",
    "The code of blue-fox is 48213.", "def f(x):\n    return x ** 2\n\n\n", "  leading", "trailing  ", "a  b   c    d",
    "line one\nline two\r\nline three\rline four", "\n\n\n\n", " \n \n ", "\t\tindented\t\n\t", "...!!!???", "a.b.c", "a_b__c___d",
    "http://example.com/a?b=c&d=e#f", "user@example.com", "$100.00 + 20% = \u20ac120", "\"quoted\" 'single' `back`", "\\n\\t\\0",
    # combining marks, in and out of canonical order
    "e\u0301", "\u00e9", "a\u0323\u0302", "a\u0302\u0323", "\u1ead", "\u0301", "\u0301\u0301\u0301", "A\u030a", "\u212b", "\u01d5",
    "\u1f82", "q\u0307\u0323", "q\u0323\u0307", "\u0344", "\u0958", "\u2126", "\ufb01", "\ufb06", "\uac00", "\u1100\u1161",
    "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0f71\u0f72\u0f74", "\u0340\u0341", "a\u0315\u0300\u05ae\u0062", "\U0001d15e",
    # emoji: ZWJ sequences, skin tones, flags, keycaps
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
    "1\ufe0f\u20e3", "\u2764\ufe0f", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    # right to left, and marks that steer it
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "abc \u202eדגהו\u202c xyz", "\u200f\u200e\u2066x\u2069", "\u05d1\u05bc\u05b0\u05e8\u05b5\u05d0\u05e9\u05c1\u05b4\u05d9\u05ea",
    # next to the surrogates, the ends of the planes and other borders of UTF-8
    "\ud7ff", "\ue000", "\ud7ff\ue000", "\uffff", "\ufffe", "\ufffd", "\U00010000", "\U0010ffff", "\U0001ffff", "\x7f\x80\u07ff\u0800", "\ufeffbom",
    # white space of every kind
    "a\u00a0b", "a\u1680b", "a\u180eb", "a\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200ab", "a\u2028b\u2029c", "a\u202fb",
    "a\u205fb", "a\u3000b", "a\u200bb", "a\u0085b", "a\x0bb\x0cc", "a\x1cb\x1dc\x1ed\x1fe", " \u00a0 x", "\u3000\u3000\u3000", "\u180e\u180e x", "x \u2003\n y",
    # digits and numbers of other scripts
    "\u0661\u0662\u0663", "\u0967\u0968\u0969", "\uff11\uff12\uff13", "\u2160\u2161\u2162", "\u00bd\u00b2\u00b3", "\u3220\u3007\u4e00", "\U0001d7d8\U0001d7d9", "\u0be7\u0bf0", "12\u066334",
    # scripts
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8", "\u4e2d\u6587\u5206\u8bcd\u6d4b\u8bd5\u3002", "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u0939\u093f\u0928\u094d\u0926\u0940 \u092a\u093e\u0920",
    "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442", "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac", "\u12a0\u121b\u122d\u129b", "\U00020000\U0002a6d6", "\U00010330\U00010331", "na\u00efve caf\u00e9 \u00fcber Stra\u00dfe",
    # added tokens and what looks like them
    "<|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n", "a<|endoftext|>b", "a <|im_end|> b", "<|endoftext|><|endoftext|>", "<|endoftext|", "|endoftext|>",
    "<<|im_end|>>", "<|IM_END|>", "<| im_end |>", "<|im_<|im_end|>end|>", "<|im_start|", "<|im_start<|im_start|>", "\uff5cim_end|>", "<|im_end|\u0301>", "e<|im_end|>\u0301", "<|",
    "x\u0301<|im_end|>\u0301y",
]


def runs():
    for unit, n in [("a", 5000), (" ", 3000), ("\n", 1000), ("\u00e9", 700), ("\u0301", 900), ("e\u0301\u0323", 400), ("\U0001f600", 300), ("0", 1000), ("ab", 2000),
                    (" a", 1000), ("\r\n", 500), ("!", 2000), ("the ", 500), ("\u65e5", 300), ("\0", 500), ("<|im_end|>", 50), ("<|", 400), ("\t ", 300), ("__", 1500)]:
        yield unit * n
    for n in list(range(1, 40)) + [63, 64, 65, 127, 128, 129, 255, 256, 257]:
        yield "a" * n
        yield " " * n
        yield " " * n + "x"
        yield "_" * n
    marks = [chr(c) for c in range(0x300, 0x36f) if unicodedata.category(chr(c)) == "Mn"]
    for n in (2, 5, 31, 32, 33, 100):
        yield "o" + "".join(marks[i * 7 % len(marks)] for i in range(n)) + "z"


def random_texts(rng, n):
    known = [c for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    alphabets = [
        list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ      .,'\n0123456789"),
        list(" \t\n\r\x0b\x0c\u0085\u00a0\u1680\u2003\u2028\u2029\u3000\u180e\u200bax1!"),
        list("<|>im_startendofx "),
        [chr(c) for c in range(0x20, 0x250)],
        [chr(c) for c in range(0x300, 0x345)] + list("aeoiuyAEOnc"),
        [chr(c) for c in known if c < 0x3100],
        [chr(c) for c in known],
        list("'sStTrReEvVmMlLdD \u017f"),
        [chr(c) for c in range(0x1100, 0x1200)] + [chr(c) for c in range(0xac00, 0xac40)],
        list("(){}[];:=+-*/&|!~^%#@\\\"'`,.<>?_ \n\t") + list("xyzif0"),
    ]
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(1, 3)):
            alphabet = rng.choice(alphabets)
            parts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 24))))
            if rng.random() < 0.1:
                parts.append(rng.choice(SPECIALS))
        yield "".join(parts)


def byte_level(**changes):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False, **changes}


def added(id, content, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False, **flags}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
