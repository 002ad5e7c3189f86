// SPDX-License-Identifier: Apache-2.0
#include "base/options/describe.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/options/environment.h"

bool sl_describe_asked(int argc, char **argv) {
    return argc == 2 && strcmp(argv[1], SL_DESCRIBE) == 0;
}

static void print(json_t *object) {
    json_dumpf(object, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(object);
}

static json_t *describe_option(const struct sl_program *program, const struct sl_option *option) {
    char variable[64];
    bool is_list = option->type == SL_OPTION_LIST;
    bool has_variable = !is_list && sl_environment_takes(program->name, option->name);
    sl_environment_name(option->name, variable, sizeof variable);
    char letter[2] = {option->letter, '\0'};
    bool has_default = option->type != SL_OPTION_FLAG && option->default_value;
    return json_pack("{s:s, s:s, s:s*, s:s, s:s, s:b, s:s*}", "name", option->name, "letter", letter, "metavar",
                     option->metavar, "default", has_default ? option->default_value : "", "help", option->help, "list",
                     is_list, "variable", has_variable ? variable : NULL);
}

void sl_describe_program(const struct sl_program *program) {
    json_t *options = json_array();
    for (size_t i = 0; i < program->n_options; i++) {
        json_array_append_new(options, describe_option(program, &program->options[i]));
    }
    print(json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", program->name, "usage", program->usage, "summary",
                    program->summary, "epilog", program->epilog ? program->epilog : "", "options", options));
}

void sl_describe_commands(const char *name, const char *summary, const struct sl_subcommand *list, size_t n) {
    json_t *commands = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(commands, json_pack("{s:s, s:s}", "name", list[i].name, "summary", list[i].summary));
    }
    print(json_pack("{s:s, s:s, s:o}", "name", name, "summary", summary, "commands", commands));
}
