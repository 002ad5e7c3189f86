// SPDX-License-Identifier: Apache-2.0
// Purpose: the table of benchmark tasks. See benchmark.h.
#include "lab/eval/tasks/benchmark.h"

#include <stddef.h>
#include <string.h>

#define LONG     "longbench"
#define INFINITE "infinitebench"
#define RULER    "ruler"

#define ASK(before, after) before "\n\n{context}\n\n" after
#define BRIEFLY                                                                                                        \
    ASK("Read the text below.", "Answer the question from this text, in as few words as possible.\nQuestion: "         \
                                "{input}\nAnswer:")
#define BRIEFLY_ZH ASK("请阅读下文。", "请根据上文简短回答。\n问题：{input}\n回答：")
#define SUMMARY    ASK("Read the text below.", "Summarize this text on one page.\nSummary:")
#define NEXT_LINE  "Write the line of code that comes next.\n"
#define FIND       "{context}\n\n{input}\nAnswer:"
#define AS_GIVEN   "{input}"

// To add one: a row; the name is that of the file that its authors distribute.
static const struct sl_benchmark_task tasks[] = {
    {LONG, "narrativeqa", BRIEFLY, "f1", 128, false},
    {LONG, "qasper",
     ASK("Read the article below.",
         "Answer the question from this article in as few words as possible: yes or no where "
         "that is asked, \"unanswerable\" where the article does not tell.\n"
         "Question: {input}\nAnswer:"),
     "f1", 128, false},
    {LONG, "multifieldqa_en", BRIEFLY, "f1", 64, false},
    {LONG, "multifieldqa_zh", BRIEFLY_ZH, "f1-zh", 64, false},
    {LONG, "hotpotqa", BRIEFLY, "f1", 32, false},
    {LONG, "2wikimqa", BRIEFLY, "f1", 32, false},
    {LONG, "musique", BRIEFLY, "f1", 32, false},
    {LONG, "dureader", BRIEFLY_ZH, "rouge-l-zh", 128, false},
    {LONG, "gov_report", SUMMARY, "rouge-l", 512, false},
    {LONG, "qmsum",
     ASK("Read the transcript below.",
         "Answer from this transcript in one sentence or a few.\nQuestion: {input}\nAnswer:"),
     "rouge-l", 512, false},
    {LONG, "multi_news", SUMMARY, "rouge-l", 512, false},
    {LONG, "vcsum", "{context}\n\n请总结以上会议记录。\n总结：", "rouge-l-zh", 512, false},
    {LONG, "trec", "Name the type of the last question as the examples do.\n\n{context}\n{input}", "classification", 64,
     true},
    {LONG, "triviaqa", "Answer the last question as the examples do.\n\n{context}\n\n{input}", "f1", 32, true},
    {LONG, "samsum", "Summarize the last dialogue as the examples do.\n\n{context}\n\n{input}", "rouge-l", 128, true},
    {LONG, "lsht", "请仿照例子判断最后一条新闻的类别。\n\n{context}\n{input}", "classification", 64, true},
    {LONG, "passage_count",
     ASK("Some of the paragraphs below are copies of others.",
         "How many different paragraphs are there? Give only the number.\nAnswer: "),
     "count", 32, false},
    {LONG, "passage_retrieval_en",
     ASK("Below are numbered paragraphs.",
         "Which of them does this summary belong to?\n\n{input}\n\nAnswer in the form \"Paragraph 1\".\nAnswer: "),
     "paragraph", 32, false},
    {LONG, "passage_retrieval_zh",
     ASK("以下是带编号的段落。", "下面的摘要属于哪一段？\n\n{input}\n\n请按“段落1”的格式回答。\n回答："),
     "paragraph-zh", 32, false},
    {LONG, "lcc", NEXT_LINE "{context}Next line:\n", "edit-similarity", 64, false},
    {LONG, "repobench-p", NEXT_LINE "{context}{input}Next line:\n", "edit-similarity", 64, false},

    {INFINITE, "passkey", FIND, "first-number", 6, false},
    {INFINITE, "number_string", FIND, "first-number", 12, false},
    {INFINITE, "kv_retrieval", "{context}\n\n{input}", "kv", 50, false},
    {INFINITE, "longbook_sum_eng", SUMMARY, "rouge-lsum", 1200, false},
    {INFINITE, "longbook_qa_eng", BRIEFLY, "f1", 40, false},
    {INFINITE, "longbook_qa_chn", BRIEFLY_ZH, "f1-zh", 40, false},
    {INFINITE, "longbook_choice_eng",
     ASK("Read the book below.", "Question: {input}\n{options}\nThe letter of the right answer is"), "choice", 40,
     false},
    {INFINITE, "longdialogue_qa_eng",
     ASK("In the script below one name is hidden as $$MASK$$.", "Whose is it? Give only the name.\nThe name is"),
     "speaker", 40, false},
    {INFINITE, "math_find", FIND, "first-decimal", 3, false},
    {INFINITE, "code_run", FIND, "last-integer", 5, false},
    {INFINITE, "code_debug",
     ASK("One of the functions below has a bug that was put there on purpose.",
         "Which one?\n{options}\nAnswer with the letter and a dot, such as \"B.\".\nAnswer:"),
     "code-choice", 5, false},
    {INFINITE, "math_calc", "it wants 30,000 tokens of intermediate results, which nobody judges reliably", NULL, 0,
     false},

    {RULER, "niah_single_1", AS_GIVEN, "contains-all", 128, false},
    {RULER, "niah_single_2", AS_GIVEN, "contains-all", 128, false},
    {RULER, "niah_single_3", AS_GIVEN, "contains-all", 128, false},
    {RULER, "niah_multikey_1", AS_GIVEN, "contains-all", 128, false},
    {RULER, "niah_multikey_2", AS_GIVEN, "contains-all", 128, false},
    {RULER, "niah_multikey_3", AS_GIVEN, "contains-all", 128, false},
    {RULER, "niah_multivalue", AS_GIVEN, "contains-all", 128, false},
    {RULER, "niah_multiquery", AS_GIVEN, "contains-all", 128, false},
    {RULER, "vt", AS_GIVEN, "contains-all", 30, false},
    {RULER, "cwe", AS_GIVEN, "contains-all", 120, false},
    {RULER, "fwe", AS_GIVEN, "contains-all", 50, false},
    {RULER, "qa_1", AS_GIVEN, "contains-any", 32, false},
    {RULER, "qa_2", AS_GIVEN, "contains-any", 32, false},
};

const struct sl_benchmark_task *sl_benchmark_find(const char *format, const char *name) {
    size_t length = strlen(name);
    if (length > 2 && strcmp(format, LONG) == 0 && strcmp(name + length - 2, "_e") == 0) {
        length -= 2;
    }
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        if (strcmp(tasks[i].format, format) == 0 && strlen(tasks[i].name) == length &&
            memcmp(tasks[i].name, name, length) == 0) {
            return &tasks[i];
        }
    }
    return NULL;
}
