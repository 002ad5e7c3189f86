# SPDX-License-Identifier: Apache-2.0
"""The tasks of published benchmarks: the prompt of each, the length of its answer, and its metric.

Prompts are our own and short; a plan can contain a benchmark's original prompt. Metrics and lengths are those of its
authors.
"""
from __future__ import annotations

import dataclasses
from typing import Optional


@dataclasses.dataclass(frozen=True)
class BenchmarkTask:
    prompt: str  # {context}, {input} and {options} are replaced
    metric: Optional[str]  # None: unsupported; `prompt` has the reason
    max_new_tokens: int
    first_line: bool = False


def _ask(before: str, after: str) -> str:
    return f"{before}\n\n{{context}}\n\n{after}"


_BRIEFLY = _ask("Read the text below.",
                "Answer the question from this text, in as few words as possible.\nQuestion: {input}\nAnswer:")
_BRIEFLY_ZH = _ask("请阅读下文。", "请根据上文简短回答。\n问题：{input}\n回答：")
_SUMMARY = _ask("Read the text below.", "Summarize this text on one page.\nSummary:")
_NEXT_LINE = "Write the line of code that comes next.\n"
_FIND = "{context}\n\n{input}\nAnswer:"
_AS_GIVEN = "{input}"

# To add one: a row; the name is that of the file that its authors distribute.
_TASKS = {
    ("longbench", "narrativeqa"): BenchmarkTask(_BRIEFLY, "f1", 128),
    ("longbench", "qasper"): BenchmarkTask(
        _ask("Read the article below.", "Answer the question from this article in as few words as possible: yes or no where that is "
             "asked, \"unanswerable\" where the article does not tell.\n"
             "Question: {input}\nAnswer:"),
        "f1", 128),
    ("longbench", "multifieldqa_en"): BenchmarkTask(_BRIEFLY, "f1", 64),
    ("longbench", "multifieldqa_zh"): BenchmarkTask(_BRIEFLY_ZH, "f1-zh", 64),
    ("longbench", "hotpotqa"): BenchmarkTask(_BRIEFLY, "f1", 32),
    ("longbench", "2wikimqa"): BenchmarkTask(_BRIEFLY, "f1", 32),
    ("longbench", "musique"): BenchmarkTask(_BRIEFLY, "f1", 32),
    ("longbench", "dureader"): BenchmarkTask(_BRIEFLY_ZH, "rouge-l-zh", 128),
    ("longbench", "gov_report"): BenchmarkTask(_SUMMARY, "rouge-l", 512),
    ("longbench", "qmsum"): BenchmarkTask(
        _ask("Read the transcript below.", "Answer from this transcript in one sentence or a few.\nQuestion: {input}\nAnswer:"),
        "rouge-l", 512),
    ("longbench", "multi_news"): BenchmarkTask(_SUMMARY, "rouge-l", 512),
    ("longbench", "vcsum"): BenchmarkTask("{context}\n\n请总结以上会议记录。\n总结：", "rouge-l-zh", 512),
    ("longbench", "trec"): BenchmarkTask(
        "Name the type of the last question as the examples do.\n\n{context}\n{input}",
        "classification", 64, True),
    ("longbench", "triviaqa"): BenchmarkTask(
        "Answer the last question as the examples do.\n\n{context}\n\n{input}",
        "f1", 32, True),
    ("longbench", "samsum"): BenchmarkTask(
        "Summarize the last dialogue as the examples do.\n\n{context}\n\n{input}",
        "rouge-l", 128, True),
    ("longbench", "lsht"): BenchmarkTask("请仿照例子判断最后一条新闻的类别。\n\n{context}\n{input}", "classification", 64, True),
    ("longbench", "passage_count"): BenchmarkTask(
        _ask("Some of the paragraphs below are copies of others.", "How many different paragraphs are there? Give only the number.\nAnswer: "),
        "count", 32),
    ("longbench", "passage_retrieval_en"): BenchmarkTask(
        _ask("Below are numbered paragraphs.", "Which of them does this summary belong to?\n\n{input}\n\nAnswer in the form \"Paragraph 1\".\nAnswer: "),
        "paragraph", 32),
    ("longbench", "passage_retrieval_zh"): BenchmarkTask(
        _ask("以下是带编号的段落。", "下面的摘要属于哪一段？\n\n{input}\n\n请按“段落1”的格式回答。\n回答："),
        "paragraph-zh", 32),
    ("longbench", "lcc"): BenchmarkTask(_NEXT_LINE + "{context}Next line:\n", "edit-similarity", 64),
    ("longbench", "repobench-p"): BenchmarkTask(_NEXT_LINE + "{context}{input}Next line:\n", "edit-similarity", 64),
    ("infinitebench", "passkey"): BenchmarkTask(_FIND, "first-number", 6),
    ("infinitebench", "number_string"): BenchmarkTask(_FIND, "first-number", 12),
    ("infinitebench", "kv_retrieval"): BenchmarkTask("{context}\n\n{input}", "kv", 50),
    ("infinitebench", "longbook_sum_eng"): BenchmarkTask(_SUMMARY, "rouge-lsum", 1200),
    ("infinitebench", "longbook_qa_eng"): BenchmarkTask(_BRIEFLY, "f1", 40),
    ("infinitebench", "longbook_qa_chn"): BenchmarkTask(_BRIEFLY_ZH, "f1-zh", 40),
    ("infinitebench", "longbook_choice_eng"): BenchmarkTask(
        _ask("Read the book below.", "Question: {input}\n{options}\nThe letter of the right answer is"),
        "choice", 40),
    ("infinitebench", "longdialogue_qa_eng"): BenchmarkTask(
        _ask("In the script below one name is hidden as $$MASK$$.", "Whose is it? Give only the name.\nThe name is"),
        "speaker", 40),
    ("infinitebench", "math_find"): BenchmarkTask(_FIND, "first-decimal", 3),
    ("infinitebench", "code_run"): BenchmarkTask(_FIND, "last-integer", 5),
    ("infinitebench", "code_debug"): BenchmarkTask(
        _ask("One of the functions below has a bug that was put there on purpose.", "Which one?\n{options}\nAnswer with the letter and a dot, such as \"B.\".\nAnswer:"),
        "code-choice", 5),
    ("infinitebench", "math_calc"): BenchmarkTask(
        "it wants 30,000 tokens of intermediate results, which nobody judges reliably",
        None, 0),
    ("ruler", "niah_single_1"): BenchmarkTask(_AS_GIVEN, "contains-all", 128),
    ("ruler", "niah_single_2"): BenchmarkTask(_AS_GIVEN, "contains-all", 128),
    ("ruler", "niah_single_3"): BenchmarkTask(_AS_GIVEN, "contains-all", 128),
    ("ruler", "niah_multikey_1"): BenchmarkTask(_AS_GIVEN, "contains-all", 128),
    ("ruler", "niah_multikey_2"): BenchmarkTask(_AS_GIVEN, "contains-all", 128),
    ("ruler", "niah_multikey_3"): BenchmarkTask(_AS_GIVEN, "contains-all", 128),
    ("ruler", "niah_multivalue"): BenchmarkTask(_AS_GIVEN, "contains-all", 128),
    ("ruler", "niah_multiquery"): BenchmarkTask(_AS_GIVEN, "contains-all", 128),
    ("ruler", "vt"): BenchmarkTask(_AS_GIVEN, "contains-all", 30),
    ("ruler", "cwe"): BenchmarkTask(_AS_GIVEN, "contains-all", 120),
    ("ruler", "fwe"): BenchmarkTask(_AS_GIVEN, "contains-all", 50),
    ("ruler", "qa_1"): BenchmarkTask(_AS_GIVEN, "contains-any", 32),
    ("ruler", "qa_2"): BenchmarkTask(_AS_GIVEN, "contains-any", 32),
}


def find_benchmark(format_name: str, name: str) -> Optional[BenchmarkTask]:
    """Returns a task; None if there is none. A name that ends in "_e" (LongBench-E) means the task without it."""
    if format_name == "longbench" and len(name) > 2:
        name = name.removesuffix("_e")
    return _TASKS.get((format_name, name))
