// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice recipes`: lists presets and axes, recommends a recipe for a number of bytes, and explains a recipe.
#include <limits.h>
#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/commands/commands.h"
#include "client/cli/message_json.h"
#include "client/cli/table.h"
#include "client/cli/tool.h"
#include "engine/compress/recipe/recipe.h"

struct recipes_config {
    struct sl_tool_config tool;
    bool axes, grammar, recommended;
};

static const struct sl_option options[] = {
    {"axes", 0, SL_OPTION_FLAG, NULL, NULL, "show the axes of each preset below it", SL_FIELD(recipes_config, axes)},
    {"grammar", 'g', SL_OPTION_FLAG, NULL, NULL,
     "list every axis with its values, and every score, instead of the presets", SL_FIELD(recipes_config, grammar)},
    {"recommended", 0, SL_OPTION_FLAG, NULL, NULL,
     "list the recipes of `sluice run --ship-at-most` instead of the presets", SL_FIELD(recipes_config, recommended)},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice recipes",
    .usage = "[options] [RECIPE...]",
    .summary = "List the presets, or the axes that recipes are made of, or what is recommended for how many bytes, or "
               "show what recipes mean: their canonical text and fingerprint.",
    .epilog = "A recipe is a preset, axis=value words, or both, separated by commas: "
              "h2o,budget=1024,format=int4\n" SL_EXIT_CODES_HELP,
    .n_arguments_max = INT_MAX,
    SL_OPTIONS(options),
};

static void list_as_json(void) {
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name; preset++) {
        sl_json_print(
            json_pack("{s:s, s:s, s:s}", "name", preset->name, "text", preset->text, "summary", preset->summary),
            JSON_COMPACT, stdout);
    }
}

static void list_grammar_as_json(void) {
    struct sl_axis_help axis;
    for (int i = 0; sl_recipe_axis_help(i, &axis); i++) {
        sl_json_print(json_pack("{s:s, s:s, s:s, s:s}", "axis", axis.name, "values", axis.values, "default", axis.usual,
                                "help", axis.help),
                      JSON_COMPACT, stdout);
    }
    for (int i = 0; i < SL_N_SCORES; i++) {
        const struct sl_score_traits *score = sl_score_get_traits((enum sl_score)i);
        sl_json_print(json_pack("{s:s, s:s}", "score", score->name, "help", score->help), JSON_COMPACT, stdout);
    }
}

static void list_grammar(void) {
    static const struct sl_column axes[] = {{"AXIS", false}, {"DEFAULT", false}, {"VALUES", false}};
    static const struct sl_column scores[] = {{"SCORE", false}, {"RANKS BY", false}};
    struct sl_axis_help axis;
    struct sl_table table = SL_TABLE(axes);
    for (int i = 0; sl_recipe_axis_help(i, &axis); i++) {
        sl_table_add(&table, "%s\t%s\t%s\t\t\t  %s", axis.name, axis.usual, axis.values, axis.help);
    }
    sl_table_finish(&table, stdout);
    putchar('\n');
    table = SL_TABLE(scores);
    for (int i = 0; i < SL_N_SCORES; i++) {
        sl_table_add(&table, "%s\t%s", sl_score_get_traits((enum sl_score)i)->name,
                     sl_score_get_traits((enum sl_score)i)->help);
    }
    sl_table_finish(&table, stdout);
}

static void list_recommendations(bool later, bool as_json) {
    const struct sl_column columns[] = {{"SHIPS AT MOST", true},
                                        {later ? "READ ONCE, ASK OFTEN" : "THE QUESTION IS IN THE PROMPT", false},
                                        {"NEEDS", false}};
    struct sl_table table = SL_TABLE(columns);
    for (const struct sl_recommendation *r = sl_recipe_recommendations(later); r->recipe; r++) {
        char needs[SL_CAUTION_BYTES];
        sl_recommendation_needs(r, needs);
        if (as_json) {
            sl_json_print(json_pack("{s:f, s:s, s:b, s:b, s:s}", "ships_at_most", r->share, "recipe", r->recipe,
                                    "later_questions", later, "needs_retaining_heads", r->needs_heads, "needs", needs),
                          JSON_COMPACT, stdout);
        } else {
            sl_table_add(&table, "%.0f%%\t%s\t%s", 100 * r->share, r->recipe, needs);
        }
    }
    if (!as_json) {
        sl_table_finish(&table, stdout);
    }
}

// Lists presets in two columns: with the axes, rows would be wider than most terminals.
static void list_presets(bool with_axes) {
    static const struct sl_column columns[] = {{"PRESET", false}, {"SUMMARY", false}};
    struct sl_table table = SL_TABLE(columns);
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name; preset++) {
        sl_table_add(&table, "%s\t%s", preset->name, preset->summary);
        if (with_axes) {
            sl_table_add(&table, "\t%s", preset->text);
        }
    }
    sl_table_finish(&table, stdout);
}

// Returns the recipe that a preset's name stands for; NULL for any other recipe, whose text is complete.
static const char *preset_text(const char *name) {
    for (const struct sl_preset *preset = sl_recipe_presets(); preset->name; preset++) {
        if (strcmp(preset->name, name) == 0) {
            return preset->text;
        }
    }
    return NULL;
}

static enum sl_status explain(const char *text, bool as_json, struct sl_error *err) {
    struct sl_recipe recipe;
    SL_TRY(sl_recipe_parse(text, &recipe, err));
    char canonical[SL_RECIPE_TEXT_BYTES], fingerprint[24];
    sl_recipe_format(&recipe, canonical, sizeof canonical);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, sl_recipe_fingerprint(&recipe));
    if (as_json) {
        sl_json_print(json_pack("{s:s, s:s, s:s}", "recipe", text, "text", canonical, "fingerprint", fingerprint),
                      JSON_COMPACT, stdout);
    } else {
        const char *axes = preset_text(canonical);
        printf("%s  %s%s%s\n", fingerprint, canonical, axes ? ": " : "", axes ? axes : "");
    }
    return SL_OK;
}

static enum sl_status show(void *arg, struct sl_error *err) {
    const struct recipes_config *config = arg;
    bool json = config->tool.json;
    for (int i = 0; i < config->tool.n_arguments; i++) {
        SL_TRY(explain(config->tool.arguments[i], json, err));
    }
    if (config->tool.n_arguments > 0) {
        return SL_OK;
    }
    if (config->recommended) {
        list_recommendations(false, json);
        fputs(json ? "" : "\n", stdout);
        list_recommendations(true, json);
    } else if (config->grammar) {
        json ? list_grammar_as_json() : list_grammar();
    } else {
        json ? list_as_json() : list_presets(config->axes);
    }
    return SL_OK;
}

SL_COMMAND_RUN(sl_command_recipes, recipes_config, program, show)
