# SPDX-License-Identifier: Apache-2.0
"""Extracts the text of an office file on standard input, for `sluice doc add`: `python3 -IS -c SCRIPT FORMAT`.

doc_convert.c has this file compiled in, and runs it within limits, for files that no small program of the distribution reads:
presentations and OpenDocument; and for Word's and OpenDocument's texts where pandoc, which does it better, is not installed.

Paragraphs and rows become lines, cells are separated by tabs, slides and tables by an empty line. Deleted text, comments and
speaker's notes are left out.
"""
import os
import sys
import zipfile
from xml.parsers import expat

MOST_BYTES = 256 << 20  # of a file in the archive, unpacked
MOST_BLANKS = 100  # that one tag stands for
EX_DATAERR = 65  # the exit code that tells doc_convert.c that the file is at fault

OFFICE_OPEN = ({"t"}, {"p"}, set())  # names of tags with text, of lines, and of what is left out
OPEN_DOCUMENT = ({"p", "h"}, {"p", "h"}, {"tracked-changes", "annotation", "notes"})


def refuse(why):
    print(why, file=sys.stderr)
    sys.stderr.flush()
    os._exit(EX_DATAERR)


def unpack(archive, path):
    try:
        if archive.getinfo(path).file_size > MOST_BYTES:
            refuse(f"has a {path} of more than {MOST_BYTES >> 20} MiB")
        return archive.read(path)
    except KeyError:
        refuse(f"is damaged: it has no {path}")
    except Exception:  # zipfile raises what its parts raise
        refuse(f"is damaged, or has a password: {path} cannot be read")


def parse(archive, path, start, end=None, text=None):
    """Calls functions with the tags of a file, without their namespaces, and its text."""
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda tag, attributes: start(tag.rpartition(":")[2], attributes)
    parser.EndElementHandler = end and (lambda tag: end(tag.rpartition(":")[2]))
    parser.CharacterDataHandler = text
    parser.EntityDeclHandler = lambda *_: refuse(f"is damaged: {path} defines entities")
    try:
        parser.Parse(unpack(archive, path), True)
    except expat.ExpatError as error:
        refuse(f"is damaged: {path}: {error}")


def count(attributes, name):
    try:
        return min(max(int(attributes.get(name, 1)), 1), MOST_BLANKS)
    except ValueError:
        return 1


class Part:
    """The text of one XML file."""

    def __init__(self, archive, path, rules):
        self.texts, self.lines, self.skipped = rules
        self.out = []
        self.in_text = self.in_cell = self.skipping = 0  # depths
        self.n_tabs = 0  # cells that have ended, before the next text of their row
        self.row_has_text = False
        self.pending = ""  # before the next text: a space, or the ends of lines
        self.opened = None  # attributes of the last tag, as long as it is empty
        parse(archive, path, self.start, self.end, self.text)
        self.out.append("\n")

    def write(self, text):
        self.out.append(self.pending + "\t" * self.n_tabs + text)
        self.pending, self.n_tabs, self.row_has_text = "", 0, True

    def text(self, text):
        self.opened = None
        if self.in_text and not self.skipping:
            self.write(text)

    def break_line(self):
        self.pending = " " if self.in_cell else "\n"

    def start(self, tag, attributes):
        self.opened = attributes
        if self.skipping or tag in self.skipped:
            self.skipping += 1
            return
        self.in_text += tag in self.texts
        if tag == "tab":
            self.write("\t")
        elif tag == "s" and self.in_text:
            self.write(" " * count(attributes, "text:c"))
        elif tag in ("br", "line-break"):
            self.break_line()
        elif tag in ("tc", "table-cell"):
            self.in_cell += 1
        elif tag in ("tr", "table-row"):
            self.row_has_text = False

    def end(self, tag):
        empty, self.opened = self.opened, None
        if self.skipping:
            self.skipping -= 1
            return
        self.in_text -= tag in self.texts
        if tag in self.lines:
            self.break_line()
        elif tag in ("tc", "table-cell", "covered-table-cell"):
            self.in_cell -= tag != "covered-table-cell"
            self.n_tabs += count(empty or {}, "table:number-columns-repeated")
            self.pending = "" if self.pending == " " else self.pending  # of the cell's lines
        elif tag in ("tr", "table-row"):
            self.pending = "\n" if self.row_has_text else self.pending
            self.n_tabs = 0
        elif tag in ("table", "tbl") and self.pending.startswith("\n"):
            self.pending = "\n\n"


def slides(archive):
    """Returns the paths of the slides in the order in which they are shown."""
    ids, targets = [], {}
    parse(archive, "ppt/presentation.xml", lambda tag, attributes: ids.append(attributes.get("r:id", "")) if tag == "sldId" else None)
    parse(archive, "ppt/_rels/presentation.xml.rels", lambda tag, attributes: targets.update({attributes.get("Id"): attributes.get("Target", "")}))
    paths = [targets.get(one, "") for one in ids]
    return [path[1:] if path.startswith("/") else f"ppt/{path}" for path in paths]


def main(kind):
    try:
        archive = zipfile.ZipFile(open(0, "rb", closefd=False))
    except Exception:
        refuse("is damaged: it cannot be read as an archive")
    paths = slides(archive) if kind == "pptx" else ["word/document.xml" if kind == "docx" else "content.xml"]
    for i, path in enumerate(paths):  # one by one: doc_convert.c bounds what is written
        part = "".join(Part(archive, path, OPEN_DOCUMENT if kind == "odf" else OFFICE_OPEN).out)
        sys.stdout.write(part if i == 0 else "\n" + part)


main(sys.argv[1])
