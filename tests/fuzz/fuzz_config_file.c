// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for files of options (--config): whatever the file, it is refused with a reason that names it, or what is
 *          read are values of names, each in its line, no name twice but in a list.
 *
 * Design: the first byte chooses whose options are asked for. libyaml is the distribution's; base/options/config_file.c is under test.
 */
#include "base/options/config_file.h"
#include "tests/fuzz/fuzz_folder.h"

#define MOST_NAME 63 // bytes

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Counts the lines, and one more: an error about something missing at the end of a file may name the line after the last.
static int count_lines(const uint8_t *data, size_t size) {
    int n = 2;
    for (size_t i = 0; i < size; i++) { // \r, and what other characters YAML takes for an end of a line, too
        n += data[i] == '\n' || data[i] == '\r' || data[i] >= 0x80;
    }
    return n;
}

static void check_lines(const struct sl_config_file *file, int n_lines) {
    for (size_t i = 0; i < file->n; i++) {
        const struct sl_config_line *line = &file->lines[i];
        require(line->name && line->name[0] && strlen(line->name) <= MOST_NAME && line->value);
        require(line->line >= 1 && line->line <= n_lines && (i == 0 || file->lines[i - 1].line <= line->line));
        // Items of a list follow each other; a name that returns would be one that stands twice.
        bool returns = false;
        for (size_t j = 0; j < i; j++) {
            bool same = file->lines[j].own == line->own && strcmp(file->lines[j].name, line->name) == 0;
            require(!same || j + 1 == i || strcmp(file->lines[j + 1].name, line->name) == 0);
            returns = returns || same;
        }
        require(!returns || strcmp(file->lines[i - 1].name, line->name) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const programs[] = {"sluice run", "sluice-decode", "sluice eval fidelity"};
    char path[512];
    struct sl_config_file file = {0};
    struct sl_error err = {0};
    if (size == 0) {
        return 0;
    }
    fuzz_folder_write("options.yaml", data + 1, size - 1);
    fuzz_folder_path("options.yaml", path, sizeof path);
    const char *program = programs[data[0] % (sizeof programs / sizeof programs[0])];
    if (sl_config_file_read(path, program, &file, &err) == SL_OK) {
        check_lines(&file, count_lines(data + 1, size - 1));
        sl_config_file_cleanup(&file);
    } else {
        require(strstr(err.text, "options.yaml") != NULL && file.lines == NULL);
    }
    fuzz_folder_remove("options.yaml");
    return 0;
}
