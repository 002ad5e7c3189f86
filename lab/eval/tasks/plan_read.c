// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: plans from JSON files. See plan.h.
 *
 * Design: a function says what is wrong with its own value; whoever walks a list puts the place in front, and in front of
 *         all stands the file: "plan.json: recipes[2]: there is no member "recpe"; did you mean "recipe"?".
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lab/eval/tasks/benchmark.h"
#include "lab/eval/tasks/nearest.h"
#include "lab/eval/tasks/plan.h"

#define MAX_PLAN_BYTES (16 << 20)

// --- values ------------------------------------------------------------------------------------------------------

// members: NULL-terminated.
static enum sl_status check_members(json_t *object, const char *const *members, struct sl_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        struct sl_nearest nearest = {.wanted = key};
        const char *const *member = members;
        while (*member && strcmp(*member, key) != 0) {
            sl_nearest_consider(&nearest, *member++);
        }
        if (!*member) {
            return sl_nearest_fail(&nearest, "member", err);
        }
    }
    return SL_OK;
}

static enum sl_status get_text(json_t *object, const char *name, bool required, const char **text_out,
                               struct sl_error *err) {
    json_t *value = json_object_get(object, name);
    if (value && !(json_is_string(value) && json_string_length(value) > 0)) {
        return sl_fail(err, SL_ERR_INVALID, "\"%s\" must be a text", name);
    }
    if (!value && required) {
        return sl_fail(err, SL_ERR_INVALID, "there is no \"%s\"", name);
    }
    *text_out = json_string_value(value);
    return SL_OK;
}

static enum sl_status get_integer(json_t *object, const char *name, int64_t least, int64_t most, int64_t *inout,
                                  struct sl_error *err) {
    json_t *value = json_object_get(object, name);
    if (!value) {
        return SL_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < least || json_integer_value(value) > most) {
        return sl_fail(err, SL_ERR_INVALID, "\"%s\" must be an integer from %" PRId64 " to %" PRId64, name, least,
                       most);
    }
    *inout = json_integer_value(value);
    return SL_OK;
}

static enum sl_status get_number(json_t *object, const char *name, double *inout, struct sl_error *err) {
    json_t *value = json_object_get(object, name);
    if (value && !json_is_number(value)) {
        return sl_fail(err, SL_ERR_INVALID, "\"%s\" must be a number", name);
    }
    *inout = value ? json_number_value(value) : *inout;
    return SL_OK;
}

// A list; NULL where there is none.
static enum sl_status get_list(json_t *object, const char *name, json_t **list_out, struct sl_error *err) {
    json_t *value = json_object_get(object, name);
    if (value && (!json_is_array(value) || json_array_size(value) == 0)) {
        return sl_fail(err, SL_ERR_INVALID, "\"%s\" must be a list of one or more", name);
    }
    *list_out = value;
    return SL_OK;
}

struct reading {
    const char *data_dir;
    struct sl_eval_plan *plan;
    struct sl_error *err;
    json_t *root;
};

// Every element of a list, if there is one; what fails is told where it stands.
static enum sl_status each(const struct reading *reading, const char *name,
                           enum sl_status (*read)(const struct reading *, json_t *)) {
    json_t *list, *element;
    size_t i;
    enum sl_status status = get_list(reading->root, name, &list, reading->err);
    if (status != SL_OK || !list) {
        return status;
    }
    json_array_foreach(list, i, element) {
        status = read(reading, element);
        if (status != SL_OK) {
            char where[64];
            snprintf(where, sizeof where, "%s[%zu]", name, i);
            sl_error_prefix(reading->err, where);
            return status;
        }
    }
    return SL_OK;
}

// --- recipes -----------------------------------------------------------------------------------------------------

static enum sl_status add_recipe_at(const struct reading *reading, const char *name, const char *recipe,
                                    json_t *budget) {
    char text[32];
    if (json_is_string(budget)) {
        return sl_eval_plan_add_recipe(reading->plan, name, json_string_value(budget), recipe, reading->err);
    }
    if (!json_is_number(budget)) {
        return sl_fail(reading->err, SL_ERR_INVALID, "a budget must be a number or a text such as \"5%%\"");
    }
    snprintf(text, sizeof text, "%.12g", json_number_value(budget));
    return sl_eval_plan_add_recipe(reading->plan, name, text, recipe, reading->err);
}

static enum sl_status read_recipe(const struct reading *reading, json_t *element) {
    static const char *const members[] = {"name", "recipe", "budgets", NULL};
    const char *name = json_string_value(element), *recipe = name;
    json_t *budgets = NULL, *budget;
    enum sl_status status = SL_OK;
    if (json_is_object(element)) {
        status = check_members(element, members, reading->err);
        if (status == SL_OK) {
            status = get_text(element, "recipe", true, &recipe, reading->err);
        }
        if (status == SL_OK) {
            status = get_text(element, "name", false, &name, reading->err);
        }
        if (status == SL_OK) {
            status = get_list(element, "budgets", &budgets, reading->err);
        }
        name = name ? name : recipe;
    } else if (!name) {
        status =
            sl_fail(reading->err, SL_ERR_INVALID, "a recipe must be a text or {\"name\", \"recipe\", \"budgets\"}");
    }
    if (status != SL_OK) {
        return status;
    }
    if (!budgets && !strstr(recipe, "{budget}")) {
        return sl_eval_plan_add_recipe(reading->plan, name, "", recipe, reading->err);
    }
    budgets = budgets ? budgets : json_object_get(reading->root, "budgets");
    if (!json_is_array(budgets) || json_array_size(budgets) == 0) {
        return sl_fail(reading->err, SL_ERR_INVALID,
                       "recipe %.64s has a place for {budget}, and there are no \"budgets\"", name);
    }
    size_t i;
    json_array_foreach(budgets, i, budget) {
        status = add_recipe_at(reading, name, recipe, budget);
        if (status != SL_OK) {
            return status;
        }
    }
    return SL_OK;
}

// --- cells -------------------------------------------------------------------------------------------------------

static enum sl_status add_depths(const struct reading *reading, const struct sl_task *task, int64_t n_tokens,
                                 int64_t n_samples) {
    json_t *depths, *depth;
    enum sl_status status = get_list(reading->root, "depths", &depths, reading->err);
    if (status != SL_OK) {
        return status;
    }
    if (!depths) {
        return sl_eval_plan_add_task(reading->plan, task, n_tokens, -1, n_samples, reading->err);
    }
    size_t i;
    json_array_foreach(depths, i, depth) {
        if (!json_is_number(depth) || json_number_value(depth) < 0) {
            return sl_fail(reading->err, SL_ERR_INVALID, "\"depths\" must be numbers from 0 to 1");
        }
        status =
            sl_eval_plan_add_task(reading->plan, task, n_tokens, json_number_value(depth), n_samples, reading->err);
        if (status != SL_OK) {
            return status;
        }
    }
    return SL_OK;
}

static enum sl_status read_task(const struct reading *reading, json_t *element) {
    int64_t n_samples = 20;
    json_t *lengths, *length;
    if (!json_is_string(element)) {
        return sl_fail(reading->err, SL_ERR_INVALID, "a task must be a text");
    }
    const struct sl_task *task = sl_task_find(json_string_value(element));
    if (!task) {
        struct sl_nearest nearest = {.wanted = json_string_value(element)};
        for (task = sl_tasks(); task->name; task++) {
            sl_nearest_consider(&nearest, task->name);
        }
        return sl_nearest_fail(&nearest, "task", reading->err);
    }
    enum sl_status status = get_integer(reading->root, "samples", 1, 1000000, &n_samples, reading->err);
    if (status == SL_OK) {
        status = get_list(reading->root, "lengths", &lengths, reading->err);
    }
    if (status == SL_OK && !lengths) {
        status = sl_fail(reading->err, SL_ERR_INVALID, "tasks need \"lengths\": how many tokens their prompts have");
    }
    size_t i;
    if (status == SL_OK) {
        json_array_foreach(lengths, i, length) {
            if (!json_is_integer(length)) {
                return sl_fail(reading->err, SL_ERR_INVALID, "\"lengths\" must be integers: tokens");
            }
            status = add_depths(reading, task, json_integer_value(length), n_samples);
            if (status != SL_OK) {
                return status;
            }
        }
    }
    return status;
}

// "longbench/hotpotqa" as format and name, which is a task of the benchmark.
static enum sl_status split_dataset(const char *text, char *format, size_t format_bytes, const char **name_out,
                                    struct sl_error *err) {
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : 0;
    if (n == 0 || n >= format_bytes) {
        return sl_fail(err, SL_ERR_INVALID, "\"%.64s\" is not of the form FORMAT/NAME", text);
    }
    memcpy(format, text, n);
    format[n] = '\0';
    if (!sl_benchmark_find(format, slash + 1)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "%.64s is not a task that we know; write {\"name\", \"format\", \"file\", \"metric\", ...}",
                       text);
    }
    *name_out = slash + 1;
    return SL_OK;
}

static enum sl_status get_bool(json_t *object, const char *name, bool *inout, struct sl_error *err) {
    json_t *value = json_object_get(object, name);
    if (value && !json_is_boolean(value)) {
        return sl_fail(err, SL_ERR_INVALID, "\"%s\" must be true or false", name);
    }
    *inout = value ? json_is_true(value) : *inout;
    return SL_OK;
}

static enum sl_status read_dataset_members(json_t *element, struct sl_dataset_config *config, struct sl_error *err) {
    static const char *const members[] = {"name",           "format",  "file",       "prompt", "metric",
                                          "max_new_tokens", "samples", "first_line", NULL};
    const struct {
        const char *name;
        bool required;
        const char **to;
    } texts[] = {{"name", true, &config->name},      {"format", true, &config->format},  {"file", false, &config->path},
                 {"prompt", false, &config->prompt}, {"metric", false, &config->metric}, {NULL, false, NULL}};
    int64_t max_new_tokens = 0;
    enum sl_status status = check_members(element, members, err);
    for (size_t i = 0; status == SL_OK && texts[i].name; i++) {
        status = get_text(element, texts[i].name, texts[i].required, texts[i].to, err);
    }
    if (status == SL_OK) {
        status = get_integer(element, "max_new_tokens", 1, 1 << 20, &max_new_tokens, err);
    }
    if (status == SL_OK) {
        status = get_integer(element, "samples", 1, INT64_MAX, &config->max_samples, err);
    }
    if (status == SL_OK) {
        status = get_bool(element, "first_line", &config->first_line, err);
    }
    config->max_new_tokens = (int)max_new_tokens;
    return status;
}

// Below the folder of data, unless the file's path is absolute. The caller frees it.
static char *data_path(const char *data_dir, const struct sl_dataset_config *config) {
    char *path = NULL;
    int n;
    if (!config->path) {
        n = asprintf(&path, "%s/%s/%s.jsonl", data_dir, config->format, config->name);
    } else if (config->path[0] == '/') {
        n = asprintf(&path, "%s", config->path);
    } else {
        n = asprintf(&path, "%s/%s", data_dir, config->path);
    }
    return n < 0 ? NULL : path;
}

static enum sl_status read_dataset(const struct reading *reading, json_t *element) {
    struct sl_dataset_config config = {0};
    char format[32];
    enum sl_status status;
    if (json_is_string(element)) {
        status = split_dataset(json_string_value(element), format, sizeof format, &config.name, reading->err);
        config.format = format;
    } else if (json_is_object(element)) {
        status = read_dataset_members(element, &config, reading->err);
    } else {
        status = sl_fail(reading->err, SL_ERR_INVALID, "a data set must be a text or {\"name\", \"format\", ...}");
    }
    if (status != SL_OK) {
        return status;
    }
    char *path = data_path(reading->data_dir, &config);
    if (!path) {
        return sl_fail(reading->err, SL_ERR_EXHAUSTED, "no memory for a path");
    }
    config.path = path;
    status = sl_eval_plan_add_dataset(reading->plan, &config, reading->err);
    free(path);
    return status;
}

// --- claims ------------------------------------------------------------------------------------------------------

static enum sl_status copy(const char *text, char **copy_out, struct sl_error *err) {
    *copy_out = strdup(text);
    return *copy_out ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a plan");
}

static enum sl_status get_recipe_name(const struct reading *reading, json_t *element, const char *member,
                                      char **name_out) {
    const char *name;
    enum sl_status status = get_text(element, member, true, &name, reading->err);
    if (status != SL_OK) {
        return status;
    }
    struct sl_nearest nearest = {.wanted = name};
    for (size_t i = 0; i < reading->plan->n_recipes; i++) {
        if (strcmp(reading->plan->recipes[i].name, name) == 0) {
            return copy(name, name_out, reading->err);
        }
        sl_nearest_consider(&nearest, reading->plan->recipes[i].name);
    }
    return sl_nearest_fail(&nearest, "recipe", reading->err);
}

static enum sl_status read_claim_tasks(const struct reading *reading, json_t *element, struct sl_plan_claim *claim) {
    json_t *tasks, *task;
    enum sl_status status = get_list(element, "tasks", &tasks, reading->err);
    if (status != SL_OK || !tasks) {
        return status;
    }
    claim->tasks = calloc(json_array_size(tasks), sizeof *claim->tasks);
    if (!claim->tasks) {
        return sl_fail(reading->err, SL_ERR_EXHAUSTED, "no memory for a claim");
    }
    size_t i;
    json_array_foreach(tasks, i, task) {
        struct sl_nearest nearest = {.wanted = json_is_string(task) ? json_string_value(task) : ""};
        size_t c = 0;
        while (c < reading->plan->n_cells && strcmp(reading->plan->cells[c].name, nearest.wanted) != 0) {
            sl_nearest_consider(&nearest, reading->plan->cells[c++].name);
        }
        if (c == reading->plan->n_cells) {
            return sl_nearest_fail(&nearest, "task or data set", reading->err);
        }
        status = copy(nearest.wanted, &claim->tasks[claim->n_tasks], reading->err);
        if (status != SL_OK) {
            return status;
        }
        claim->n_tasks++;
    }
    return SL_OK;
}

static enum sl_status read_needs(const struct reading *reading, json_t *element, struct sl_plan_claim *claim) {
    static const char *const members[] = {"recipe", "least", NULL};
    json_t *needs = json_object_get(element, "needs");
    const char *recipe;
    if (!needs) {
        return SL_OK;
    }
    if (!json_is_object(needs)) {
        return sl_fail(reading->err, SL_ERR_INVALID, "\"needs\" must be {\"recipe\": \"full\", \"least\": SCORE}");
    }
    enum sl_status status = check_members(needs, members, reading->err);
    if (status == SL_OK) {
        status = get_text(needs, "recipe", true, &recipe, reading->err);
    }
    if (status == SL_OK && strcmp(recipe, "full") != 0) {
        status = sl_fail(reading->err, SL_ERR_INVALID, "a claim can need something of \"full\" alone");
    }
    if (status == SL_OK) {
        status = get_number(needs, "least", &claim->needs_least, reading->err);
    }
    if (status == SL_OK && !(claim->needs_least > 0 && claim->needs_least <= 1)) {
        status = sl_fail(reading->err, SL_ERR_INVALID, "\"least\" must be a score above 0, of at most 1");
    }
    return status;
}

static enum sl_status read_claim(const struct reading *reading, json_t *element) {
    static const char *const members[] = {"paper", "text", "better", "worse", "by", "tasks", "needs", NULL};
    struct sl_eval_plan *plan = reading->plan;
    struct sl_plan_claim *more = realloc(plan->claims, (plan->n_claims + 1) * sizeof *more);
    if (!more) {
        return sl_fail(reading->err, SL_ERR_EXHAUSTED, "no memory for a claim");
    }
    plan->claims = more;
    struct sl_plan_claim *claim = &more[plan->n_claims++]; // from here on the plan's, finished or not
    *claim = (struct sl_plan_claim){0};
    const char *paper = NULL, *text = NULL;
    if (!json_is_object(element)) {
        return sl_fail(reading->err, SL_ERR_INVALID,
                       "a claim must be {\"paper\", \"text\", \"better\", \"worse\", ...}");
    }
    enum sl_status status = check_members(element, members, reading->err);
    if (status == SL_OK) {
        status = get_text(element, "paper", true, &paper, reading->err);
    }
    if (status == SL_OK) {
        status = get_text(element, "text", true, &text, reading->err);
    }
    if (status == SL_OK) {
        status = copy(paper, &claim->paper, reading->err);
    }
    if (status == SL_OK) {
        status = copy(text, &claim->text, reading->err);
    }
    if (status == SL_OK) {
        status = get_recipe_name(reading, element, "better", &claim->better);
    }
    if (status == SL_OK) {
        status = get_recipe_name(reading, element, "worse", &claim->worse);
    }
    if (status == SL_OK) {
        status = get_number(element, "by", &claim->by, reading->err);
    }
    if (status == SL_OK) {
        status = read_claim_tasks(reading, element, claim);
    }
    return status == SL_OK ? read_needs(reading, element, claim) : status;
}

// --- the file ----------------------------------------------------------------------------------------------------

static enum sl_status read_root(const struct reading *reading) {
    static const char *const members[] = {"title",  "budgets", "recipes", "tasks",    "lengths",
                                          "depths", "samples", "seed",    "datasets", "max_prompt_tokens",
                                          "claims", NULL};
    const char *title = NULL;
    int64_t seed = 1;
    json_t *budgets;
    struct sl_eval_plan *plan = reading->plan;
    enum sl_status status = check_members(reading->root, members, reading->err);
    if (status == SL_OK) {
        status = get_text(reading->root, "title", true, &title, reading->err);
    }
    if (status == SL_OK) {
        status = copy(title, &plan->title, reading->err);
    }
    if (status == SL_OK) {
        status = get_integer(reading->root, "seed", 0, INT64_MAX, &seed, reading->err);
    }
    if (status == SL_OK) {
        status = get_integer(reading->root, "max_prompt_tokens", 1, SL_TASK_MAX_TOKENS, &plan->max_prompt_tokens,
                             reading->err);
    }
    if (status == SL_OK) {
        status = get_list(reading->root, "budgets", &budgets, reading->err);
    }
    plan->seed = (uint64_t)seed;
    if (status == SL_OK) {
        status = each(reading, "recipes", read_recipe);
    }
    if (status == SL_OK) {
        status = sl_eval_plan_put_full_first(plan, reading->err);
    }
    if (status == SL_OK) {
        status = each(reading, "tasks", read_task);
    }
    if (status == SL_OK) {
        status = each(reading, "datasets", read_dataset);
    }
    if (status == SL_OK && plan->n_cells == 0) {
        status = sl_fail(reading->err, SL_ERR_INVALID, "there is nothing to ask: give \"tasks\" or \"datasets\"");
    }
    return status == SL_OK ? each(reading, "claims", read_claim) : status;
}

static enum sl_status load(const char *path, json_t **root_out, struct sl_error *err) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    char *text = malloc(MAX_PLAN_BYTES + 1);
    size_t n_bytes = text ? fread(text, 1, MAX_PLAN_BYTES + 1, file) : 0;
    int error = ferror(file) ? errno : 0;
    fclose(file);
    json_error_t cause = {0};
    enum sl_status status = SL_OK;
    if (!text) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %s", path);
    } else if (error) {
        status = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(error));
    } else if (n_bytes > MAX_PLAN_BYTES) {
        status = sl_fail(err, SL_ERR_INVALID, "%s: a plan has at most %d MiB", path, MAX_PLAN_BYTES >> 20);
    } else {
        *root_out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &cause);
        if (!*root_out) {
            status = sl_fail(err, SL_ERR_INVALID, "%s:%d: %s", path, cause.line, cause.text);
        }
    }
    free(text);
    return status;
}

enum sl_status sl_eval_plan_read(const char *path, const char *data_dir, struct sl_eval_plan *plan_out,
                                 struct sl_error *err) {
    json_t *root = NULL;
    enum sl_status status = load(path, &root, err);
    if (status != SL_OK) {
        return status;
    }
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash > path ? (size_t)(slash - path) : 1) : strdup(".");
    struct sl_eval_plan plan = {0};
    struct reading reading = {.data_dir = data_dir ? data_dir : folder, .plan = &plan, .err = err, .root = root};
    if (!folder) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a plan");
    } else if (!json_is_object(root)) {
        status = sl_fail(err, SL_ERR_INVALID, "a plan must be a JSON object: {...}");
    } else {
        status = read_root(&reading);
    }
    if (status == SL_OK) {
        *plan_out = plan;
    } else {
        sl_error_prefix(err, path);
        sl_eval_plan_cleanup(&plan);
    }
    free(folder);
    json_decref(root);
    return status;
}
