// SPDX-License-Identifier: Apache-2.0
/*
 * Design: the models' own tokenizer.json define the steps; GGUF keeps only a name for them.
 *
 * To add a name: a line below, with the steps of the tokenizer.json of a model that has it.
 */
#include "engine/model/gguf/pretokenizers.h"

#include <string.h>

#define BYTES_ALONE  "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define GPT2         "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"
#define SPLIT(regex) "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"Isolated\"}"
#define STEPS(steps) "{\"type\": \"Sequence\", \"pretokenizers\": [" steps "]}"

// Cuts words, numbers of up to three digits or one, signs, white space.
#define WORDS(digits)                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits                                     \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
// Cuts the same way, and also cuts words where a capital follows a small letter.
#define UPPER  "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER  "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define REST   "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define TEKKEN UPPER "*" LOWER "+|" UPPER "+" LOWER "*|\\\\p{N}" REST
#define SHORT  "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define GPT4O  UPPER "*" LOWER "+" SHORT "|" UPPER "+" LOWER "*" SHORT "|\\\\p{N}{1,3}" REST

static const struct sl_pretokenizer_name names[] = {
    {" gpt-2 gpt2 phi-2 mpt olmo jais ", NULL, GPT2, false, false},
    {" llama-bpe llama3 llama-v3 falcon3 pixtral ", NULL, STEPS(SPLIT(WORDS("\\\\p{N}{1,3}")) ", " BYTES_ALONE), true,
     true},
    {" smaug-bpe dbrx ", NULL, STEPS(SPLIT(WORDS("\\\\p{N}{1,3}")) ", " BYTES_ALONE), false, false},
    {" qwen2 deepseek-r1-qwen megrez ", "{\"type\": \"NFC\"}", STEPS(SPLIT(WORDS("\\\\p{N}")) ", " BYTES_ALONE), false,
     false},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b ", NULL,
     STEPS("{\"type\": \"Digits\", \"individual_digits\": true}, " GPT2), false, false},
    {" falcon ", NULL,
     STEPS("{\"type\": \"Punctuation\", \"behavior\": \"Contiguous\"}, " GPT2
           ", {\"type\": \"Digits\", \"individual_digits\": false}, " SPLIT("[0-9][0-9][0-9]")),
     false, false},
    {" tekken ", NULL, STEPS(SPLIT(TEKKEN) ", " BYTES_ALONE), true, true},
    {" gpt-4o llama4 ", NULL, STEPS(SPLIT(GPT4O) ", " BYTES_ALONE), false, false},
};

const struct sl_pretokenizer_name *sl_pretokenizer_of_name(struct sl_gguf_text name) {
    char padded[64];
    if (name.n_bytes + 3 > sizeof padded) {
        return NULL;
    }
    padded[0] = ' ';
    if (name.n_bytes > 0) {
        memcpy(padded + 1, name.at, name.n_bytes);
    }
    padded[1 + name.n_bytes] = ' ';
    padded[2 + name.n_bytes] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(padded) == name.n_bytes + 2 && strstr(names[i].names, padded) != NULL) {
            return &names[i];
        }
    }
    return NULL;
}
